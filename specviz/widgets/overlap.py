"""OverlapExplorer: two distributions to drag, and the effect of a rule on them, exactly and by sampling."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import traitlets

from specviz.arguments import integer
from specviz.text import token_label
from specviz.widgets.base import Widget

MAX_BARS = 24  # more are too narrow to tell apart, or to grab
MAX_SEED = 2**53 - 1  # larger numbers lose digits in JavaScript
SUM_TOLERANCE = 1e-6  # a larger distance of the sum from 1 is no rounding

# Named as in specviz.equivalence.mutants; rules.js computes them.
RULES = (
    "right", "sample_and_match", "resample_from_p", "softmax_the_residual", "swap_p_and_q", "accept_everything",
    "compare_coarse_coins",
)  # fmt: skip


class Situation(NamedTuple):
    """One position: OverlapExplorer(*situation) shows it."""

    p: list[float]  # [K]
    q: list[float]  # [K]
    labels: list[str] | None = None  # [K]; a, b, c, … by default
    overlap: float | None = None  # over the whole vocabulary, where the last bar stands for many tokens


REAL_PROMPT = "The princess looked out of the"  # for the bundled pair, at temperature 0.8


class OverlapExplorer(Widget):
    """p and q as bars to drag, with their overlap and residual, and the distribution that a rule emits.

    p, q     [K] each, 2 to 24 probabilities; by default the situation "far" of OverlapExplorer.presets
    labels   [K] names of the tokens; a, b, c, … by default
    overlap  Σ min(p, q) over the whole vocabulary, where one of the bars stands for many tokens: shown for comparison
    rule     one of RULES: it tests the drafts and replaces the rejected ones
    seed     of the samples, 0 to 2**53 - 1. Sample n (from 0) is the first round of row n of Seeded(seed)

    Raises ValueError for arguments that are no pair of distributions with their labels, and traitlets.TraitError for a
    bad rule or seed. p and q are scaled to sum to 1 to the last digit.

    Traits, synced both ways: p, q, labels, rule, seed, and the samples so far: counts [K] (how often each token was
    emitted) and accepted [K] (how many of those were accepted drafts). Both are empty before the first sample, and
    again when p, q, rule or seed changes. chi_square(explorer.counts, explorer.p) is the test that is shown.
    Distributions of another length take show(), which sets p, q and labels together.
    """

    part = "overlap"

    p = traitlets.List(traitlets.Float()).tag(sync=True)
    q = traitlets.List(traitlets.Float()).tag(sync=True)
    labels = traitlets.List(traitlets.Unicode()).tag(sync=True)
    rule = traitlets.Enum(RULES, "right").tag(sync=True)
    seed = traitlets.Int(0, min=0, max=MAX_SEED).tag(sync=True)
    counts = traitlets.List(traitlets.Int()).tag(sync=True)
    accepted = traitlets.List(traitlets.Int()).tag(sync=True)

    presets = {
        "close": Situation([0.35, 0.25, 0.20, 0.12, 0.08], [0.30, 0.30, 0.18, 0.10, 0.12]),
        "far": Situation([0.30, 0.22, 0.05, 0.18, 0.25], [0.06, 0.12, 0.60, 0.12, 0.10]),
        "disjoint": Situation([0.50, 0.30, 0.20, 0.00, 0.00], [0.00, 0.00, 0.00, 0.60, 0.40]),
        "equal": Situation([0.30, 0.22, 0.05, 0.18, 0.25], [0.30, 0.22, 0.05, 0.18, 0.25]),
        # from_round() of the bundled pair's first round after REAL_PROMPT; a test decodes it again
        "real": Situation(
            [0.5483, 0.1634, 0.0035, 0.0436, 0.0613, 0.0088, 0.0013, 0.1698],
            [0.0462, 0.1096, 0.1311, 0.0810, 0.0131, 0.0324, 0.0294, 0.5572],
            ["␣window", "␣room", "␣princess", "␣hall", "␣door", "␣garden", "␣prince", "rest"],
            0.3829,
        ),
    }

    def __init__(self, p=None, q=None, labels=None, overlap=None, *, rule="right", seed=0):
        if p is None and q is None and labels is None:
            p, q, labels, overlap = self.presets["far"]
        given = _checked(p, q, labels, overlap)
        super().__init__(p=given.p, q=given.q, labels=given.labels, rule=rule, seed=seed)
        presets = {name: _checked(*each) for name, each in self.presets.items()}
        if given not in presets.values():
            presets = {"given": given} | presets
        presets = [{"name": name, **each._asdict()} for name, each in presets.items()]
        self.data = {"max_bars": MAX_BARS, "prompt": REAL_PROMPT, "presets": presets}

    @classmethod
    def from_round(cls, round, i, pieces, *, top=7, **settings) -> OverlapExplorer:
        """The distributions at draft position i (from 0) of a decoded Round: its likeliest tokens, and "rest".

        pieces {id: bytes} is Trace.pieces. The bars are the drafted token, the likeliest others under p or q (top in
        all), and one for the rest, which can only raise the overlap; the exact one is shown beside it. settings: rule
        and seed. Raises ValueError for a position without a draft, a round of record="none", or a bad top.
        """
        if round.q is None:
            raise ValueError("round was recorded with record='none': it has no probabilities to show.")
        drafts = len(round.draft_tokens)
        if not 0 <= integer(i, "i", 0) < drafts:
            raise ValueError(f"i={i!r}: the round has {drafts} drafts, counted from 0 (behind them there is no q).")
        if integer(top, "top", 1) > MAX_BARS - 1:
            raise ValueError(f"top={top!r}: must be at most {MAX_BARS - 1}, one bar is for the rest.")
        p, q, drafted = round.p[i], round.q[i], round.draft_tokens[i]
        likeliest = sorted(p.ids, key=lambda token: (token != drafted, -max(p[token], q[token])))[:top]
        ids = sorted(likeliest, key=lambda token: -max(p[token], q[token]))
        shown = [[probs[token] for token in ids] for probs in (p, q)]
        p, q = ([*probs, max(0.0, 1 - math.fsum(probs))] for probs in shown)
        labels = [*(token_label(pieces[token]) for token in ids), "rest"]
        return cls(p, q, labels, round.overlap[i], **settings)

    def show(self, p, q, labels=None):
        """Show another pair, of any length up to 24. Raises as the constructor does."""
        with self.hold_sync():
            self.p, self.q, self.labels, _ = _checked(p, q, labels)

    _answering = False  # whether a change comes from the browser, which then sets the counts too

    def set_state(self, sync_data):
        self._answering = True
        try:
            super().set_state(sync_data)
        finally:
            self._answering = False

    @traitlets.observe("p", "q", "rule", "seed")
    def _forget_samples(self, change):
        if not self._answering:
            self.counts, self.accepted = [], []

    @traitlets.validate("p", "q")
    def _check_distribution(self, proposal):
        try:
            return _distribution(proposal.value, proposal.trait.name)
        except ValueError as problem:
            raise traitlets.TraitError(str(problem)) from None


def _checked(p, q, labels=None, overlap=None) -> Situation:
    p, q = _distribution(p, "p"), _distribution(q, "q")
    if len(p) != len(q):
        raise ValueError(f"p has {len(p)} entries and q {len(q)}: give both over the same tokens, with 0 where needed.")
    labels = [chr(ord("a") + x) for x in range(len(p))] if labels is None else labels
    if isinstance(labels, str) or len(labels) != len(p) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"labels={labels!r}: must be {len(p)} strings, one for each token.")
    return Situation(p, q, list(labels), overlap)


def _distribution(values, name) -> list[float]:
    """values as floats that sum to 1. Raises ValueError."""
    try:
        probs = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{name}={values!r}: must be a list of probabilities ({problem}).") from None
    if probs.ndim != 1 or not 2 <= len(probs) <= MAX_BARS:
        raise ValueError(
            f"{name} has shape {list(probs.shape)}: must be one list of 2 to {MAX_BARS} probabilities. Of more tokens "
            "keep the likeliest and put all others into one, as OverlapExplorer.from_round does."
        )
    for x in np.flatnonzero(~(np.isfinite(probs) & (probs >= 0))):
        raise ValueError(f"{name}[{x}] = {probs[x]}: must be a probability, 0 or more.")
    if abs(probs.sum() - 1) > SUM_TOLERANCE:
        raise ValueError(f"{name} sums to {probs.sum():.6g}: must sum to 1; divide it by its sum.")
    probs = probs.tolist()
    total = math.fsum(probs)  # near 1 no scaling: bars from the browser must stay as they are
    return probs if abs(total - 1) < 1e-12 else [prob / total for prob in probs]
