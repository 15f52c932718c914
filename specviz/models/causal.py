"""Any Hugging Face decoder whose memory can be rewound, as a LanguageModel."""

from __future__ import annotations

from contextlib import contextmanager

import torch

from specviz.arguments import as_eos, integer
from specviz.backends.changes import Fingerprint
from specviz.backends.choice import Backends
from specviz.backends.precision import distance, tolerance
from specviz.backends.transformers import FULL, Transformers, cache_of, direct_forward, whole_forward
from specviz.models.tokenizers import HubTokenizer

STATEFUL = ("mamba", "rwkv", "recurrent", "linear_attention", "conv", "hybrid")
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


class HubModel:
    """What a decoder and an encoder-decoder of transformers have in common: device, dtype, and a check at load."""

    start_tokens = None
    backend = Transformers.name

    def __init__(self, model, tokenizer, name, eos):
        config = model.config.get_text_config()
        self.model = model.eval()
        self.tokenizer = None if tokenizer is None else HubTokenizer(tokenizer)
        self.name = str(name or "") or getattr(config, "_name_or_path", "") or config.model_type
        if model.get_output_embeddings() is None:
            raise ValueError(
                f"{self.name} ({config.model_type}) has no language-modelling head: load it as …ForCausalLM."
            )
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.eos = _eos(model, self.vocab_size) if eos is None else as_eos(eos, self)
        self._embeddings = model.get_input_embeddings()  # asked for its device at every step, and slow to find

    @property
    def device(self) -> torch.device:
        """Where ids go and logits come from; of a model on several devices (device_map), where it begins."""
        device = self._embeddings.weight.device
        if device.type != "meta":
            return device
        return torch.device(
            self._embeddings._hf_hook.execution_device
        )  # weights that accelerate fetches when they are used

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def __repr__(self):
        kind = type(self).__name__
        return (
            f"<{kind} {self.name!r}: {self.layers} layers, {self.vocab_size} ids, {self.dtype}, on {self.device}, "
            f"backend {self.backend}>"
        )

    @torch.no_grad()
    def _check_rewinding(self, fresh_logits, cache) -> torch.Tensor:
        """ValueError unless a memory that is fed raggedly, and rewound, gives what fresh forwards give.

        fresh_logits(ids [B, n], row) -> [B, n, V] without a memory, for row 0 or 1 alone or, where row is None, for
        both; memory() -> an empty one for two rows. Returns the memory's logits.
        """
        texts = self._check_ids().to(self.device)
        try:
            fresh = torch.cat([fresh_logits(texts[i : i + 1, :end], i)[:, end - 3 :] for i, end in _ENDS])
            # A mate, and tokens behind these, change nothing but the rounding, of which this is a measure.
            both = fresh_logits(texts, None)
            both = torch.stack([both[i, end - 3 : end] for i, end in _ENDS])
            ragged = self._ragged_logits(cache())
        except Exception as error:  # whatever a model does with a cache that is not its own
            raise ValueError(f"{self.name}: its memory does not work with rewinding ({error!r}).") from error
        difference, most = distance(ragged, fresh), tolerance(fresh, measured=distance(both, fresh))
        if not difference <= most:
            raise ValueError(
                f"{self.name} ({self.model.config.model_type}): results from a rewound memory differ from a fresh "
                f"forward's by {difference:.2g} (tolerance {most:.2g}); speculative decoding would go wrong."
            )
        return ragged

    def _check_ids(self):
        # From all over the vocabulary: the first ids are special ones, which some models answer with huge numbers.
        return torch.arange(0, 16 * self.vocab_size, self.vocab_size).view(2, 8) // 16

    def _ragged_logits(self, cache):
        """[2, 3, V] of the last tokens of ids[0, :6] and ids[1, :5], fed raggedly; behind them lie stale ones."""
        ids = self._check_ids()
        cache.feed(ids[:, :4], count=torch.tensor([4, 2]))
        cache.feed(ids[:, 4:].flip(0, 1))  # drafts that are rejected
        cache.rewind(torch.tensor([3, 2]))
        first = cache.feed(torch.stack([ids[0, 3:4], ids[1, 2:3]]))
        return torch.cat([first, cache.feed(torch.stack([ids[0, 4:6], ids[1, 3:5]]))], dim=1)


_ENDS = ((0, 6), (1, 5))  # the rows of the check, and how long their texts are


class CausalLM(HubModel):
    """A transformers model for causal language modelling, with a memory that can be rewound.

    model: a `PreTrainedModel` with a language-modelling head, on one device or, loaded with device_map, on
    several. It stays where it is and in its dtype, and is put into evaluation mode.
    tokenizer: a transformers tokenizer, or None to work with ids only.
    context, eos: taken from the model's configuration unless given; eos is an id or several.
    backend: how forwards are computed. "auto" takes the fastest that gives transformers' logits but for rounding
    (compared when it is first taken): on a CPU, for models of up to 2 GB, "lean" (a forward of its own for Llama's kin,
    backends/lean.py) or "tuned" (linear layers in the layouts that this CPU multiplies fastest, backends/kernels.py);
    else "transformers", its own forward. "cuda-graphs" (backends/graphs.py) is taken only when it is named: no GPU has
    run it yet. repr() and memory.backend tell which is used.

    Copies know nothing of what is done to the model later. So a decoding that starts looks whether it is still the same
    (backends/changes.py says what that look can miss). If not, it goes through transformers' own forward, which reads
    the modules as they are, until refresh() checks and arranges everything anew. In training mode, where dropout would
    take part, decoding is refused.

    Sliding-window layers get a mask of their own. Where the check at load finds that this does not suit a model,
    it is accepted as long as the text fits the window (checked when decoding starts).

    Raises ValueError for a model whose memory cannot be rewound (recurrent or convolutional layers), for kinds of
    layers that are not known here, and for a model whose results after a ragged feed differ from a fresh
    forward's (checked here once, on a few tokens).
    """

    def __init__(self, model, tokenizer=None, *, name=None, context=None, eos=None, backend="auto"):
        self._asked = dict(name=name, context=context, eos=eos, backend=backend)
        super().__init__(model, tokenizer, name, eos)
        config = model.config.get_text_config()
        _refuse_other_kinds(model, config, self.name)
        self.context = _context(config, context)
        self.layers = config.num_hidden_layers
        self.attention = _attention(config)
        self.window = None  # how long a text may grow; None: no limit but the context
        narrow = {kind: width and 3 for kind, width in self.attention.items()}  # narrower than the check's texts
        try:
            with _sliding_window(config, 3):
                self.forward = self._checked_forward(narrow)
        except ValueError:
            if self.attention == FULL:
                raise
            self.window = min(filter(None, self.attention.values()))
            self.attention = FULL
            self.forward = self._checked_forward(FULL)
        self._fingerprint = Fingerprint(model)
        self._backends = Backends(self, backend, self._ragged_logits)
        self.backend = self._backends.choose(1, frozenset()).name

    def new_cache(self, prompts, capacity, needs=frozenset()):
        if self.window is not None and min(capacity, self.context) > self.window:
            raise ValueError(
                f"{self.name} attends through a sliding window of {self.window} tokens, and this text may grow to "
                f"{capacity} (prompt + max_new_tokens + gamma + 1); a rewound cache would be wrong. Ask for less text."
            )
        if self._fingerprint is None or not self._fingerprint.matches():
            self._refuse_other_ids()
            self._refuse_training()
            if self._fingerprint is not None:
                self._read_as_it_is()
        return self._backends.choose(len(prompts), needs).cache(len(prompts), capacity, needs)

    def supports(self, needs) -> bool:
        """Whether start() can give a memory that can do all of needs (specviz/backends/protocol.py)."""
        return self._backends.can(frozenset(needs))

    def refresh(self) -> None:
        """Check the model as it is now, and arrange its backends anew, as if it were wrapped again. Its tokenizer,
        name, context, eos and backend stay what they were asked to be."""
        self.__init__(self.model, self.tokenizer and self.tokenizer.hub, **self._asked)

    def _read_as_it_is(self):
        """From now on transformers' own whole forward, which looks up every module and weight when it is called."""
        self._fingerprint = None  # and the copies of old weights go
        self.forward = whole_forward(self.model)
        self._backends = Backends(self, Transformers.name, self._ragged_logits)
        self.backend = Transformers.name

    def _refuse_training(self):
        alike = (torch.nn.Linear, torch.nn.Embedding)  # in both modes; new ones begin in training mode
        if any(module.training and not isinstance(module, alike) for module in self.model.modules()):
            raise ValueError(
                f"{self.name} is in training mode, and dropout would change its distributions: call model.eval() "
                "before decoding (and model.train() again to go on training)."
            )

    def _refuse_other_ids(self):
        self._embeddings = self.model.get_input_embeddings()
        size = self.model.get_output_embeddings().weight.shape[0]
        if size != self.vocab_size:
            raise ValueError(
                f"{self.name} had {self.vocab_size} ids when it was wrapped and has {size} now: call refresh() of this "
                f"{type(self).__name__}."
            )

    @torch.no_grad()
    def _checked_forward(self, attention):
        """The fastest way through the model that gives a fresh forward's results after a ragged feed and a rewind."""
        whole = whole_forward(self.model)
        logits = self._check_rewinding(
            lambda ids, row: self.model(input_ids=ids).logits, lambda: cache_of(self, whole, 2, 8, attention)
        )
        if hasattr(self.model, "_hf_hook"):  # accelerate's, which brings results back to the first device
            return whole
        direct = direct_forward(self.model)
        try:  # the same arithmetic, so nothing less than equality will do
            same = torch.equal(self._ragged_logits(cache_of(self, direct, 2, 8, attention)), logits)
        except Exception:
            same = False
        return direct if same else whole


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


def _eos(model, vocab_size) -> frozenset[int]:
    """The ids that end a text by the model's configuration."""
    for config in (model.generation_config, model.config):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:  # -1 stands for none; configurations made for tests keep ids of a larger vocabulary
            return frozenset(i for i in ([ids] if isinstance(ids, int) else ids) if 0 <= i < vocab_size)
    return frozenset()


def _attention(config) -> dict[str, int | None]:
    """{kind of layer: how many tokens back it sees, the query's own included; None for all}."""
    fields = ("sliding_window", "attention_chunk_size", "window_size")
    widths = [width for field in fields if isinstance(width := getattr(config, field, None), int)]
    if not widths or getattr(config, "use_sliding_window", True) is False:
        return FULL
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return {kind: None if kind == "full_attention" else min(widths) for kind in sorted(set(kinds))}


@contextmanager
def _sliding_window(config, width):
    """Another width for a moment, if there is one: the check's few tokens then reach beyond it."""
    before = getattr(config, "sliding_window", None)
    if before is not None:
        config.sliding_window = width
    try:
        yield
    finally:
        if before is not None:
            config.sliding_window = before


def _refuse_other_kinds(model, config, name):
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"{name} ({config.model_type}) is an encoder-decoder: use specviz.models.seq2seq.Seq2SeqLM for T5 and its "
            "kin; others are not supported."
        )
    kinds = {*(getattr(config, "layer_types", None) or ()), config.model_type}
    stateful = sorted(kind for kind in kinds if any(word in kind for word in STATEFUL))
    if getattr(model, "_is_stateful", False) or stateful:
        raise ValueError(
            f"{name} ({config.model_type}) keeps a running state ({', '.join(stateful) or 'stateful layers'}) that "
            "cannot be rewound after a rejection; use a model with attention layers throughout."
        )
    unknown = sorted(kinds - {config.model_type} - set(ATTENTION))
    if unknown:
        raise ValueError(
            f"{name} ({config.model_type}) has layers of kind {', '.join(unknown)}, which cannot be fed with positions "
            f"of one's own; known kinds are {', '.join(ATTENTION)}."
        )
