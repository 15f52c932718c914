"""T5 and its kin (T5 v1.1, mT5), the paper's own models, as a LanguageModel: source in, text out."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from specviz.arguments import integer
from specviz.backends.protocol import check_needs
from specviz.backends.transformers import TransformersCache, whole_forward, without_autocast
from specviz.models.causal import HubModel

CONTEXT = 512  # of T5's training
KINDS = ("t5", "mt5")  # T5 v1.1 and its descendants call themselves t5


class Seq2SeqLM(HubModel):
    """An encoder-decoder of T5's kind, whose decoder has a KV cache that can be rewound.

    The prompt is the source, which is encoded once, when decoding starts. The text is the decoder's: it begins with
    start_tokens; drafts, p, q and the cache belong to the text only. A drafter model reads the same source.

    model: a `T5ForConditionalGeneration` or the like. It stays on its device and in its dtype, and is put into
    evaluation mode.
    tokenizer: a transformers tokenizer, or None to work with ids only.
    context: longest source, and longest text, in tokens. T5 sees distances between tokens only, so that longer ones
    than the 512 of its training are possible.
    eos: an id or several, taken from the model's configuration unless given.

    Forwards are transformers' own and look up modules and weights when they run, so that changed weights count from the
    next decoding on. After a change of the vocabulary, decoding asks for refresh(); in training mode it is refused.

    Raises ValueError for other encoder-decoders, and for a model whose results after a ragged feed differ from a
    fresh forward's (checked here once, on a few tokens).
    """

    def __init__(self, model, tokenizer=None, *, name=None, context=None, eos=None):
        super().__init__(model, tokenizer, name=name, context=context, eos=eos)
        config = model.config
        if config.model_type not in KINDS:
            raise ValueError(
                f"{self.name} ({config.model_type}) is none of {', '.join(KINDS)}: their decoders see distances "
                "between tokens only, so that rows of a batch can stand at different positions. Use one of these, and "
                "CausalLM for decoders."
            )
        self.context = integer(context or getattr(config, "n_positions", None) or CONTEXT, "context", 8, " tokens")
        self.layers = config.num_decoder_layers
        self.start_tokens = [_start_token(model, self.name)]
        self._check()

    def new_cache(self, prompts, capacity, needs=frozenset()):
        check_needs(needs, {"inspect"}, f"encoder-decoder {self.name!r}")
        self._check_changes()
        source, mask = self._padded(prompts)
        with torch.no_grad(), without_autocast():
            encoded = self.model.get_encoder()(input_ids=source, attention_mask=mask).last_hidden_state
        cross_attention = DynamicCache()  # the source's keys and values, written by the first feed
        whole = whole_forward(self.model)
        decoder = self.model.get_decoder()
        # This layer turns positions into a bias, which it passes to the others.
        (biased,) = (m for m in decoder.modules() if getattr(m, "has_relative_attention_bias", False))

        def forward(cache, input_ids, attention_mask, position_ids, logits_to_keep=0):
            with _bias_at(position_ids, biased):
                return whole(
                    EncoderDecoderCache(cache, cross_attention),
                    encoder_outputs=(encoded,),
                    attention_mask=mask,
                    decoder_input_ids=input_ids,
                    decoder_attention_mask=attention_mask,
                )

        return TransformersCache(self, forward, len(prompts), capacity)

    def _padded(self, prompts):
        """Sources of different lengths as (ids [B, S], mask [B, S])."""
        ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
        mask = pad_sequence([torch.ones(len(prompt), dtype=torch.long) for prompt in prompts], batch_first=True)
        return ids.to(self.device), mask.to(self.device)

    def _check(self):
        sources = [[1 % self.vocab_size] * 3, [2 % self.vocab_size] * 5]

        def fresh_logits(ids, row):
            source, mask = self._padded(sources if row is None else [sources[row]])
            return self.model(input_ids=source, attention_mask=mask, decoder_input_ids=ids).logits

        self._check_rewinding(fresh_logits, self.new_cache(sources, 8))


def _start_token(model, name) -> int:
    for config in (model.generation_config, model.config):
        for field in ("decoder_start_token_id", "pad_token_id"):  # T5 starts with its padding
            if isinstance(token := getattr(config, field, None), int):
                return token
    raise ValueError(f"{name}: its configuration names no decoder_start_token_id; set model.config's.")


_ONE_AT_A_TIME = threading.Lock()  # threads that decode with one model share its layers


@contextmanager
def _bias_at(positions, layer):
    """Let this layer compute its position bias for queries at positions [B, n]; T5 itself takes one for all rows.

    The method is set on the instance, and removed afterwards.
    """

    def compute_bias(query_length, key_length, device=None, **_):
        distance = torch.arange(key_length, device=device) - positions.to(device)[:, :, None]  # [B, n, capacity]
        bucket = layer._relative_position_bucket(
            distance,
            bidirectional=False,
            num_buckets=layer.relative_attention_num_buckets,
            max_distance=layer.relative_attention_max_distance,
        )
        return layer.relative_attention_bias(bucket).permute(0, 3, 1, 2)  # [B, heads, n, capacity]

    with _ONE_AT_A_TIME:
        layer.compute_bias = compute_bias
        try:
            yield
        finally:
            del layer.compute_bias
