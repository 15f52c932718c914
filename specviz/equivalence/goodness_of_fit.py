"""Do samples fit the promised distribution? Tests with a stated rate of false alarms, and their power."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from specviz.arguments import integer, real

MIN_EXPECTED = 5.0  # cells that expect fewer are pooled: below, chi-square is a poor approximation
POWER = 0.99  # the chance of conviction at which reports state the error that they would have seen


# --- one test -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """One test of counts against probabilities."""

    what: str
    n: int
    statistic: float
    dof: int  # cells after pooling, less one
    p_value: float  # how often the promised distribution itself looks this bad; see chi_square()
    impossible: int  # observations of probability 0; one is enough for p_value = 0
    distance: float  # half the sum of |counts/n - probs|; above 0 by chance alone


def chi_square(counts, probs, *, what="") -> Fit:
    """Pearson's test: the sum of (observed - expected)² / expected over cells, against chi-square.

    counts [K] integers, probs [K]; cells with fewer than MIN_EXPECTED are pooled. Where even together they expect
    fewer, a cell that joins them would hide them: then their sum is also tested by itself, exactly (binomial, "this
    many or more"), at a hundredth of the level. Raises ValueError for other counts and probs.
    """
    counts, probs = _checked(counts, probs)
    n, impossible = int(counts.sum()), int(counts[probs == 0].sum())
    observed, expected = pool(counts, n * probs)
    dof = len(observed) - 1
    value, p_value = 0.0, 1.0
    if impossible:
        value, p_value = math.inf, 0.0
    else:
        if dof:
            value, p_value = map(float, stats.chisquare(observed, expected))
        rare = n * probs < MIN_EXPECTED
        if 0 < n * probs[rare].sum() < MIN_EXPECTED:
            this_many = float(stats.binom.sf(counts[rare].sum() - 1, n, probs[rare].sum()))
            p_value = min(1.0, p_value / 0.99, this_many / 0.01)
    return Fit(what, n, value, dof, p_value, impossible, float(np.abs(counts / n - probs).sum() / 2))


def _checked(counts, probs):
    counts, probs = np.asarray(counts), np.asarray(probs, dtype=np.float64)
    if counts.ndim != 1 or counts.shape != probs.shape:
        raise ValueError(f"counts has shape {counts.shape} and probs {probs.shape}: give one of each for every cell.")
    if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any() or counts.sum() == 0:
        raise ValueError("counts: must be integers >= 0, with at least one observation (not shares of the whole).")
    if not _sums_to_1(probs):
        raise ValueError(f"probs sums to {probs.sum():.6g}: must be probabilities, >= 0 and with sum 1.")
    return counts, probs / probs.sum()


def pool(observed, expected) -> tuple[np.ndarray, np.ndarray]:
    """Both with all cells that expect less than MIN_EXPECTED put into one, the last.

    Where even that one expects too little, the next smallest cells join it. Cells of probability 0 are left out.
    """
    possible = np.asarray(expected) > 0
    observed, expected = np.asarray(observed)[possible], np.asarray(expected, dtype=np.float64)[possible]
    order = np.argsort(expected, kind="stable")
    rare = int((expected < MIN_EXPECTED).sum())
    while 0 < rare < len(order) and expected[order[:rare]].sum() < MIN_EXPECTED:
        rare += 1
    if not rare:
        return observed, expected
    kept, pooled = np.sort(order[rare:]), order[:rare]
    return np.append(observed[kept], observed[pooled].sum()), np.append(expected[kept], expected[pooled].sum())


def holm(p_values) -> list[float]:
    """p-values adjusted for their number (Holm 1979).

    The chance of any false alarm stays below the level at which the smallest adjusted one is judged, however the
    tests depend on each other.
    """
    order = np.argsort(p_values, kind="stable")
    factors = len(order) - np.arange(len(order))
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(factors * np.asarray(p_values, dtype=np.float64)[order]))
    return adjusted.tolist()


# --- how far off, and how many samples would tell -----------------------------------------------


def detectable_error(n: int, cells: int, false_alarm: float = 1e-6, power: float = POWER) -> float:
    """The total variation from the promised distribution that Pearson's test of n samples convicts; at most 1.

    The error is that over the cells: a move of probability within a pooled cell is not seen, and not counted.
    false_alarm: the p-value below which it convicts. power: the chance that it does. An error of total variation d
    has a noncentrality of at least 4 d² n, whatever its shape (least when it moves mass between two halves of p).
    """
    n, dof = integer(n, "n", 1), integer(cells, "cells", 2, " (one cell leaves nothing to test)") - 1
    check_level(false_alarm, "false_alarm")
    check_level(power, "power")
    noncentrality = special.chndtrinc(stats.chi2.isf(false_alarm, dof), dof, 1 - power)
    return min(1.0, math.sqrt(noncentrality / (4 * n)))


def check_level(value, name):
    """ValueError unless value is a probability between 0 and 1, exclusive."""
    if not 0 < real(value) < 1:
        raise ValueError(f"{name}={value!r}: must be a probability between 0 and 1, such as 0.01.")


def conviction_power(law, probs, n: int, false_alarm: float = 1e-6) -> float:
    """The chance that Pearson's test of n samples from law [K] against probs [K] convicts."""
    law, probs = (np.asarray(given, dtype=np.float64) for given in (law, probs))
    for name, given in (("law", law), ("probs", probs)):
        if given.ndim != 1 or given.shape != law.shape or not _sums_to_1(given):
            raise ValueError(
                f"{name} has shape {given.shape} and sums to {given.sum():.6g}: give two distributions over the same "
                "cells, >= 0 and with sum 1."
            )
    n = integer(n, "n", 1)
    check_level(false_alarm, "false_alarm")
    actual, promised = pool(n * law, n * probs)
    seen_impossible = 1 - (1 - min(1.0, float(law[probs == 0].sum()))) ** n
    if len(promised) == 1:
        return seen_impossible
    noncentrality = ((actual - promised) ** 2 / promised).sum()
    dof = len(promised) - 1
    seen = stats.ncx2.sf(stats.chi2.isf(false_alarm, dof), dof, noncentrality) if noncentrality > 0 else false_alarm
    return float(1 - (1 - seen_impossible) * (1 - seen))


def _sums_to_1(probs) -> bool:
    return bool((probs >= 0).all() and abs(probs.sum() - 1) <= 1e-6)  # NaN does neither


def samples_to_convict(law, probs, false_alarm: float = 1e-6, power: float = POWER) -> int | None:
    """Samples with which Pearson's test convicts this very distribution; None if a billion are too few."""
    check_level(power, "power")
    upto = range(1, 10**9 + 1)
    short = bisect_left(upto, power, key=lambda n: conviction_power(law, probs, n, false_alarm))
    return upto[short] if short < len(upto) else None


# --- several tests, one verdict -----------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """Several tests of one sampler, judged together; print() it.

    The verdict is wrong about a correct sampler with probability false_alarm at most (Holm's correction).
    """

    tests: list[Fit]
    false_alarm: float = 0.01

    def __post_init__(self):
        if not self.tests:
            raise ValueError("tests=[] is empty: give at least one.")
        check_level(self.false_alarm, "false_alarm")

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
    def detectable(self) -> list[float]:
        """The total variation (after pooling) that each test would have convicted, with probability POWER."""
        level = self.false_alarm / len(self.tests)
        return [detectable_error(test.n, max(2, test.dof + 1), level) for test in self.tests]

    def __str__(self):
        off = [test.what for test, adjusted in zip(self.tests, self.adjusted) if adjusted < self.false_alarm]
        chance = f"(false-alarm rate {self.false_alarm:.3g} at most)"
        lines = [
            f"CONVICTED {chance}; first off: {off[0]}"
            if off
            else f"NOT CONVICTED {chance}; last column: the error that would be, with a power of {POWER:.2g}",
            f"{'test':<14}{'samples':>9}{'statistic':>11}{'dof':>6}{'p':>10}{'adjusted':>10}{'distance':>10}{'error':>8}",
        ]
        for test, adjusted, detectable in zip(self.tests, self.adjusted, self.detectable):
            mark = "  <- off" if adjusted < self.false_alarm else ""
            mark += f", {test.impossible} impossible" if test.impossible else ""
            lines.append(
                f"{test.what:<14}{test.n:>9}{test.statistic:>11.1f}{test.dof:>6}{test.p_value:>10.2g}{adjusted:>10.2g}"
                f"{test.distance:>10.3f}{detectable:>8.3f}{mark}"
            )
        return "\n".join(lines)


def fit_sequences(tokens, law, *, false_alarm=0.01) -> Report:
    """Sampled continuations [n, T] (-1 behind an end) against a distribution {continuation: probability}.

    One chi-square test for each position (with "ended" as a symbol of its own), and one of whole continuations, which
    also sees dependence between positions. Raises ValueError for tokens, law or false_alarm of another kind.
    """
    check_level(false_alarm, "false_alarm")
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or not len(tokens) or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"tokens has shape {tokens.shape}: must be integers [n, T], a row for each continuation.")
    if not law or not all(isinstance(text, tuple) for text in law):
        raise ValueError(f"law={law!r:.80}: must be {{continuation: probability}}, continuations being tuples of ids.")
    tables = count_cells(tokens, law)
    return Report([chi_square(counts, probs, what=what) for what, _, counts, probs in tables], false_alarm)


def count_cells(tokens, law) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """For each position, then jointly: its name, the distinct entries [K, 1] or [K, T], their counts [K] and probs [K].

    tokens and law as in fit_sequences().
    """
    longest = max(tokens.shape[1], *map(len, law))
    tokens = np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1])), constant_values=-1)
    possible, probs = np.array([[*text, *[-1] * (longest - len(text))] for text in law]), [*law.values()]
    columns = {f"position {i + 1}": [i] for i in range(longest)} | {"joint": [*range(longest)]}
    for what, at in columns.items():
        both = np.concatenate([tokens[:, at], possible[:, at]])
        cells, index = np.unique(both, axis=0, return_inverse=True)
        of_tokens, of_law = np.split(index.reshape(-1), [len(tokens)])
        k = len(cells)
        yield what, cells, np.bincount(of_tokens, minlength=k), np.bincount(of_law, weights=probs, minlength=k)
