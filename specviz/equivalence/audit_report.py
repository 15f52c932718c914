"""The report of an audit: in numbers, as text, and as plain types for JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from specviz.equivalence.goodness_of_fit import MIN_EXPECTED, POWER, Report
from specviz.models.protocol import LanguageModel
from specviz.sampling import SamplingParams


@dataclass(frozen=True)
class Audited:
    """The arguments of an audit, checked."""

    generate: Callable
    target: LanguageModel
    prompts: list[list[int]]
    samples: int
    max_new_tokens: int
    sampling: SamplingParams
    eos: frozenset[int]
    drafter: LanguageModel | None
    false_alarm: float
    seed: int

    @property
    def name(self) -> str:
        return getattr(self.generate, "__name__", "generate")

    def to_dict(self) -> dict:
        """The arguments on which the texts depend, in plain types."""
        return dict(
            generate=self.name, target=self.target.name, prompts=self.prompts, max_new_tokens=self.max_new_tokens,
            sampling=self.sampling.to_dict(), eos=sorted(self.eos), seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True)
class Impossible:
    """Texts that no correct decoder emits."""

    what: str
    remedy: str
    count: int
    position: int  # the first, from 1
    example: list[int]


@dataclass(frozen=True)
class Difference:
    """A token that is not the target's greedy choice after the tokens before it."""

    prompt: int  # which of the prompts, from 0
    position: int  # in the continuation, from 1
    token: int
    expected: int
    gap: float  # by how much the expected token's logit is larger
    top_two: float  # by how much the largest logit exceeds the second largest
    near_tie: bool  # a gap that rounding can close: no fault


@dataclass(frozen=True)
class Histogram:
    """Counts of one test beside those expected under the target's distribution."""

    what: str
    position: int | None  # from 1; None for tests over several
    labels: list
    observed: np.ndarray  # [K] int64
    expected: np.ndarray  # [K] float64

    @property
    def residuals(self) -> np.ndarray:
        """(observed - expected) / sqrt(expected): beyond ±3 by chance once in 400 cells; infinite where impossible."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num((self.observed - self.expected) / np.sqrt(self.expected), posinf=np.inf)

    def text(self, most=20, width=40) -> str:
        """A bar for each cell, rare ones as one; of many cells those that deviate most."""
        joined = self._with_rare_cells_as_one()
        labels, observed, expected, residuals = joined.labels, joined.observed, joined.expected, joined.residuals
        shown = np.sort(np.argsort(-np.abs(residuals), kind="stable")[:most])
        scale = width / max(1.0, *observed[shown], *expected[shown])
        wide = max(len(labels[k]) for k in shown)
        lines = [f"{'':<{wide}}  observed  expected  residual  (█ observed, │ expected)"]
        for k in shown:
            bar = list("█" * round(observed[k] * scale)) + [" "] * (width + 1)
            bar[round(expected[k] * scale)] = "│"
            numbers = f"{observed[k]:>10}{expected[k]:>10.1f}{residuals[k]:>+10.1f}"
            lines.append(f"{labels[k]:<{wide}}{numbers}  {''.join(bar).rstrip()}")
        if len(labels) > len(shown):
            lines.append(f"… and {len(labels) - len(shown)} cells nearer to their expectation")
        return "\n".join(lines)

    def _with_rare_cells_as_one(self) -> Histogram:
        """The likeliest cells first (ranks in their order), then rare and impossible ones, each kind as one."""
        likely, rare, impossible = self.expected >= MIN_EXPECTED, self.expected < MIN_EXPECTED, self.expected == 0
        order = np.flatnonzero(likely)
        if "ranks" not in self.what:
            order = order[np.argsort(-self.expected[order], kind="stable")]
        cells = [(self.labels[k], [k]) for k in order]
        for kind, which in (("rarer", rare & ~impossible), ("impossible", impossible)):
            if len(some := np.flatnonzero(which)):
                cells.append((self.labels[some[0]] if len(some) == 1 else f"({len(some)} {kind})", some))
        observed, expected = (np.array([x[some].sum() for _, some in cells]) for x in (self.observed, self.expected))
        return Histogram(self.what, self.position, [name for name, _ in cells], observed, expected)


def label(target, ids) -> str:
    """Token ids and, where the target has a tokenizer, their text."""
    if not ids:
        return "(ended)"
    numbers = " ".join(map(str, ids))
    if target.tokenizer is None:
        return numbers
    text = b"".join(target.tokenizer.piece(token) for token in ids).decode("utf-8", errors="replace")
    return f"{numbers} {text!r}"


@dataclass(frozen=True)
class AuditReport:
    """The findings of an audit; print() it. In a test suite: assert not report.convicted, report."""

    audited: Audited
    texts: list[list[int]]  # all continuations that were judged
    tests: Report | None = None  # p-values, adjusted ones, detectable errors; None for greedy text
    histograms: list[Histogram] = field(default_factory=list)  # one for each of the tests, to look at or to plot
    impossible: list[Impossible] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)  # from the greedy text
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def convicted(self) -> bool:
        """The texts do not follow the target's distribution (greedy: are not its text, near ties apart)."""
        by_tests = self.tests is not None and self.tests.convicted
        return by_tests or bool(self.impossible) or any(not found.near_tie for found in self.differences)

    @property
    def first_position(self) -> int | None:
        """The first position of the continuation, from 1, that convicts; None if none does, or only several at once."""
        positions = [found.position for found in self.impossible]
        positions += [found.position for found in self.differences if not found.near_tie]
        positions += [h.position for h in self.off if h.position is not None]
        return min(positions, default=None)

    @property
    def off(self) -> list[Histogram]:
        """The histograms whose tests convict, in order."""
        adjusted = [] if self.tests is None else self.tests.adjusted
        return [h for h, p in zip(self.histograms, adjusted) if p < self.audited.false_alarm]

    @property
    def histogram(self) -> Histogram | None:
        """The first that is off, or else the first of all."""
        return next(iter([*self.off, *self.histograms]), None)

    def to_dict(self) -> dict:
        """The verdict and its reasons in plain types, ready for JSON; of the texts only their number."""
        tests = [] if self.tests is None else zip(self.tests.tests, self.tests.adjusted, self.tests.detectable)
        return dict(
            **self.audited.to_dict(), false_alarm=float(self.audited.false_alarm), texts=len(self.texts),
            convicted=self.convicted, first_position=self.first_position, interrupted=self.interrupted,
            tests=[
                dict(what=fit.what, samples=fit.n, cells=fit.dof + 1, p_value=fit.p_value, adjusted=p, error_seen=error)
                for fit, p, error in tests
            ],
            impossible=[asdict(found) for found in self.impossible],
            differences=[asdict(found) for found in self.differences], notes=list(self.notes),
        )  # fmt: skip

    def __str__(self):
        target = self.audited.target
        verdict = "CONVICTED" if self.convicted else "NOT CONVICTED"
        lines = [f"AUDIT of {self.audited.name} against {target.name}: {verdict}", *self._setting(), ""]
        lines += self._greedily() if self.audited.sampling.temperature == 0 else self._statistically()
        for found in self.impossible:
            lines += [
                "",
                f"{found.count} of {len(self.texts)} texts {found.what}. No correct decoder emits one: this alone "
                "convicts.",
                f"  the first at position {found.position}: {label(target, found.example)}",
                f"  remedy: {found.remedy}",
            ]
        lines += [f"Note: {note}" for note in self.notes]
        if self.histogram is not None:
            lines += ["", f"{self.histogram.what}:", self.histogram.text()]
        return "\n".join(lines).rstrip()

    def _setting(self) -> list[str]:
        audited = self.audited
        given = {name: value for name, value in audited.sampling.to_dict().items() if value is not None}
        how = ", ".join(f"{name} {value}" for name, value in given.items())
        one = f"a prompt of {len(audited.prompts[0])} tokens"
        where = one if len(audited.prompts) == 1 else f"{len(audited.prompts)} prompts"
        lines = [f"{len(self.texts)} texts of up to {audited.max_new_tokens} tokens after {where}; {how}"]
        return lines + (["INTERRUPTED: these are the texts drawn by then"] if self.interrupted else [])

    def _statistically(self) -> list[str]:
        if self.tests is None:
            return ["No text was left to test."]
        false_alarm, first = self.audited.false_alarm, ""
        if self.convicted:
            first = f"; first off: {f'position {self.first_position}' if self.first_position else self.off[0].what}"
        lines = [
            f"A correct decoder is convicted with probability {false_alarm:g} at most{first}.",
            f"{'test':<24}{'samples':>9}{'cells':>7}{'p-value':>10}{'adjusted':>10}{'error seen':>12}",
        ]
        for fit, adjusted, error in zip(self.tests.tests, self.tests.adjusted, self.tests.detectable):
            seen = f"{error:.1%}" if fit.dof else "none"
            mark = "  <- off" if adjusted < false_alarm else ""
            lines.append(
                f"{fit.what:<24}{fit.n:>9}{fit.dof + 1:>7}{fit.p_value:>10.2g}{adjusted:>10.2g}{seen:>12}{mark}"
            )
        return lines + [
            "adjusted: p-values, corrected for the number of tests (Holm). error seen: the total variation from the",
            f"target's distribution over the cells of this test that it convicts with probability {POWER:g}.",
        ]

    def _greedily(self) -> list[str]:
        wrong = [found for found in self.differences if not found.near_tie]
        near = [found for found in self.differences if found.near_tie]
        lines = []
        if not self.differences and not self.impossible:
            few = f"{1 - 0.01 ** (1 / len(self.audited.prompts)):.1%} of prompts like these"
            lines += [
                f"Equal to the target's greedy text in all {len(self.texts)}. A decoder that errs on {few}",
                "would have been convicted with probability 0.99.",
            ]
        for found in [*wrong, *near][:10]:
            token, best = (label(self.audited.target, [i]) for i in (found.token, found.expected))
            lines.append(
                f"prompt {found.prompt}, position {found.position}: {token} instead of {best}, whose logit is "
                f"{found.gap:.3g} larger (the top two are {found.top_two:.3g} apart): "
                + ("a near tie, within rounding; no fault" if found.near_tie else "a real difference")
            )
        if len(self.differences) > 10:
            lines.append(f"… {len(self.differences)} differences in all, {len(near)} of them near ties")
        return lines
