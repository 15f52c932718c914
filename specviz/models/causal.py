"""Any Hugging Face decoder whose memory can be rewound, as a LanguageModel."""

from __future__ import annotations

import torch

from specviz.models.memory import CausalMemory, direct_forward, whole_forward
from specviz.models.tokenizers import HubTokenizer

RECURRENT = ("mamba", "rwkv", "recurrent", "linear_attention", "conv", "hybrid")


class CausalLM:
    """A transformers model for causal language modelling, with a memory that can be rewound.

    model: a `PreTrainedModel` with a language-modelling head; it is used as it is (device, dtype, eval mode).
    tokenizer: a transformers tokenizer, or None to work with ids only.
    context, eos: taken from the model's configuration unless given.

    Raises ValueError for a model whose memory cannot be rewound (recurrent or convolutional layers), and for
    one whose logits after a ragged feed differ from a fresh forward's (checked here once, on a few tokens).
    Sliding-window layers are accepted as long as the text fits the window (checked when decoding starts).
    """

    def __init__(self, model, tokenizer=None, *, name=None, context=None, eos=None):
        config = model.config.get_text_config()
        self.model = model.eval()
        self.tokenizer = None if tokenizer is None else HubTokenizer(tokenizer)
        self.name = name or getattr(config, "_name_or_path", "") or config.model_type
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.context = context or _context(config)
        self.eos = frozenset(i for i in (_eos(model) if eos is None else eos) if i < self.vocab_size)
        self.layers = config.num_hidden_layers
        self.window = _window(config)
        _refuse_recurrent(model, config, self.name)
        self.forward = self._checked_forward()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def start(self, prompts, capacity):
        if self.window is not None and capacity > self.window:
            raise ValueError(
                f"{self.name} attends through a sliding window of {self.window} tokens, and this text may grow to "
                f"{capacity} (prompt + max_new_tokens + gamma + 1); a rewound cache would be wrong. Ask for less text."
            )
        return CausalMemory(self.forward, self.layers, len(prompts), capacity, self.context, self.device)

    @torch.no_grad()
    def _checked_forward(self):
        """The fastest way through the model whose logits, after a ragged feed and a rewind, equal a fresh forward's."""
        ids = torch.arange(2 * 6).view(2, 6) * 7 % self.vocab_size
        texts = [ids[i : i + 1, :n].to(self.device) for i, n in ((0, 6), (1, 5))]
        fresh = torch.stack([self.model(input_ids=text).logits[0, -1] for text in texts])
        tolerance = {torch.float64: 1e-8, torch.float32: 1e-3}.get(self.dtype, 0.1) * max(1.0, fresh.abs().max().item())
        for way in (direct_forward, whole_forward):
            try:
                difference = (self._ragged_logits(way(self.model), ids) - fresh).abs().max().item()
            except Exception as error:  # whatever a model does with a cache that is not its own
                difference = error
            else:
                if difference <= tolerance:
                    return way(self.model)
        if isinstance(difference, Exception):
            raise ValueError(f"{self.name}: its memory does not work with rewinding ({difference!r}).") from difference
        raise ValueError(
            f"{self.name} ({self.model.config.model_type}): logits from a rewound memory differ from a fresh forward's "
            f"by {difference:.2g} (tolerance {tolerance:.2g}); speculative decoding would be wrong with it."
        )

    def _ragged_logits(self, forward, ids):
        """[2, V] after ids[0, :6] and ids[1, :5], fed in parts of different lengths with a rewind between."""
        memory = CausalMemory(forward, self.layers, 2, 8, self.context, self.device)
        memory.feed(ids[:, :4], count=torch.tensor([4, 2]))
        memory.rewind(torch.tensor([3, 2]))
        return memory.feed(torch.stack([ids[0, 3:6], ids[1, 2:5]]))[:, -1]


def _context(config) -> int:
    for field in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        if getattr(config, field, None):
            return int(getattr(config, field))
    raise ValueError(f"{config.model_type}: its configuration names no longest text; pass context=….")


def _eos(model):
    for config in (model.generation_config, model.config):
        eos = getattr(config, "eos_token_id", None)
        if eos is not None:
            return [eos] if isinstance(eos, int) else eos
    return []


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


def _refuse_recurrent(model, config, name):
    kinds = {*(getattr(config, "layer_types", None) or ()), config.model_type}
    recurrent = sorted(kind for kind in kinds if any(word in kind for word in RECURRENT))
    if getattr(model, "_is_stateful", False) or recurrent:
        raise ValueError(
            f"{name} ({config.model_type}) keeps a running state ({', '.join(recurrent) or 'stateful layers'}) that "
            "cannot be rewound after a rejection; use a model with attention layers throughout."
        )
