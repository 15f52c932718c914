"""What CausalLM asks of a backend: a way of computing a model's forwards, with the memory that belongs to it.

A decoding says what it needs, and the fastest backend that can do all of it is taken:

    "first_layers"   memory.first_layers(n): a view that feeds through the first n layers (layer skip drafts with it)
    "inspect"        keys, values and masks can be looked at and changed as transformers has them
    "hidden_states"  the last layer's output beside the logits: no backend has it yet
    "tree"           several continuations of one text in one forward: no backend has it yet
"""

from __future__ import annotations

from typing import Protocol

NEEDS = frozenset({"first_layers", "inspect", "hidden_states", "tree"})


class Backend(Protocol):
    """Made for one wrapped model, once supports() is true of it: Backend(model) copies or arranges what it uses.

    model is the CausalLM: backends read its model, name, layers, context, attention, window, device, dtype and
    forward (the forward of transformers that its check at load found right).
    """

    name: str
    serves: str  # which models, in words, for errors

    @staticmethod
    def supports(model, rows: int, needs: frozenset[str]) -> bool:
        """Whether it can serve this model, so many rows, and all these needs."""

    def cache(self, rows: int, capacity: int, needs: frozenset[str]):
        """An empty specviz.models.protocol.Memory, its backend being this one's name."""


def check_needs(needs, can, who) -> None:
    """ValueError unless needs is a set of known needs, all of which who can serve."""
    unknown, lacking = sorted(set(needs) - NEEDS), sorted(set(needs) - set(can))
    if unknown:
        raise ValueError(f"needs={unknown}: unknown; there are {', '.join(sorted(NEEDS))}.")
    if lacking:
        raise ValueError(
            f"{who} cannot do what this decoding needs: {', '.join(lacking)}; choose another model, or a drafter that "
            "does without."
        )
