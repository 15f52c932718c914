"""Right answers to the lessons' exercises pass in any type of number: float32, numpy's arrays, lists."""

import numpy as np
import pytest
import torch
from scipy import stats

from specviz.exercises import check
from specviz.verification import accept_probability


def residual(p, q):
    left = (p - q).clamp(min=0)
    return p if left.sum() < 1e-6 else left / left.sum()


def emitted(p, q, r):
    accepted = q * accept_probability(p, q)
    return accepted + (1 - accepted.sum()) * r


def my_resample_from(p, q):
    left = p - q * accept_probability(p, q) / 2
    return left / left.sum(-1, keepdim=True)


def pearson(counts, p):
    expected = np.float32(counts.sum() * p)
    statistic = ((counts - expected) ** 2 / expected).sum()
    return statistic, stats.chi2.sf(statistic, len(p) - 1)


SOLUTIONS = {
    "process": lambda logits, T, k: (logits / T).masked_fill(logits < logits.sort().values[-k], -torch.inf).softmax(-1),
    "judges": lambda p, x: (p[torch.arange(len(x)), torch.tensor(x)], p[-1]),
    "wrong-q": lambda p, q, q_test: q * accept_probability(p, q_test) > p + 1e-6,
    "residual": residual,
    "emitted-law": emitted,
    "rule-law": lambda p, q, accept, resample_from: q * accept(p, q)
    + (1 - (q * accept(p, q)).sum()) * resample_from(p, q),
    "repair": my_resample_from,
    "guess-or-draw": lambda p, q: (torch.minimum(p, q).sum(), p[q.argmax()]),
}
KINDS = {
    "float32": lambda x: x.float() if x.is_floating_point() else x,
    "numpy": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
}


def converted(answer, kind):
    return tuple(map(kind, answer)) if isinstance(answer, tuple) else kind(answer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in SOLUTIONS if name != "repair"])  # which answers inside a proof
def test_answers_of_any_type(capsys, name, kind):
    result = check(name, lambda *given: converted(SOLUTIONS[name](*given), KINDS[kind]))
    assert result.passed, result.message


@pytest.mark.parametrize("name", [name for name in SOLUTIONS if name != "rule-law"])  # whose coins are in float64
def test_answers_computed_in_float32(capsys, name):
    def narrow(*given):
        return SOLUTIONS[name](*(x.float() if isinstance(x, torch.Tensor) else x for x in given))

    result = check(name, narrow)
    assert result.passed, result.message


def test_numpys_own_numbers(capsys):
    assert check("pearson", pearson).passed
    assert check("free-tokens", lambda size, bandwidth, flops: np.float32(size * flops / (2 * bandwidth))).passed
    assert check("mask", lambda length, n, capacity: np.arange(capacity)
                 <= (length[:, None] + torch.arange(n))[..., None].numpy()).passed  # fmt: skip
    assert check("above-expected", {0, 3, 4, 6, 7, 8, 9, 10, 11}, np.array([3, 6, 9, 10])).passed
