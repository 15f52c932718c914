"""Layer skip: the target's own first layers draft, and share its KV cache. Nothing to train, nothing to load.

Zhang et al.: Draft & Verify (2023); Elhoushi et al.: LayerSkip (2024), whose models are trained for it.
"""

from __future__ import annotations

from specviz.arguments import integer
from specviz.drafters.model import ModelSession


class LayerSkip:
    """The first layers of the target, with its final norm and head, as draft model.

    layers: how many. Their keys and values are the target's own, so the prompt is never fed twice; the
    verification overwrites the drafts' keys and values with the same numbers.

    Raises ValueError (when decoding starts) for a target that is no CausalLM or has no more layers than that.
    """

    needs = frozenset({"first_layers"})  # of the target's cache

    def __init__(self, layers: int):
        self.layers = integer(layers, "layers", 1, " (of the target's)")
        self.name = f"first {self.layers} layers"

    def __repr__(self):
        return f"<LayerSkip: the target's first {self.layers} layers>"

    def check_target(self, target):
        """Raise ValueError unless target has layers to skip."""
        if not hasattr(target, "supports") or not target.supports(self.needs):
            raise ValueError(
                f"LayerSkip cannot draft for {target.name!r}: it needs a CausalLM whose layers stand in one list."
            )
        if self.layers >= target.layers:
            raise ValueError(
                f"layers={self.layers}: {target.name!r} has {target.layers} layers; skip at least one of them."
            )

    def new_session(self, target, prompts, capacity, eos, target_cache):
        """Drafts in the target's own cache."""
        return LayerSkipSession(target, self.layers, eos, target_cache)


class LayerSkipSession(ModelSession):
    def __init__(self, target, layers, eos, target_cache):
        super().__init__(target, target_cache.first_layers(layers), eos, target.vocab_size)

    def propose(self, committed, lengths, gamma, sampling, randomness):
        proposal = super().propose(committed, lengths, gamma, sampling, randomness)
        self.rewind([length - 1 for length in lengths])  # for the target, which reads these drafts later
        return proposal

