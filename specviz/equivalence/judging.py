"""The verdict of an audit: on samples by statistics, on greedy text token by token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specviz.backends.precision import rounding
from specviz.equivalence.audit_report import AuditReport, Difference, Histogram, Impossible, label
from specviz.equivalence.exact import target_law
from specviz.equivalence.goodness_of_fit import Report, chi_square, count_cells
from specviz.equivalence.ranks import padded, score, teacher_forced

LARGEST_LAW = 100_000  # texts that are counted one by one at most
BINS = 20  # of the ranks U at one position

_BEHIND_EOS = "go on behind EOS", "cut them after the first EOS; if it is padding, cut the padding off"
_TOO_LONG = "are longer than max_new_tokens", "cut a last round's accepted drafts to the length that was asked for"
_TOO_SHORT = "end early without EOS", "if generate drops the EOS, append it; if another id ended them, name it in eos="
_NEVER_SAID = "hold a token of probability zero", "is generate's sampling (top-k, top-p) that of the audit?"


# --- samples ------------------------------------------------------------------------------------


def judge_samples(audited, texts, interrupted) -> AuditReport:
    impossible, cut = _malformed(audited, texts)
    scores = score(audited, cut)
    refused = scores.p == 0
    never = refused & ~scores.nearly
    if never.any():
        found = [(int(never[i].argmax()) + 1, texts[i]) for i in np.flatnonzero(never.any(1))]
        impossible.append(_impossible(_NEVER_SAID, found))
    notes = []
    borderline = (refused & scores.nearly).any(1)
    if borderline.any():
        notes.append(
            f"{borderline.sum()} texts hold a token that top-k or top-p just cut off, within rounding of the cut. "
            "They were set aside: they neither convict nor acquit. If there are many, audit another prompt."
        )
    if len(texts) > 20 and len(set(map(tuple, texts))) == 1:
        notes.append("All texts are the same: does generate use its seed?")
    kept = [text for text, doubtful in zip(cut, borderline) if not doubtful]
    histograms = _histograms(audited, kept, scores.u[~borderline], scores.v[~borderline]) if kept else []
    tests = [chi_square(h.observed, h.expected / h.expected.sum(), what=h.what) for h in histograms]
    if not any(test.dof for test in tests):
        notes.append("These are too few samples for any test.")
    return AuditReport(
        audited, texts, tests=Report(tests, audited.false_alarm) if tests else None, histograms=histograms,
        impossible=impossible, notes=notes, interrupted=interrupted,
    )  # fmt: skip


def _malformed(audited, texts) -> tuple[list[Impossible], list[list[int]]]:
    """The texts of impossible shape, by kind; and all texts, cut to where they should have ended.

    All of them stay in the sample: which texts are malformed depends on their tokens, so the others would be biased.
    """
    kinds, cut, most = {}, [], audited.max_new_tokens
    for text in texts:
        end = next((i + 1 for i, token in enumerate(text) if token in audited.eos), None)
        if end is not None and end < len(text):
            kinds.setdefault(_BEHIND_EOS, []).append((end + 1, text))
        elif len(text) > most:
            kinds.setdefault(_TOO_LONG, []).append((most + 1, text))
        elif len(text) < most and end is None:
            kinds.setdefault(_TOO_SHORT, []).append((len(text) + 1, text))
        cut.append(text[: min(end or most, most)])
    return [_impossible(kind, found) for kind, found in kinds.items()], cut


def _impossible(kind, found) -> Impossible:
    position, example = min(found)
    return Impossible(*kind, len(found), position, example)


def _histograms(audited, texts, u, v) -> list[Histogram]:
    """The counts to test: of each position in turn, then of all of them together; ranks where texts are too many."""
    (prompt,), width = audited.prompts, audited.max_new_tokens
    choices = min(audited.target.vocab_size, audited.sampling.top_k or audited.target.vocab_size)
    asked = dict(sampling=audited.sampling, eos=audited.eos)
    counted = width if choices**width <= min(LARGEST_LAW, len(texts)) else 1  # positions
    law = target_law(audited.target, prompt, max_new_tokens=counted, **asked)
    tokens = np.array([[*text, *[-1] * (width - len(text))] for text in texts])[:, :counted]
    histograms = []
    for i, (what, cells, counts, probs) in enumerate(count_cells(tokens, law)):
        labels = [label(audited.target, cell[cell >= 0].tolist()) for cell in cells]
        if what != "joint":
            histograms.append(Histogram(f"{what}: tokens", i + 1, labels, counts, len(texts) * probs))
        elif counted > 1:
            histograms.append(Histogram("whole texts", None, labels, counts, len(texts) * probs))
    return histograms if counted == width else histograms + _ranked(u, v)


def _ranked(u, v) -> list[Histogram]:
    """Ranks U [n, T] (NaN behind an end): at each position, over all of them, and jointly (v in the place of NaN)."""
    n, width = u.shape
    histograms = [_binned(f"position {i + 1}: ranks", i + 1, u[:, [i]]) for i in range(width)]
    if width > 1:
        histograms.append(_binned("all ranks", None, u.reshape(-1, 1)))
        bins = int((n / BINS) ** (1 / width) + 1e-9)  # as many as leave 20 to a joint cell
        positions = width if bins > 1 else min(width, int(np.log2(max(1, n / BINS))))
        if positions > 1:
            bins = max(2, bins)
            joint = np.where(np.isnan(u), v, u)[:, :positions]
            histograms.append(_binned(f"joint ranks, {bins} bins", None, joint, bins))
    return [h for h in histograms if h is not None]


def _binned(what, position, u, bins=None) -> Histogram | None:
    """U [n, T] in bins^T cells of equal probability; by default BINS, fewer where they expect less than 10."""
    u = u[~np.isnan(u).any(1)]
    n, width = u.shape
    bins = bins or min(BINS, n // 10)
    if bins < 2:
        return None
    cell = np.minimum((u * bins).astype(int), bins - 1) @ bins ** np.arange(width)[::-1]
    places = np.transpose(np.unravel_index(np.arange(bins**width), (bins,) * width)).tolist()
    labels = [" ".join(map(str, place)) if width > 1 else f"U from {place[0] / bins:.2f}" for place in places]
    counts = np.bincount(cell, minlength=bins**width)
    return Histogram(what, position, labels, counts, np.full(bins**width, n / bins**width))


# --- greedy text --------------------------------------------------------------------------------


def judge_greedy(audited, calls, interrupted) -> AuditReport:
    texts = [text for call in calls for text in call]
    impossible, cut = _malformed(audited, texts)
    rest, differences = iter(cut), []
    for number, (prompt, call) in enumerate(zip(audited.prompts, calls)):
        own = [next(rest) for _ in call]
        for rows, logits in teacher_forced(audited, audited.target, prompt, padded(own, audited.max_new_tokens)):
            for text, at in zip(own[rows], logits.cpu()):
                differences += _differences(number, text, at)
    return AuditReport(audited, texts, impossible=impossible, differences=differences, interrupted=interrupted)


def _differences(number, text, logits) -> Iterator[Difference]:
    """Every token is held against the greedy choice after the text as it is, so a near tie spoils nothing behind it."""
    for i, token in enumerate(text):
        top, second = logits[i].topk(2).values.tolist() if logits.shape[-1] > 1 else (float(logits[i, 0]),) * 2
        best = int((logits[i] == top).nonzero()[0])
        if token != best:
            gap = top - float(logits[i, token])
            yield Difference(number, i + 1, token, best, gap, top - second, gap <= rounding(logits[i]))
