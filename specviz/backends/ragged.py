"""The lengths of a KV cache's rows, and a view of a cache through fewer layers."""

from __future__ import annotations

import numpy as np
import torch


class RaggedCache:
    """The base of all caches here: the lengths of the rows, which feed() moves on and rewind() moves back.

    See KVCache in specviz/models/protocol.py.
    """

    def __init__(self, rows: int, capacity: int):
        self.capacity = capacity
        # A numpy array, which is replaced and never written into: the cheapest bookkeeping between two forwards.
        self._lengths = np.zeros(rows, np.int64)

    @property
    def length(self) -> torch.Tensor:
        """[B] int64 on the CPU; to be read, not written into."""
        return torch.from_numpy(self._lengths)

    @length.setter
    def length(self, length: torch.Tensor) -> None:
        self._lengths = length.numpy()

    def positions(self, n: int) -> torch.Tensor:
        """[B, n]: the places where the next n tokens of each row are written. ValueError where they do not fit."""
        positions = self.length[:, None] + torch.arange(n)
        if n and int(positions.max()) >= self.capacity:
            raise ValueError(
                f"feed: {n} tokens do not fit, the rows' lengths are {self.length.tolist()} of capacity "
                f"{self.capacity}; make the cache with a larger capacity."
            )
        return positions

    def advance(self, n: int, count: torch.Tensor | None) -> None:
        self._lengths = self._lengths + (n if count is None else count.cpu().numpy())

    def prefill(self, tokens: torch.Tensor, count: torch.Tensor | None = None) -> None:
        self.feed(tokens, count)

    def rewind(self, length: torch.Tensor | list[int] | int) -> None:
        if torch.is_tensor(length):
            length = length.cpu().numpy()
        self._lengths = np.minimum(self._lengths, length)


class FirstLayers:
    """The same cache with the same lengths, fed through its first layers only."""

    def __init__(self, cache, feed):
        self.cache, self.feed, self.prefill, self.rewind = cache, feed, feed, cache.rewind

    @property
    def length(self) -> torch.Tensor:
        return self.cache.length
