"""OverlapExplorer: two distributions to drag, and what a rule makes of them, exactly and by sampling."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import traitlets

from specviz.arguments import integer
from specviz.text import token_label
from specviz.widgets.base import Widget

MAX_BARS = 24  # more cannot be told apart, or grabbed
SUMS_TO_1 = 1e-6  # so closely; anything further off is no rounding

# The two right rules and five wrong ones, named as in specviz.equivalence.mutants. overlap.js has them.
RULES = (
    "right",
    "sample_and_match",
    "resample_from_p",
    "softmax_the_residual",
    "swap_p_and_q",
    "accept_everything",
    "compare_coarse_coins",
)


class Situation(NamedTuple):
    """One position: OverlapExplorer(*situation) shows it."""

    p: list[float]  # [K]
    q: list[float]  # [K]
    labels: list[str] | None = None  # [K]; a, b, c, … by default
    overlap: float | None = None  # over the whole vocabulary, where the last bar stands for many tokens


REAL_PROMPT = "The princess looked out of the"  # the bundled pair's next token, at temperature 0.8
REAL = Situation(
    [0.5483, 0.1634, 0.0035, 0.0436, 0.0613, 0.0088, 0.0013, 0.1698],
    [0.0462, 0.1096, 0.1311, 0.0810, 0.0131, 0.0324, 0.0294, 0.5572],
    ["␣window", "␣room", "␣princess", "␣hall", "␣door", "␣garden", "␣prince", "rest"],
    0.3829,
)
_AFTER = {"real": REAL_PROMPT}


class OverlapExplorer(Widget):
    """p and q as bars to drag, and where a rule takes them: the overlap, the residual, the law of what is emitted.

    p, q     [K] each, 2 to 24 probabilities; by default the situation "far" of OverlapExplorer.presets
    labels   [K] names of the tokens; a, b, c, … by default
    overlap  Σ min(p, q) over the whole vocabulary, where one of the bars stands for many tokens: shown for comparison
    rule     one of RULES: what tests the drafts and replaces those rejected
    seed     of the samples. Sample n (from 0) is the first round of row n of Seeded(seed), draw for draw

    Raises ValueError for what is no pair of distributions. p and q are scaled to sum to 1 to the last digit.

    Traits, synced both ways: p, q, labels, rule, seed, and what was sampled so far, as long as none of these changes:
    counts [K] (how often each token was emitted) and accepted [K] (how many of those were accepted drafts); both are
    empty before the first sample. chi_square(explorer.counts, explorer.p) is the test that is shown. A law of other
    length takes show(), which sets p, q and labels together.
    """

    part = "overlap"

    p = traitlets.List(traitlets.Float()).tag(sync=True)
    q = traitlets.List(traitlets.Float()).tag(sync=True)
    labels = traitlets.List(traitlets.Unicode()).tag(sync=True)
    rule = traitlets.Enum(RULES, "right").tag(sync=True)
    seed = traitlets.Int(0).tag(sync=True)
    counts = traitlets.List(traitlets.Int()).tag(sync=True)
    accepted = traitlets.List(traitlets.Int()).tag(sync=True)

    presets = {
        "close": Situation([0.35, 0.25, 0.20, 0.12, 0.08], [0.30, 0.30, 0.18, 0.10, 0.12]),
        "far": Situation([0.30, 0.22, 0.05, 0.18, 0.25], [0.06, 0.12, 0.60, 0.12, 0.10]),
        "disjoint": Situation([0.50, 0.30, 0.20, 0.00, 0.00], [0.00, 0.00, 0.00, 0.60, 0.40]),
        "equal": Situation([0.30, 0.22, 0.05, 0.18, 0.25], [0.30, 0.22, 0.05, 0.18, 0.25]),
        # from_round() of the bundled pair's first round after REAL_PROMPT; a test decodes it again
        "real": REAL,
    }

    def __init__(self, p=None, q=None, labels=None, overlap=None, *, rule="right", seed=0):
        if p is None and q is None and labels is None:
            p, q, labels, overlap = self.presets["far"]
        p, q, labels = _checked(p, q, labels)
        if rule not in RULES:
            raise ValueError(f"rule={rule!r}: must be one of {', '.join(RULES)}.")
        if integer(seed, "seed", 0) >= 2**53:
            raise ValueError(f"seed={seed!r}: must be an integer >= 0 and < 2**53.")
        super().__init__(p=p, q=q, labels=labels, rule=rule, seed=int(seed))
        presets = [_preset(name, each) for name, each in self.presets.items()]
        given = _preset("given", Situation(p, q, labels, overlap))
        if not any(given == preset | {"name": "given", "after": None} for preset in presets):
            presets.insert(0, given)
        self.data = {"max_bars": MAX_BARS, "presets": presets}

    @classmethod
    def from_round(cls, round, i, pieces, *, top=7, **settings) -> OverlapExplorer:
        """The distributions at draft position i (from 0) of a decoded Round: its likeliest tokens, and "rest".

        pieces {id: bytes} is Trace.pieces. Kept are the drafted token and the top of those likeliest to p or to q.
        Lumping the others together can only raise the overlap; the true one is shown beside it. settings: rule and
        seed. Raises ValueError for a position without a draft, a round of record="none", or a bad top.
        """
        return cls(*situation(round, i, pieces, top=top), **settings)

    def show(self, p, q, labels=None):
        """Show another pair, of any length up to 24. Raises as the constructor does."""
        p, q, labels = _checked(p, q, labels)
        with self.hold_sync():
            self.p, self.q, self.labels = p, q, labels

    # --- samples belong to the law that they came from ------------------------------------------

    _answering = False  # whether a change comes from the browser, which then has set the counts itself

    def set_state(self, sync_data):
        self._answering = True
        try:
            super().set_state(sync_data)
        finally:
            self._answering = False

    @traitlets.observe("p", "q", "rule", "seed")
    def _start_anew(self, change):
        if not self._answering:
            self.counts, self.accepted = [], []

    @traitlets.validate("p", "q")
    def _check_law(self, proposal):
        try:
            return _law(proposal.value, proposal.trait.name)
        except ValueError as problem:
            raise traitlets.TraitError(str(problem)) from None

    @traitlets.validate("seed")
    def _check_seed(self, proposal):
        if not 0 <= proposal.value < 2**53:
            raise traitlets.TraitError(f"seed={proposal.value!r}: must be an integer >= 0 and < 2**53.")
        return proposal.value


def situation(round, i, pieces, *, top=7) -> Situation:
    """What OverlapExplorer.from_round() shows."""
    if round.q is None:
        raise ValueError("round was recorded with record='none': it holds no probabilities to show.")
    drafts = len(round.draft_tokens)
    if not 0 <= integer(i, "i", 0) < drafts:
        raise ValueError(f"i={i!r}: the round has {drafts} drafts, counted from 0 (behind them there is no q).")
    if integer(top, "top", 1) > MAX_BARS - 1:
        raise ValueError(f"top={top!r}: must be at most {MAX_BARS - 1}, one bar is for the rest.")
    p, q, drafted = round.p[i], round.q[i], round.draft_tokens[i]
    known = set(p.ids) & set(q.ids)
    likeliest = sorted(known, key=lambda token: (token != drafted, -max(p[token], q[token])))[:top]
    ids = sorted(likeliest, key=lambda token: -max(p[token], q[token]))
    shares = [[law[token] for token in ids] for law in (p, q)]
    shares = [[*shown, max(0.0, 1 - math.fsum(shown))] for shown in shares]
    labels = [*(token_label(pieces[token]) for token in ids), "rest"]
    return Situation(_scaled(shares[0]), _scaled(shares[1]), labels, round.overlap[i])


def _preset(name, situation) -> dict:
    p, q, labels = _checked(*situation[:3])
    return {"name": name, "p": p, "q": q, "labels": labels, "overlap": situation.overlap, "after": _AFTER.get(name)}


def _checked(p, q, labels):
    p, q = _law(p, "p"), _law(q, "q")
    if len(p) != len(q):
        raise ValueError(
            f"p has {len(p)} entries and q {len(q)}: give both over the same tokens, with 0 where need be."
        )
    if labels is None:
        return p, q, [chr(ord("a") + x) for x in range(len(p))]
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labels={labels!r}: must be a list of strings, one for each token.")
    if len(labels) != len(p):
        raise ValueError(f"labels has {len(labels)} entries and p {len(p)}: give one for each token.")
    return p, q, list(labels)


def _law(values, name) -> list[float]:
    """values as floats that sum to 1. Raises ValueError."""
    try:
        law = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{name}={values!r}: must be a list of probabilities ({problem}).") from None
    if law.ndim != 1 or len(law) < 2:
        raise ValueError(f"{name} has shape {list(law.shape)}: must be one list of at least 2 probabilities.")
    if len(law) > MAX_BARS:
        raise ValueError(
            f"{name} has {len(law)} entries: at most {MAX_BARS} bars can be told apart. Keep the likeliest and put all "
            "others into one; OverlapExplorer.from_round does so for a decoded round."
        )
    for x in np.flatnonzero(~(np.isfinite(law) & (law >= 0))):
        raise ValueError(f"{name}[{x}] = {law[x]}: must be a probability, 0 or more.")
    if abs(law.sum() - 1) > SUMS_TO_1:
        raise ValueError(f"{name} sums to {law.sum():.6g}: must sum to 1; divide it by its sum.")
    return _scaled(law.tolist())


def _scaled(law):
    """A law as it is when its sum is 1 but for the last digits: what comes from the browser must not be altered."""
    total = math.fsum(law)
    return list(law) if abs(total - 1) < 1e-12 else [mass / total for mass in law]
