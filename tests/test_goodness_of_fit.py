"""Verdicts that mean something: p-values are uniform for the right law, and the promised power is reached.

The seeds are fixed, so a test passes or fails for good; "level" says how often another seed would fail it.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specviz import TableModel
from specviz.equivalence.exact import target_law
from specviz.equivalence.goodness_of_fit import (
    Report,
    chi_square,
    conviction_power,
    detectable_error,
    fit_sequences,
    holm,
    pool,
    samples_to_convict,
)
from specviz.equivalence.samples import sample_position, sample_sequences

P = np.array([0.4, 0.3, 0.2, 0.1])


# --- single tests -------------------------------------------------------------------------------


def test_pearson_by_hand():
    counts = np.array([30, 50, 20])
    probs = np.array([0.25, 0.5, 0.25])
    pearson = chi_square(counts, probs)
    assert pearson.statistic == pytest.approx(25 / 25 + 0 + 25 / 25)
    assert pearson.dof == 2 and pearson.n == 100 and pearson.distance == pytest.approx(0.05)
    assert pearson.p_value == pytest.approx(np.exp(-1))  # the chi-square law with two degrees of freedom


def test_one_impossible_observation_convicts():
    fit = chi_square([999, 1, 0], [1.0, 0.0, 0.0])
    assert fit.p_value == 0 and fit.impossible == 1 and fit.statistic == np.inf
    assert chi_square([1000, 0, 0], [1.0, 0.0, 0.0]).p_value == 1  # nothing to test, nothing wrong


def test_rare_cells_are_pooled_and_no_observation_is_lost():
    observed, expected = pool([50, 30, 3, 1, 0], [48.0, 32.0, 2.0, 1.5, 0.5])
    assert observed.tolist() == [50, 34] and expected.tolist() == [48.0, 36.0]  # 4 is too little, so 32 joins
    observed, expected = pool([50, 30, 6], [48.0, 32.0, 6.0])
    assert observed.tolist() == [50, 30, 6]
    observed, expected = pool([1, 1], [1.0, 1.0])
    assert observed.tolist() == [2]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30).filter(lambda e: sum(e) > 0), st.data())
def test_pooling_keeps_the_totals_and_leaves_no_small_cell(expected, data):
    observed = data.draw(st.lists(st.integers(0, 100), min_size=len(expected), max_size=len(expected)))
    observed = [o if e > 0 else 0 for o, e in zip(observed, expected)]
    counts, means = pool(observed, expected)
    assert counts.sum() == sum(observed) and means.sum() == pytest.approx(sum(expected))
    assert len(means) == 1 or (means >= 5).all()


def test_tokens_that_hardly_ever_come_are_not_hidden_by_a_cell_that_joins_them():
    """A thousand times a token of probability 1e-9, beside tokens that come by the hundred thousand."""
    probs = np.array([0.5, 0.5 - 1e-9, 1e-9])
    counts = np.random.default_rng(0).multinomial(200_000, [0.5, 0.495, 0.005])
    assert chi_square(counts, probs).p_value < 1e-12
    assert chi_square([100_000, 100_000, 0], probs).p_value == 1
    assert chi_square([990, 10], [1 - 1e-9, 1e-9]).p_value < 1e-12
    assert chi_square([999, 1], [1 - 1e-4, 1e-4]).p_value > 0.5  # one in a thousand: nothing strange


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == pytest.approx([1, 1])
    assert holm([0.2]) == [0.2]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_lies_between_the_p_value_and_bonferroni_and_keeps_the_order(p_values):
    adjusted = np.array(holm(p_values))
    p = np.array(p_values)
    assert (adjusted >= p).all() and (adjusted <= np.minimum(1, len(p) * p) + 1e-12).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


@pytest.mark.parametrize(
    ("counts", "probs", "message"),
    [
        ([1, 2], [0.5, 0.3, 0.2], "one of each for every cell"),
        ([0.2, 0.8], [0.5, 0.5], "not shares of the whole"),
        ([0, 0], [0.5, 0.5], "at least one observation"),
        ([-1, 3], [0.5, 0.5], "integers >= 0"),
        ([1, 2], [0.5, 0.6], "sums to 1.1"),
        ([1, 2], [np.nan, 1.0], "must be probabilities"),
    ],
)
def test_counts_and_probabilities_that_are_none(counts, probs, message):
    with pytest.raises(ValueError, match=message):
        chi_square(np.array(counts), np.array(probs))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detectable_error(10, 1), "cells=1"),
        (lambda: detectable_error(10, 4, false_alarm=0), "false_alarm=0"),
        (lambda: detectable_error(10, 4, power=1), "power=1"),
        (lambda: detectable_error(0, 4), "n=0"),
        (lambda: fit_sequences(np.array([1, 2]), {(1,): 1.0}), r"integers \[n, T\]"),
        (lambda: fit_sequences(np.array([[1]]), {}), "law={}"),
        (lambda: fit_sequences(np.array([[1]]), {1: 1.0}), "tuples of ids"),
        (lambda: fit_sequences(np.array([[1]]), {(1,): 1.0}, false_alarm=2), "false_alarm=2"),
        (lambda: fit_sequences(np.array([[1]]), {(1,): 1.0}, false_alarm="x"), "false_alarm='x': must be a prob"),
        (lambda: Report([]), "tests=.. is empty"),
        (lambda: conviction_power([0.5, 0.5], [0.5, 0.5], -5), "n=-5"),
        (lambda: conviction_power([1.0, 1.0], P[:2] / 0.7, 5), "law has shape .* sums to 2"),
        (lambda: conviction_power([0.5, 0.5], P, 5), "probs has shape"),
        (lambda: samples_to_convict([np.nan, 0.5], [0.5, 0.5]), "law has shape"),
        (lambda: samples_to_convict(P, P, power=2), "power=2"),
        (lambda: samples_to_convict(P, P, false_alarm=2), "false_alarm=2"),
    ],
)
def test_questions_without_an_answer(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- calibration --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 40])
def test_p_values_are_uniform_for_the_right_law(size):
    """Level 1e-3."""
    probs = np.random.default_rng(size).dirichlet(np.ones(size))
    samples = np.random.default_rng(0).multinomial(2000, probs, size=1000)
    values = [chi_square(counts, probs).p_value for counts in samples]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_p_values_of_the_right_rule_at_one_position_are_uniform():
    """1,000 repeats of 2,000 rounds; level 1e-3."""
    generator = np.random.default_rng(1)
    p, q = generator.dirichlet(np.ones(8), size=2)
    values = [chi_square(sample_position(p, q, 2000, seed=seed).counts, p).p_value for seed in range(1000)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


@pytest.fixture(scope="module")
def thousand_reports():
    """1,000 repeats of 400 continuations of two tokens from the shipped decoder, in one go."""
    target, drafter = TableModel.random(3, 1, seed=1), TableModel.random(3, 1, seed=2)
    law = target_law(target, [0], max_new_tokens=2)
    tokens = sample_sequences(target, drafter, [0], 400_000, seed=0, gamma=1, max_new_tokens=2)
    return [fit_sequences(part, law) for part in tokens.reshape(1000, 400, 2)]


@pytest.mark.slow
def test_p_values_of_the_shipped_decoder_are_uniform(thousand_reports):
    """Level 1e-3 each: at both positions, and for whole continuations."""
    for which in range(3):
        values = [report.tests[which].p_value for report in thousand_reports]
        assert stats.kstest(values, "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_a_report_accuses_the_shipped_decoder_no_more_often_than_it_says(thousand_reports):
    """At 5 %: no more than 50 of 1,000, and luck; level 1e-3."""
    accused = sum(min(report.adjusted) < 0.05 for report in thousand_reports)
    assert accused <= stats.binom.isf(1e-3, 1000, 0.05)


# --- power --------------------------------------------------------------------------------------


@pytest.mark.parametrize("false_alarm", [0.01, 1e-6])
def test_the_least_visible_error_of_a_size_is_convicted_with_the_promised_power(false_alarm):
    """Mass moved between two halves of p, the alternative that is hardest to see. 2,000 repeats, level 1e-3."""
    probs, n, power = np.full(8, 1 / 8), 3000, 0.9
    error = detectable_error(n, 8, false_alarm, power)
    wrong = probs * np.where(np.arange(8) < 4, 1 + 2 * error, 1 - 2 * error)
    assert np.abs(wrong - probs).sum() / 2 == pytest.approx(error)
    counts = np.random.default_rng(0).multinomial(n, wrong, size=2000)
    convicted = sum(chi_square(c, probs).p_value < false_alarm for c in counts)
    assert abs(convicted - 2000 * power) < 60  # 4.5 standard deviations; the noncentral law is an approximation


def test_other_errors_of_that_size_are_convicted_more_often():
    probs, n = P, 5000
    error = detectable_error(n, 4, 1e-6, 0.9)
    generator = np.random.default_rng(0)
    for wrong in (P + [error, -error, 0, 0], P + [0, 0, error, -error], P + [-error, 0, 0, error]):
        counts = generator.multinomial(n, wrong, size=1000)
        assert sum(chi_square(c, probs).p_value < 1e-6 for c in counts) >= 870


def test_the_samples_that_convict_a_known_law_do():
    wrong = np.array([0.37, 0.31, 0.21, 0.11])
    n = samples_to_convict(wrong, P, 1e-4, power=0.9)
    assert conviction_power(wrong, P, n, 1e-4) >= 0.9 > conviction_power(wrong, P, int(0.98 * n), 1e-4)
    counts = np.random.default_rng(0).multinomial(n, wrong, size=2000)
    assert abs(sum(chi_square(c, P).p_value < 1e-4 for c in counts) - 1800) < 60


def test_an_impossible_token_needs_only_to_be_seen():
    wrong, probs = np.array([0.01, 0.99, 0.0]), np.array([0.0, 0.5, 0.5])
    assert conviction_power([0.01, 0.99], [0.0, 1.0], 100) == pytest.approx(1 - 0.99**100)
    assert samples_to_convict([0.01, 0.99], [0.0, 1.0]) == pytest.approx(np.log(0.01) / np.log(0.99), rel=0.01)
    assert samples_to_convict(wrong, probs) < 100  # and the missing third one is seen sooner


def test_a_tiny_error_needs_nearly_a_billion():
    d = 1.36e-4
    n = samples_to_convict([0.5 + d, 0.5 - d], [0.5, 0.5])
    assert detectable_error(n, 2) == pytest.approx(d, rel=0.01) and 6e8 < n < 1e9


def test_the_right_law_is_never_convicted_for_sure():
    assert samples_to_convict(P, P) is None
    assert conviction_power(P, P, 10_000, 0.01) == pytest.approx(0.01)


# --- reports ------------------------------------------------------------------------------------


def test_a_report_names_the_first_position_that_is_off():
    """Right at the first position, wrong at the second, and wrong in dependence only."""
    generator, uniform = np.random.default_rng(0), {(a, b): 0.25 for a in (0, 1) for b in (0, 1)}
    first, second = generator.integers(0, 2, size=(2, 4000))
    assert fit_sequences(np.stack([first, second], 1), uniform).acquitted
    biased = np.where(generator.random(4000) < 0.2, 1, second)
    report = fit_sequences(np.stack([first, biased], 1), uniform)
    assert report.convicted and "first off: position 2" in str(report)
    dependent = np.where(generator.random(4000) < 0.2, first, second)
    report = fit_sequences(np.stack([first, dependent], 1), uniform)
    assert report.convicted and "CONVICTED" in str(report) and "first off: joint" in str(report)


def test_a_report_understands_texts_that_end():
    law = {(0,): 0.5, (1, 0): 0.25, (1, 1): 0.25}
    tokens = np.array([[0, -1]] * 500 + [[1, 0]] * 250 + [[1, 1]] * 250)
    report = fit_sequences(tokens, law)
    assert report.acquitted and [test.dof for test in report.tests] == [1, 2, 2]
    assert all(test.statistic == 0 for test in report.tests)
    late = fit_sequences(np.array([[0, 0]] + [[0, -1]] * 499 + [[1, 0]] * 500), law)
    assert late.convicted and late.tests[-1].impossible == 1
    assert fit_sequences(tokens[:, :1], {(0,): 0.5, (1,): 0.5}).acquitted


def test_a_report_says_what_it_would_have_seen():
    report = Report([chi_square([400, 300, 200, 100], P, what="here")], false_alarm=0.01)
    assert report.detectable == [pytest.approx(detectable_error(1000, 4, 0.01, 0.99))]
    three = Report([chi_square([400, 300, 200, 100], P)] * 3, false_alarm=0.03)
    assert three.detectable == [pytest.approx(detectable_error(1000, 4, 0.01, 0.99))] * 3
    assert "NOT CONVICTED" in str(report) and "here" in str(report)
