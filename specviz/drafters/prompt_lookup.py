"""Prompt lookup: propose the tokens that followed the last words at an earlier place. No draft model at all.

Saxena: Prompt Lookup Decoding (2023). It pays where an answer repeats its prompt: summaries, edits, questions about a
text.
"""

from __future__ import annotations

import math

import torch

from specviz.arguments import integer
from specviz.drafters.protocol import Proposal


class PromptLookup:
    """Looks for the longest ending of the text, of longest down to shortest tokens, that occurred before.

    It proposes the tokens behind its latest occurrence, up to gamma of them, and none where there is no occurrence.
    A proposed token is certain, so q is one-hot and a draft is accepted with probability p(x): the rule itself is
    unchanged.

    Raises ValueError for lengths that are not integers with longest >= shortest >= 1.
    """

    def __init__(self, longest: int = 3, shortest: int = 1):
        self.shortest = integer(shortest, "shortest", 1, " tokens")
        self.longest = integer(longest, "longest", self.shortest, " tokens, the shortest that counts")
        self.name = "prompt lookup"

    def __repr__(self):
        return f"<PromptLookup of {self.longest} down to {self.shortest} tokens>"

    def check_target(self, target):
        """Any target will do: the proposed tokens stand in the text already."""

    def new_session(self, target, prompts, capacity, eos, target_cache):
        """The prompts and their texts are all that it looks at."""
        return PromptLookupSession(self, target, prompts, eos)

    def continuation(self, text: list[int]) -> list[int]:
        """The tokens behind the latest earlier occurrence of the longest ending that has one; [] if no ending has."""
        for n in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            ending = text[-n:]
            for at in range(len(text) - n - 1, -1, -1):
                if text[at] == ending[0] and text[at : at + n] == ending:
                    return text[at + n :]
        return []


class PromptLookupSession:
    """Remembers nothing: each round looks at the text as it stands."""

    def __init__(self, lookup, target, prompts, eos):
        self.lookup, self.target, self.eos = lookup, target, eos
        # The text of an encoder-decoder starts after its source; the source is the text to look up.
        self.sources = prompts if target.start_tokens else [[]] * len(prompts)

    def propose(self, committed, lengths, gamma, sampling, randomness):
        drafts = [
            self._drafts(source + text[:end], most)
            for source, text, end, most in zip(self.sources, committed.tolist(), lengths, gamma)
        ]
        n = max(map(len, drafts))
        tokens = torch.tensor([draft + [0] * (n - len(draft)) for draft in drafts], device=self.target.device)
        lengths = torch.tensor([len(draft) for draft in drafts])
        q = torch.zeros(*tokens.shape, self.target.vocab_size, device=self.target.device)
        q.scatter_(-1, tokens.long()[..., None], 1.0)
        return Proposal(tokens.long(), q, lengths, torch.full(tokens.shape, math.nan, dtype=torch.float64))

    def _drafts(self, text, most) -> list[int]:
        drafts = self.lookup.continuation(text)[:most] if most else []
        ended = next((i for i, token in enumerate(drafts) if token in self.eos), len(drafts))
        return drafts[: ended + 1]

    def rewind(self, lengths):
        pass
