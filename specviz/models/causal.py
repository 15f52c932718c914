"""Any Hugging Face decoder whose memory can be rewound, as a LanguageModel."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import torch

from specviz.arguments import integer
from specviz.backends.precision import distance, tolerance
from specviz.models import graphs, kernels, lean
from specviz.models.memory import FULL, CausalMemory, direct_forward, whole_forward
from specviz.models.tokenizers import HubTokenizer

STATEFUL = ("mamba", "rwkv", "recurrent", "linear_attention", "conv", "hybrid")
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


class HubModel:
    """What a decoder and an encoder-decoder of transformers have in common: device, dtype, and a check at load."""

    start_tokens = None

    def __init__(self, model, tokenizer, name, eos):
        config = model.config.get_text_config()
        self.model = model.eval()
        self.tokenizer = None if tokenizer is None else HubTokenizer(tokenizer)
        self.name = name or getattr(config, "_name_or_path", "") or config.model_type
        if model.get_output_embeddings() is None:
            raise ValueError(
                f"{self.name} ({config.model_type}) has no language-modelling head: load it as …ForCausalLM."
            )
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.eos = _eos(model, self.vocab_size, eos)
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
        return f"<{kind} {self.name!r}: {self.layers} layers, {self.vocab_size} ids, {self.dtype}, on {self.device}>"

    def _memory(self, forward, rows, capacity, attention=FULL):
        eager = getattr(self.model.config, "_attn_implementation", None) == "eager"
        additive = self.dtype if eager else None
        return CausalMemory(forward, self.layers, rows, capacity, self.context, self.device, additive, attention)

    @torch.no_grad()
    def _check_rewinding(self, fresh_logits, memory) -> torch.Tensor:
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
            ragged = self._ragged_logits(memory())
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

    def _ragged_logits(self, memory):
        """[2, 3, V] of the last tokens of ids[0, :6] and ids[1, :5], fed raggedly; behind them lie stale ones."""
        ids = self._check_ids()
        memory.feed(ids[:, :4], count=torch.tensor([4, 2]))
        memory.feed(ids[:, 4:].flip(0, 1))  # drafts that are rejected
        memory.rewind(torch.tensor([3, 2]))
        first = memory.feed(torch.stack([ids[0, 3:4], ids[1, 2:3]]))
        return torch.cat([first, memory.feed(torch.stack([ids[0, 4:6], ids[1, 3:5]]))], dim=1)


_ENDS = ((0, 6), (1, 5))  # the rows of the check, and how long their texts are


class CausalLM(HubModel):
    """A transformers model for causal language modelling, with a memory that can be rewound.

    model: a `PreTrainedModel` with a language-modelling head, on one device or, loaded with device_map, on
    several. It stays where it is and in its dtype, and is put into evaluation mode.
    tokenizer: a transformers tokenizer, or None to work with ids only.
    context, eos: taken from the model's configuration unless given; eos is an id or several.
    fast: on a CPU, models of up to 2 GB decode through copies of their weights in the layouts that it multiplies
    fastest (kernels.py), and Llama-like ones through a forward of their own (lean.py). The logits are equal but for
    rounding (backends/precision.py), which is checked here. On one CUDA device,
    the steps of decoding are recorded as CUDA graphs when they first come, and replayed (graphs.py). Changed
    weights are noticed when a decoding starts; hooks and modules that were put in later are not, nor does Python code
    inside the model run on these ways: make the CausalLM anew. False leaves all to transformers.

    Sliding-window layers get a mask of their own. Where the check at load finds that this does not suit a model,
    it is accepted as long as the text fits the window (checked when decoding starts).

    Raises ValueError for a model whose memory cannot be rewound (recurrent or convolutional layers), for kinds of
    layers that are not known here, and for a model whose results after a ragged feed differ from a fresh
    forward's (checked here once, on a few tokens).
    """

    def __init__(self, model, tokenizer=None, *, name=None, context=None, eos=None, fast=True):
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
        self.lean, self.graphs, self.fast, self._forward = None, None, fast, self.forward
        self._arrange()

    def start(self, prompts, capacity):
        if self.window is not None and min(capacity, self.context) > self.window:
            raise ValueError(
                f"{self.name} attends through a sliding window of {self.window} tokens, and this text may grow to "
                f"{capacity} (prompt + max_new_tokens + gamma + 1); a rewound cache would be wrong. Ask for less text."
            )
        if self._stamp != self._current_stamp():  # the model was trained on, moved or converted
            self._arrange()
        if self.lean is not None:
            return lean.LeanMemory(self.lean, len(prompts), capacity)
        if self.graphs is not None and self.graphs.work:
            tape = partial(self._memory, self.forward, attention=self.attention)
            return self.graphs.start(tape, len(prompts), capacity, self.context)
        return self._memory(self.forward, len(prompts), capacity, self.attention)

    def _arrange(self):
        """Take the fast way through the model, if there is one and it gives the logits of transformers' own."""
        self._stamp = self._current_stamp()
        self.lean, self.graphs, self.forward = None, None, self._forward
        if not self.fast or self._stamp is None:
            return
        if graphs.suits(self.model):
            if self.window is None:  # else the end of the tape means something to it, and a slot's is further on
                self.graphs = graphs.Graphs(self.name)  # which compares what it records, when it does
            return
        usual = self._ragged_logits(self._memory(self._forward, 2, 8))

        def equal(memory):
            return distance(self._ragged_logits(memory), usual) <= tolerance(usual)

        if self.attention == FULL and lean.suits(self.model):
            weights = lean.LeanWeights(self.model, self.context)
            if equal(lean.LeanMemory(weights, 2, 8)):
                self.lean = weights
                return
        forward = whole_forward(kernels.tuned(self.model))
        if equal(self._memory(forward, 2, 8, self.attention)):
            self.forward = forward

    def _current_stamp(self):
        if graphs.suits(self.model):
            return graphs.stamp(self.model, self.context)
        return kernels.stamp(self.model)

    @torch.no_grad()
    def _checked_forward(self, attention):
        """The fastest way through the model that gives a fresh forward's results after a ragged feed and a rewind."""
        whole = whole_forward(self.model)
        logits = self._check_rewinding(
            lambda ids, row: self.model(input_ids=ids).logits, lambda: self._memory(whole, 2, 8, attention)
        )
        if hasattr(self.model, "_hf_hook"):  # accelerate's, which brings results back to the first device
            return whole
        direct = direct_forward(self.model)
        try:  # the same arithmetic, so nothing less than equality will do
            same = torch.equal(self._ragged_logits(self._memory(direct, 2, 8, attention)), logits)
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
