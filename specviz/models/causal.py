"""Any Hugging Face decoder whose memory can be rewound, as a LanguageModel."""

from __future__ import annotations

import torch

from specviz.arguments import integer
from specviz.models.memory import CausalMemory, direct_forward, whole_forward
from specviz.models.tokenizers import HubTokenizer

RECURRENT = ("mamba", "rwkv", "recurrent", "linear_attention", "conv", "hybrid")


class CausalLM:
    """A transformers model for causal language modelling, with a memory that can be rewound.

    model: a `PreTrainedModel` with a language-modelling head. It stays on its device and in its dtype, and is put
    into evaluation mode.
    tokenizer: a transformers tokenizer, or None to work with ids only.
    context, eos: taken from the model's configuration unless given.

    Raises ValueError for a model whose memory cannot be rewound (recurrent or convolutional layers), and for one
    whose results after a ragged feed differ from a fresh forward's (checked here once, on a few tokens).
    Sliding-window layers are accepted as long as the text fits the window (checked when decoding starts).
    """

    def __init__(self, model, tokenizer=None, *, name=None, context=None, eos=None):
        config = model.config.get_text_config()
        self.model = model.eval()
        self.tokenizer = None if tokenizer is None else HubTokenizer(tokenizer)
        self.name = name or getattr(config, "_name_or_path", "") or config.model_type
        _refuse_other_kinds(model, config, self.name)
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.context = _context(config, context)
        self.eos = _eos(model, self.vocab_size, eos)
        self.layers = config.num_hidden_layers
        self.window = _window(config)
        self.forward = self._checked_forward()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def __repr__(self):
        return f"<CausalLM {self.name!r}: {self.layers} layers, {self.vocab_size} ids, {self.dtype}, on {self.device}>"

    def start(self, prompts, capacity):
        if self.window is not None and min(capacity, self.context) > self.window:
            raise ValueError(
                f"{self.name} attends through a sliding window of {self.window} tokens, and this text may grow to "
                f"{capacity} (prompt + max_new_tokens + gamma + 1); a rewound cache would be wrong. Ask for less text."
            )
        return self._memory(self.forward, len(prompts), capacity)

    def _memory(self, forward, rows, capacity):
        eager = getattr(self.model.config, "_attn_implementation", None) == "eager"
        additive = self.dtype if eager else None
        return CausalMemory(forward, self.layers, rows, capacity, self.context, self.device, additive)

    @torch.no_grad()
    def _checked_forward(self):
        """The fastest way through the model that gives a fresh forward's results after a ragged feed and a rewind."""
        ids = torch.arange(12).view(2, 6) % self.vocab_size
        texts = [ids[i : i + 1, :n].to(self.device) for i, n in ((0, 6), (1, 5))]
        try:
            fresh = torch.cat([self.model(input_ids=text).logits[:, -1] for text in texts])
            # How much the same text differs between batches: the rounding of this dtype on this device.
            mates = self.model(input_ids=ids.to(self.device)).logits[:1, -1]
            whole = self._ragged_logits(whole_forward(self.model), ids)
        except Exception as error:  # whatever a model does with a cache that is not its own
            raise ValueError(f"{self.name}: its memory does not work with rewinding ({error!r}).") from error
        difference, rounding = _difference(whole, fresh), _difference(mates, fresh[:1])
        tolerance = {torch.float64: 1e-8, torch.float32: 1e-4}.get(self.dtype, 0.02) + 5 * rounding
        if not difference <= tolerance:
            raise ValueError(
                f"{self.name} ({self.model.config.model_type}): results from a rewound memory differ from a fresh "
                f"forward's by {difference:.2g} (tolerance {tolerance:.2g}); speculative decoding would go wrong."
            )
        try:  # the same arithmetic, so nothing less than equality will do
            same = torch.equal(self._ragged_logits(direct_forward(self.model), ids), whole)
        except Exception:
            same = False
        return direct_forward(self.model) if same else whole_forward(self.model)

    def _ragged_logits(self, forward, ids):
        """[2, V] after ids[0, :6] and ids[1, :5], fed in parts of different lengths with a rewind between."""
        memory = self._memory(forward, 2, 8)
        memory.feed(ids[:, :4], count=torch.tensor([4, 2]))
        memory.rewind(torch.tensor([3, 2]))
        return memory.feed(torch.stack([ids[0, 3:6], ids[1, 2:5]]))[:, -1]


def _difference(logits, others) -> float:
    """Largest difference of log-probabilities, in units of their spread (a common offset changes nothing)."""
    a, b = (x.double().cpu().log_softmax(-1) for x in (logits, others))
    spread = b.std().item() if b.shape[-1] > 1 else 1.0
    return (a - b).abs().max().item() / max(spread, 1e-3)


def _context(config, asked) -> int:
    fields = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    known = next((int(getattr(config, field)) for field in fields if getattr(config, field, None)), None)
    if known is None and asked is None:
        raise ValueError(f"{config.model_type}: its configuration names no longest text; pass context=….")
    # These stretch their rotary angles by the longest position in a batch, so that p would depend on drafts and mates.
    for rope in _rope_settings(config):
        if rope.get("rope_type") in ("longrope", "dynamic"):
            known = min(known, rope.get("original_max_position_embeddings") or known)
    context = known if asked is None else integer(asked, "context", 8, " tokens")
    if known is not None and context > known:
        raise ValueError(f"context={context}: this {config.model_type} is the same model up to {known} positions only.")
    if context < 8:
        raise ValueError(f"context={context}: a model for less than 8 tokens cannot be checked.")
    return context


def _rope_settings(config) -> list[dict]:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]  # one for each type of layer
    return [rope, *nested]


def _eos(model, vocab_size, asked) -> frozenset[int]:
    if asked is not None:
        ids = [integer(i, "eos: an id", 0) for i in (asked if hasattr(asked, "__iter__") else [asked])]
        if any(i >= vocab_size for i in ids):
            raise ValueError(f"eos={asked!r}: ids must lie in 0 .. {vocab_size - 1}.")
        return frozenset(ids)
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:  # configurations made for tests keep ids of a larger vocabulary
            return frozenset(i for i in ([ids] if isinstance(ids, int) else ids) if i < vocab_size)
    return frozenset()


def _window(config) -> int | None:
    """The width of the narrowest attention window, None for full attention throughout."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and not any("sliding" in kind or "chunked" in kind or "local" in kind for kind in kinds):
        return None
    if getattr(config, "use_sliding_window", True) is False:
        return None
    widths = [getattr(config, field, None) for field in ("sliding_window", "attention_chunk_size", "window_size")]
    widths = [width for width in widths if isinstance(width, int)]
    return min(widths) if widths else None


def _refuse_other_kinds(model, config, name):
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} ({config.model_type}) is an encoder-decoder; only decoders can be used so far.")
    if model.get_output_embeddings() is None:
        raise ValueError(f"{name} ({config.model_type}) has no language-modelling head: load it as …ForCausalLM.")
    kinds = {*(getattr(config, "layer_types", None) or ()), config.model_type}
    recurrent = sorted(kind for kind in kinds if any(word in kind for word in RECURRENT))
    if getattr(model, "_is_stateful", False) or recurrent:
        raise ValueError(
            f"{name} ({config.model_type}) keeps a running state ({', '.join(recurrent) or 'stateful layers'}) that "
            "cannot be rewound after a rejection; use a model with attention layers throughout."
        )
