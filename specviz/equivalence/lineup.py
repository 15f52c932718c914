"""The line-up: decoders, right and wrong, tried exactly over every branch and by samples."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.arguments import integer
from specviz.equivalence.exact import Comparison, branches, compare
from specviz.equivalence.goodness_of_fit import Report, check_level, fit_sequences, samples_to_convict
from specviz.equivalence.mutants import MUTANTS, RIGHT, Mutant
from specviz.equivalence.samples import sample_sequences
from specviz.progress import progress_bar
from specviz.randomness import Seeded
from specviz.steps import decode_round


@dataclass(frozen=True)
class Trial:
    """The evidence about one decoder: the exact distribution of its text, and a test of samples from it."""

    mutant: Mutant
    exact: Comparison  # its distribution against the target's, over every branch
    samples_needed: int | None  # for Pearson's test of whole texts to convict it; None for an exact one
    report: Report  # the test of samples
    tokens_per_pass: float  # exactly expected tokens / expected target passes
    right_tokens_per_pass: float  # of the shipped decoder on the same case

    @property
    def as_expected(self) -> bool:
        """A lossy mutant is convicted both ways, any other decoder by neither."""
        return self.exact.exact == self.report.acquitted == (not self.mutant.lossy)

    def to_dict(self) -> dict:
        """The trial's numbers in plain types, ready for JSON."""
        return dict(
            name=self.mutant.name, story=self.mutant.story, case=self.mutant.case.name, lossy=self.mutant.lossy,
            total_variation=self.exact.total_variation, exact=self.exact.exact, samples_needed=self.samples_needed,
            samples=self.report.tests[-1].n, p_value=min(self.report.adjusted), convicted=self.report.convicted,
            tokens_per_pass=self.tokens_per_pass, right_tokens_per_pass=self.right_tokens_per_pass,
            as_expected=self.as_expected,
        )  # fmt: skip

    def __str__(self):
        needed = "" if self.samples_needed is None else str(self.samples_needed)
        lost = 1 - self.tokens_per_pass / self.right_tokens_per_pass
        return (
            f"{self.mutant.name:<20}{self.mutant.case.name:<12}{self.exact.total_variation:>8.1e}{needed:>8}"
            f"{self.report.tests[-1].n:>9}{min(self.report.adjusted):>9.1e}  "
            f"{'CONVICTED' if self.report.convicted else 'acquitted':<11}"
            f"{self.tokens_per_pass:>6.2f}{'' if self.mutant.lossy or lost < 0.0005 else f'{-lost:>7.1%}':>7}"
        )


HEADER = (
    f"{'decoder':<20}{'table':<12}{'error':>8}{'needed':>8}{'samples':>9}{'p':>9}  {'verdict':<11}{'tokens/pass':>13}"
)


def line_up(mutants=None, *, false_alarm=1e-6, max_samples=200_000, seed=0, progress=None) -> list[Trial]:
    """Try decoders, by default the right one on every table and all mutants, exactly and by samples.

    A lossy mutant gets twice the samples that convict it with a power of 99 % at the rate false_alarm, max_samples
    at most. The others get a quarter of max_samples and must be hard to acquit: any innocent is accused with a
    probability of 1 % in all.

    Raises ValueError, before any work, for anything but Mutants and for the other arguments.
    """
    mutants = [*RIGHT, *MUTANTS] if mutants is None else list(mutants)
    for i, mutant in enumerate(mutants):
        if not isinstance(mutant, Mutant):
            raise ValueError(
                f"mutants[{i}]={mutant!r}: must be a Mutant, such as those of the lists MUTANTS and RIGHT (by name: "
                "[mutant for mutant in MUTANTS if mutant.name == …])."
            )
    check_level(false_alarm, "false_alarm")
    max_samples, seed = integer(max_samples, "max_samples", 4), Seeded(seed).seed
    innocent = 0.01 / max(1, sum(not mutant.lossy for mutant in mutants))
    right, trials = {}, []
    with progress_bar(len(mutants), "line-up", progress, unit="decoders") as bar:
        for mutant in mutants:
            case = mutant.case
            if case.name not in right:
                right[case.name] = _exactly(case, decode_round)[1]
            law, tokens_per_pass = _exactly(case, mutant.decode_round)
            expected = case.target_law()
            exact = compare(law, expected)
            needed = None
            if not exact.exact:
                both = ([one.get(text, 0.0) for text in exact.sequences] for one in (law, expected))
                needed = samples_to_convict(*both, false_alarm)
            n = min(max_samples, max(1000, 2 * (needed or max_samples))) if mutant.lossy else max_samples // 4
            tokens = sample_sequences(
                case.target, case.drafter, list(case.prompt), n, seed=seed, progress=False,
                decode_round=mutant.decode_round, **case.settings,
            )  # fmt: skip
            report = fit_sequences(tokens, expected, false_alarm=false_alarm if mutant.lossy else innocent)
            trials.append(Trial(mutant, exact, needed, report, tokens_per_pass, right[case.name]))
            bar.update()
    return trials


def _exactly(case, decode_round):
    """The distribution of the text, and the tokens that a target pass yields on average."""
    law, tokens, passes = {}, 0.0, 0.0
    ways = branches(
        case.target, case.drafter, list(case.prompt), decode_round=decode_round, progress=False, **case.settings
    )
    for trace, weight in ways:
        text = tuple(trace.tokens)
        law[text] = law.get(text, 0.0) + weight
        tokens += weight * len(text)
        passes += weight * len(trace.rounds)
    return law, tokens / passes


def line_up_table(trials) -> str:
    """The trials as text: grouped by kind, each with its story, and the verdict on all."""
    groups = {"the right one, on every table": [], "lossy: another distribution": [], "exact, but slower": []}
    right, lossy, slower = groups.values()
    for trial in trials:
        kind = lossy if trial.mutant.lossy else right if trial.mutant.decode_round is decode_round else slower
        kind.append(f"{trial}  {trial.mutant.story}")
    lines = [HEADER]
    for name, rows in groups.items():
        lines += ["", name, *rows] if rows else []
    wrong = [trial.mutant.name for trial in trials if not trial.as_expected]
    return "\n".join([*lines, "", f"not as expected: {', '.join(wrong)}" if wrong else "every verdict as expected"])
