"""Does what was sampled fit the law that was promised? Tests with a stated rate of false alarms, and their power."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from specviz.arguments import integer

MIN_EXPECTED = 5.0  # cells that expect fewer are pooled: below, the chi-square law is a poor approximation


# --- one test -----------------------------------------------------------------------------------


class Interval(NamedTuple):
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """One test of counts against probabilities."""

    what: str
    n: int
    statistic: float
    dof: int  # cells after pooling, less one
    p_value: float  # how often the promised law itself looks this bad; see chi_square()
    impossible: int  # observations that the law gives probability 0; one is enough for p_value = 0
    distance: Interval  # total variation from the promised law, see total_variation()


def chi_square(counts, probs, *, what="", min_expected=MIN_EXPECTED) -> Fit:
    """Pearson's test: the sum of (observed - expected)² / expected over cells, against chi-square.

    counts [K] integers, probs [K]; cells with fewer than min_expected are pooled. Where even together they expect
    fewer, a cell that joins them would hide them: then their sum is also tested by itself, exactly (binomial, "this
    many or more"), at a hundredth of the level. Raises ValueError for counts or probs that are none.
    """
    return _fit(counts, probs, "pearson", what, min_expected)


def g_test(counts, probs, *, what="", min_expected=MIN_EXPECTED) -> Fit:
    """The likelihood-ratio test: 2 times the sum of observed · log(observed / expected). Otherwise as chi_square()."""
    return _fit(counts, probs, "log-likelihood", what, min_expected)


def _fit(counts, probs, statistic, what, min_expected):
    counts, probs = _checked(counts, probs)
    n, impossible = int(counts.sum()), int(counts[probs == 0].sum())
    observed, expected = pool(counts, n * probs, min_expected)
    dof = len(observed) - 1
    value, p_value = 0.0, 1.0
    if impossible:
        value, p_value = math.inf, 0.0
    else:
        if dof:
            value, p_value = map(float, stats.power_divergence(observed, expected, lambda_=statistic))
        rare = n * probs < min_expected
        if 0 < n * probs[rare].sum() < min_expected:
            this_many = float(stats.binom.sf(counts[rare].sum() - 1, n, probs[rare].sum()))
            p_value = min(1.0, p_value / 0.99, this_many / 0.01)
    return Fit(what, n, value, dof, p_value, impossible, total_variation(counts, probs))


def _checked(counts, probs):
    counts, probs = np.asarray(counts), np.asarray(probs, dtype=np.float64)
    if counts.ndim != 1 or counts.shape != probs.shape:
        raise ValueError(f"counts has shape {counts.shape} and probs {probs.shape}: give one of each for every cell.")
    if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any() or counts.sum() == 0:
        raise ValueError("counts: must be integers >= 0, with at least one observation (not shares of the whole).")
    if not (probs >= 0).all() or abs(probs.sum() - 1) > 1e-6:
        raise ValueError(f"probs sums to {probs.sum():.6g}: must be probabilities, >= 0 and with sum 1.")
    return counts, probs / probs.sum()


def pool(observed, expected, min_expected=MIN_EXPECTED) -> tuple[np.ndarray, np.ndarray]:
    """Both with all cells that expect less than min_expected put into one, the last.

    Where even that one expects too little, the next smallest cells join it. Cells of probability 0 are left out.
    """
    possible = np.asarray(expected) > 0
    observed, expected = np.asarray(observed)[possible], np.asarray(expected, dtype=np.float64)[possible]
    order = np.argsort(expected, kind="stable")
    rare = int((expected < min_expected).sum())
    while 0 < rare < len(order) and expected[order[:rare]].sum() < min_expected:
        rare += 1
    if not rare:
        return observed, expected
    kept, pooled = np.sort(order[rare:]), order[:rare]
    return np.append(observed[kept], observed[pooled].sum()), np.append(expected[kept], expected[pooled].sum())


def holm(p_values) -> list[float]:
    """p-values adjusted for being several (Holm 1979): the chance that any true law is called false stays below
    the level at which the smallest adjusted one is judged, however the tests depend on each other."""
    order = np.argsort(p_values, kind="stable")
    factors = len(order) - np.arange(len(order))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(factors * np.asarray(p_values, dtype=np.float64)[order]))
    return adjusted.tolist()


# --- how far off, and how many samples would tell -----------------------------------------------


def total_variation(counts, probs, confidence=0.99) -> Interval:
    """Half the sum of |counts/n - probs|, and an interval that holds the sampled law's true distance from probs.

    Never wrong more often than 1 - confidence, for any law: sampled shares over K cells are further than
    sqrt((K-1)/n)/2 + sqrt(log(1/(1-confidence))/(2n)) from their law in at most that share of cases (Cauchy-Schwarz
    for the mean, McDiarmid for the rest). The value itself is above 0 by chance alone, so look at low.
    """
    counts, probs = _checked(counts, probs)
    _check_level(1 - confidence, "1 - confidence")
    n = counts.sum()
    cells = int(((counts > 0) | (probs > 0)).sum())
    value = float(np.abs(counts / n - probs).sum() / 2)
    radius = math.sqrt((cells - 1) / n) / 2 + math.sqrt(math.log(1 / (1 - confidence)) / (2 * n))
    return Interval(value, max(0.0, value - radius), min(1.0, value + radius))


def samples_needed(error: float, cells: int, false_alarm: float = 1e-6, power: float = 0.99) -> int:
    """Samples with which Pearson's test over cells convicts any law whose total variation from p is error or more.

    The error is that over the cells: what only moves mass within a pooled cell is not seen, and not counted.
    false_alarm: the p-value below which it convicts. power: the chance that it does. An error of total variation d
    has a noncentrality of at least 4 d² n, whatever its shape (least when it moves mass between two halves of p).
    """
    if not 0 < error <= 1:
        raise ValueError(f"error={error!r}: must be a total variation in (0, 1].")
    return math.ceil(_noncentrality(cells, false_alarm, power) / (4 * error**2))


def detectable_error(n: int, cells: int, false_alarm: float = 1e-6, power: float = 0.99) -> float:
    """The inverse: the total variation that n samples convict with that power; at most 1."""
    return min(1.0, math.sqrt(_noncentrality(cells, false_alarm, power) / (4 * integer(n, "n", 1))))


def _noncentrality(cells, false_alarm, power) -> float:
    dof = integer(cells, "cells", 2, " (one cell leaves nothing to test)") - 1
    _check_level(false_alarm, "false_alarm")
    _check_level(power, "power")
    return float(special.chndtrinc(stats.chi2.isf(false_alarm, dof), dof, 1 - power))


def _check_level(value, name):
    if not 0 < value < 1:
        raise ValueError(f"{name}={value!r}: must be a probability between 0 and 1.")


def conviction_power(law, probs, n: int, false_alarm: float = 1e-6) -> float:
    """The chance that Pearson's test on n samples from law [K] convicts it of not being probs [K]."""
    law, probs = _laws(law, probs)
    n = integer(n, "n", 1)
    _check_level(false_alarm, "false_alarm")
    actual, promised = pool(n * law, n * probs)
    seen_impossible = 1 - (1 - min(1.0, float(law[probs == 0].sum()))) ** n
    if len(promised) == 1:
        return seen_impossible
    noncentrality = ((actual - promised) ** 2 / promised).sum()
    dof = len(promised) - 1
    seen = stats.ncx2.sf(stats.chi2.isf(false_alarm, dof), dof, noncentrality) if noncentrality > 0 else false_alarm
    return float(1 - (1 - seen_impossible) * (1 - seen))


def _laws(*laws):
    laws = [np.asarray(law, dtype=np.float64) for law in laws]
    for name, law in zip(("law", "probs"), laws):
        if law.ndim != 1 or law.shape != laws[0].shape or not ((law >= 0).all() and abs(law.sum() - 1) <= 1e-6):
            raise ValueError(
                f"{name} has shape {law.shape} and sums to {law.sum():.6g}: give two laws over the same cells, >= 0 "
                "and with sum 1."
            )
    return laws


def samples_to_convict(law, probs, false_alarm: float = 1e-6, power: float = 0.99) -> int | None:
    """Samples with which Pearson's test convicts this very law; None if it would take more than a billion."""
    _check_level(power, "power")
    enough = 1
    while conviction_power(law, probs, enough, false_alarm) < power:
        if enough == 10**9:
            return None
        enough = min(2 * enough, 10**9)
    short = enough // 2
    while enough - short > max(1, enough // 200):  # to half a percent
        middle = (short + enough) // 2
        if conviction_power(law, probs, middle, false_alarm) < power:
            short = middle
        else:
            enough = middle
    return enough


# --- several tests, one verdict -----------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """Several tests of one sampler, judged together; print() it.

    The verdict is wrong about a correct sampler with probability false_alarm at most (Holm's correction).
    """

    tests: list[Fit]
    false_alarm: float = 0.01
    power: float = 0.99  # at which detectable is stated

    def __post_init__(self):
        if not self.tests:
            raise ValueError("tests=[] is empty: give at least one.")
        _check_level(self.false_alarm, "false_alarm")
        _check_level(self.power, "power")

    @property
    def adjusted(self) -> list[float]:
        """The p-value of each test, adjusted for their number."""
        return holm([test.p_value for test in self.tests])

    @property
    def convicted(self) -> bool:
        return min(self.adjusted) < self.false_alarm

    @property
    def acquitted(self) -> bool:
        return not self.convicted

    @property
    def first_off(self) -> str | None:
        """The first of the tests, in their order, that convicts: the first position that is off."""
        return next((test.what for test, p in zip(self.tests, self.adjusted) if p < self.false_alarm), None)

    @property
    def detectable(self) -> list[float]:
        """The total variation (after pooling) at which each test would have convicted, with probability power."""
        level = self.false_alarm / len(self.tests)
        return [detectable_error(test.n, max(2, test.dof + 1), level, self.power) for test in self.tests]

    def __str__(self):
        chance = f"{self.false_alarm:.3g} at most"
        lines = [
            f"CONVICTED (false-alarm rate {chance}); first off: {self.first_off}"
            if self.convicted
            else f"NOT CONVICTED (false-alarm rate {chance}); last column: the error that would be, with a power of "
            f"{self.power:.2g}",
            f"{'test':<14}{'samples':>9}{'statistic':>11}{'dof':>6}{'p':>10}{'adjusted':>10}{'distance':>10}{'error':>8}",
        ]
        for test, adjusted, detectable in zip(self.tests, self.adjusted, self.detectable):
            mark = "  <- off" if adjusted < self.false_alarm else ""
            mark += f", {test.impossible} impossible" if test.impossible else ""
            lines.append(
                f"{test.what:<14}{test.n:>9}{test.statistic:>11.1f}{test.dof:>6}{test.p_value:>10.2g}{adjusted:>10.2g}"
                f"{test.distance.value:>10.3f}{detectable:>8.3f}{mark}"
            )
        return "\n".join(lines)


def fit_sequences(tokens, law, *, test=chi_square, false_alarm=0.01) -> Report:
    """Sampled continuations [n, T] (-1 behind an end) against a law {continuation: probability}.

    One test for each position, of what stands there (with "ended" as a symbol of its own), and one of the joint law
    of whole continuations, which also sees dependence between positions. test: chi_square or g_test.
    """
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or not len(tokens) or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"tokens has shape {tokens.shape}: must be integers [n, T], a row for each continuation.")
    if not law or not all(isinstance(text, tuple) for text in law):
        raise ValueError(f"law={law!r:.80}: must be {{continuation: probability}}, continuations being tuples of ids.")
    longest = max(tokens.shape[1], *map(len, law))
    tokens = np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1])), constant_values=-1)
    texts, probs = np.array([[*text, *[-1] * (longest - len(text))] for text in law]), np.array(list(law.values()))
    tests = [test(*_cells(tokens[:, [i]], texts[:, [i]], probs), what=f"position {i + 1}") for i in range(longest)]
    return Report([*tests, test(*_cells(tokens, texts, probs), what="joint")], false_alarm)


def _cells(observed, possible, probs):
    """Counts and probabilities of the distinct rows of either: [n, T], [K, T], [K] -> [cells], [cells]."""
    cells, index = np.unique(np.concatenate([observed, possible]), axis=0, return_inverse=True)
    index = index.reshape(-1)
    counts = np.bincount(index[: len(observed)], minlength=len(cells))
    return counts, np.bincount(index[len(observed) :], weights=probs, minlength=len(cells))
