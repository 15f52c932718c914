"""Where two greedy texts part, and whether rounding alone can explain it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specviz.backends.precision import rounding


@dataclass(frozen=True)
class Parting:
    """The first token in which two greedy texts of one prompt differ."""

    position: int  # in the continuation, from 1
    tokens: tuple[int, int]
    gap: float  # by how much the target's largest logit there exceeds the lower of these two
    near_tie: bool  # a gap that rounding can close: no fault

    def __str__(self):
        a, b = self.tokens
        verdict = "a near tie, within rounding" if self.near_tie else "more than rounding explains"
        return f"token {self.position} is {a} in one and {b} in the other: a logit gap of {self.gap:.1e}, {verdict}"


def first_difference(target, one, other) -> Parting | None:
    """The first difference of two greedy Traces of one prompt, by the target's own logits there; None if equal.

    Plain and speculative decoding compute the same logits in forwards of different shapes, whose rounding differs, so
    that either of two nearly equal logits may come out larger. Behind the first difference the texts have different
    beginnings, and further differences mean nothing.

    Raises ValueError for traces that are not greedy, of different prompts, decoded with logits processors, or of which
    one stops where the other goes on (then they were asked for different things).
    """
    for trace in (one, other):
        if trace.sampling["temperature"] != 0 or trace.sampling.get("processors"):
            raise ValueError(f"sampling was {trace.sampling}: give traces of temperature 0, without processors.")
    if one.prompt_tokens != other.prompt_tokens:
        raise ValueError("the traces have different prompts: give two of the same.")
    if one.tokens == other.tokens:
        return None
    pairs = enumerate(zip(one.tokens, other.tokens))
    at, tokens = next(((i, pair) for i, pair in pairs if len(set(pair)) == 2), (None, None))
    if at is None:
        raise ValueError(
            f"the texts are equal for as long as both last, and have {len(one.tokens)} and {len(other.tokens)} tokens: "
            "decode both with the same settings, and to the end."
        )
    prompt = one.prompt_tokens
    text = [*(getattr(target, "start_tokens", None) or prompt), *one.tokens[:at]]
    cache = target.new_cache([prompt], len(text))
    logits = cache.feed(torch.tensor([text], device=target.device))[0, -1]
    gap = float(logits.max().double() - logits[list(tokens)].min().double())
    return Parting(at + 1, tokens, gap, gap <= rounding(logits))
