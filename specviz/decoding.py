"""Speculative decoding: draft, verify, accept, resample, until every row has ended.

One loop, and the four ways into it: speculate(), autoregress(), rounds() and, in streaming.py, stream(). A round itself
is in steps.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch

from specviz.drafters.protocol import Drafter
from specviz.models.protocol import LanguageModel
from specviz.randomness import Randomness
from specviz.recording import build_trace
from specviz.rules import Rule
from specviz.sampling import SamplingParams
from specviz.settings import Settings
from specviz.steps import State, check, decode_round, prefill
from specviz.trace import Round, Trace


def decode(state: State) -> Iterator[list[Round | None]]:
    """The loop: round after round, until every row has ended. Yields commit()'s Rounds.

    A custom round (decode_round=) runs outside torch.inference_mode(), so that the tensors it keeps stay usable in
    autograd. It must commit one round and return commit()'s Rounds.
    """
    own = state.settings.decode_round
    while None in state.finish:
        if own is None or own is decode_round:
            with torch.inference_mode():  # without autograd's bookkeeping a call costs a fifth less
                done = decode_round(state)
        else:
            before = state.round
            done = own(state)
            if not isinstance(done, list) or state.round != before + 1:
                raise ValueError(
                    f"decode_round returned {done!r} after {state.round - before} commits: must commit one round "
                    "and return commit()'s Rounds, one for each row."
                )
        yield done


def speculate(
    target: LanguageModel,
    drafter: Drafter | LanguageModel,
    prompt: str | Sequence,
    *,
    gamma: int = 4,
    max_new_tokens: int = 64,
    sampling: SamplingParams | None = None,
    seed: int | None = None,
    randomness: Randomness | None = None,
    eos: int | Iterable[int] | None = None,
    stop: str | Sequence[str] | None = None,
    record: Literal["top", "full", "none"] = "top",
    rule: str | Rule = "standard",
    decode_round: Callable[[State], list[Round | None]] | None = None,
    on_round: Callable[[Round | list[Round | None]], object] | None = None,
) -> Trace | list[Trace]:
    """Speculative decoding of one prompt (-> Trace) or a list of prompts (-> list of Traces).

    The text follows the target's distribution exactly, whatever the drafter (Leviathan et al. 2023, appendix A.1);
    with temperature 0 it is the target's greedy text.

    target          the language model whose text is wanted: load_pair() gives one, CausalLM(model, tokenizer) wraps one
    drafter         proposes tokens: a smaller language model, PromptLookup(), LayerSkip(2), …
    prompt          text, token ids, chat messages ([{"role": …, "content": …}, …]), or a list of any for a batch;
                    an encoder-decoder reads it as its source
    gamma           drafts a round, at least 1
    max_new_tokens  exact, unless EOS, a stop string or the target's context ends the text before
    sampling        SamplingParams(temperature=…, top_k=…, top_p=…); by default temperature 1
    seed            an integer; None draws a fresh one, which the Trace records
    randomness      in place of seed: Seeded, Scripted, or a branch of Exhaustive
    eos             id or ids that end a text, in place of the target's
    stop            a string, or strings, that end a text
    record          "top": keep the 8 largest probabilities of each distribution; "full": all; "none": no
                    distributions and no uniforms (fastest)
    rule            how drafts are judged: "standard" is the paper's Algorithm 1; or a specviz.rules.Rule
    decode_round    your own sequence of draft(), target_forward(), verify() and commit() in place of a round, to be
                    judged by specviz.equivalence
    on_round        called with each round's Round (for a batch a list of them, None for ended rows); when it returns
                    True, or on KeyboardInterrupt, decoding ends as "interrupted" and keeps the committed tokens

    Raises ValueError, before any forward pass, naming the argument, its value and the remedy; FloatingPointError when
    a model returns NaN, and ValueError when a draft has q(x) = 0, naming the model, row and round.
    """
    if drafter is None:
        raise ValueError("drafter=None: speculate needs a drafter; autoregress decodes without one.")
    settings = Settings(
        gamma=gamma, max_new_tokens=max_new_tokens, sampling=sampling, seed=seed, randomness=randomness, eos=eos,
        stop=stop, record=record, rule=rule, decode_round=decode_round,
    )  # fmt: skip
    return _traces(target, drafter, prompt, settings, on_round)


def autoregress(
    target: LanguageModel,
    prompt: str | Sequence,
    *,
    max_new_tokens: int = 64,
    sampling: SamplingParams | None = None,
    seed: int | None = None,
    randomness: Randomness | None = None,
    eos: int | Iterable[int] | None = None,
    stop: str | Sequence[str] | None = None,
    record: Literal["top", "full", "none"] = "top",
    decode_round: Callable[[State], list[Round | None]] | None = None,
    on_round: Callable[[Round | list[Round | None]], object] | None = None,
) -> Trace | list[Trace]:
    """Plain decoding, one token a round: the same loop with nothing drafted. The arguments are speculate()'s."""
    settings = Settings(
        max_new_tokens=max_new_tokens, sampling=sampling, seed=seed, randomness=randomness, eos=eos, stop=stop,
        record=record, decode_round=decode_round,
    )  # fmt: skip
    return _traces(target, None, prompt, settings, on_round)


def rounds(
    target: LanguageModel,
    drafter: Drafter | LanguageModel | None,
    prompt: str | Sequence,
    *,
    gamma: int = 4,
    max_new_tokens: int = 64,
    sampling: SamplingParams | None = None,
    seed: int | None = None,
    randomness: Randomness | None = None,
    eos: int | Iterable[int] | None = None,
    stop: str | Sequence[str] | None = None,
    record: Literal["top", "full", "none"] = "top",
    rule: str | Rule = "standard",
    decode_round: Callable[[State], list[Round | None]] | None = None,
) -> Iterator[Round | list[Round | None]]:
    """Decode round by round: yields a Round, or for a list of prompts a list of them (None for ended rows).

    The arguments are speculate()'s, and are checked at once; drafter=None decodes plainly.
    """
    settings = Settings(
        gamma=gamma, max_new_tokens=max_new_tokens, sampling=sampling, seed=seed, randomness=randomness, eos=eos,
        stop=stop, record=record, rule=rule, decode_round=decode_round,
    )  # fmt: skip
    state = prefill(check(target, drafter, prompt, settings))
    return (done[0] if state.single else done for done in decode(state))


def _traces(target, drafter, prompt, settings, on_round):
    if on_round is not None and not callable(on_round):
        raise ValueError(f"on_round={on_round!r}: must be a function of a round.")
    state = prefill(check(target, drafter, prompt, settings))
    try:
        for done in decode(state):
            answer = None if on_round is None else on_round(done[0] if state.single else done)
            if isinstance(answer, (bool, np.bool_)) and answer:  # other truthy values may be a slip
                break
    except KeyboardInterrupt:
        pass
    traces = [build_trace(state, row) for row in range(len(state.prompts))]
    return traces[0] if state.single else traces
