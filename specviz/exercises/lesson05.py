"""The checks of 05-equivalence, and its line-up of unnamed decoders."""

from functools import partial

import numpy as np
import torch
from scipy import stats

from specviz.equivalence.exact import prove
from specviz.equivalence.mutants import MUTANTS, with_step
from specviz.exercises import Hint, exercise
from specviz.models.table import TableModel
from specviz.verification import accept_probability, residual, verify

# --- the line-up --------------------------------------------------------------------------------

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
    return {letter: _unnamed(_CHANGES[name]) for letter, (name, _) in _WHO.items()}


def _unnamed(change):
    def suspect(state):
        return change(state)

    return suspect


# --- the checks ---------------------------------------------------------------------------------


def _pair(generator, size=6):
    p, q = torch.rand(2, size, generator=generator, dtype=torch.float64) ** 2 + 0.01
    return p / p.sum(), q / q.sum()


# The first tells all the usual slips apart.
_RULES = [
    ("a coin that always shows one half", lambda p, q: torch.full_like(p, 0.5), lambda p, q: q.flip(-1)),
    ("a coin that is too mild", lambda p, q: (p / (0.6 * q)).clamp(max=1), residual),
    ("the ratio upside down", lambda p, q: accept_probability(q, p), residual),
    ("resampling from p", accept_probability, lambda p, q: p),
    ("the paper's rule", accept_probability, residual),
]


@exercise("05-equivalence", "rule-law", todo="Two ways lead to a token, as in step 1; the coin is now accept(p, q).")
def _(law_of):
    generator = torch.Generator().manual_seed(0)
    for name, accept, resample_from in _RULES * 3:
        p, q = _pair(generator)
        answer = torch.as_tensor(law_of(p, q, accept, resample_from), dtype=torch.float64)
        if answer.shape != p.shape:
            raise Hint(f"return a probability for each of the {len(p)} tokens, not shape {tuple(answer.shape)}.")
        accepted = q * accept(p, q)
        if torch.allclose(answer, accepted + (1 - accepted.sum()) * resample_from(p, q), atol=1e-9):
            continue
        z = 1 - torch.minimum(p, q).sum()
        known = {
            "that is what was promised. Write down what this rule emits, promise or not.": p,
            "the second way is missing: rejected, then drawn from resample_from(p, q).": accepted,
            "Z = 1 - Σ min(p, q) is how often *the paper's* coin rejects. Ask how often this one does.": accepted
            + z * resample_from(p, q),
            "min(p, q) is what *the paper's* coin lets through. Put accept(p, q) in its place.": torch.minimum(p, q)
            + z * resample_from(p, q),
            "the coin is tossed only for a token that was drafted: weigh accept(p, q) with q.": accept(p, q)
            + (1 - accepted.sum()) * resample_from(p, q),
            "the second way is taken only after a rejection: weigh resample_from(p, q) with its probability.": accepted
            + resample_from(p, q),
            "one number says how often *some* draft is rejected; you weighed resample_from(p, q)[x] with the rejection "
            "of x itself.": accepted + (q - accepted) * resample_from(p, q),
        }
        for hint, wrong in known.items():
            if torch.allclose(answer, wrong, atol=1e-9):
                raise Hint(f"({name}) {hint}")
        raise Hint(f"({name}) a law sums to 1 over the tokens; yours sums to {answer.sum():.3f}.")
    return "for any rule: P = q·A + (1 - Σ q·A)·left"


def _scaled(law):
    return law / law.sum(-1, keepdim=True)


def shy_coin(p, q):
    """Accepts half as often as the paper's."""
    return accept_probability(p, q) / 2


@exercise("05-equivalence", "repair", todo="What must be missing, after q·A was accepted, for the sum to be p?")
def _(my_resample_from):
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.stack(laws) for laws in zip(*(_pair(generator) for _ in range(3))))  # [3, V]
    try:
        answers = torch.stack([torch.as_tensor(my_resample_from(p[i], q[i]), dtype=torch.float64) for i in range(3)])
        batch = torch.as_tensor(my_resample_from(p, q), dtype=torch.float64)
    except (ValueError, IndexError, RuntimeError, TypeError) as error:
        raise Hint(f"p and q may be [V] or a batch, [..., V]; on one of them your code raised: {error}.") from error
    if answers.shape != p.shape:
        raise Hint(f"return something for each of the {p.shape[-1]} tokens, not shape {tuple(answers.shape[1:])}.")
    if (answers < -1e-12).any():
        raise Hint("a negative amount cannot be drawn. What was accepted of x is q(x) A(x), with the *shy* A.")
    known = {
        "that is the residual of the paper's coin. The shy coin accepts less, so more is missing.": residual(p, q),
        "that is p: it gives again what was accepted already.": p,
        "max(0, p - q/2) is not it: the shy coin lets through min(p, q)/2, which is less than q/2 where p < q.": (
            (p - q / 2).clamp(min=0)
        ),
    }
    for hint, wrong in known.items():
        if torch.allclose(_scaled(answers), _scaled(wrong), atol=1e-9):
            raise Hint(hint)
    if batch.shape != p.shape or not torch.allclose(_scaled(batch), _scaled(answers), atol=1e-9):
        raise Hint("on a batch [..., V] you return something else than on its rows. Sum over the last dimension: -1.")
    target, drafter = TableModel.random(3, 1, seed=3), TableModel.random(3, 1, seed=4)
    mine = with_step(verify=partial(verify, accept=shy_coin, resample_from=my_resample_from))
    for settings in (dict(gamma=2), dict(gamma=3, eos=[1])):
        proof = prove(target, drafter, [0], max_new_tokens=4, decode_round=mine, progress=False, **settings)
        if not proof.exact:
            raise Hint(
                f"with your resample_from the law of the texts is off by {proof.total_variation:.3f} in total. At each "
                "position what is accepted, q·A, and what is missing must add up to p; also for the bonus, where q = 0."
            )
    return "proven on every branch. The paper's coin is the special case that wastes the least"


@exercise("05-equivalence", "pearson", todo="Compare the counts with n·p(x); then stats.chi2.sf(statistic, dof).")
def _(pearson):
    generator = np.random.default_rng(0)
    for size in (2, 5, 8):
        p = generator.random(size) + 0.3
        p /= p.sum()
        counts = generator.multinomial(400 * size, p)
        expected = counts.sum() * p
        statistic = float(((counts - expected) ** 2 / expected).sum())
        answer = pearson(counts, p)
        if not hasattr(answer, "__len__") or len(answer) != 2:
            raise Hint("return two numbers: the statistic and the p-value.")
        mine, p_value = map(float, answer)
        known = {
            "divide by what was expected, n·p(x), not by what was counted.": ((counts - expected) ** 2 / counts).sum(),
            "that is χ² of the *shares*: it lacks a factor n. Compare counts with n·p(x).": statistic / counts.sum(),
            "square the differences before you divide.": (np.abs(counts - expected) / expected).sum(),
            "that is the distance |count - n·p|, squared; divide each by its expected count.": (
                (counts - expected) ** 2
            ).sum(),
            "the plain differences cancel: they sum to 0. Square them.": ((counts - expected) / expected).sum(),
        }
        if abs(mine - statistic) > 1e-6 * statistic:
            for hint, wrong in known.items():
                if abs(mine - wrong) < 1e-9 * max(1, abs(wrong)):
                    raise Hint(hint)
            raise Hint(f"for counts {counts.tolist()} the statistic is {statistic:.3f}; you returned {mine:.3f}.")
        right = float(stats.chi2.sf(statistic, size - 1))
        if abs(p_value - right) < 1e-9:
            continue
        known = {
            f"{size} counts have {size - 1} degrees of freedom: the last follows from the others and n.": (
                stats.chi2.sf(statistic, size)
            ),
            "that is the chance of a *smaller* statistic; the p-value is the chance of one at least as large: sf.": (
                stats.chi2.cdf(statistic, size - 1)
            ),
            "pdf is a density. The p-value is the area above the statistic: sf.": stats.chi2.pdf(statistic, size - 1),
        }
        for hint, wrong in known.items():
            if abs(p_value - wrong) < 1e-9:
                raise Hint(hint)
        raise Hint(f"χ² = {statistic:.3f} on {size - 1} degrees of freedom has p-value {right:.4f}, not {p_value:.4f}.")
    return "the same as goodness_of_fit.chi_square"


@exercise("05-equivalence", "how-many", todo="Set dof + n·D equal to the critical value, and solve for n.")
def _(samples_for):
    generator = torch.Generator().manual_seed(2)
    for false_alarm in (0.01, 0.01, 1e-6):
        p, q = _pair(generator)
        law = 0.9 * p + 0.1 * q
        shape, dof = ((law - p) ** 2 / p).sum().item(), len(p) - 1
        critical = stats.chi2.isf(false_alarm, dof)
        answer, right = float(samples_for(law, p, false_alarm)), (critical - dof) / shape
        if abs(answer - right) <= 1 + 1e-6 * right:
            continue
        half, swapped = (law - p).abs().sum().item() / 2, ((law - p) ** 2 / law).sum().item()
        known = {
            "the statistic starts at dof by chance alone: only the rest, critical - dof, is left to n·D.": (
                critical / shape
            ),
            "D is Σ (P - p)²/p: divide by what was promised, p.": (critical - dof) / swapped,
            "D is not the total variation: square each difference and divide it by p(x).": (critical - dof) / half,
            "use the false-alarm rate that is given: stats.chi2.isf(false_alarm, dof).": (
                (stats.chi2.isf(0.01, dof) - dof) / shape
            ),
            f"{len(p)} tokens have {dof} degrees of freedom.": (
                (stats.chi2.isf(false_alarm, dof + 1) - dof - 1) / shape
            ),
            "isf takes the false-alarm rate, the area *above* the critical value; ppf the area below.": (
                (stats.chi2.ppf(false_alarm, dof) - dof) / shape
            ),
        }
        for hint, wrong in known.items():
            if abs(answer - wrong) <= 1 + 1e-6 * abs(wrong):
                raise Hint(hint)
        raise Hint(f"with D = {shape:.4f} and critical value {critical:.1f} it takes {right:.0f}, not {answer:.0f}.")
    return "half the error takes four times the samples"


@exercise("05-equivalence", "find-the-liar", todo="Return True for a decoder that keeps the promise, False for a liar.")
def _(honest):
    line_up = [*_WHO.values(), *_STRANGERS.items()]
    verdicts = {}
    for name, truth in line_up:
        answer = honest(_unnamed(_CHANGES[name]))
        if answer is None:
            raise Hint("your function returned nothing; return True or False.")
        verdicts[name] = bool(answer), truth
    accused = [name for name, (mine, truth) in verdicts.items() if truth and not mine]
    missed = [name for name, (mine, truth) in verdicts.items() if mine and not truth]
    if len(set(mine for mine, _ in verdicts.values())) == 1:
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
    liars = ", ".join(f"{letter} ({name})" for letter, (name, truth) in _WHO.items() if not truth)
    honest_ones = ", ".join(f"{letter} ({name})" for letter, (name, truth) in _WHO.items() if truth)
    return f"liars: {liars}; honest: {honest_ones}; and four strangers judged rightly"
