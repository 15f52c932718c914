"""A Hugging Face decoder whose KV cache can be rewound, as a LanguageModel."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial

import torch

from specviz.arguments import as_eos, integer
from specviz.backends.changes import Fingerprint
from specviz.backends.choice import Backends
from specviz.backends.precision import distance, tolerance
from specviz.backends.transformers import FULL, Transformers, refuse_training, whole_forward, without_autocast
from specviz.models.tokenizers import HubTokenizer

STATEFUL = ("mamba", "rwkv", "recurrent", "linear_attention", "conv", "hybrid")
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


class HubModel:
    """The common part of CausalLM and Seq2SeqLM: device, dtype, checks, refresh() and copies."""

    start_tokens = None
    attention = FULL  # {kind of layer: width of its window, or None}
    backend = Transformers.name

    def __init__(self, model, tokenizer, **asked):
        if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):
            raise ValueError(
                f"model is a {type(model).__name__}: must be a transformers model with a language-modelling head; "
                "DataParallel and its kin hold theirs as .module."
            )
        if isinstance(tokenizer, (str, os.PathLike)):
            raise ValueError(
                f"tokenizer={str(tokenizer)!r}: give the tokenizer itself, "
                f"transformers.AutoTokenizer.from_pretrained({str(tokenizer)!r})."
            )
        self._asked = asked  # the other arguments: refresh() and copies use them again
        config = model.config.get_text_config()
        self.model = model.eval()
        self.tokenizer = None if tokenizer is None else HubTokenizer(tokenizer)
        self.name = str(asked["name"] or "") or getattr(config, "_name_or_path", "") or config.model_type
        if model.get_output_embeddings() is None:
            raise ValueError(
                f"{self.name} ({config.model_type}) has no language-modelling head: load it as …ForCausalLM."
            )
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.eos = _eos(model, self.vocab_size) if asked["eos"] is None else as_eos(asked["eos"], self)
        self._embeddings = model.get_input_embeddings()  # kept, since each step reads their device

    @property
    def device(self) -> torch.device:
        """The device of ids and logits; for a model on several devices (device_map), that of its embeddings."""
        device = self._embeddings.weight.device
        if device.type == "meta":  # accelerate fetches these weights when they are used
            device = torch.device(self._embeddings._hf_hook.execution_device)
        return device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def __repr__(self):
        kind = type(self).__name__
        return (
            f"<{kind} {self.name!r}: {self.layers} layers, {self.vocab_size} ids, {self.dtype}, on {self.device}, "
            f"backend {self.backend}>"
        )

    def __reduce__(self):
        """Copies and pickles wrap the (copied) model again, since forwards and arranged weights belong to one model."""
        return partial(type(self), **self._asked), (self.model, self.tokenizer and self.tokenizer.hub)

    def refresh(self) -> None:
        """Check the model as it is now and arrange its backends anew, as if it were wrapped again.

        Its tokenizer, name, context, eos and backend stay as they were asked for.
        """
        self.__init__(self.model, self.tokenizer and self.tokenizer.hub, **self._asked)

    def _check_changes(self):
        """ValueError for a model with another vocabulary than when it was wrapped, or in training mode."""
        self._embeddings = self.model.get_input_embeddings()
        size = self.model.get_output_embeddings().weight.shape[0]
        if size != self.vocab_size:
            raise ValueError(
                f"{self.name} had {self.vocab_size} ids when it was wrapped and has {size} now: call refresh() of this "
                f"{type(self).__name__}."
            )
        refuse_training(self.name, self.model.modules())

    @torch.no_grad()
    def _check_rewinding(self, fresh_logits, cache):
        """ValueError unless a cache with ragged feeds and rewinds gives the logits of fresh forwards.

        fresh_logits(ids [B, n], row) -> [B, n, V] without a cache, for row 0 or 1, or for both where row is None.
        cache: an empty one for two rows.
        """
        texts, ends = self._check_ids().to(self.device), ((0, 6), (1, 5))  # rows and lengths of the texts
        try:
            with without_autocast():
                fresh = torch.cat([fresh_logits(texts[i : i + 1, :end], i)[:, end - 3 :] for i, end in ends])
                # Another row, and tokens behind the text, change the rounding only: a measure of it.
                both = fresh_logits(texts, None)
            both = torch.stack([both[i, end - 3 : end] for i, end in ends])
            ragged = self._ragged_logits(cache)
        except Exception as error:  # a model may do anything with a cache that is not its own
            raise ValueError(f"{self.name}: its KV cache does not work with rewinding ({error!r}).") from error
        difference, most = distance(ragged, fresh), tolerance(fresh, measured=distance(both, fresh))
        if not difference <= most:
            raise ValueError(
                f"{self.name} ({self.model.config.model_type}): results from a rewound cache differ from a fresh "
                f"forward's by {difference:.2g} (tolerance {most:.2g}); speculative decoding would go wrong."
            )

    def _check_ids(self):
        # From the whole vocabulary: the first ids are special ones, for which some models give huge numbers.
        return torch.arange(0, 16 * self.vocab_size, self.vocab_size).view(2, 8) // 16

    def _ragged_logits(self, cache):
        """[2, 3, V] of the last tokens of ids[0, :6] and ids[1, :5], after ragged feeds and a rewind."""
        ids = self._check_ids()
        cache.feed(ids[:, :4], count=torch.tensor([4, 2]))
        cache.feed(ids[:, 4:].flip(0, 1))  # rejected drafts
        cache.rewind(torch.tensor([3, 2]))
        first = cache.feed(torch.stack([ids[0, 3:4], ids[1, 2:3]]))
        return torch.cat([first, cache.feed(torch.stack([ids[0, 4:6], ids[1, 3:5]]))], dim=1)


class CausalLM(HubModel):
    """A transformers model for causal language modelling, with a KV cache that can be rewound.

    model: a `PreTrainedModel` with a language-modelling head, on one device or, loaded with device_map, on
    several. It stays where it is and in its dtype, and is put into evaluation mode.
    tokenizer: a transformers tokenizer, or None to work with ids only.
    context, eos: taken from the model's configuration unless given; eos is an id or several.
    backend: the way in which forwards are computed. "auto" takes the fastest one that gives transformers' logits but
    for rounding (compared when it is first taken): "onnxruntime" for Llama's kin in float32 on a CPU, of up to 2 GB,
    where its packages are installed (backends/onnxruntime.py); else "transformers", its own forward. "cuda-graphs"
    (backends/graphs.py) must be named: it has never run on a GPU. repr() and cache.backend tell which is used.

    Fast backends copy weights, and do not see later changes of the model. So each decoding first looks whether the
    model has changed (backends/changes.py says which changes it can miss). If so, decoding goes through transformers'
    own forward until refresh() checks and arranges everything anew. In training mode decoding is refused, since dropout
    would take part. copy.deepcopy and pickle wrap the copied model again.

    Sliding-window layers get a mask of their own. Where the check at load finds that this does not suit a model,
    it is accepted as long as the text fits the window (checked when decoding starts).

    Raises ValueError for a model whose cache cannot be rewound (recurrent or convolutional layers), for unknown kinds
    of layers, and for a model whose results after a ragged feed differ from a fresh forward's (checked here once, on a
    few tokens).
    """

    def __init__(self, model, tokenizer=None, *, name=None, context=None, eos=None, backend="auto"):
        super().__init__(model, tokenizer, name=name, context=context, eos=eos, backend=backend)
        config = model.config.get_text_config()
        _refuse_other_kinds(model, config, self.name)
        self.context = _context(config, context)
        self.layers = config.num_hidden_layers
        self.attention = _attention(config)
        self.forward = whole_forward(model)
        self.window = None  # the longest text; None: no limit but the context
        narrow = {kind: width and 3 for kind, width in self.attention.items()}  # narrower than the texts of the check
        try:
            with _sliding_window(config, 3):
                self._check(narrow)
        except ValueError:
            if self.attention == FULL:
                raise
            self.window = min(filter(None, self.attention.values()))
            self.attention = FULL
            self._check(FULL)
        self._fingerprint = Fingerprint(model)
        self._backends = Backends(self, backend, self._ragged_logits)
        self.backend = self._backends.choose(frozenset()).name

    def _check(self, attention):
        cache = Transformers(self).cache(2, 8, attention)
        self._check_rewinding(lambda ids, row: self.model(input_ids=ids).logits, cache)

    def new_cache(self, prompts, capacity, needs=frozenset()):
        if self.window is not None and min(capacity, self.context) > self.window:
            raise ValueError(
                f"{self.name} attends through a sliding window of {self.window} tokens, and this text may grow to "
                f"{capacity} (prompt + max_new_tokens + gamma + 1); a rewound cache would be wrong. Ask for less text."
            )
        if self._fingerprint is None or not self._fingerprint.matches():
            self._check_changes()
            if self._fingerprint is not None:  # from now on transformers' own forward
                self._fingerprint = None
                self._backends = Backends(self, Transformers.name, self._ragged_logits)
                self.backend = Transformers.name
        return self._backends.choose(frozenset(needs)).cache(len(prompts), capacity)

    def supports(self, needs) -> bool:
        """Whether new_cache() can give a cache that meets all of needs (specviz/backends/protocol.py)."""
        return self._backends.can(frozenset(needs))


def _context(config, asked) -> int:
    fields = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    known = next((int(getattr(config, field)) for field in fields if getattr(config, field, None)), None)
    if known is None and asked is None:
        raise ValueError(f"{config.model_type}: its configuration names no longest text; pass context=….")
    # These scale rotary angles by the longest position in a batch: p would depend on drafts and on the other rows.
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
        if ids is not None:  # some are outside: -1 stands for none, small test models keep ids of large vocabularies
            return frozenset(i for i in ([ids] if isinstance(ids, int) else ids) if 0 <= i < vocab_size)
    return frozenset()


def _attention(config) -> dict[str, int | None]:
    """{kind of layer: number of tokens that it sees, up to the query's own; None for all}."""
    fields = ("sliding_window", "attention_chunk_size", "window_size")
    widths = [width for field in fields if isinstance(width := getattr(config, field, None), int)]
    if not widths or getattr(config, "use_sliding_window", True) is False:
        return FULL
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return {kind: None if kind == "full_attention" else min(widths) for kind in sorted(set(kinds))}


@contextmanager
def _sliding_window(config, width):
    """Give the configuration another window width, if it has one, so that the few tokens of a check exceed it."""
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
    if config.model_type == "bloom" or getattr(config, "alibi", False):
        raise ValueError(
            f"{name} ({config.model_type}) adds position biases (ALiBi) that it derives from a mask of its own, so "
            "that rows of different lengths cannot be fed; use a model with rotary or learned positions."
        )
    attention = getattr(config, "_attn_implementation", None)
    if attention == "flex_attention":  # a mask of ours crashes the process on a CPU
        raise ValueError(
            f"{name} was loaded with attn_implementation={attention!r}, which takes no mask like ours: call "
            'model.set_attn_implementation("sdpa") first.'
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
