"""The target, teacher-forced over sampled texts: the probability of each token, and its rank U.

The tokens of a position are ordered by p, or by p/q if a drafter is given (speculative decoders go wrong along p/q),
and U = p(tokens before x) + v p(x), with a uniform v. If the sampler is exact, all U are independent and uniform on
[0, 1) (Rosenblatt 1952), whatever the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from specviz.backends.precision import rounding
from specviz.sampling import SamplingParams

ELEMENTS = 2**23  # probabilities held at once


class Scores(NamedTuple):
    """Of each token of n texts [n, T]; behind the end of a shorter one NaN and False."""

    p: np.ndarray  # its probability
    u: np.ndarray  # its rank U in [0, 1]
    nearly: np.ndarray  # bool: of probability zero, but within rounding of the tokens that top-k or top-p keep
    v: np.ndarray  # uniforms for places without a token, so that joint cells keep their probability


def beginning(model, prompt) -> list[int]:
    """The tokens before the continuation: the prompt, or an encoder-decoder's start tokens."""
    return list(getattr(model, "start_tokens", None) or prompt)


def padded(texts, width) -> torch.Tensor:
    return torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])


def teacher_forced(audited, model, prompt, texts) -> Iterator[tuple[slice, torch.Tensor]]:
    """Logits [B, T, V] before each token of texts [n, T], by fresh caches, some rows at a time."""
    begin = beginning(model, prompt)
    fed = torch.cat([torch.tensor(begin).expand(len(texts), -1), texts[:, :-1]], dim=1)
    rows = max(1, ELEMENTS // (fed.shape[1] * audited.target.vocab_size))  # the same for target and drafter
    for first in range(0, len(texts), rows):
        chunk = fed[first : first + rows]
        logits = model.new_cache([prompt] * len(chunk), chunk.shape[1]).feed(chunk.to(model.device))
        logits = logits[:, len(begin) - 1 :]
        if audited.sampling.processors:  # log-probabilities are logits, too
            before = [row[: len(begin) + t] for row in chunk.tolist() for t in range(texts.shape[1])]
            logits = SamplingParams(processors=audited.sampling.processors).probabilities(logits, before).log()
        if not logits.amax(-1).isfinite().all():
            raise FloatingPointError(f"{model.name!r} returned NaN or infinite logits for a sampled text.")
        yield slice(first, first + rows), logits


def score(audited, texts) -> Scores:
    """The target teacher-forced over the texts; the uniforms of U depend on seed and place only."""
    width, (prompt,) = audited.max_new_tokens, audited.prompts
    distinct, where = np.unique(padded(texts, width).numpy(), axis=0, return_inverse=True)
    distinct, where = torch.from_numpy(distinct), where.reshape(-1)
    before, p = np.zeros(distinct.shape), np.zeros(distinct.shape)
    nearly = np.zeros(distinct.shape, dtype=bool)
    sampling = replace(audited.sampling, processors=())  # those are in the logits
    drafts = None if audited.drafter is None else teacher_forced(audited, audited.drafter, prompt, distinct)
    for rows, logits in teacher_forced(audited, audited.target, prompt, distinct):
        x = distinct[rows, :, None].to(logits.device)
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
    v, spare = np.random.default_rng(audited.seed).random((2, len(texts), width))
    u = np.clip(before[where] + v * p[where], 0, 1)
    ended = np.arange(width) >= np.array([len(text) for text in texts])[:, None]
    return Scores(np.where(ended, np.nan, p[where]), np.where(ended, np.nan, u), nearly[where] & ~ended, spare)


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
