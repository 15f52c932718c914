"""The exact law of the sequences that the shipped decoder emits, by visiting every branch."""

from __future__ import annotations

from collections import defaultdict

from specviz.arguments import as_prompts, integer
from specviz.decoding import autoregress, speculate
from specviz.randomness import Exhaustive


def exact_law(target, drafter, prompt, *, merge=False, rows=128, **settings) -> dict[tuple[int, ...], float]:
    """{continuation: probability} of speculate(target, drafter, prompt, **settings); of autoregress for None.

    Every outcome of every draw and coin is followed through the decoder itself: memories, rollback, EOS and
    length limit included. No samples are drawn, so the error is that of floating-point arithmetic.

    merge=False replays each branch whole. merge=True decodes one round at a time and starts anew from each
    distinct committed text: far fewer branches, sound as long as a memory depends on the committed text alone
    (the memory invariant, tested by itself), but blind to faults that outlast a round.
    rows: branches decoded at once, as rows of one batch.
    """
    law = defaultdict(float)
    if given := {"seed", "randomness", "record"} & set(settings):
        raise ValueError(
            f"{', '.join(sorted(given))}: exact_law visits every outcome and sets this itself; leave it out."
        )
    if merge and {"stop", "on_round"} & set(settings):
        raise ValueError(
            "merge=True decodes each round as a text of its own: no stop= and no on_round= there; use merge=False."
        )
    if not merge:
        for tokens, _, weight in _branches(target, drafter, prompt, rows, settings):
            law[tokens] += weight
        return dict(law)

    (prompt,), _ = as_prompts(target, prompt)
    max_new_tokens = integer(settings.pop("max_new_tokens", 64), "max_new_tokens", 0)
    unfinished = {(): 1.0}
    while unfinished:
        text = min(unfinished, key=len)  # shortest first, so that every way to a text is merged before it goes on
        reached = unfinished.pop(text)
        one_round = dict(settings, max_new_tokens=max_new_tokens - len(text), on_round=lambda _: True)
        for tokens, ended, weight in _branches(target, drafter, [*prompt, *text], rows, one_round):
            if ended:
                law[text + tokens] += reached * weight
            else:
                unfinished[text + tokens] = unfinished.get(text + tokens, 0.0) + reached * weight
    return dict(law)


def _branches(target, drafter, prompt, rows, settings):
    """Yields (continuation, whether it ended, probability) for every branch."""
    for branch in Exhaustive(rows):
        prompts = [prompt] * branch.rows
        settings = {**settings, "randomness": branch, "record": "none"}
        if drafter is None:
            traces = autoregress(target, prompts, **settings)
        else:
            traces = speculate(target, drafter, prompts, **settings)
        for trace, weight in zip(traces, branch.weight.tolist(), strict=True):
            yield tuple(trace.tokens), trace.finish_reason != "interrupted", weight
