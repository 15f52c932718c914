"""SamplingParams against transformers' own warpers, ties, and bad logits."""

import json
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specviz import SamplingParams


def by_transformers(logits, temperature, top_k, top_p):
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])
    if top_k is not None:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p is not None and top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers(None, logits).softmax(-1)


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 50),
    temperature=st.floats(0.1, 5),
    top_k=st.none() | st.integers(1, 60),
    top_p=st.none() | st.floats(0.01, 1),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_equals_transformers_on_tie_free_logits(seed, size, temperature, top_k, top_p, dtype):
    generator = torch.Generator().manual_seed(seed)
    logits = (
        torch.randperm(size, generator=generator).to(dtype)[None] / 7
        + torch.rand(1, size, generator=generator, dtype=dtype) / 8
    )
    ours = SamplingParams(temperature, top_k, top_p).probabilities(logits)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, by_transformers(logits, temperature, top_k, top_p), atol=1e-7, rtol=1e-5)


def test_top_p_agrees_with_transformers_where_the_mass_lands_on_the_border():
    logits = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
    for top_p in (0.5, 0.8, 0.79999, 0.80001):
        ours = SamplingParams(top_p=top_p).probabilities(logits)
        torch.testing.assert_close(ours, by_transformers(logits, 1.0, None, top_p))


def test_ties_go_to_the_lowest_id():
    logits = torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0])
    assert SamplingParams(temperature=0).probabilities(logits).tolist() == [0, 1, 0, 0, 0]
    assert SamplingParams(top_k=2).probabilities(logits).tolist() == [0, 0.5, 0.5, 0, 0]
    assert SamplingParams(top_p=0.3).probabilities(logits).tolist() == [0, 1, 0, 0, 0]


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 0.5, 1.0]),
    st.none() | st.integers(1, 9),
    st.none() | st.floats(0.05, 1),
)
def test_always_a_distribution_with_the_best_token_in_it(seed, temperature, top_k, top_p):
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    probs = SamplingParams(temperature, top_k, top_p).probabilities(logits)
    torch.testing.assert_close(probs.sum(-1), torch.ones(3, dtype=torch.float64))
    assert (probs.argmax(-1) == logits.argmax(-1)).all()
    if top_k is not None:
        assert ((probs > 0).sum(-1) <= top_k).all()


def test_single_minus_infinities_are_zeros():
    logits = torch.tensor([0.0, -torch.inf, 0.0])
    for params in (SamplingParams(), SamplingParams(top_k=3), SamplingParams(top_p=0.99)):
        assert params.probabilities(logits).tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("bad", [[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3])
def test_bad_rows_come_out_as_nan_and_good_rows_stay(temperature, bad):
    logits = torch.tensor([bad, [0.0, 0.0, 0.0]])
    for params in (SamplingParams(temperature), SamplingParams(temperature, top_k=2, top_p=0.9)):
        probs = params.probabilities(logits)
        assert probs[0].isnan().all() and probs[1].isfinite().all()


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.9)])
def test_wide_rows_are_torchs_own(params):
    """Several wide rows are computed by numpy, a row alone by torch."""
    logits = 5 * torch.randn(6, 1500, generator=torch.Generator().manual_seed(0))
    logits[0, 7], logits[1, 3], logits[2, 5], logits[3] = -torch.inf, torch.inf, torch.nan, -torch.inf
    alone = torch.cat([params.probabilities(row[None]) for row in logits])
    together = params.probabilities(logits)
    torch.testing.assert_close(together, alone, equal_nan=True)
    assert together.isnan().all(-1).tolist() == [False, True, True, True, False, False]
    assert params.probabilities(logits.requires_grad_()).requires_grad


def test_a_tiny_temperature_is_nearly_greedy_and_does_not_overflow():
    logits = torch.tensor([3.0, 1.0, -50.0])
    assert SamplingParams(1e-38).probabilities(logits).tolist() == [1, 0, 0]
    assert SamplingParams(5e-324).probabilities(logits.double()).tolist() == [1, 0, 0]


def test_half_precision_logits_become_float32_probabilities():
    assert SamplingParams().probabilities(torch.zeros(4, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(temperature=-0.1), "temperature=-0.1"),
        (dict(temperature=float("nan")), "temperature=nan"),
        (dict(temperature=10**400), "temperature=1000"),
        (dict(temperature="hot"), "temperature='hot'"),
        (dict(top_p=0), "top_p=0"),
        (dict(top_p=1.1), "top_p=1.1"),
        (dict(top_k=0), "top_k=0"),
        (dict(top_k=2.0), "top_k=2.0"),
        (dict(temperature=-(10**400)), "temperature=-1000"),
        (dict(temperature=True), "temperature=True"),
        (dict(temperature=Decimal("0.7")), "temperature=Decimal"),
        (dict(temperature=torch.tensor([0.7, 0.7])), "temperature=tensor"),
        (dict(temperature=np.bool_(True)), "temperature="),
        (dict(top_p=np.float32("nan")), "top_p="),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**settings)


@pytest.mark.parametrize("of", [np.float32, np.float64, torch.tensor, Fraction, np.asarray], ids=lambda of: of.__name__)
def test_numbers_of_any_kind_become_pythons_own(of):
    """Half is half in any of them. A trace must be able to write them down, and to be decoded again with them."""
    given = SamplingParams(temperature=of(0.5), top_p=of(0.75))
    assert given == SamplingParams(temperature=0.5, top_p=0.75) and hash(given) == hash(SamplingParams(0.5, None, 0.75))
    assert json.dumps(given.to_dict()) == '{"temperature": 0.5, "top_k": null, "top_p": 0.75}'
    logits = torch.tensor([0.0, 1.0, 2.0])
    assert given.probabilities(logits).tolist() == SamplingParams(0.5, None, 0.75).probabilities(logits).tolist()
    assert type(SamplingParams(temperature=0).temperature) is int  # as it was given


def test_a_temperature_beyond_the_numbers_of_the_dtype_is_uniform_over_what_is_allowed():
    logits = torch.tensor([[1.0, -torch.inf, 3.0]])
    for temperature in (1e38, 1e39, 1e200):
        assert SamplingParams(temperature=temperature).probabilities(logits).tolist() == [[0.5, 0.0, 0.5]]
