"""The interface between CausalLM and a backend: a way to compute a model's forwards, with its own KV cache.

A decoding says what it needs, and the fastest backend that can do all of it is taken:

    "first_layers"   cache.first_layers(n): the same cache, fed through the first n layers (layer skip drafts with it)
    "inspect"        keys, values and masks can be read and changed as transformers has them
    "hidden_states"  cache.hidden_states [B, n, d]: what the head read at the tokens of the last feed
    "tree"           several continuations of one text in one forward: no backend has it yet
"""

from __future__ import annotations

from typing import Protocol

NEEDS = frozenset({"first_layers", "inspect", "hidden_states", "tree"})


class Backend(Protocol):
    """Backend(model) copies or arranges the weights of one wrapped model that it serves.

    model is the CausalLM: backends read its model, name, layers, context, attention, window, device, dtype and forward.
    """

    name: str
    serves: str  # the models that it serves, in words, for errors

    @staticmethod
    def abilities(model) -> set[str] | None:
        """The needs that it can meet for this model; None where it cannot serve the model at all."""

    def cache(self, rows: int, capacity: int):
        """An empty specviz.models.protocol.KVCache, whose backend is this one's name."""


def check_needs(needs, can, who) -> None:
    """ValueError unless needs is a set of known needs, all of which who can meet."""
    unknown, lacking = sorted(set(needs) - NEEDS), sorted(set(needs) - set(can))
    if unknown:
        raise ValueError(f"needs={unknown}: unknown; there are {', '.join(sorted(NEEDS))}.")
    if lacking:
        raise ValueError(
            f"{who} cannot do what this decoding needs: {', '.join(lacking)}; choose another model, or a drafter that "
            "does without."
        )
