"""The interface between the decoder, a language model and its KV cache."""

from __future__ import annotations

from typing import Protocol

import torch


class KVCache(Protocol):
    """The keys and values of B rows of text, each with a length of its own, which can be rewound.

    length [B] int64 on the CPU: how many tokens of each row count as its text. A feed writes behind them; entries
    beyond a row's length are padding and never read. So a rewind costs nothing, and rows may advance by different
    amounts.
    """

    length: torch.Tensor
    backend: str  # the name of the way in which forwards are computed

    def feed(self, tokens: torch.Tensor, count: torch.Tensor | None = None) -> torch.Tensor:
        """tokens [B, n] -> logits [B, n, V]; each length grows by count [B] (default n), the rest is padding.

        Raises ValueError when n more tokens exceed the capacity.
        """

    def prefill(self, tokens: torch.Tensor, count: torch.Tensor | None = None) -> None:
        """feed() for tokens whose logits are not needed: those of a long prompt take time and room."""

    def rewind(self, length: torch.Tensor | list[int] | int) -> None:
        """Shorten each row to length (an int, or [B]) at most; never lengthen it."""

    def first_layers(self, n: int) -> KVCache:
        """The same cache, fed through the model's first n layers only. It must have been made with this need."""


class LanguageModel(Protocol):
    """A model over token ids 0 .. vocab_size-1.

    A decoder's text begins with the prompt. An encoder-decoder reads the prompt as its source (new_cache() encodes
    it), and its text begins with start_tokens.
    """

    name: str
    vocab_size: int
    context: int  # longest text, in tokens
    eos: frozenset[int]
    tokenizer: object | None  # see specviz.models.tokenizers
    device: torch.device
    dtype: torch.dtype
    start_tokens: list[int] | None  # the beginning of an encoder-decoder's text; None for decoders

    def new_cache(self, prompts: list[list[int]], capacity: int, needs: frozenset[str] = frozenset()) -> KVCache:
        """An empty cache for len(prompts) rows of up to capacity tokens, which can do all that is in needs.

        Nothing is fed yet; only encoder-decoders look at the prompts, which they encode here. Raises ValueError for
        needs that this model lacks (specviz/backends/protocol.py names them).
        """
