"""The checks of 05-equivalence, and its line-up of unnamed decoders."""

from functools import partial

import numpy as np
import torch
from scipy.stats import chi2

from specviz.equivalence.exact import prove
from specviz.equivalence.mutants import MUTANTS, with_step
from specviz.exercises import exercise
from specviz.exercises.answers import AnswerError, Hint, array, judge, number, parts, same
from specviz.exercises.examples import random_pair
from specviz.models.table import TableModel
from specviz.verification import accept_probability, residual, verify

# Who is who stays here, so that a lesson can be read without the answer. Three tell the truth.
_WHO = {
    "A": ("no bonus", True),
    "B": ("target not rewound", False),
    "C": ("right", True),
    "D": ("bonus overwrites", False),
    "E": ("resample from p", False),
    "F": ("sample and match", True),
}
_STRANGERS = {"goes on": False, "draft not rewound": True, "first draft spared": False, "hotter draft": True}
_CHANGES = {mutant.name: mutant.decode_round for mutant in MUTANTS} | {"right": with_step()}


def suspects():
    """{letter: decode_round} of six decoders, to be tried on the table pair CASES["context"]."""
    return {letter: _unnamed(name) for letter, (name, _) in _WHO.items()}


def _unnamed(name):
    return lambda state: _CHANGES[name](state)


# {name: (accept, resample_from)}; the first tells all the usual slips apart
_RULES = {
    "a coin that always shows one half": (lambda p, q: torch.full_like(p, 0.5), lambda p, q: q.flip(-1)),
    "a coin that is too mild": (lambda p, q: (p / (0.6 * q)).clamp(max=1), residual),
    "the ratio upside down": (lambda p, q: accept_probability(q, p), residual),
    "resampling from p": (accept_probability, lambda p, q: p),
    "the paper's rule": (accept_probability, residual),
}


@exercise("05-equivalence", "rule-law", todo="Two ways lead to a token, as in step 1; the coin is now accept(p, q).")
def _(law_of):
    generator = torch.Generator().manual_seed(0)
    for name, (accept, resample_from) in [*_RULES.items()] * 3:
        p, q = random_pair(generator)
        answer = array(law_of(p, q, accept, resample_from), p.shape, f"a probability for each of the {len(p)} tokens")
        a, r, least = accept(p, q), resample_from(p, q), torch.minimum(p, q)
        z, papers_z = 1 - (q * a).sum(), 1 - least.sum()
        judge(answer, q * a + z * r, {
            "that is what was promised. Write down what this rule emits, promise or not.": p,
            "the second way is missing: rejected, then drawn from resample_from(p, q).": q * a,
            "Z = 1 - Σ min(p, q) is how often *the paper's* coin rejects. And this one?": q * a + papers_z * r,
            "min(p, q) is what *the paper's* coin lets through. Put accept(p, q) in its place.": least + papers_z * r,
            "the coin is tossed only for a token that was drafted: weigh accept(p, q) with q.": a + z * r,
            "the second way follows only a rejection: weigh resample_from(p, q) with its probability.": q * a + r,
            "one number says how often *some* draft is rejected; you weighed resample_from(p, q)[x] with the rejection "
            "of x itself.": q * a + (q - q * a) * r,
        }, f"a distribution sums to 1 over the tokens; yours sums to {answer.sum():.3f}.", f"({name}) ")  # fmt: skip
    return "for any rule: P = q·A + (1 - Σ q·A)·left"


def shy_coin(p, q):
    """Accepts half as often as the paper's."""
    return accept_probability(p, q) / 2


@exercise("05-equivalence", "repair", todo="What must be missing, after q·A was accepted, for the sum to be p?")
def _(my_resample_from):
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.stack(laws) for laws in zip(*(random_pair(generator) for _ in range(3))))  # [3, V]
    each = f"something for each of the {p.shape[-1]} tokens"
    try:
        answers = torch.stack([array(my_resample_from(p[i], q[i]), p[i].shape, each) for i in range(3)])
        batch = array(my_resample_from(p, q), None)
    except AnswerError as error:
        raise Hint(f"p and q may be [V] or a batch, [..., V]; your code raised on one: {error.__cause__}") from error
    answers = _scaled(answers)
    if not same(_scaled(batch), answers):
        raise Hint("on a batch [..., V] you return something else than on its rows. Sum over the last dimension: -1.")
    for wrong, hint in (
        (residual(p, q), "that is the residual of the paper's coin. The shy coin accepts less, so more is missing."),
        (p, "that is p: it gives again what was accepted already."),
        ((p - q / 2).clamp(min=0), "max(0, p - q/2) is not it: the shy coin lets through min(p, q)/2, which is less "
         "than q/2 where p < q."),
    ):  # fmt: skip
        if same(answers, _scaled(wrong)):
            raise Hint(hint)
    target, drafter = TableModel.random(3, 1, seed=3), TableModel.random(3, 1, seed=4)
    mine = with_step(verify=partial(verify, accept=shy_coin, resample_from=my_resample_from))
    for settings in (dict(gamma=2), dict(gamma=3, eos=[1])):
        proof = prove(target, drafter, [0], max_new_tokens=4, decode_round=mine, progress=False, **settings)
        if proof.total_variation > 1e-6:  # what is computed in float32 is off by less
            raise Hint(
                f"with your resample_from the law of the texts is off by {proof.total_variation:.3f} in total. "
                "At each position what is accepted, q·A, and what is missing must add up to p; also for the bonus, "
                "where q = 0."
            )
    return "proven on every branch. The paper's coin is the special case that wastes the least"


def _scaled(amounts):
    if (amounts < -1e-6).any():
        raise Hint("a negative amount cannot be drawn. What was accepted of x is q(x) A(x), with the *shy* A.")
    if not (amounts.sum(-1) > 0).all():
        raise Hint("the amounts must sum to more than 0: here something is missing.")
    return amounts / amounts.sum(-1, keepdim=True)


@exercise("05-equivalence", "pearson", todo="Compare the counts with n·p(x); then stats.chi2.sf(statistic, dof).")
def _(pearson):
    generator = np.random.default_rng(0)
    for size in (2, 5, 8):
        p = generator.random(size) + 0.3
        p, dof = p / p.sum(), size - 1
        counts = generator.multinomial(400 * size, p)
        expected = counts.sum() * p
        off = counts - expected
        right = (off**2 / expected).sum()
        statistic, p_value = map(number, parts(pearson(counts, p), "the statistic", "the p-value"))
        judge(statistic, right, {
            "divide by what was expected, n·p(x), not by what was counted.": (off**2 / counts).sum(),
            "that is χ² of the *shares*: it lacks a factor n. Compare counts with n·p(x).": right / counts.sum(),
            "square the differences before you divide.": (abs(off) / expected).sum(),
            "that is the distance |count - n·p|, squared; divide each by its expected count.": (off**2).sum(),
            "the plain differences cancel: they sum to 0. Square them.": (off / expected).sum(),
        }, f"for counts {counts.tolist()} the statistic is {right:.3f}; you returned {statistic:.3f}.")  # fmt: skip
        area = chi2.sf(right, dof)
        judge(p_value, area, {
            f"{size} counts have {dof} degrees of freedom: the last follows from the others.": chi2.sf(right, size),
            "that is the chance of a *smaller* statistic; a p-value is that of one as large or larger: sf.": 1 - area,
            "pdf is a density. The p-value is the area above the statistic: sf.": chi2.pdf(right, dof),
        }, f"χ² = {right:.3f} on {dof} degrees of freedom has p-value {area:.4f}, not {p_value:.4f}.")  # fmt: skip
    return "the same as goodness_of_fit.chi_square"


@exercise("05-equivalence", "how-many", todo="Set dof + n·D equal to the critical value, and solve for n.")
def _(samples_for):
    generator = torch.Generator().manual_seed(2)
    for alarm in (0.01, 0.01, 1e-6):
        p, q = random_pair(generator)
        law, dof, isf = 0.9 * p + 0.1 * q, len(p) - 1, chi2.isf
        answer, off = number(samples_for(law, p, alarm)), law - p
        D, distance, critical = (off**2 / p).sum(), off.abs().sum() / 2, isf(alarm, dof)
        right = (critical - dof) / D
        judge(answer, right, {
            "the statistic starts at dof by chance alone: only the rest, critical - dof, is left to n·D.": critical / D,
            "D is Σ (P - p)²/p: divide by what was promised, p.": (critical - dof) / (off**2 / law).sum(),
            "D is not the total variation: square each difference, divide it by p(x).": (critical - dof) / distance,
            "use the false-alarm rate that is given: stats.chi2.isf(false_alarm, dof).": (isf(0.01, dof) - dof) / D,
            f"{len(p)} tokens have {dof} degrees of freedom.": (isf(alarm, dof + 1) - dof - 1) / D,
            "isf takes the false-alarm rate, the area *above*; ppf the area below.": (isf(1 - alarm, dof) - dof) / D,
        }, f"with D = {D:.4f} and critical value {critical:.1f} it takes {right:.0f}, not {answer:.0f}.",
           atol=1)  # fmt: skip
    return "half the error takes four times the samples"


@exercise("05-equivalence", "find-the-liar", todo="Return True for a decoder that keeps the promise, False for a liar.")
def _(honest):
    truth = dict(_WHO.values()) | _STRANGERS
    verdicts = {name: bool(number(honest(_unnamed(name)), "True or False")) for name in truth}
    accused = [name for name in truth if truth[name] and not verdicts[name]]
    missed = [name for name in truth if verdicts[name] and not truth[name]]
    if len(set(verdicts.values())) == 1:
        raise Hint("you gave all ten decoders the same verdict. Compare the law of their *texts* with the target's.")
    if {"no bonus", "sample and match"} <= set(accused):
        raise Hint("you accuse two decoders that are slow and right. Speed tells nothing: look at what they emit.")
    if set(missed) == {"bonus overwrites", "target not rewound", "goes on"} and not accused:
        raise Hint("you found those that are off at the first token. Others keep the promise there and break it later.")
    if missed:
        raise Hint(f"{len(missed)} liars went free, “{missed[0]}” among them. Enough samples? All positions, jointly?")
    if accused:
        raise Hint(
            f"“{accused[0]}” is innocent. Exactly: did you allow for rounding? By samples: is your false-alarm rate "
            "small enough for ten decoders?"
        )
    liars, honest_ones = (
        ", ".join(f"{letter} ({name})" for letter, (name, truthful) in _WHO.items() if truthful is kind)
        for kind in (False, True)
    )
    return f"liars: {liars}; honest: {honest_ones}; and four strangers judged rightly"
