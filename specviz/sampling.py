"""From logits to the distribution that is sampled: temperature, top-k, top-p."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from specviz.arguments import integer, real
from specviz.arrays import as_array, as_tensor

LARGEST = 1e300  # no temperature is as high; infinity is none
# Ids from which on torch shares a softmax's rows out among threads, which then go on waiting on cores that the next
# forward needs: with onnxruntime's threads on the same two cores that forward took three times as long.
WIDE = 1024


@dataclass(frozen=True)
class SamplingParams:
    """How logits become probabilities; the order and the results are those of transformers' warpers.

    temperature: 0 is greedy (the largest logit has probability 1, ties go to the lowest id).
    top_k: keep the k largest logits (ties to the lowest id); None keeps all.
    top_p: of the remaining tokens, keep the smallest set whose probability reaches top_p; None or 1.0 keeps all.
    processors: logits processors as transformers has them (repetition penalty, bad words, …), applied first, in
    order: functions of (ids [1, T], scores [1, V]) -> scores, without a state of their own. Draft and target are
    processed alike, each position by the text before it.

    Raises ValueError for a negative or non-finite temperature, top_k < 1, top_p outside (0, 1], and for processors
    that cannot be called.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    processors: tuple = ()

    def __post_init__(self):
        temperature, top_k, top_p = real(self.temperature), self.top_k, self.top_p
        if not 0 <= temperature < LARGEST:
            raise ValueError(f"temperature={self.temperature!r}: must be a finite number >= 0 (0 is greedy).")
        if top_k is not None:
            top_k = integer(top_k, "top_k", 1, ", or None to keep all tokens")
        if top_p is not None and not 0 < (top_p := real(top_p)) <= 1:
            raise ValueError(f"top_p={self.top_p!r}: must lie in (0, 1], or be None to keep all tokens.")
        listed = isinstance(self.processors, (list, tuple))
        if not listed or not all(map(callable, self.processors)):
            raise ValueError(
                f"processors={self.processors!r}: must be a list of logits processors, functions of (ids, scores)."
            )
        whole = dict(temperature=temperature, top_k=top_k, top_p=top_p, processors=tuple(self.processors))
        for name, value in whole.items():
            object.__setattr__(self, name, value)  # frozen, but still under construction

    def to_dict(self) -> dict:
        """The settings as JSON can hold them: processors by the names of their classes, if there are any."""
        settings = dict(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        names = [getattr(processor, "__name__", type(processor).__name__) for processor in self.processors]
        return settings | ({"processors": names} if names else {})

    def probabilities(self, logits: torch.Tensor, texts=None) -> torch.Tensor:
        """logits [..., V] -> probabilities [..., V], in float32 or, for float64 logits, float64.

        texts: for processors, the ids before each position, in the order of logits flattened to [N, V]; None for
        positions that are padding.

        A row with NaN or +inf, or of -inf throughout, comes out as NaN throughout: the decoder finds it
        when it commits the round, without a synchronisation here. Single -inf logits are zeros.
        """
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        if self.processors:
            logits = self._processed(logits, texts)
        if self == PLAIN:  # nothing to do but the softmax, which turns such rows into NaN by itself
            return _softmax(logits)
        if self.temperature == 0:
            return _one_hot(logits)
        # The shift changes no probability, keeps a tiny temperature from overflowing, and makes infinities NaN.
        limits = torch.finfo(logits.dtype)
        logits = (logits - logits.amax(-1, keepdim=True)) / min(max(self.temperature, limits.tiny), limits.max)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = _keep_top_k(logits, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            logits = _keep_top_p(logits, self.top_p)
        return _softmax(logits)

    def _processed(self, logits, texts):
        if texts is None:
            raise ValueError("texts: processors look at the text before each position; give its ids.")
        rows = logits.flatten(0, -2)
        done = [
            rows[i : i + 1] if text is None else self._scores(rows[i : i + 1], text) for i, text in enumerate(texts)
        ]
        return torch.cat(done).view_as(logits) if done else logits

    def _scores(self, scores, text):
        ids = torch.tensor([text], device=scores.device)
        for processor in self.processors:
            given, scores = scores, processor(ids, scores.clone())  # some write into their argument
            sound = torch.is_tensor(scores) and scores.is_floating_point()
            if not sound or scores.shape != given.shape:
                kind = f"{tuple(scores.shape)} of {scores.dtype}" if torch.is_tensor(scores) else type(scores).__name__
                raise ValueError(
                    f"processor {processor!r} returned {kind}: must return a floating-point tensor of scores, of the "
                    f"shape of its argument, {tuple(given.shape)}."
                )
        return scores


def as_sampling(sampling) -> SamplingParams:
    """SamplingParams, by default of temperature 1. ValueError for anything else."""
    if sampling is None:
        return PLAIN
    if not isinstance(sampling, SamplingParams):
        raise ValueError(f"sampling={sampling!r}: must be a SamplingParams, such as SamplingParams(temperature=0.7).")
    return sampling


PLAIN = SamplingParams()


def _softmax(logits):
    several = logits.numel() > logits.shape[-1] >= WIDE
    if not several or logits.device.type != "cpu" or logits.requires_grad:
        return logits.softmax(-1)
    x = logits.numpy()
    with np.errstate(invalid="ignore"):  # infinities become NaN, as in torch
        weights = np.exp(x - x.max(-1, keepdims=True))
        return torch.from_numpy(weights / weights.sum(-1, keepdims=True))


def _one_hot(logits):
    x = as_array(logits)
    if not isinstance(x, np.ndarray):  # a GPU is not waited for
        top, best = x.max(-1, keepdim=True)  # of equal maxima the first, as torch promises
        return torch.zeros_like(x).scatter_(-1, best, 1).masked_fill(~top.isfinite(), math.nan)
    x = x.reshape(-1, x.shape[-1])
    one_hot = np.zeros(x.shape, x.dtype)
    for row, best in enumerate(x.argmax(-1).tolist()):  # the first, as numpy promises
        one_hot[row, best] = 1
        if not math.isfinite(x.item(row, best)):
            one_hot[row] = math.nan
    return as_tensor(one_hot, logits.device).view(logits.shape)


def _keep_top_k(logits, k):
    order = logits.sort(dim=-1, descending=True, stable=True).indices  # stable: ties to the lowest id
    return logits.scatter(-1, order[..., k:], -torch.inf)


def _keep_top_p(logits, top_p):
    # Summed up from the smallest, as in transformers, so that both round the border alike.
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    reached = ordered.flip(-1).softmax(-1).cumsum(-1).flip(-1)
    drop = reached <= 1 - top_p
    drop[..., 0] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)
