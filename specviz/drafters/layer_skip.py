"""Layer skip: the target's own first layers draft, and share its memory. Nothing to train, nothing to load.

Zhang et al.: Draft & Verify (2023); Elhoushi et al.: LayerSkip (2024), whose models are trained for it.
"""

from __future__ import annotations

import copy

import torch

from specviz.arguments import integer
from specviz.drafters.model import ModelSession
from specviz.models.lean import LeanMemory
from specviz.models.memory import direct_forward


class LayerSkip:
    """The first layers of the target, with its final norm and head, as draft model.

    layers: how many. Their keys and values are the target's own, so the prompt is never fed twice; what drafting
    writes behind the committed text, the verification overwrites with the same values.

    Raises ValueError (when decoding starts) for a target that is no CausalLM or has no more layers than that.
    """

    def __init__(self, layers: int):
        self.layers = integer(layers, "layers", 1, " (of the target's)")
        self.name = f"first {self.layers} layers"

    def __repr__(self):
        return f"<LayerSkip: the target's first {self.layers} layers>"

    def fit(self, target):
        """Raise ValueError unless target has layers to skip."""
        name = _stack_name(target)
        if name is None:
            raise ValueError(
                f"LayerSkip cannot draft for {target.name!r}: it needs a CausalLM whose layers stand in one list."
            )
        if self.layers >= target.layers:
            raise ValueError(
                f"layers={self.layers}: {target.name!r} has {target.layers} layers; skip at least one of them."
            )

    def start(self, target, prompts, capacity, eos, target_memory):
        return LayerSkipSession(target, self.layers, eos, target_memory)


class LayerSkipSession(ModelSession):
    def __init__(self, target, layers, eos, target_memory):
        shared = _SharedLean if isinstance(target_memory, LeanMemory) else _Shared
        super().__init__(target, shared(target, layers, target_memory), eos, target.vocab_size)

    def propose(self, committed, length, gamma, sampling, randomness):
        proposal = super().propose(committed, length, gamma, sampling, randomness)
        self.rewind(length - 1)  # the head belongs to the target, which has not seen these drafts yet
        return proposal


class _Shared:
    """The target's memory, fed through its first layers alone."""

    def __init__(self, target, layers, memory):
        self.memory, self.forward = memory, direct_forward(target.model, _first_layers(target, layers))

    @property
    def length(self):
        return self.memory.length

    def feed(self, tokens, count=None):
        whole, self.memory.forward = self.memory.forward, self.forward
        try:
            return self.memory.feed(tokens, count)
        finally:
            self.memory.forward = whole

    def rewind(self, length):
        self.memory.rewind(length)


class _SharedLean(_Shared):
    """A memory that can itself be fed through the first layers alone."""

    def __init__(self, target, layers, memory):
        self.memory, self.layers = memory, layers

    def feed(self, tokens, count=None):
        return self.memory.feed(tokens, count, layers=self.layers)


def _stack_name(target) -> str | None:
    """The attribute of the target's decoder that lists its layers."""
    model = getattr(target, "model", None)
    if not hasattr(target, "layers") or not hasattr(model, "get_decoder"):
        return None
    if target.start_tokens is not None:  # an encoder-decoder's layers also need the source
        return None
    lists = model.get_decoder().named_children()
    fits = [name for name, child in lists if isinstance(child, torch.nn.ModuleList) and len(child) == target.layers]
    return fits[0] if len(fits) == 1 else None


def _first_layers(target, layers):
    """The target's decoder with a shorter list of the same layers; the target itself stays as it is."""
    decoder, name = target.model.get_decoder(), _stack_name(target)
    shorter = copy.copy(decoder)
    shorter.__dict__.pop("forward", None)  # accelerate's, if it spread the model: bound to the whole stack
    shorter.config = copy.copy(decoder.config)
    shorter.config.num_hidden_layers = layers
    shorter._modules = {**decoder._modules, name: torch.nn.ModuleList(list(getattr(decoder, name))[:layers])}
    return shorter
