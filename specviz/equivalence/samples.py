"""Many samples from a decoder, fast: of one position, and of whole sequences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from specviz.arguments import integer
from specviz.decoding import decode
from specviz.progress import progress_bar
from specviz.randomness import Seeded
from specviz.settings import Settings, known
from specviz.steps import check, prefill
from specviz.verification import accept_probability, residual


class Emitted(NamedTuple):
    """The tokens that n rounds emitted at one position."""

    counts: np.ndarray  # [V] int64: how often each token was emitted
    accepted: int  # how many of them were accepted drafts


def sample_position(p, q, n, *, seed=0, accept=accept_probability, resample_from=residual) -> Emitted:
    """n independent rounds at one position: x ~ q is accepted with accept(p, q)[x], or else y ~ resample_from(p, q).

    p, q [V] are shared by all rounds, so each cumulative distribution is built once; a million rounds over 2,048
    tokens take less than a second. accept and resample_from are the halves of the rule, as in verify(): try wrong ones.
    Raises ValueError for p, q or a result of resample_from that are no distributions.
    """
    n = integer(n, "n", 1)
    p, q = (torch.as_tensor(probs).detach().cpu().double() for probs in (p, q))
    if p.ndim != 1 or p.shape != q.shape:
        raise ValueError(f"p has shape {list(p.shape)} and q {list(q.shape)}: give one distribution [V] each.")
    for name, probs in (("p", p), ("q", q)):
        if not ((probs >= 0).all() and abs(probs.sum() - 1) <= 1e-6):
            raise ValueError(f"{name} sums to {probs.sum():.6g}: must be probabilities, >= 0 and with sum 1.")
    u_draft, coin, u_next = torch.from_numpy(np.random.default_rng(seed).random((3, n)))
    x = _drawn(q, u_draft)
    after_rejection = resample_from(p, q)
    if not (after_rejection >= 0).all():
        raise ValueError(
            "resample_from(p, q) is negative or NaN somewhere: must be probabilities (residual() is the right one)."
        )
    y = _drawn(after_rejection, u_next)
    accepted = coin < accept(p, q)[x]
    emitted = torch.where(accepted, x, y)
    return Emitted(torch.bincount(emitted, minlength=len(p)).numpy(), int(accepted.sum()))


def _drawn(probs, u):
    """inverse_cdf() of many uniforms [n] in one distribution [V], whose sums are made once. -> [n]"""
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(cumulative, u * cumulative[-1], right=True)


def sample_sequences(target, drafter, prompt, n, *, seed=0, rows=None, progress=None, **settings) -> np.ndarray:
    """n continuations from the shipped decoder, [n, max_new_tokens] int64; -1 behind the end of a shorter one.

    Sample i is row i of Seeded(seed): it does not depend on n or on rows, the number decoded at once (by default
    10,000, or fewer where the vocabulary is large). settings are those of speculate(); drafter=None samples plain
    decoding. progress: see progress_bar().
    """
    n = integer(n, "n", 1)
    rows = max(1, min(10_000, 2**24 // target.vocab_size)) if rows is None else rows
    rows = integer(rows, "rows", 1, " (samples decoded at once)")
    if given := {"randomness", "record"} & set(settings):
        raise ValueError(f"{', '.join(sorted(given))}: sample_sequences sets this itself; give seed= for the samples.")
    known("sample_sequences", settings)
    parts = []
    with progress_bar(n, "samples", progress, unit="samples") as bar:
        for first in range(0, n, rows):
            numbers = range(first, min(first + rows, n))
            asked = Settings(randomness=Seeded(seed, numbers), record="none", **settings)
            state = prefill(check(target, drafter, [prompt] * len(numbers), asked))
            for _ in decode(state):
                pass
            parts.append(_continuations(state))
            bar.update(len(numbers))
    return np.concatenate(parts)


def _continuations(state) -> np.ndarray:
    before, most = state.prompt_lengths[0], state.settings.max_new_tokens
    tokens = torch.full((len(state.prompts), most), -1)
    grown = state.committed[:, before:][:, :most]
    tokens[:, : grown.shape[1]] = grown
    ended = torch.arange(tokens.shape[1]) >= (state.length - before)[:, None]
    return tokens.masked_fill(ended, -1).numpy()
