"""transformers' own forward, and the KV cache of a Hugging Face decoder as a tape with one head a row."""

from __future__ import annotations

import copy
import inspect

import torch
from transformers.cache_utils import Cache, StaticLayer

from specviz.backends.ragged import FirstLayers, RaggedCache


class RaggedLayer(StaticLayer):
    """One layer's keys and values [B, heads, capacity, d], written at positions that the memory sets."""

    positions: torch.Tensor  # [B, n], the same tensor for all layers of a memory

    def lazy_initialization(self, key_states, value_states):
        # Not StaticLayer's own: marking addresses for the compiler imports it, which takes seconds.
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            torch.zeros(*new.shape[:2], self.max_cache_len, new.shape[-1], dtype=new.dtype, device=new.device)
            for new in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        positions = self.positions.to(key_states.device)  # layers may sit on several devices
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            store.scatter_(2, positions[:, None, :, None].expand_as(new), new)
        return self.keys, self.values

    def get_seq_length(self, *args):
        return 0  # where tokens go is always said explicitly, by positions and mask


FULL = {"full_attention": None}


class Transformers:
    """The model's own modules, as they are at the time: slowest, and never out of date."""

    name = "transformers"
    serves = "every model"

    @staticmethod
    def supports(model, rows, needs):
        return needs <= {"first_layers", "inspect"} and ("first_layers" not in needs or stack_name(model) is not None)

    def __init__(self, model):
        self.model = model

    def cache(self, rows, capacity, needs=frozenset()):
        return cache_of(self.model, self.model.forward, rows, capacity)


def cache_of(model, forward, rows, capacity, attention=None, stack=None):
    """A TransformersCache of a wrapped model. stack: the transformers model that first_layers() shortens."""
    eager = getattr(model.model.config, "_attn_implementation", None) == "eager"
    additive = model.dtype if eager else None
    attention = attention or getattr(model, "attention", FULL)
    cache = TransformersCache(forward, model.layers, rows, capacity, model.context, model.device, additive, attention)
    cache.model = stack or model.model
    return cache


class TransformersCache(RaggedCache):
    """Feeds a Hugging Face decoder with explicit positions and explicit masks.

    A mask is 4-D, key position <= query position: stale entries beyond a head lie at positions that no query
    may see until they are overwritten. attention {kind of layer: width} gives each kind its own, where a width
    w also hides keys at query position - w and before (a sliding window; None sees all). So the tape of a
    windowed layer is as long as any other's, and is rewound like any other's.
    Masks are boolean, but in the dtype given as additive for attention that adds its mask to the scores
    ("eager" in transformers, which would take True for +1).
    """

    backend = "transformers"
    model = None  # the transformers model, for first_layers()

    def __init__(self, forward, layers, rows, capacity, context, device, additive=None, attention=FULL):
        super().__init__(rows, capacity)
        self.forward, self.context, self.device = forward, context, device
        self.additive, self.attention = additive, attention
        self.layers = [RaggedLayer(max_cache_len=capacity) for _ in range(layers)]
        self.cache = Cache(layers=self.layers)
        self.keys = torch.arange(capacity, device=device)

    @torch.inference_mode(False)  # a model may keep what it computes here, and be trained later
    @torch.no_grad()
    def feed(self, tokens, count=None, keep=0):
        """As in models/protocol.py. keep: give the logits of the last so many tokens only (0: of all)."""
        n = tokens.shape[1]
        positions = self.positions(n)
        logits = self.compute(self.forward, tokens.to(self.device), positions.to(self.device), keep)
        self.advance(n, count)
        return logits.to(self.device)

    def prefill(self, tokens, count=None):
        self.feed(tokens, count, keep=1)

    def first_layers(self, n):
        return fed_through(self, direct_forward(self.model, shortened(self.model, len(self.layers), n)))

    def compute(self, forward, tokens, positions, keep=0):
        """forward's logits [B, n, V] of tokens [B, n] written at positions [B, n], all on the device.

        Looks at these and at the tape alone, never at the heads: a CUDA graph knows nothing of the host (graphs.py).
        """
        for layer in self.layers:
            layer.positions = positions
        masks = {kind: self._mask(positions, width) for kind, width in self.attention.items()}
        return forward(
            cache=self.cache,
            input_ids=tokens,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions.clamp(max=self.context - 1),
            **({"logits_to_keep": keep} if keep else {}),
        )

    def _mask(self, positions, width):
        """[B, 1, n, capacity]: what the tokens at positions [B, n] may see."""
        query = positions[:, None, :, None]
        mask = self.keys <= query
        if width is not None:
            mask &= self.keys > query - width
        if self.additive is None:
            return mask
        hidden = torch.finfo(self.additive).min
        return torch.zeros(mask.shape, dtype=self.additive, device=mask.device).masked_fill(~mask, hidden)


def whole_forward(model):
    """The model's own forward, as a function of a cache and the other inputs -> logits [B, n, V].

    logits_to_keep: of the last so many tokens, 0 for all; models that know no such choice give all.
    """
    name = _cache_argument(model)
    can_choose = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(cache, logits_to_keep=0, **inputs):
        refuse_training(model)
        if can_choose:
            inputs["logits_to_keep"] = logits_to_keep
        return model(**inputs, **{name: cache}, use_cache=True, return_dict=True).logits

    return forward


def direct_forward(model, decoder=None):
    """Decoder stack and head without the wrapper around them: 0.2 ms less a step, a fifth of a small draft's.

    Not the same for models that treat their logits further (soft caps, scales): compare before use.
    """
    decoder, head = decoder or model.get_decoder(), model.get_output_embeddings()
    name = _cache_argument(decoder)

    def forward(cache, logits_to_keep=0, **inputs):
        refuse_training(model)
        hidden = decoder(**inputs, **{name: cache}, use_cache=True, return_dict=True).last_hidden_state
        return head(hidden[:, -logits_to_keep:])

    return forward


def _cache_argument(module) -> str:
    """`cache` in newer transformers, `past_key_values` before."""
    return "past_key_values" if "past_key_values" in inspect.signature(module.forward).parameters else "cache"


def refuse_training(model) -> None:
    """ValueError for a model in training mode: dropout would take part in every forward."""
    if model.training:
        raise ValueError(
            f"this {type(model).__name__} is in training mode, and dropout would change its distributions: call "
            "model.eval() before decoding (and model.train() again to go on training)."
        )


def fed_through(cache, forward) -> FirstLayers:
    """A view of a memory that feeds through another forward than the memory's own."""

    def feed(tokens, count=None):
        whole, cache.forward = cache.forward, forward
        try:
            return cache.feed(tokens, count)
        finally:
            cache.forward = whole

    return FirstLayers(cache, feed)


def stack_name(model) -> str | None:
    """The attribute of a wrapped model's decoder that lists its layers."""
    return _stack_name(model.model.get_decoder(), model.layers) if hasattr(model.model, "get_decoder") else None


def _stack_name(decoder, layers):
    lists = decoder.named_children()
    fits = [name for name, child in lists if isinstance(child, torch.nn.ModuleList) and len(child) == layers]
    return fits[0] if len(fits) == 1 else None


def shortened(model, layers, n):
    """The decoder of a transformers model with a shorter list of the same layers; the model stays as it is."""
    decoder = model.get_decoder()
    name = _stack_name(decoder, layers)
    shorter = copy.copy(decoder)
    shorter.__dict__.pop("forward", None)  # accelerate's, if it spread the model: bound to the whole stack
    shorter.config = copy.copy(decoder.config)
    shorter.config.num_hidden_layers = n
    shorter._modules = {**decoder._modules, name: torch.nn.ModuleList(list(getattr(decoder, name))[:n])}
    return shorter
