"""The tolerances for logits, in each precision."""

import pytest
import torch

from specviz.backends.precision import FLOAT32, MOST, STORED, distance, rounding, tolerance


def logits(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_distance_is_counted_in_spreads_and_the_largest_of_all_rows():
    a = logits(2, 3, 1000)
    assert distance(a, a) == 0
    assert distance(a + 7, a) < 1e-12  # a common offset changes no probability
    assert distance(1.1 * a, a) == pytest.approx(0.1)
    one_row = a.clone()
    one_row[1, 2] *= 1.2
    assert distance(one_row, a) == pytest.approx(0.2)
    assert distance(a.roll(1, -1), a) == pytest.approx(2**0.5, abs=0.1)  # nothing in common


def test_numbers_that_are_not_finite_must_agree():
    a = torch.tensor([[0.0, 1.0, -torch.inf, torch.nan]])
    assert distance(a, a.clone()) == 0
    assert distance(a[:, 2:], a[:, 2:].clone()) == 0
    for other in (a.roll(1), a.nan_to_num(), a.clone().fill_(torch.nan)):
        assert distance(other, a) == torch.inf
    finite = torch.tensor([[0.0, 1.0, 2.0]])
    assert distance(torch.tensor([[0.0, 1.0, torch.nan]]), finite) == torch.inf
    assert distance(torch.zeros(1, 3), torch.zeros(1, 3)) == distance(torch.ones(1, 1), torch.ones(1, 1)) == 0


def test_no_model_is_more_precise_than_float32():
    for dtype in (torch.float64, torch.float32):
        a = logits(2, 1000, dtype=dtype)
        assert tolerance(a) == pytest.approx(FLOAT32, rel=0.01) == tolerance(a, measured=1.0)
    assert tolerance(a + 100) == pytest.approx(100 * FLOAT32, rel=0.1)  # there, the logits' own places are coarser


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_by_the_measured_distance_within_limits(dtype):
    a, eps = logits(2, 1000, dtype=dtype), torch.finfo(dtype).eps
    assert tolerance(a) == pytest.approx(STORED * eps, rel=0.1) == tolerance(a, measured=eps / 10)
    assert tolerance(a, measured=0.05) == pytest.approx(0.2)
    assert tolerance(a, measured=0.5) == MOST
    stored = torch.stack([logits(2, 1000) * (1 + eps / 4), logits(2, 1000) * (1 - eps / 4)]).to(dtype)
    assert 0 < distance(stored[0], stored[1]) < tolerance(a)  # the same numbers, rounded once each


def test_of_two_logits_each_may_be_off_by_more_than_the_mean():
    a = logits(4, 1000)
    assert 4 * FLOAT32 < rounding(a) < 10 * FLOAT32
    assert rounding(10 * a) == pytest.approx(10 * rounding(a))
    assert rounding(a.bfloat16()) > 100 * rounding(a)
    assert rounding(torch.tensor([1.0, -torch.inf])) > 0
