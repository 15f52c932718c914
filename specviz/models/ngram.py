"""N-gram models learned from text: the paper's drafts of negligible cost (its section 4.1 and Table 3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import lru_cache

import numpy as np
import torch

from specviz.arguments import as_ids, encodable, integer
from specviz.backends.protocol import check_needs
from specviz.models.table import TokenCache


class NgramModel:
    """A LanguageModel that counts the tokens which followed the last order - 1 tokens; made by learn().

    Witten-Bell smoothing: where a context h of k tokens was seen c(h) times with T(h) different followers,
    P(x | h) = (c(hx) + T(h) P(x | last k-1 tokens of h)) / (c(h) + T(h)), down to the add-one unigram. So every
    token has some probability, and an unseen context falls back to a shorter one.
    """

    def __init__(self, followers: dict[tuple[int, ...], Counter], order: int, like):
        self.order = order - 1  # number of tokens in a context
        self.vocab_size, self.eos, self.tokenizer = like.vocab_size, like.eos, like.tokenizer
        self.name, self.context, self.start_tokens = f"{order}-gram", like.context, like.start_tokens
        self.device, self.dtype = torch.device("cpu"), torch.promote_types(like.dtype, torch.float32)
        self.followers = followers
        self.unigram = self._blend(np.ones(self.vocab_size), self.followers.get((), {}), 1.0)  # add-one
        self.look_up_one = lru_cache(maxsize=max(8, 2**22 // self.vocab_size))(self._look_up_one)

    @classmethod
    def learn(cls, texts, order: int, like) -> NgramModel:
        """Count the n-grams of texts (strings, or lists of ids) in the ids of like, a LanguageModel.

        order: 1 for a unigram, 2 for a bigram, 3 for a trigram. Learn from texts like the target's own. Raises
        ValueError for no text, or text that like cannot encode.
        """
        order = integer(order, "order", 1, " (2 is a bigram)")
        texts = [_ids(text, like) for text in ([texts] if isinstance(texts, str) else texts)]
        if not any(texts):
            raise ValueError("texts: there is not a single token to learn from; give strings, or lists of ids.")
        followers = defaultdict(Counter)
        for ids in texts:
            for at, token in enumerate(ids):
                for k in range(min(order - 1, at) + 1):
                    followers[tuple(ids[at - k : at])][token] += 1
        return cls(dict(followers), order, like)

    def __repr__(self):
        return f"<NgramModel: {self.name}, {self.vocab_size} ids, {len(self.followers)} contexts>"

    def new_cache(self, prompts, capacity, needs=frozenset()):
        check_needs(needs, (), f"n-gram model {self.name!r}")
        return TokenCache(self, len(prompts), capacity)

    def look_up(self, contexts):
        """[..., k] ids of the last k tokens, oldest first -> log-probabilities [..., V]."""
        rows = [self.look_up_one(tuple(context)) for context in contexts.flatten(0, -2).tolist()]
        return torch.from_numpy(np.stack(rows)).to(self.dtype).view(*contexts.shape[:-1], -1)

    def _look_up_one(self, context) -> np.ndarray:
        p = self.unigram
        for k in range(1, len(context) + 1):
            seen = self.followers.get(context[len(context) - k :])
            if seen is None:
                break  # longer contexts were not seen either
            p = self._blend(p, seen, len(seen))
        return np.log(p)

    @staticmethod
    def _blend(shorter, seen, weight) -> np.ndarray:
        """(counts + weight · shorter) / their sum; shorter [V] holds probabilities or, at first, ones."""
        p = weight * shorter
        p[list(seen)] += list(seen.values())
        return p / p.sum()


def _ids(text, like) -> list[int]:
    if not isinstance(text, str):
        return as_ids(text, like, "texts")
    if like.tokenizer is None:
        raise ValueError(f"texts holds the string {text!r:.40}, but {like.name!r} has no tokenizer: give lists of ids.")
    return like.tokenizer.encode(encodable(text, "texts"))
