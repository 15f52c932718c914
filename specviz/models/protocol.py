"""What the decoder asks of a model and of its memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch


class Memory(Protocol):
    """A tape with one head a row: a KV cache that can be rewound.

    length [B] int64 on the CPU holds the heads. Feeding writes at each row's own head; what lies beyond
    its head is padding, never content. So rollback is free and rows may advance by different amounts.
    """

    length: torch.Tensor

    def feed(self, tokens: torch.Tensor, count: torch.Tensor | None = None) -> torch.Tensor:
        """tokens [B, n] -> logits [B, n, V]; each head moves by count [B] (default n), the rest is padding.

        Raises ValueError when the n tokens do not fit behind a head.
        """

    def rewind(self, length: torch.Tensor | int) -> None:
        """Move each head back to length (an int, or [B]) at most; never forward."""


class LanguageModel(Protocol):
    """A causal model over token ids 0 .. vocab_size-1.

    A decoder's text begins with the prompt. An encoder-decoder reads the prompt as its source (start() encodes
    it), and its text begins with start_tokens; models without that attribute are decoders.
    """

    name: str
    vocab_size: int
    context: int  # longest text, in tokens
    eos: frozenset[int]
    tokenizer: object | None  # see specviz.models.tokenizers
    device: torch.device
    dtype: torch.dtype
    start_tokens: list[int] | None  # what an encoder-decoder's text begins with; None: with the prompt

    def start(self, prompts: list[list[int]], capacity: int) -> Memory:
        """An empty memory for len(prompts) rows of up to capacity tokens.

        Nothing is fed yet; the prompts themselves matter to encoder-decoders alone, which encode them here.
        """


class Tape:
    """The heads of a memory: length, feed's bookkeeping and rewind."""

    def __init__(self, rows: int, capacity: int):
        self.capacity = capacity
        self._heads = np.zeros(rows, np.int64)  # replaced, never written into: between two forwards that costs least

    @property
    def length(self) -> torch.Tensor:
        """[B] int64 on the CPU: the heads, to be read."""
        return torch.from_numpy(self._heads)

    @length.setter
    def length(self, length: torch.Tensor) -> None:
        self._heads = length.numpy()

    def positions(self, n: int) -> torch.Tensor:
        """[B, n]: where the next n tokens of each row are written."""
        positions = self.length[:, None] + torch.arange(n)
        if n and int(positions.max()) >= self.capacity:
            raise ValueError(
                f"feed: {n} tokens do not fit, the heads are at {self.length.tolist()} of capacity {self.capacity}; "
                "start the memory with a larger capacity."
            )
        return positions

    def advance(self, n: int, count: torch.Tensor | None) -> None:
        self._heads = self._heads + (n if count is None else count.cpu().numpy())

    def fill(self, tokens: torch.Tensor, count: torch.Tensor | None = None) -> None:
        """feed() where nobody looks at the logits: of a long prompt they are many, and cost time and room."""
        self.feed(tokens, count)

    def rewind(self, length: torch.Tensor | int) -> None:
        if torch.is_tensor(length):
            length = (length if length.is_cpu else length.cpu()).numpy()
        self._heads = np.minimum(self._heads, length)
