"""Where numbers are: distributions on the models' device, a round's few other numbers on the host.

On a CPU a distribution is read as numpy's array, which shares the memory of its tensor: a forward empties the CPU's
caches, and behind it a call of numpy costs a third of torch's. On a GPU the same code runs on tensors.
"""

from __future__ import annotations

import functools

import numpy as np
import torch


def namespace(x):
    """The library that x belongs to: numpy or torch. Use names alone that both have."""
    return np if isinstance(x, np.ndarray) else torch


def as_array(x):
    """A tensor as an array to compute with: numpy's where it lies on the CPU (no copy), itself on a GPU.

    A device without float64 (MPS) is computed for on the CPU, and numpy has no bfloat16: these are copied.
    """
    if isinstance(x, np.ndarray):
        return x
    try:
        return x.numpy()
    except (TypeError, RuntimeError):  # bfloat16 or a device; part of autograd
        return x if x.is_cuda else (x.float() if x.dtype == torch.bfloat16 else x).detach().cpu().numpy()


def as_tensor(x, device=None) -> torch.Tensor:
    """The inverse: a tensor on device (None: where it is)."""
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(x)
    return x if device is None or device == x.device else x.to(device)


def beside(values, x):
    """values as an array of x's library, on x's device."""
    if isinstance(x, np.ndarray):
        return as_array(values)
    return as_tensor(values).to(x.device, non_blocking=True)


def host(*arrays) -> list[np.ndarray]:
    """Arrays [B, …] as numpy's on the CPU; from a GPU in a single transfer, as float64 (ids are exact in it)."""
    if isinstance(arrays[0], np.ndarray):
        return list(arrays)
    columns = [x.reshape(len(x), -1).double() for x in arrays]
    together = torch.cat(columns, dim=1).cpu().numpy()
    parts = np.split(together, np.cumsum([x.shape[1] for x in columns])[:-1], axis=1)
    kinds = [{torch.int64: np.int64, torch.bool: bool}.get(x.dtype, np.float64) for x in arrays]
    return [part.reshape(x.shape).astype(kind) for part, x, kind in zip(parts, arrays, kinds, strict=True)]


def of_ids(x, ids):
    """x [B, n, V] at ids [B, m], m <= n -> [B, m]: the probabilities of chosen tokens."""
    return x.take(beside(_firsts(*x.shape, ids.shape[1]), x) + ids)


def at_positions(x, at: np.ndarray):
    """x [B, n, V] at one position a row, [B] -> [B, V]; of a single row a view."""
    return x[:, at.item()] if len(at) == 1 else x[beside(np.arange(len(at)), x), beside(at, x)]


@functools.lru_cache(maxsize=64)
def _firsts(rows, positions, vocabulary, columns):
    """[rows, columns]: where each distribution begins in an array [rows, positions, vocabulary], laid out flat."""
    return (np.arange(rows)[:, None] * positions + np.arange(columns)) * vocabulary
