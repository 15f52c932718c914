"""transformers' own forward, and the KV cache of a Hugging Face decoder whose rows differ in length."""

from __future__ import annotations

import copy
import inspect
from contextlib import ExitStack

import torch
from transformers.cache_utils import Cache, StaticLayer

from specviz.backends.ragged import FirstLayers, RaggedCache


class RaggedLayer(StaticLayer):
    """One layer's keys and values [B, heads, capacity, d], written at positions that the cache sets."""

    positions: torch.Tensor  # [B, n], the same tensor for all layers of a cache

    def lazy_initialization(self, key_states, value_states):
        # StaticLayer's own marks addresses for the compiler, whose import takes seconds.
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
        return 0  # positions and masks are always passed to the model


FULL = {"full_attention": None}


class Transformers:
    """The model's own modules, looked up at each forward: the slowest, and never out of date."""

    name = "transformers"
    serves = "every model"

    @staticmethod
    def abilities(model):
        return {"inspect"} if stack_name(model) is None else {"inspect", "first_layers"}

    def __init__(self, model):
        self.model = model

    def cache(self, rows, capacity, attention=None):
        return TransformersCache(self.model, self.model.forward, rows, capacity, attention)


class TransformersCache(RaggedCache):
    """Feeds a Hugging Face decoder with explicit positions and explicit masks.

    A mask is 4-D, key position <= query position: entries beyond a row's length lie at positions that no query may see
    until they are overwritten. attention {kind of layer: width} gives each kind its own mask, where a width w also
    hides keys at query position - w and before (a sliding window; None sees all). So windowed layers keep all entries
    and are rewound like others.
    Masks are boolean, but of the dtype additive for attention that adds its mask to the scores ("eager" in
    transformers, which would add True as 1).
    """

    backend = Transformers.name

    def __init__(self, model, forward, rows, capacity, attention=None, module=None):
        """model: the wrapped one. module: the transformers model that first_layers() shortens, if not the model's."""
        super().__init__(rows, capacity)
        self.forward, self.context, self.device = forward, model.context, model.device
        self.model, self.module = model, module or model.model
        self.attention = attention or model.attention
        eager = getattr(model.model.config, "_attn_implementation", None) == "eager"
        self.additive = model.dtype if eager else None
        self.layers = [RaggedLayer(max_cache_len=capacity) for _ in range(model.layers)]
        self.cache = Cache(layers=self.layers)
        self.keys = torch.arange(capacity, device=self.device)

    @torch.inference_mode(False)  # a model may keep tensors that are made here, and be trained later
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
        return fed_through(self, self.forward_of_first_layers(n))

    def forward_of_first_layers(self, n):
        return whole_forward(shortened(self.module, stack_name(self.model), n))

    def compute(self, forward, tokens, positions, keep=0):
        """forward's logits [B, n, V] of tokens [B, n] written at positions [B, n], all on the device.

        Reads these and the entries, but never the lengths, which are on the host (see graphs.py).
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
        """[B, 1, n, capacity]: the entries that tokens at positions [B, n] may see."""
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
        refuse_training(type(model).__name__, [model])
        if can_choose:
            inputs["logits_to_keep"] = logits_to_keep
        with without_autocast():
            return model(**inputs, **{name: cache}, use_cache=True, return_dict=True).logits

    return forward


def without_autocast():
    """A context in which models compute in their own dtype: autocast would change p, and q otherwise than p."""
    stack = ExitStack()
    for device in ("cpu", "cuda", "mps"):
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def _cache_argument(module) -> str:
    """`cache` in newer transformers, `past_key_values` before."""
    return "past_key_values" if "past_key_values" in inspect.signature(module.forward).parameters else "cache"


def refuse_training(name, modules) -> None:
    """ValueError where some of these modules are in training mode, in which dropout would take part."""
    alike = (torch.nn.Linear, torch.nn.Embedding)  # the same in both modes; new ones begin in training mode
    if any(module.training and not isinstance(module, alike) for module in modules):
        raise ValueError(
            f"{name} is in training mode, and dropout would change its distributions: call model.eval() before "
            "decoding (and model.train() again to go on training)."
        )


def fed_through(cache, forward) -> FirstLayers:
    """A view of a cache that is fed through another forward than the cache's own."""

    def feed(tokens, count=None):
        own, cache.forward = cache.forward, forward
        try:
            return cache.feed(tokens, count)
        finally:
            cache.forward = own

    return FirstLayers(cache, feed)


def stack_name(model) -> str | None:
    """Of a wrapped model's decoder, the attribute that lists its layers; None where there is none."""
    if not hasattr(model.model, "get_decoder"):
        return None
    children = model.model.get_decoder().named_children()
    lists = [name for name, child in children if isinstance(child, torch.nn.ModuleList) and len(child) == model.layers]
    return lists[0] if len(lists) == 1 else None


def shortened(model, stack, n):
    """A transformers model with the first n layers of the list named stack; the modules are shared, not copied."""
    decoder = model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    layers = torch.nn.ModuleList(list(getattr(decoder, stack))[:n])
    shorter = _with_child(model, [*path.split("."), stack], layers)
    config = shorter.get_decoder().config = copy.copy(decoder.config)
    config.num_hidden_layers = n
    return shorter


def _with_child(module, path, child):
    """A copy of module that has child at path; only the modules along the path are copied."""
    if not path:
        return child
    twin = copy.copy(module)
    twin.__dict__.pop("forward", None)  # accelerate's, where it spread the model: bound to the module itself
    twin._modules = {**module._modules, path[0]: _with_child(module._modules[path[0]], path[1:], child)}
    return twin
