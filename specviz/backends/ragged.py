"""A memory's heads, and a view of a memory through fewer layers."""

from __future__ import annotations

import numpy as np
import torch


class RaggedCache:
    """The heads of a memory: length, feed's bookkeeping and rewind."""

    def __init__(self, rows: int, capacity: int):
        self.capacity = capacity
        self._lengths = np.zeros(rows, np.int64)  # replaced, never written into: between two forwards that costs least

    @property
    def length(self) -> torch.Tensor:
        """[B] int64 on the CPU: the heads, to be read."""
        return torch.from_numpy(self._lengths)

    @length.setter
    def length(self, length: torch.Tensor) -> None:
        self._lengths = length.numpy()

    def positions(self, n: int) -> torch.Tensor:
        """[B, n]: where the next n tokens of each row are written."""
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
        """feed() where nobody looks at the logits: of a long prompt they are many, and cost time and room."""
        self.feed(tokens, count)

    def rewind(self, length: torch.Tensor | list[int] | int) -> None:
        if torch.is_tensor(length):
            length = length.cpu().numpy()
        self._lengths = np.minimum(self._lengths, length)


class FirstLayers:
    """The same memory with the same heads, fed through its first layers alone."""

    def __init__(self, cache, feed):
        self.cache, self.feed = cache, feed

    @property
    def length(self) -> torch.Tensor:
        return self.cache.length

    def rewind(self, length: torch.Tensor | int) -> None:
        self.cache.rewind(length)
