"""Samples are of the law that the branches say, do not depend on how they were batched, and are fast to ask for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specviz import SamplingParams, Seeded, TableModel, speculate
from specviz.equivalence import samples
from specviz.equivalence.exact import target_law
from specviz.equivalence.goodness_of_fit import chi_square, fit_sequences
from specviz.equivalence.samples import sample_position, sample_sequences
from specviz.randomness import inverse_cdf

TARGET, DRAFTER = TableModel.random(3, 2, seed=1), TableModel.random(3, 2, seed=2)
laws = st.lists(st.integers(0, 20), min_size=2, max_size=12).filter(any).map(lambda w: np.array(w) / sum(w))


def test_samples_are_the_decoders_rows():
    settings = dict(gamma=3, max_new_tokens=6, eos=[2], sampling=SamplingParams(temperature=0.8))
    tokens = sample_sequences(TARGET, DRAFTER, [0, 1], 50, seed=7, **settings)
    traces = speculate(TARGET, DRAFTER, [[0, 1]] * 50, seed=7, **settings)
    assert tokens.shape == (50, 6)
    for row, trace in zip(tokens, traces):
        assert row.tolist() == trace.tokens + [-1] * (6 - len(trace.tokens))


def test_samples_do_not_depend_on_their_batch():
    settings = dict(seed=3, gamma=2, max_new_tokens=4)
    whole = sample_sequences(TARGET, DRAFTER, [0, 1], 25, **settings)
    assert np.array_equal(whole, sample_sequences(TARGET, DRAFTER, [0, 1], 25, rows=7, **settings))
    assert np.array_equal(whole[:10], sample_sequences(TARGET, DRAFTER, [0, 1], 10, **settings))
    alone = speculate(TARGET, DRAFTER, [[0, 1]], randomness=Seeded(3, rows=[9]), gamma=2, max_new_tokens=4)
    assert whole[9].tolist() == alone[0].tokens


@pytest.mark.parametrize("drafter", [DRAFTER, None], ids=["speculative", "plain"])
def test_samples_fit_the_targets_law(drafter):
    """False-alarm rate 1e-3."""
    settings = dict(max_new_tokens=3, eos=[2])
    tokens = sample_sequences(TARGET, drafter, [0, 1], 20_000, seed=1, **settings)
    assert fit_sequences(tokens, target_law(TARGET, [0, 1], **settings), false_alarm=1e-3).acquitted


def test_a_context_that_is_full_ends_a_sample():
    short = TableModel.random(3, 1, seed=1, context=4)
    tokens = sample_sequences(short, DRAFTER, [0, 1], 5, gamma=2, max_new_tokens=5)
    assert (tokens[:, :2] >= 0).all() and (tokens[:, 2:] == -1).all()


@pytest.mark.parametrize(("p", "q"), [((0.5, 0.3, 0.2), (0.1, 0.2, 0.7)), ((0.0, 1.0), (1.0, 0.0)), ((1.0,), (1.0,))])
def test_one_position_follows_p_and_accepts_the_overlap(p, q):
    """False-alarm rate 1e-3 for the law, five standard deviations for the acceptance."""
    emitted = sample_position(p, q, 100_000, seed=1)
    assert emitted.counts.sum() == 100_000 and chi_square(emitted.counts, np.array(p)).p_value > 1e-3
    overlap = np.minimum(p, q).sum()
    assert abs(emitted.accepted - 1e5 * overlap) <= 5 * np.sqrt(1e5 * overlap * (1 - overlap))


def test_a_wrong_rule_at_one_position_misses_by_what_the_formula_says():
    """Resampling from p emits q A + Z p. False-alarm rates 1e-3 and 1e-12."""
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.7])
    counts = sample_position(p, q, 100_000, seed=1, resample_from=lambda p, q: p).counts
    accepted = np.minimum(p, q)
    assert chi_square(counts, accepted + (1 - accepted.sum()) * p).p_value > 1e-3
    assert chi_square(counts, p).p_value < 1e-12


@given(laws, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5))
def test_many_draws_from_one_law_are_the_single_draws(law, uniforms):
    law, u = torch.tensor(law), torch.tensor(uniforms, dtype=torch.float64)
    together = samples._drawn(law, u)
    assert together.tolist() == inverse_cdf(law.expand(len(uniforms), -1), u).tolist()
    assert (law[together] > 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sample_sequences(TARGET, DRAFTER, [0], 0), "n=0"),
        (lambda: sample_sequences(TARGET, DRAFTER, [0], 5, rows=0), "rows=0"),
        (lambda: sample_sequences(TARGET, DRAFTER, [0], 5, record="full"), "record: sample_sequences sets this"),
        (lambda: sample_sequences(TARGET, DRAFTER, [0], 5, gamma=0), "gamma=0"),
        (lambda: sample_position([0.5, 0.5], [1.0], 5), r"p has shape \[2\] and q \[1\]"),
        (lambda: sample_position([0.5, 0.6], [0.5, 0.5], 5), "p sums to 1.1"),
        (lambda: sample_position([0.5, 0.5], [-0.5, 1.5], 5), "q sums to 1"),
        (lambda: sample_position([0.5, np.nan], [0.5, 0.5], 5), "p sums to nan"),
        (
            lambda: sample_position([0.5, 0.5], [0.9, 0.1], 5, resample_from=lambda p, q: p - q),
            "resample_from.p, q. is negative",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
