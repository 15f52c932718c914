"""What the decoder asks of a model and of its memory."""

from __future__ import annotations

from typing import Protocol

import torch


class KVCache(Protocol):
    """A tape with one head a row: a KV cache that can be rewound.

    length [B] int64 on the CPU holds the heads. Feeding writes at each row's own head; what lies beyond
    its head is padding, never content. So rollback is free and rows may advance by different amounts.
    """

    length: torch.Tensor
    backend: str  # how its forwards are computed

    def feed(self, tokens: torch.Tensor, count: torch.Tensor | None = None) -> torch.Tensor:
        """tokens [B, n] -> logits [B, n, V]; each head moves by count [B] (default n), the rest is padding.

        Raises ValueError when the n tokens do not fit behind a head.
        """

    def rewind(self, length: torch.Tensor | list[int] | int) -> None:
        """Shorten each row to length (an int, or [B]) at most; never lengthen it."""


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

    def new_cache(self, prompts: list[list[int]], capacity: int, needs: frozenset[str] = frozenset()) -> KVCache:
        """An empty memory for len(prompts) rows of up to capacity tokens, which can do all that is in needs.

        Nothing is fed yet; the prompts themselves matter to encoder-decoders alone, which encode them here. Raises
        ValueError for needs that this model lacks (specviz/backends/protocol.py names them).
        """
