"""The tolerances for logits: how far two correct programs for the same logits may be apart.

A fault of a cache (stale entries, positions, windows, rows that mix) moves all logits by a good part of their spread.
Rounding moves them by a few units of the last place, in the least precise dtype of the computation.
"""

from __future__ import annotations

import torch

# transformers computes norms, softmax and rotary angles in float32, in float64 models too: no model is more precise.
# Errors add up like a random walk: some ten roundings in each of a hundred layers have a square root of 32; with room.
FLOAT32 = 256 * torch.finfo(torch.float32).eps
# In half precision a bound for so many roundings would exceed any fault, so each model is measured (see tolerance). At
# least, logits are stored in halves, and each of two may have been rounded the other way.
STORED = 2
ROOM = 4  # times the measured distance: another pair of programs may be further apart
MOST = 0.3  # of the spread: the smallest faults are larger, so that no model is excused by measuring its own fault
# The above bounds the root mean square over all logits. One logit in ten thousand is off by four times as much, and two
# logits may move towards each other by twice that.
PAIR = 8


def distance(logits, expected) -> float:
    """The root mean square difference of logits [..., V] from the expected, in units of their spread.

    The largest over all rows. A common offset changes no probability and does not count. Infinity where infinities
    and NaN are in other places.
    """
    a, b = logits.double().cpu(), expected.double().cpu()
    finite = b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(7e7), b[~finite].nan_to_num(7e7)) or not a[finite].isfinite().all():
        return torch.inf
    return float((_centred(a, finite) - _centred(b, finite)).norm(dim=-1).div(_norm(b, finite)).max())


def tolerance(expected, measured=0.0) -> float:
    """The largest distance that rounding can explain, for logits in the dtype of expected [..., V].

    measured: the distance between two correct programs for this model, where it is known. It counts only in half
    precision; in others rounding is far below any fault.
    """
    eps = torch.finfo(expected.dtype).eps
    measured = measured if eps > torch.finfo(torch.float32).eps else 0.0
    b = expected.double().cpu()
    finite = b.isfinite()
    # A logit's own rounding grows with its size, which may be far larger than the spread.
    offset = float(b.where(finite, 0).norm(dim=-1).div(_norm(b, finite)).max())
    return min(max(max(FLOAT32, STORED * eps) * max(1.0, offset), ROOM * measured), MOST)


def rounding(logits) -> float:
    """The largest difference between two of the logits [..., V] whose order may change between correct programs."""
    x = logits.double().cpu()
    finite = x.isfinite()
    spread = _norm(x, finite) / finite.sum(-1).clamp(min=1).sqrt()
    return PAIR * tolerance(logits) * float(spread.max())


_LEAST = 1e-3  # the smallest spread that counts: all logits of a model may be equal


def _centred(x, finite):
    mean = x.where(finite, 0).sum(-1, keepdim=True) / finite.sum(-1, keepdim=True).clamp(min=1)
    return (x - mean).where(finite, 0)


def _norm(x, finite):
    """[...]: the norm of the centred logits, never 0."""
    least = _LEAST * finite.sum(-1).clamp(min=1).sqrt()
    return torch.maximum(_centred(x, finite).norm(dim=-1), least)
