"""Text as it is decoded, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from specviz.decoding import decode
from specviz.drafters.protocol import Drafter
from specviz.models.protocol import LanguageModel
from specviz.randomness import Randomness
from specviz.recording import build_trace, text_so_far, written
from specviz.rules import Rule
from specviz.sampling import SamplingParams
from specviz.settings import Settings
from specviz.steps import check, prefill
from specviz.text import hold_back
from specviz.trace import Trace


class Stream:
    """Iterate for the pieces of text that each round adds; made by stream().

    The pieces add up to trace.text. Half a character, and the possible beginning of a stop string, are held back until
    the next tokens decide. For a list of prompts each piece is a list of strings, one a row
    ("" for a row that has ended). `trace` is there at any time: the text so far, "interrupted" unless it has ended.
    """

    def __init__(self, state):
        self._state = state
        self._sent = [0] * len(state.prompts)  # characters, by row

    def __iter__(self):
        state, rounds = self._state, decode(self._state)
        while True:
            # Before the next round, not after the last: an interruption may have come between a round and its pieces.
            texts = [self._text(row) for row in range(len(state.prompts))]
            pieces = [text[sent:] for text, sent in zip(texts, self._sent, strict=True)]
            self._sent = [max(sent, len(text)) for text, sent in zip(texts, self._sent, strict=True)]
            if any(pieces):
                yield pieces[0] if state.single else pieces
            if next(rounds, None) is None:
                return

    @property
    def trace(self) -> Trace | list[Trace]:
        traces = [build_trace(self._state, row) for row in range(len(self._state.prompts))]
        return traces[0] if self._state.single else traces

    def _text(self, row) -> str:
        state = self._state
        if state.finish[row] is None:
            return hold_back(written(state, row).settled, state.settings.stop)
        return text_so_far(state, row)


def stream(
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
    decode_round: Callable | None = None,
) -> Stream:
    """Decode piece by piece: for piece in stream(target, drafter, prompt): print(piece, end="").

    drafter=None streams plain decoding. The arguments, and the errors, are those of speculate(). Breaking off, or
    interrupting, keeps the decoded text: go on with the same Stream, or take its trace.

    Raises ValueError for a target without a tokenizer.
    """
    settings = Settings(
        gamma=gamma, max_new_tokens=max_new_tokens, sampling=sampling, seed=seed, randomness=randomness, eos=eos,
        stop=stop, record=record, rule=rule, decode_round=decode_round,
    )  # fmt: skip
    if getattr(target, "tokenizer", None) is None:
        raise ValueError(
            f"target {getattr(target, 'name', target)!r} has no tokenizer, so there is no text to stream; rounds() "
            "gives the tokens of each round."
        )
    return Stream(prefill(check(target, drafter, prompt, settings)))
