"""How far two right ways to the same logits may be apart. The one place where that is said.

A memory that goes wrong (stale entries, positions, windows, rows that mix) moves all logits by a good part of their
spread. Rounding moves them by a few units of the last place of whatever precision took part.
"""

from __future__ import annotations

import torch

# transformers computes norms, softmax and rotary angles in float32, in float64 models too: no model is more precise.
# Errors add up like a random walk: the square root of some ten roundings in each of a hundred layers is 32; with room.
FLOAT32 = 256 * torch.finfo(torch.float32).eps
# In half precision so many roundings would exceed any fault, so that a model is measured (see tolerance); at least,
# its logits are stored in halves, and each of two may have been rounded the other way.
STORED = 2
ROOM = 4  # times what was measured between two ways: a third may round less luckily than these two
MOST = 0.3  # of the spread: faults lie beyond, and a model may not be excused by measuring its own fault
# What is said above is about the root mean square over all logits. One logit may be off by four times that (one in ten
# thousand is), and two logits by twice as much towards each other.
PAIR = 8


def distance(logits, expected) -> float:
    """How far logits [..., V] are from the expected: root mean square of the difference, in units of their spread.

    The largest over all rows. A common offset changes no probability and does not count; infinities and NaN must
    agree (else infinity).
    """
    a, b = logits.double().cpu(), expected.double().cpu()
    finite = b.isfinite()
    if not torch.equal(a[~finite].nan_to_num(7e7), b[~finite].nan_to_num(7e7)) or not a[finite].isfinite().all():
        return torch.inf
    return float((_centred(a, finite) - _centred(b, finite)).norm(dim=-1).div(_norm(b, finite)).max())


def tolerance(expected, measured=0.0) -> float:
    """The distance that rounding can explain, of logits in the dtype of expected [..., V].

    measured: the distance between two right ways through this model, where it is known. It counts in half precision
    alone: elsewhere rounding is far from any fault, so that none need be excused.
    """
    eps = torch.finfo(expected.dtype).eps
    measured = measured if eps > torch.finfo(torch.float32).eps else 0.0
    b = expected.double().cpu()
    finite = b.isfinite()
    # A logit's own rounding grows with its size, and logits may lie far from 0, close together.
    offset = float(b.where(finite, 0).norm(dim=-1).div(_norm(b, finite)).max())
    return min(max(max(FLOAT32, STORED * eps) * max(1.0, offset), ROOM * measured), MOST)


def rounding(logits) -> float:
    """Two of the logits [..., V] that are no further apart may change places between two right programs."""
    x = logits.double().cpu()
    finite = x.isfinite()
    spread = _norm(x, finite) / finite.sum(-1).clamp(min=1).sqrt()
    return PAIR * tolerance(logits) * float(spread.max())


_LEAST = 1e-3  # a spread below this counts as this: all logits of a model may be equal


def _centred(x, finite):
    mean = x.where(finite, 0).sum(-1, keepdim=True) / finite.sum(-1, keepdim=True).clamp(min=1)
    return (x - mean).where(finite, 0)


def _norm(x, finite):
    """[...]: of the centred logits, and not 0."""
    least = _LEAST * finite.sum(-1).clamp(min=1).sqrt()
    return torch.maximum(_centred(x, finite).norm(dim=-1), least)
