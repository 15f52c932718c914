"""Somebody else's decoder: does it emit the target's distribution? A verdict from what comes out, whatever is inside.

    def generate(prompt_ids, max_new_tokens, seed):          # your library, called for one continuation
        return my_library.generate(prompt_ids, max_new_tokens=max_new_tokens, seed=seed, temperature=0.7)

    report = audit(generate, target, "Once upon a time", sampling=SamplingParams(temperature=0.7))
    print(report)
    assert not report.convicted, report

The target is a language model of this package, such as CausalLM(hugging_face_model), with the very weights that the
library serves. Use float32: in 16 bits two correct programs differ, and that is what the audit would measure.

What is tested. Where the target can say no more than as many texts as were sampled, every text and every position is
counted (chi-square, goodness_of_fit). Otherwise the tokens of position 1 are counted, and every token is turned into
its rank: the target is teacher-forced over what was sampled, tokens are ordered by p, or by p/q if a drafter is given
(speculative decoders go wrong along p/q), and U = p(tokens before x) + v p(x), with a uniform v. If the sampler
is exact, all U are independent and uniform on [0, 1) (Rosenblatt 1952), whatever the vocabulary; so chi-square tests of
U at each position, over all positions, and over their joint cells have a known rate of false alarms.

What ranks cannot see: errors that move mass only among tokens of like rank, or in opposite directions in different
contexts so that they cancel over the samples. Position 1, where the context is always the same, is counted token by
token. And no audit of some prompts speaks of other prompts, of other settings, or of errors below those it names.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

from specviz.arguments import as_ids, as_prompts, check_model, integer
from specviz.backends.precision import rounding
from specviz.equivalence.exact import target_law
from specviz.equivalence.goodness_of_fit import MIN_EXPECTED, Report, chi_square
from specviz.progress import progress_bar
from specviz.randomness import splitmix64
from specviz.sampling import SamplingParams
from specviz.settings import Settings

LARGEST_LAW = 100_000  # texts that are counted one by one at most
BINS = 20  # of the ranks U at one position
ELEMENTS = 2**23  # probabilities held at once while the target is teacher-forced
FORMAT = 1  # of the resume file


def audit(
    generate: Callable, target, prompt, *, samples=2000, max_new_tokens=4, sampling=None, eos=None, drafter=None,
    false_alarm=0.01, seed=0, resume=None, progress=None,
) -> AuditReport:  # fmt: skip
    """Sample generate() and compare with the target's own distribution -> AuditReport; print() it.

    generate     generate(prompt_ids, max_new_tokens, seed): the ids of one continuation, EOS included and the prompt
                 not; or a list of several independent ones. It is called until there are samples of them
    target       the model whose distribution is promised
    prompt       text or ids; with temperature 0 also a list of prompts
    samples      2,000 for a test suite; an error half as large takes four times as many
    max_new_tokens  of each continuation
    sampling     SamplingParams that generate() is asked to use (give them to it yourself); temperature 1 by default
    eos          id or ids that end a text, the target's by default
    drafter      the draft model, if known: sharpens the test, and changes nothing else
    false_alarm  the chance that a correct generate() is convicted, at most
    seed         of the seeds that generate() gets, and of the audit's own uniforms
    resume       a file to which every continuation is added, and from which a later call with the same settings goes
                 on (samples may grow; but to go on *because* nothing was found yet raises the rate of false alarms)
    progress     see progress_bar()

    The seed of a call is hashed from seed and the number of continuations before it, an integer below 2**63.
    With temperature 0 each prompt is continued once and held against the target's greedy text.
    After KeyboardInterrupt the report is of what there is.

    Raises ValueError, with the remedy, for arguments and results that are malformed. Texts that the target
    cannot say (behind EOS, too long, of probability zero) are no errors: they convict.
    """
    check_model(target)
    if not callable(generate):
        raise ValueError(f"generate={generate!r}: must be a function of (prompt_ids, max_new_tokens, seed).")
    prompts, single = as_prompts(target, prompt)
    samples, max_new_tokens = integer(samples, "samples", 1), integer(max_new_tokens, "max_new_tokens", 1)
    if max(len(_begin(target, prompt)) for prompt in prompts) + max_new_tokens > target.context:
        raise ValueError(
            f"max_new_tokens={max_new_tokens}: prompt and continuation exceed the context of {target.name!r} "
            f"({target.context}); ask for fewer."
        )
    settings = Settings(max_new_tokens=max_new_tokens, sampling=sampling, eos=eos).for_target(target)
    sampling = settings.sampling
    if sampling.temperature > 0 and not single:
        raise ValueError("prompt is a list: a law is sampled at a single prompt (a list is for temperature 0).")
    if drafter is not None and not hasattr(drafter, "vocab_size"):
        raise ValueError(f"drafter={drafter!r}: must be a language model over the vocabulary of {target.name!r}.")
    if not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm={false_alarm!r}: must be a probability between 0 and 1.")
    if (seed := integer(seed, "seed", 0, " and < 2**64")) >= 2**64:
        raise ValueError(f"seed={seed!r}: must be an integer >= 0 and < 2**64.")
    asked = _Asked(
        generate, target, prompts, samples, max_new_tokens, sampling, settings.eos, drafter, false_alarm, seed
    )

    calls, interrupted = _draw(asked, resume, progress)
    if sampling.temperature == 0:
        return _judge_greedy(asked, calls, interrupted)
    return _judge_samples(asked, [text for call in calls for text in call][:samples], interrupted)


@dataclass(frozen=True)
class _Asked:
    """The arguments of an audit, checked."""

    generate: Callable
    target: object
    prompts: list[list[int]]
    samples: int
    max_new_tokens: int
    sampling: SamplingParams
    eos: frozenset[int]
    drafter: object
    false_alarm: float
    seed: int

    @property
    def name(self) -> str:
        return getattr(self.generate, "name", None) or getattr(self.generate, "__name__", "generate")

    def new_report(self, **found) -> AuditReport:
        return AuditReport(
            self.name, self.target, self.prompts, self.max_new_tokens, self.sampling, self.false_alarm, **found
        )


# --- drawing, with a file to go on from ---------------------------------------------------------


def _draw(asked, resume, progress):
    """-> (a list of continuations for each call so far, whether it was interrupted)."""
    greedy = asked.sampling.temperature == 0
    goal = len(asked.prompts) if greedy else asked.samples
    with _store(asked, resume) as (calls, keep):
        drawn = len(calls) if greedy else sum(map(len, calls))
        with progress_bar(goal, "audit", progress, unit=" samples", initial=min(drawn, goal)) as bar:
            try:
                while drawn < goal:
                    prompt = asked.prompts[drawn if greedy else 0]
                    seed = int(splitmix64(asked.seed, drawn) >> np.uint64(1))
                    texts = _texts(asked, asked.generate(list(prompt), asked.max_new_tokens, seed))
                    if not calls:
                        _check_without_prompt(asked, prompt, texts)
                    calls.append(texts)
                    keep(texts)
                    bar.update(1 if greedy else len(texts))
                    drawn += 1 if greedy else len(texts)
            except KeyboardInterrupt:
                if not calls:
                    raise
                return calls, True
    return calls, False


def _texts(asked, returned) -> list[list[int]]:
    """What one call of generate() returned, as a list of continuations."""
    rows = _as_lists(returned)
    several = isinstance(rows, list) and bool(rows) and all(isinstance(_as_lists(row), list) for row in rows)
    if not isinstance(rows, list):
        raise ValueError(
            f"generate returned a {type(returned).__name__}: must be the token ids of the continuation (a list of "
            "integers), or a list of such lists."
        )
    texts = []
    for row in map(_as_lists, rows) if several else [rows]:
        try:
            text = as_ids(row, asked.target, "generate returned")
        except ValueError as error:
            raise ValueError(f"{error} Padding must be cut off, and text turned into ids.") from error
        texts.append(text)
    return texts


def _check_without_prompt(asked, prompt, texts):
    """ValueError where all texts of the first call begin with the prompt and are too long (one alone may by chance)."""
    if all(text[: len(prompt)] == prompt for text in texts) and max(map(len, texts)) > asked.max_new_tokens:
        raise ValueError(
            f"generate returned {max(map(len, texts))} tokens that begin with the prompt, where "
            f"max_new_tokens={asked.max_new_tokens} were asked for: return the continuation alone, such as "
            "ids[len(prompt_ids):]."
        )


def _as_lists(value):
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def _store(asked, path) -> Iterator[tuple[list, Callable]]:
    """The calls that a file holds, and a function that adds one: a line of JSON each, after a header."""
    if path is None:
        yield [], lambda texts: None
        return
    header = dict(
        specviz_audit=FORMAT, generate=asked.name, target=asked.target.name, prompts=asked.prompts,
        max_new_tokens=asked.max_new_tokens,
        sampling=asked.sampling.to_dict(), eos=sorted(asked.eos), seed=asked.seed,
    )  # fmt: skip
    if not isinstance(path, (str, os.PathLike)) or os.path.isdir(path):
        raise ValueError(f"resume={path!r}: must be the path of a file (it need not exist yet), not a folder.")
    if not os.path.isdir(folder := os.path.dirname(os.path.abspath(path))):
        raise ValueError(f"resume={str(path)!r}: the folder {folder!r} does not exist; make it first.")
    calls = _stored(path, header)
    with open(path, "a", encoding="utf-8", newline="\n") as file:

        def keep(entry):
            file.write(json.dumps(entry) + "\n")
            file.flush()

        if file.tell() == 0:
            keep(header)
        yield calls, keep


def _stored(path, header) -> list[list[list[int]]]:
    """The calls in a file that belongs to header; a last line that was cut off is removed from it."""
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        content = file.read()
    beginning = b'{"specviz_audit"'
    if not content.startswith(beginning[: len(content)]):
        raise ValueError(f"resume={str(path)!r} is no file of an audit; it was left alone. Name a new one.")
    whole = content.rfind(b"\n") + 1
    entries = []
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"resume={str(path)!r}: line {number} is damaged ({error}); start a new file.") from None
        if number > 1 and not isinstance(entries[-1], list):
            raise ValueError(f"resume={str(path)!r}: line {number} holds no continuations; start a new file.")
    if entries:
        kept = entries.pop(0)
        if different := [name for name in header if kept.get(name) != header[name]]:
            told = "; ".join(f"{name} was {kept.get(name)!r} and is {header[name]!r}" for name in different)
            raise ValueError(f"resume={str(path)!r} holds another audit: {told}. Use the same settings, or a new file.")
    if whole < len(content):
        os.truncate(path, whole)
    return entries


# --- the target's opinion of what was drawn -----------------------------------------------------


class _Scores(NamedTuple):
    """Of each token of n texts [n, T]; behind the end of a shorter one NaN and False."""

    p: np.ndarray  # its probability
    u: np.ndarray  # its rank U in [0, 1]
    nearly: np.ndarray  # bool: of probability zero, but within rounding of what top-k or top-p keep
    v: np.ndarray  # uniforms for places without a token, so that joint cells keep their probability


def _begin(model, prompt) -> list[int]:
    """What a text begins with: the prompt, or an encoder-decoder's start."""
    return list(model.start_tokens or prompt)


def _teacher_forced(asked, model, prompt, texts) -> Iterator[tuple[slice, torch.Tensor]]:
    """Logits [B, T, V] before each token of texts [n, T], by fresh memories, some rows at a time."""
    begin = _begin(model, prompt)
    fed = torch.cat([torch.tensor(begin).expand(len(texts), -1), texts[:, :-1]], dim=1)
    rows = max(1, ELEMENTS // (fed.shape[1] * asked.target.vocab_size))  # the same for target and drafter
    for first in range(0, len(texts), rows):
        chunk = fed[first : first + rows]
        logits = model.new_cache([prompt] * len(chunk), chunk.shape[1]).feed(chunk.to(model.device))[
            :, len(begin) - 1 :
        ]
        if asked.sampling.processors:  # log-probabilities are logits, too
            before = [row[: len(begin) + t] for row in chunk.tolist() for t in range(texts.shape[1])]
            logits = SamplingParams(processors=asked.sampling.processors).probabilities(logits, before).log()
        if not logits.amax(-1).isfinite().all():
            raise FloatingPointError(f"{model.name!r} returned NaN or infinite logits for a sampled text.")
        yield slice(first, first + rows), logits


def _padded(texts, width) -> torch.Tensor:
    return torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])


def _score(asked, texts) -> _Scores:
    """The target teacher-forced over the texts; the uniforms of U depend on seed and place only."""
    width, (prompt,) = asked.max_new_tokens, asked.prompts
    padded, where = np.unique(_padded(texts, width).numpy(), axis=0, return_inverse=True)  # each text once
    padded, where = torch.from_numpy(padded), where.reshape(-1)
    before, p = np.zeros(padded.shape), np.zeros(padded.shape)
    nearly = np.zeros(padded.shape, dtype=bool)
    sampling = replace(asked.sampling, processors=())  # those are in the logits
    drafts = None if asked.drafter is None else _teacher_forced(asked, asked.drafter, prompt, padded)
    for rows, logits in _teacher_forced(asked, asked.target, prompt, padded):
        x = padded[rows, :, None].to(logits.device)
        probs = _processed(sampling, logits)
        order = probs
        if drafts is not None:
            q = _processed(sampling, next(drafts)[1]).to(probs.device)
            q = torch.nn.functional.pad(q, (0, probs.shape[-1] - q.shape[-1]))  # padded vocabularies differ
            order = torch.where(probs > 0, probs / q, 0.0)
        own = order.gather(-1, x)
        ids = torch.arange(probs.shape[-1], device=x.device)
        ahead = (order < own) | ((order == own) & (ids < x))  # tokens of one order by id
        before[rows] = torch.where(ahead, probs, 0.0).sum(-1).cpu().numpy()
        p[rows] = probs.gather(-1, x)[..., 0].cpu().numpy()
        nearly[rows] = _nearly_possible(sampling, logits, x).cpu().numpy()
    generator = np.random.default_rng(asked.seed)
    v, spare = generator.random((len(texts), width)), generator.random((len(texts), width))
    u = np.clip(before[where] + v * p[where], 0, 1)
    ended = np.arange(width) >= np.array([len(text) for text in texts])[:, None]
    return _Scores(np.where(ended, np.nan, p[where]), np.where(ended, np.nan, u), nearly[where] & ~ended, spare)


def _processed(sampling, logits) -> torch.Tensor:
    probs = sampling.probabilities(logits)
    probs = probs.double() if logits.device.type != "mps" else probs.cpu().double()
    return probs / probs.sum(-1, keepdim=True)


def _nearly_possible(sampling, logits, x) -> torch.Tensor:
    """[B, T] bool: p(x) is zero, but would not be if rounding had moved x or the cut of top-p a little."""
    refused = (_processed(sampling, logits).gather(-1, x) == 0)[..., 0].to(logits.device)
    nearly = torch.zeros_like(refused)
    if refused.any():
        top_p = None if sampling.top_p is None else min(1.0, sampling.top_p + 1e-4)
        looser = replace(sampling, top_p=top_p)
        margin = torch.full(x[refused].shape, rounding(logits), dtype=logits.dtype, device=logits.device)
        raised = logits[refused].scatter_add(-1, x[refused], margin)
        nearly[refused] = looser.probabilities(raised).gather(-1, x[refused])[..., 0] > 0
    return nearly


# --- the verdict on samples ---------------------------------------------------------------------


@dataclass(frozen=True)
class Impossible:
    """Texts that no correct decoder emits."""

    what: str
    remedy: str
    count: int
    position: int  # the first, from 1
    example: list[int]


@dataclass(frozen=True)
class Histogram:
    """Counts of one test beside what the target's law expects."""

    what: str
    position: int | None  # from 1; None for tests over several
    labels: list
    observed: np.ndarray  # [K] int64
    expected: np.ndarray  # [K] float64

    @property
    def residuals(self) -> np.ndarray:
        """(observed - expected) / sqrt(expected): beyond ±3 by chance once in 400 cells; infinite where impossible."""
        return _residuals(self.observed, self.expected)

    def text(self, most=BINS, width=40) -> str:
        """A bar for each cell, rare ones as one; of many cells those that deviate most."""
        labels, observed, expected = self._with_rare_cells_as_one()
        residuals = _residuals(observed, expected)
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

    def _with_rare_cells_as_one(self):
        """Labels, counts and expectations, the likeliest first (ranks in their order)."""
        if "ranks" in self.what:
            order = np.arange(len(self.labels))
        else:
            order = np.argsort(-self.expected, kind="stable")
        likely = self.expected[order]
        common = order[likely >= MIN_EXPECTED]
        labels, observed, expected = [self.labels[k] for k in common], self.observed[common], self.expected[common]
        for which, kind in (((0 < likely) & (likely < MIN_EXPECTED), "rarer"), (likely == 0, "impossible")):
            cells = order[which]
            if len(cells):
                labels.append(self.labels[cells[0]] if len(cells) == 1 else f"({len(cells)} {kind})")
                observed = np.append(observed, self.observed[cells].sum())
                expected = np.append(expected, self.expected[cells].sum())
        return labels, observed, expected


def _residuals(observed, expected) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num((observed - expected) / np.sqrt(expected), posinf=np.inf)


def _judge_samples(asked, texts, interrupted) -> AuditReport:
    impossible, cut = _malformed(asked, texts)
    scores = _score(asked, cut)
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
    histograms = _histograms(asked, kept, scores.u[~borderline], scores.v[~borderline])
    tests = [chi_square(h.observed, h.expected / h.expected.sum(), what=h.what) for h in histograms]
    if not any(test.dof for test in tests):
        notes.append("These are too few samples for any test.")
    return asked.new_report(
        texts=texts, tests=Report(tests, asked.false_alarm) if tests else None, histograms=histograms,
        impossible=impossible, notes=notes, interrupted=interrupted,
    )  # fmt: skip


def _malformed(asked, texts) -> tuple[list[Impossible], list[list[int]]]:
    """The texts of impossible shape, by kind; and all texts, cut to where they should have ended.

    None is left out: which texts are malformed depends on what they say, so the others would be a biased sample.
    """
    kinds, cut = {}, []
    for text in texts:
        end = next((i + 1 for i, token in enumerate(text) if token in asked.eos), None)
        if end is not None and end < len(text):
            kinds.setdefault(_BEHIND_EOS, []).append((end + 1, text))
        elif len(text) > asked.max_new_tokens:
            kinds.setdefault(_TOO_LONG, []).append((asked.max_new_tokens + 1, text))
        elif len(text) < asked.max_new_tokens and end is None:
            kinds.setdefault(_TOO_SHORT, []).append((len(text) + 1, text))
        cut.append(text[: min(end or asked.max_new_tokens, asked.max_new_tokens)])
    return [_impossible(kind, found) for kind, found in kinds.items()], cut


_BEHIND_EOS = "go on behind EOS", "cut them after the first EOS; if it is padding, cut the padding off"
_TOO_LONG = "are longer than max_new_tokens", "cut a last round's accepted drafts to the length that was asked for"
_TOO_SHORT = "end early without EOS", "if generate drops the EOS, append it; if another id ended them, name it in eos="
_NEVER_SAID = "hold a token of probability zero", "is generate's sampling (top-k, top-p) that of the audit?"


def _impossible(kind, found) -> Impossible:
    position, example = min(found)
    return Impossible(*kind, len(found), position, example)


def _histograms(asked, texts, u, v) -> list[Histogram]:
    """What is tested: each position in turn, then all of them together."""
    if not texts:
        return []
    (prompt,) = asked.prompts
    choices = min(asked.target.vocab_size, asked.sampling.top_k or asked.target.vocab_size)
    if choices**asked.max_new_tokens <= min(LARGEST_LAW, len(texts)):
        whole = dict(max_new_tokens=asked.max_new_tokens, sampling=asked.sampling, eos=asked.eos)
        return _counted(asked, texts, target_law(asked.target, prompt, **whole), range(asked.max_new_tokens))
    first = dict(max_new_tokens=1, sampling=asked.sampling, eos=asked.eos)
    return _counted(asked, texts, target_law(asked.target, prompt, **first), range(1)) + _ranked(u, v)


def _counted(asked, texts, law, positions) -> list[Histogram]:
    """Each position's tokens and, where the law is of more than one, whole texts."""
    histograms = []
    for i in positions:
        at = Counter()
        for text, p in law.items():
            at[text[i : i + 1]] += p
        counts = Counter(tuple(text[i : i + 1]) for text in texts)
        histograms.append(_side_by_side(asked, f"position {i + 1}: tokens", i + 1, counts, at))
    if len(positions) > 1:
        histograms.append(_side_by_side(asked, "whole texts", None, Counter(map(tuple, texts)), law))
    return histograms


def _side_by_side(asked, what, position, counts, law) -> Histogram:
    cells, n = sorted({*law, *counts}), sum(counts.values())
    observed = np.array([counts.get(cell, 0) for cell in cells])
    expected = n * np.array([law.get(cell, 0.0) for cell in cells])
    return Histogram(what, position, [_label(asked.target, cell) for cell in cells], observed, expected)


def _label(target, ids) -> str:
    if not ids:
        return "(ended)"
    numbers = " ".join(map(str, ids))
    if target.tokenizer is None:
        return numbers
    text = b"".join(target.tokenizer.piece(token) for token in ids).decode("utf-8", errors="replace")
    return f"{numbers} {text!r}"


def _ranked(u, v) -> list[Histogram]:
    """Ranks U [n, T] (NaN behind an end): at each position, over all of them, and jointly (v in the place of NaN)."""
    n, width = u.shape
    histograms = [_binned(f"position {i + 1}: ranks", i + 1, u[:, i]) for i in range(width)]
    if width > 1:
        histograms.append(_binned("all ranks", None, u.reshape(-1)))
        bins = int((n / BINS) ** (1 / width) + 1e-9)  # as many as leave 20 to a joint cell
        positions = width if bins > 1 else min(width, int(np.log2(max(1, n / BINS))))
        if positions > 1:
            histograms.append(_joint(np.where(np.isnan(u), v, u)[:, :positions], max(2, bins)))
    return [h for h in histograms if h is not None]


def _binned(what, position, u) -> Histogram | None:
    u = u[~np.isnan(u)]
    bins = min(BINS, len(u) // 10)
    if bins < 2:
        return None
    counts = np.bincount(np.minimum((u * bins).astype(int), bins - 1), minlength=bins)
    return Histogram(
        what, position, [f"U from {k / bins:.2f}" for k in range(bins)], counts, np.full(bins, len(u) / bins)
    )


def _joint(u, bins) -> Histogram:
    """Cells of bins a position, bins^T in all."""
    width = u.shape[1]
    cell = np.minimum((u * bins).astype(int), bins - 1) @ bins ** np.arange(width)[::-1]
    counts = np.bincount(cell, minlength=bins**width)
    places = np.unravel_index(np.arange(bins**width), (bins,) * width)
    labels = [" ".join(map(str, place)) for place in np.transpose(places).tolist()]
    return Histogram(f"joint ranks, {bins} bins", None, labels, counts, np.full(bins**width, len(u) / bins**width))


# --- the verdict on greedy text -----------------------------------------------------------------


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


def _judge_greedy(asked, calls, interrupted) -> AuditReport:
    impossible, differences = [], []
    for number, (prompt, texts) in enumerate(zip(asked.prompts, calls)):
        found, cut = _malformed(asked, texts)
        impossible += found
        for rows, logits in _teacher_forced(asked, asked.target, prompt, _padded(cut, asked.max_new_tokens)):
            for text, at in zip(cut[rows], logits.cpu()):
                differences += _differences(number, text, at)
    return asked.new_report(
        texts=[text for texts in calls for text in texts], impossible=_merged(impossible), differences=differences,
        interrupted=interrupted,
    )  # fmt: skip


def _differences(number, text, logits) -> Iterator[Difference]:
    """Every token is held against the greedy choice after the text as it is, so a near tie spoils nothing behind it."""
    for i, token in enumerate(text):
        top, second = logits[i].topk(2).values.tolist() if logits.shape[-1] > 1 else (float(logits[i, 0]),) * 2
        best = int((logits[i] == top).nonzero()[0])
        if token != best:
            gap = top - float(logits[i, token])
            yield Difference(number, i + 1, token, best, gap, top - second, gap <= rounding(logits[i]))


def _merged(impossible) -> list[Impossible]:
    """One entry of each kind, over all prompts."""
    kinds = {}
    for one in impossible:
        kinds.setdefault(one.what, []).append(one)
    merged = []
    for several in kinds.values():
        first = min(several, key=lambda one: one.position)
        merged.append(replace(first, count=sum(one.count for one in several)))
    return merged


# --- the report ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditReport:
    """What an audit found; print() it. In a test suite: assert not report.convicted, report."""

    generate: str  # its name
    target: object
    prompts: list[list[int]]
    max_new_tokens: int
    sampling: SamplingParams
    false_alarm: float
    texts: list[list[int]]  # all continuations that were judged
    tests: Report | None = None  # p-values, adjusted ones, detectable; None for greedy text
    histograms: list[Histogram] = field(default_factory=list)  # one for each of the tests, to look at or to plot
    impossible: list[Impossible] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)  # from the greedy text
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def convicted(self) -> bool:
        """What was sampled is not the target's distribution (greedy: not its text, near ties apart)."""
        return self._by_tests or bool(self.impossible) or any(not found.near_tie for found in self.differences)

    @property
    def _by_tests(self) -> bool:
        return self.tests is not None and self.tests.convicted

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
        return [h for h, p in zip(self.histograms, adjusted) if p < self.false_alarm]

    @property
    def histogram(self) -> Histogram | None:
        """The first that is off, or else the first of all."""
        return next(iter([*self.off, *self.histograms]), None)

    def __str__(self):
        lines = [f"AUDIT of {self.generate} against {self.target.name}: {self._verdict()}", *self._setting(), ""]
        lines += self._greedily() if self.sampling.temperature == 0 else self._statistically()
        for found in self.impossible:
            lines += [
                "",
                f"{found.count} of {len(self.texts)} texts {found.what}. No correct decoder emits one: this alone "
                "convicts.",
                f"  the first at position {found.position}: {_label(self.target, found.example)}",
                f"  remedy: {found.remedy}",
            ]
        lines += [f"Note: {note}" for note in self.notes]
        if self.histogram is not None:
            lines += ["", f"{self.histogram.what}:", self.histogram.text()]
        return "\n".join(lines).rstrip()

    def _verdict(self) -> str:
        return "CONVICTED" if self.convicted else "NOT CONVICTED"

    def _first_off(self) -> str:
        return f"position {self.first_position}" if self.first_position else self.off[0].what

    def _setting(self) -> list[str]:
        given = {name: value for name, value in self.sampling.to_dict().items() if value is not None}
        how = ", ".join(f"{name} {value}" for name, value in given.items())
        one = f"a prompt of {len(self.prompts[0])} tokens"
        where = one if len(self.prompts) == 1 else f"{len(self.prompts)} prompts"
        lines = [f"{len(self.texts)} texts of up to {self.max_new_tokens} tokens after {where}; {how}"]
        return lines + (["INTERRUPTED: this is what had been drawn by then"] if self.interrupted else [])

    def _statistically(self) -> list[str]:
        if self.tests is None:
            return ["No text was left to test."]
        lines = [
            f"A correct decoder is convicted with probability {self.false_alarm:g} at most"
            + (f"; first off: {self._first_off()}." if self.convicted else "."),
            f"{'test':<24}{'samples':>9}{'cells':>7}{'p-value':>10}{'adjusted':>10}{'error seen':>12}",
        ]
        for fit, adjusted, error in zip(self.tests.tests, self.tests.adjusted, self.tests.detectable):
            seen = f"{error:.1%}" if fit.dof else "none"
            mark = "  <- off" if adjusted < self.false_alarm else ""
            lines.append(
                f"{fit.what:<24}{fit.n:>9}{fit.dof + 1:>7}{fit.p_value:>10.2g}{adjusted:>10.2g}{seen:>12}{mark}"
            )
        return lines + [
            "adjusted: p-values, corrected for the number of tests (Holm). error seen: the total variation from the",
            f"target's law over the cells of this test that it convicts with probability {self.tests.power:g}.",
        ]

    def _greedily(self) -> list[str]:
        texts, prompts = len(self.texts), len(self.prompts)
        wrong = [found for found in self.differences if not found.near_tie]
        near = len(self.differences) - len(wrong)
        lines = []
        if not self.differences and not self.impossible:
            few = f"{1 - 0.01 ** (1 / prompts):.1%} of prompts like these"
            lines += [
                f"Equal to the target's greedy text in all {texts}. A decoder that errs on {few}",
                "would have been convicted with probability 0.99.",
            ]
        for found in sorted(self.differences, key=lambda found: found.near_tie)[:10]:
            token, best = (_label(self.target, [i]) for i in (found.token, found.expected))
            lines.append(
                f"prompt {found.prompt}, position {found.position}: {token} instead of {best}, whose logit is "
                f"{found.gap:.3g} larger (the top two are {found.top_two:.3g} apart): "
                + ("a near tie, within rounding; no fault" if found.near_tie else "a real difference")
            )
        if len(self.differences) > 10:
            lines.append(f"… {len(self.differences)} differences in all, {near} of them near ties")
        return lines
