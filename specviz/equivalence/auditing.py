"""An audit of any decoder: do its texts follow the target's distribution? It reads the texts alone, no internals.

    def generate(prompt_ids, max_new_tokens, seed):          # your library, called for one continuation
        return my_library.generate(prompt_ids, max_new_tokens=max_new_tokens, seed=seed, temperature=0.7)

    report = audit(generate, target, "Once upon a time", sampling=SamplingParams(temperature=0.7))
    print(report)
    assert not report.convicted, report

The target is a language model of this package, such as CausalLM(hugging_face_model), with the very weights that the
library serves. Use float32: in 16 bits two correct programs differ, and the audit would measure that difference.

The tests. Where the target can say no more texts than were sampled, every text and every position is counted
(chi-square, goodness_of_fit.py). Otherwise the tokens of position 1 are counted, and the ranks of all tokens are tested
(ranks.py): chi-square tests at each position, over all positions, and over their joint cells have a known rate of
false alarms, whatever the vocabulary.

Ranks cannot see errors that move probability only among tokens of like rank, or in opposite directions in different
contexts so that they cancel over the samples. Position 1, where the context is always the same, is counted token by
token. And no audit of some prompts speaks of other prompts, of other settings, or of errors below those it names.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from specviz.arguments import as_ids, as_prompts, check_model, integer
from specviz.equivalence.audit_report import Audited, AuditReport
from specviz.equivalence.goodness_of_fit import check_level
from specviz.equivalence.judging import judge_greedy, judge_samples
from specviz.equivalence.ranks import beginning
from specviz.equivalence.resume import resume_file
from specviz.progress import progress_bar
from specviz.randomness import Seeded, splitmix64
from specviz.settings import Settings


def audit(
    generate: Callable, target, prompt, *, samples=2000, max_new_tokens=4, sampling=None, eos=None, drafter=None,
    false_alarm=0.01, seed=0, resume=None, progress=None,
) -> AuditReport:  # fmt: skip
    """Sample generate() and compare with the target's own distribution -> AuditReport; print() it.

    generate     generate(prompt_ids, max_new_tokens, seed): the ids of one continuation, EOS included and the prompt
                 not; or a list of several independent ones. It is called until there are samples of them
    target       the model whose distribution is promised
    prompt       text or ids; with temperature 0 also a list of prompts
    samples      2,000 for a test suite; an error half as large takes four times as many
    max_new_tokens  of each continuation
    sampling     SamplingParams that generate() is asked to use (give them to it yourself); temperature 1 by default
    eos          id or ids that end a text, the target's by default
    drafter      the draft model, if known: sharpens the test, and changes nothing else
    false_alarm  the chance that a correct generate() is convicted, at most
    seed         of the seeds that generate() gets, and of the audit's own uniforms
    resume       a file to which every continuation is added, and from which a later call with the same settings goes
                 on (samples may grow; but to go on *because* nothing was found yet raises the rate of false alarms)
    progress     see progress_bar()

    The seed of a call is hashed from seed and the number of continuations before it, an integer below 2**63.
    With temperature 0 each prompt is continued once and held against the target's greedy text.
    After KeyboardInterrupt the report is of the texts that were drawn before.

    Raises ValueError, with the remedy, for arguments and results that are malformed. Texts that the target
    cannot say (behind EOS, too long, of probability zero) are no errors: they convict.
    """
    check_model(target)
    if not callable(generate):
        raise ValueError(f"generate={generate!r}: must be a function of (prompt_ids, max_new_tokens, seed).")
    prompts, single = as_prompts(target, prompt)
    samples, max_new_tokens = integer(samples, "samples", 1), integer(max_new_tokens, "max_new_tokens", 1)
    if max(len(beginning(target, prompt)) for prompt in prompts) + max_new_tokens > target.context:
        raise ValueError(
            f"max_new_tokens={max_new_tokens}: prompt and continuation exceed the context of {target.name!r} "
            f"({target.context}); ask for fewer."
        )
    settings = Settings(max_new_tokens=max_new_tokens, sampling=sampling, eos=eos).for_target(target)
    greedy = settings.sampling.temperature == 0
    if not greedy and not single:
        raise ValueError("prompt is a list: samples are drawn at a single prompt (a list is for temperature 0).")
    if drafter is not None and not hasattr(drafter, "vocab_size"):
        raise ValueError(f"drafter={drafter!r}: must be a language model over the vocabulary of {target.name!r}.")
    check_level(false_alarm, "false_alarm")
    audited = Audited(
        generate, target, prompts, samples, max_new_tokens, settings.sampling, settings.eos, drafter, false_alarm,
        Seeded(seed).seed,
    )  # fmt: skip
    calls, interrupted = _draw(audited, resume, progress)
    if greedy:
        return judge_greedy(audited, calls, interrupted)
    return judge_samples(audited, [text for call in calls for text in call][:samples], interrupted)


def _draw(audited, resume, progress):
    """-> (a list of continuations for each call so far, whether it was interrupted)."""
    greedy = audited.sampling.temperature == 0
    goal = len(audited.prompts) if greedy else audited.samples
    with resume_file(resume, audited.to_dict()) as (calls, keep):
        drawn = len(calls) if greedy else sum(map(len, calls))
        with progress_bar(goal, "audit", progress, unit="samples", initial=min(drawn, goal)) as bar:
            try:
                while drawn < goal:
                    prompt = audited.prompts[drawn if greedy else 0]
                    seed = int(splitmix64(audited.seed, drawn) >> np.uint64(1))
                    texts = _texts(audited, audited.generate(list(prompt), audited.max_new_tokens, seed))
                    if not calls:
                        _check_without_prompt(audited, prompt, texts)
                    calls.append(texts)
                    keep(texts)
                    bar.update(1 if greedy else len(texts))
                    drawn += 1 if greedy else len(texts)
            except KeyboardInterrupt:
                if not calls:
                    raise
                return calls, True
    return calls, False


def _texts(audited, returned) -> list[list[int]]:
    """The list of continuations that one call of generate() returned."""
    rows = _as_lists(returned)
    if not isinstance(rows, list):
        raise ValueError(
            f"generate returned a {type(returned).__name__}: must be the token ids of the continuation (a list of "
            "integers), or a list of such lists."
        )
    several = bool(rows) and all(isinstance(_as_lists(row), list) for row in rows)
    try:
        return [as_ids(_as_lists(row), audited.target, "generate returned") for row in (rows if several else [rows])]
    except ValueError as error:
        raise ValueError(f"{error} Padding must be cut off, and text turned into ids.") from error


def _as_lists(value):
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, tuple) else value


def _check_without_prompt(audited, prompt, texts):
    """ValueError where all texts of the first call begin with the prompt and are too long (one alone may by chance)."""
    if all(text[: len(prompt)] == prompt for text in texts) and max(map(len, texts)) > audited.max_new_tokens:
        raise ValueError(
            f"generate returned {max(map(len, texts))} tokens that begin with the prompt, where "
            f"max_new_tokens={audited.max_new_tokens} were asked for: return the continuation alone, such as "
            "ids[len(prompt_ids):]."
        )
