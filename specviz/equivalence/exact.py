"""Is P = p? The exact distribution of the texts that the shipped decoder emits, beside the target's own.

    print(prove(target, drafter, prompt, gamma=2, max_new_tokens=4))

exact_law() visits every branch of the decoder, target_law() multiplies the target's probabilities, compare() holds
one against the other, and prove() does all three. A law is a distribution of texts, {continuation: probability}.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from specviz.arguments import integer, real
from specviz.decoding import autoregress, speculate
from specviz.progress import progress_bar
from specviz.randomness import Branch, Drawn, Exhaustive
from specviz.settings import Settings, known
from specviz.steps import check
from specviz.trace import Trace

Law = dict[tuple[int, ...], float]  # {continuation: probability}
ROWS = 512  # branches decoded at once
_OF_THE_SEARCH = ("merge", "rows", "max_branches", "progress")


# --- the decoder's distribution -----------------------------------------------------------------


def exact_law(
    target, drafter, prompt, *, merge=False, rows=ROWS, max_branches=1_000_000, progress=None, **settings
) -> Law:
    """{continuation: probability} of speculate(target, drafter, prompt, **settings); of autoregress for None.

    Every outcome of every draw and coin is followed through the decoder itself: caches, rollback, EOS and length
    limit included. No samples are drawn, so the error is that of floating-point arithmetic.

    merge=False replays each branch whole. merge=True decodes one round at a time and starts anew from each
    distinct committed text: far fewer branches, sound as long as a cache depends on the committed text alone (tested
    by itself), but blind to faults that outlast a round.
    rows: branches decoded at once, as rows of one batch. progress: see progress_bar().

    Raises ValueError, before the search, when it would visit more than about max_branches branches.
    """
    prompt, settings, estimate = _checked("exact_law", target, drafter, prompt, merge, rows, max_branches, settings)
    law = defaultdict(float)
    with _search_bar(estimate, progress) as bar:
        if not merge:
            for _, trace, weight in _branches(target, drafter, [prompt], rows, settings, bar):
                law[tuple(trace.tokens)] += weight
            return dict(law)

        max_new_tokens = settings.pop("max_new_tokens")
        unfinished = [{} for _ in range(max_new_tokens + 1)]  # by length: {text: probability of reaching it}
        unfinished[0][()] = 1.0
        for length in range(max_new_tokens + 1):  # shortest first: all ways to a text are merged before it goes on
            if not (texts := unfinished[length]):
                continue
            prompts = [[*prompt, *text] for text in texts]
            one_round = dict(settings, max_new_tokens=max_new_tokens - length, on_round=_stop_at_once)
            for root, trace, weight in _branches(target, drafter, prompts, rows, one_round, bar):
                text = (*prompts[root][len(prompt) :], *trace.tokens)
                on = unfinished[len(text)] if trace.finish_reason == "interrupted" else law
                on[text] = on.get(text, 0.0) + weight * texts[text[:length]]
        return dict(law)


def branches(
    target, drafter, prompt, *, rows=ROWS, max_branches=1_000_000, progress=None, **settings
) -> Iterator[tuple[Trace, float]]:
    """Every way the decoding can go, as (its Trace, its probability); exact_law() adds these up by continuation.

    So any mean is a sum: sum(weight * len(trace.rounds) for trace, weight in branches(…)) are the rounds expected.
    Raises the ValueErrors of exact_law() at the call.
    """
    prompt, settings, estimate = _checked("branches", target, drafter, prompt, False, rows, max_branches, settings)

    def search():
        with _search_bar(estimate, progress) as bar:
            for _, trace, weight in _branches(target, drafter, [prompt], rows, settings, bar):
                yield trace, weight

    return search()


class Probe(Branch):
    """Branches that choose at random, to estimate how many there are without visiting them.

    After a decoding, the mean of options is an unbiased estimate of the number of branches, and draws[i] one of how
    many different ways lead to its draw number i (Knuth: Estimating the efficiency of backtrack programs, 1975).
    """

    def __init__(self, rows: int, seed: int = 0):
        super().__init__([[0] for _ in range(rows)])
        self.draws: list[float] = []
        self._generator = np.random.default_rng(seed)

    def draw(self, probs, stream="draft", slot=0, active=None) -> Drawn:
        of_active = self.options if active is None else np.where(active.tolist(), self.options, 0)
        self.draws.append(float(of_active.mean()))
        return super().draw(probs, stream, slot, active)

    def _first_visit(self, path, options):
        return options[self._generator.integers(len(options))]


class Estimate(NamedTuple):
    """About how large a search would be."""

    branches: float
    seconds: float


def estimate_branches(target, drafter, prompt, *, merge=False, probes=None, seed=0, **settings) -> Estimate:
    """How many branches exact_law() would visit: the mean over random descents into the tree (see Probe).

    Unbiased without merging; with it, every text counts as reached, so it may be too many. probes: how many descents,
    512 by default, fewer where the vocabulary is large or the rounds are recorded.
    """
    prompt, settings = _normal("estimate_branches", target, drafter, prompt, merge, settings)
    if probes is None:
        recording = settings.get("record", "none") != "none"  # then a round takes ten times as long
        probes = max(16, min(64 if recording else 512, 2**17 // target.vocab_size))
    probes = integer(probes, "probes", 1)
    began, descents = time.perf_counter(), 1
    if not merge:
        count = _descend(target, drafter, prompt, settings, probes, seed).options.mean()
    else:
        plain = _descend(target, None, prompt, _without(settings, "gamma", "decode_round"), probes, seed)
        texts = plain.draws  # by length: plain decoding draws once from each unfinished text
        # A round depends on how many tokens may still come, but beyond gamma + 1 no longer.
        descents = min(len(texts), settings.get("gamma", Settings.gamma) + 1)
        one_round = [dict(settings, max_new_tokens=n + 1, on_round=_stop_at_once) for n in range(descents)]
        of_round = [_descend(target, drafter, prompt, asked, probes, seed).options.mean() for asked in one_round]
        count = sum(n * of_round[min(len(texts) - length, descents) - 1] for length, n in enumerate(texts))
    each = (time.perf_counter() - began) / (max(1, descents) * probes)
    return Estimate(float(count), float(count) * each)


def _descend(target, drafter, prompt, settings, probes, seed) -> Probe:
    probe = Probe(probes, seed)
    _decode(target, drafter, [prompt] * probes, probe, settings)
    return probe


def _without(settings, *names):
    return {name: value for name, value in settings.items() if name not in names}


def _check_settings(function, settings, merge):
    known(function, _without(settings, "on_round"))
    if given := {"seed", "randomness"} & set(settings):
        raise ValueError(
            f"{', '.join(sorted(given))}: the search visits every outcome and sets this itself; leave it out."
        )
    if merge and {"stop", "on_round"} & set(settings):
        raise ValueError(
            "merge=True decodes each round as a text of its own: no stop= and no on_round= there; use merge=False."
        )


def _normal(function, target, drafter, prompt, merge, settings):
    """The prompt as ids and the settings, both checked, with no more max_new_tokens than the context has room for."""
    _check_settings(function, settings, merge)
    if merge and target.start_tokens is not None:
        raise ValueError(
            "merge=True starts anew from each text as a prompt, but an encoder-decoder's prompt is its source; use "
            "merge=False."
        )
    request = check(target, drafter, prompt, Settings(**_without(settings, "on_round")))
    if not request.single:
        raise ValueError(f"prompt={prompt!r}: give a single prompt; every branch is a row of a batch of its own.")
    room = target.context - len(request.texts[0])
    return request.prompts[0], {**settings, "max_new_tokens": min(request.settings.max_new_tokens, room)}


def _checked(function, target, drafter, prompt, merge, rows, max_branches, settings):
    """The arguments of a search, checked: prompt, settings, and the Estimate, which is not too large."""
    max_branches = integer(max_branches, "max_branches", 1)
    integer(rows, "rows", 1, " (branches decoded at once)")
    prompt, settings = _normal(function, target, drafter, prompt, merge, settings)
    estimate = estimate_branches(target, drafter, prompt, merge=merge, **settings)
    if not estimate.branches <= max_branches:  # nan and inf are too many, too
        merged = ""
        if not merge and not {"stop", "on_round"} & set(settings) and target.start_tokens is None:
            merged = estimate_branches(target, drafter, prompt, merge=True, **settings).branches
            merged = f"; merge=True visits about {merged:.1e}"
        raise ValueError(
            f"max_new_tokens={settings['max_new_tokens']} makes about {estimate.branches:.1e} branches, which would "
            f"take about {estimate.seconds / 3600:.1g} hours here; the limit is max_branches={max_branches}. Fewer "
            f"come from a smaller max_new_tokens, gamma or vocabulary, and from top_k{merged}."
        )
    return prompt, settings, estimate


def _search_bar(estimate, progress):
    return progress_bar(round(estimate.branches), "exact law", progress, unit="branches")


def _branches(target, drafter, prompts, rows, settings, bar):
    """Yields (the prompt's number, Trace, probability) for every branch of each prompt."""
    for branch in Exhaustive(rows, roots=len(prompts)):
        traces = _decode(target, drafter, [prompts[root] for root in branch.roots], branch, settings)
        yield from zip(branch.roots, traces, branch.weight.tolist(), strict=True)
        bar.update(branch.rows)


def _decode(target, drafter, prompts, branch, settings) -> list[Trace]:
    settings = {"record": "none", **settings, "randomness": branch}
    if drafter is None:
        settings = _without(settings, "gamma", "rule")
        return autoregress(target, prompts, **settings)
    return speculate(target, drafter, prompts, **settings)


def _stop_at_once(_):
    return True


# --- the target's distribution ------------------------------------------------------------------


def target_law(target, prompt, *, max_new_tokens, sampling=None, eos=None, max_sequences=1_000_000) -> Law:
    """{continuation: probability} of the target alone, by plain products: p(x_1) p(x_2 | x_1) …

    Every prefix is fed whole to a fresh cache and nothing is ever rewound: no part of the speculative machinery is
    used. Probabilities are processed by sampling (a SamplingParams), as the decoder's are.

    Raises ValueError when more than max_sequences unfinished texts of one length are possible.
    """
    request = check(target, None, prompt, Settings(max_new_tokens=max_new_tokens, sampling=sampling, eos=eos))
    if not request.single:
        raise ValueError(f"prompt={prompt!r}: give a single prompt.")
    law, unfinished, eos = {}, {(): 1.0}, request.settings.eos
    for _ in range(request.limits[0] - len(request.texts[0])):
        texts, unfinished = unfinished, {}
        for (text, reached), p in zip(texts.items(), _next_probabilities(request, texts)):
            if np.isnan(p).any():
                raise FloatingPointError(f"target {target.name!r} returned NaN or infinite logits after {list(text)}.")
            for token in np.flatnonzero(p).tolist():
                (law if token in eos else unfinished)[(*text, token)] = reached * float(p[token])
            if len(unfinished) > max_sequences:
                raise ValueError(
                    f"max_new_tokens={max_new_tokens}: more than {max_sequences} texts are possible; choose fewer "
                    "tokens, top_k, or a smaller vocabulary."
                )
    return law | unfinished


def _next_probabilities(request, texts, rows=1024) -> Iterator[np.ndarray]:
    """p(. | prompt, text) [V] in float64 for each of some texts of one length."""
    target, ids = request.target, [[*request.texts[0], *text] for text in texts]
    for chunk in (ids[first : first + rows] for first in range(0, len(ids), rows)):
        cache = target.new_cache(request.prompts * len(chunk), len(chunk[0]))
        logits = cache.feed(torch.tensor(chunk, device=target.device))[:, -1]
        p = request.settings.sampling.probabilities(logits, chunk).cpu().double()
        yield from (p / p.sum(-1, keepdim=True)).numpy()


# --- the two compared ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Two laws, held against each other; print() tells the verdict and the largest difference."""

    law: Law
    expected: Law
    tolerance: float

    def __repr__(self):
        sequences, verdict = len(self.sequences), "exact" if self.exact else "not exact"
        return f"<Comparison of {sequences} sequences: {verdict}, off by {self.largest_difference:.1e} at most>"

    def difference(self, tokens) -> float:
        """P(tokens) - p(tokens)."""
        return self.law.get(tuple(tokens), 0.0) - self.expected.get(tuple(tokens), 0.0)

    @property
    def sequences(self) -> list[tuple[int, ...]]:
        """All that either law can emit, in ascending order."""
        return sorted({*self.law, *self.expected})

    @property
    def worst(self) -> tuple[int, ...]:
        """The sequence with the largest absolute difference."""
        return max(self.sequences, key=lambda tokens: abs(self.difference(tokens)))

    @property
    def largest_difference(self) -> float:
        return abs(self.difference(self.worst))

    @property
    def total_variation(self) -> float:
        """Half the sum of |P - p|: the most by which the probability of any event is off."""
        return sum(abs(self.difference(tokens)) for tokens in self.sequences) / 2

    @property
    def exact(self) -> bool:
        """No sequence is off by more than the tolerance."""
        return self.largest_difference <= self.tolerance

    def to_dict(self) -> dict:
        """The verdict and its numbers in plain types, ready for JSON."""
        return dict(
            exact=self.exact, sequences=len(self.sequences), tolerance=self.tolerance, worst=list(self.worst),
            largest_difference=self.largest_difference, total_variation=self.total_variation,
        )  # fmt: skip

    def __str__(self):
        law, expected = self.law.get(self.worst, 0.0), self.expected.get(self.worst, 0.0)
        return (
            f"{'EXACT' if self.exact else 'NOT EXACT'}: {len(self.sequences)} sequences; none may be off by more than "
            f"{self.tolerance:.0e}\n"
            f"  largest difference  {self.largest_difference:.1e} at {list(self.worst)}: P = {law:.6g}, "
            f"p = {expected:.6g}\n"
            f"  total variation     {self.total_variation:.1e}"
        )


def compare(law: Law, expected: Law, tolerance: float = 1e-12) -> Comparison:
    """The difference of two laws {continuation: probability}. Raises ValueError if one does not sum to 1."""
    tolerance = _as_tolerance(tolerance)
    for name, given in (("law", law), ("expected", expected)):
        probs = np.array([*given.values()])
        if not ((probs >= 0).all() and abs(probs.sum() - 1) <= 1e-6):  # NaN is neither
            raise ValueError(f"{name} sums to {probs.sum():.6g}: must be probabilities of sequences, >= 0, with sum 1.")
    return Comparison(dict(law), dict(expected), tolerance)


def _as_tolerance(value) -> float:
    number = real(value)
    if not number >= 0:
        raise ValueError(f"tolerance={value!r}: must be a number >= 0, such as 1e-12.")
    return float(number)


def prove(
    target, drafter, prompt, *, max_new_tokens, sampling=None, eos=None, tolerance=1e-12, **settings
) -> Comparison:
    """The decoder's distribution against the target's own, over every branch: P(x) = p(x), or not.

    tolerance: 1e-12 suits float64 tables, 1e-9 neural networks in float64. The other settings are those of
    exact_law() (rows, merge, …) and of speculate() (gamma, record, rule, …): the round that is proved is the one that
    they decode with. drafter=None proves plain decoding.

    Raises ValueError, before any work, for arguments that do not fit.
    """
    _check_settings("prove", _without(settings, *_OF_THE_SEARCH), settings.get("merge", False))
    tolerance = _as_tolerance(tolerance)
    if given := {"stop", "on_round"} & set(settings):
        raise ValueError(
            f"{', '.join(sorted(given))}: the target's own distribution does not include it; leave it out, or "
            "compare() laws of your own."
        )
    asked = dict(max_new_tokens=max_new_tokens, sampling=sampling, eos=eos)
    law = exact_law(target, drafter, prompt, **asked, **settings)
    return compare(law, target_law(target, prompt, **asked), tolerance)
