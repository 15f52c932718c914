"""Models small enough to write down: n-gram tables over a handful of symbols, in float64."""

from __future__ import annotations

import numpy as np
import torch

from specviz.arguments import as_eos, integer
from specviz.backends.protocol import check_needs
from specviz.backends.ragged import RaggedCache
from specviz.models.tokenizers import SymbolTokenizer


class TableModel:
    """A language model whose next-token logits depend on the last k tokens, looked up in a table.

    logits [V+1]*k + [V]: the k leading axes are the last k tokens, oldest first, and index V stands for
    "before the text began". k = 0 is one distribution for every position. Zeros are logits of -inf.
    symbols: one character for each id, so that text can go in and come out.

    >>> TableModel([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], symbols="AB")   # after A: rather B; after B: rather A

    Raises ValueError for axes that do not fit, or eos or symbols outside the vocabulary.
    """

    start_tokens = None

    def __init__(self, logits, *, eos=(), context=64, symbols=None, name="table", dtype=torch.float64, device="cpu"):
        self.logits = torch.as_tensor(np.asarray(logits), dtype=dtype, device=device)
        shape = tuple(self.logits.shape)
        if not shape or shape[-1] < 1 or any(axis != shape[-1] + 1 for axis in shape[:-1]):
            raise ValueError(f"logits has shape {shape}: must be [V], [V+1, V], [V+1, V+1, V], … for V symbols.")
        self.vocab_size, self.order = shape[-1], len(shape) - 1
        if symbols is not None and (len(symbols) != self.vocab_size or len(set(symbols)) != self.vocab_size):
            raise ValueError(f"symbols={symbols!r}: must be {self.vocab_size} different characters, one for each id.")
        self.name, self.context = str(name), integer(context, "context", 1, " tokens")
        self.eos = as_eos(eos, self)
        self.tokenizer = None if symbols is None else SymbolTokenizer(symbols)
        self.device, self.dtype = self.logits.device, dtype

    @classmethod
    def from_probabilities(cls, probabilities, **settings) -> TableModel:
        """A table given by probabilities: rows sum to 1, zeros allowed."""
        probabilities = np.asarray(probabilities, dtype=np.float64)
        if (probabilities < 0).any() or not np.allclose(probabilities.sum(-1), 1, atol=1e-9):
            raise ValueError("probabilities: every row must be >= 0 and sum to 1.")
        with np.errstate(divide="ignore"):
            return cls(np.log(probabilities), **settings)

    @classmethod
    def random(cls, vocab_size, order=1, seed=0, scale=1.0, **settings) -> TableModel:
        """Normally distributed logits; a larger scale makes the rows more peaked."""
        generator = np.random.default_rng(seed)
        return cls(scale * generator.standard_normal([vocab_size + 1] * order + [vocab_size]), **settings)

    def __repr__(self):
        return f"<TableModel {self.name!r}: {self.vocab_size} symbols, looks back {self.order}>"

    def new_cache(self, prompts, capacity, needs=frozenset()):
        check_needs(needs, (), f"table {self.name!r}")
        return TokenCache(self, len(prompts), capacity)

    def look_up(self, contexts):
        """[..., k] ids of the last k tokens, oldest first -> logits [..., V]."""
        if not self.order:
            return self.logits.expand(*contexts.shape[:-1], -1)
        return self.logits[contexts.to(self.device).unbind(-1)]


class TokenCache(RaggedCache):
    """The tokens of each row, for a model whose logits depend on the last model.order of them.

    The contexts are read from this cache, so that a fault of the cache changes the logits.
    """

    backend = "table"

    def __init__(self, model, rows, capacity):
        super().__init__(rows, capacity)
        self.model = model
        blank = torch.full((rows, model.order), model.vocab_size)  # index V: before the text
        self.tokens = torch.cat([blank, torch.full((rows, capacity), -1)], dim=1)

    def feed(self, tokens, count=None):
        n = tokens.shape[1]
        positions = self.positions(n)
        order = self.model.order
        self.tokens.scatter_(1, positions + order, tokens.cpu())
        back = torch.arange(order) + 1
        contexts = self.tokens.gather(1, (positions[..., None] + back).flatten(1)).view(*positions.shape, order)
        self.advance(n, count)
        return self.model.look_up(contexts)
