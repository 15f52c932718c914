"""A lean forward for Llama-family weights on a CPU: transformers' arithmetic in a fifth of the calls.

For a few tokens, calls and memory traffic take most of a small model's time. So query, key and value share one matrix,
gate and up another, norms are folded into the matrices after them, buffers are used again, and every matrix has the
layout that this CPU multiplies fastest (kernels.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from specviz.backends import kernels
from specviz.backends.kernels import Matrix, tune
from specviz.backends.ragged import FirstLayers, RaggedCache
from specviz.backends.transformers import FULL

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
BY_TOKEN = 2**24  # the largest table of first queries, keys and values, in bytes
PIECE = 256  # a long prompt is fed in pieces of so many tokens: masks and buffers grow with the square
ROTATIONS = ("default", "linear", "llama3")  # angles that do not depend on the length of the text


def is_supported(model) -> bool:
    """Whether this transformers model is of Llama's architecture, without a sliding window."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return (
        type(model).__name__ in FAMILIES
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in ROTATIONS
        and not (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True))
    )


class Lean:
    """The forward of this module."""

    name = "lean"
    serves = (
        "Llama, Mistral and Qwen2 models without a sliding window, in float32 or float64 on a CPU and of at most 2 GB"
    )

    @staticmethod
    def abilities(model):
        full = model.attention == FULL
        served = full and kernels.is_supported(model.model) and is_supported(model.model)
        return {"first_layers"} if served else None

    def __init__(self, model):
        self.weights = LeanWeights(model.model, model.context)

    def cache(self, rows, capacity):
        return LeanCache(self.weights, rows, capacity)


# Query heads share keys; the scores' scale is in the query's matrix.
attention = partial(F.scaled_dot_product_attention, scale=1.0, enable_gqa=True)


class Layer(NamedTuple):
    qkv: Matrix  # query, key and value
    output: Matrix
    gate_up: Matrix
    down: Matrix


class LeanWeights:
    """A Llama's weights, copied and arranged for decoding. V ids, width d, H query and K key-value heads of size s."""

    @torch.inference_mode()
    def __init__(self, model, context: int):
        decoder, config = model.model, model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.embedding = decoder.embed_tokens.weight.detach()  # [V, d], the model's own
        self.dtype = self.embedding.dtype
        self.width = config.hidden_size
        self.epsilon = config.rms_norm_eps
        self.layers = [self._layer(layer) for layer in decoder.layers]
        self.head = Matrix(self._after(decoder.norm, model.lm_head.weight), model.lm_head.bias)
        for matrices in [*zip(*self.layers, strict=True), (self.head,)]:
            tune(list(matrices))
        self.by_token = self._by_token()
        # Angles in float32 for weights of any dtype: transformers' own rounding is part of the model.
        angle = torch.arange(context).float()[:, None] * decoder.rotary_emb.inv_freq.float()  # [context, s/2]
        scale = decoder.rotary_emb.attention_scaling
        plane = ((angle.cos() * scale).to(self.dtype), (angle.sin() * scale).to(self.dtype))
        self.rotation = torch.complex(*plane)[:, None]  # [context, 1, s/2]

    def _layer(self, layer):
        attention, mlp = layer.self_attn, layer.mlp
        scale = attention.scaling  # of the scores
        query, key = self._paired(self.heads), self._paired(self.kv_heads)
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        qkv = torch.cat([q.weight[query] * scale, k.weight[key], v.weight])
        bias = None if q.bias is None else torch.cat([q.bias[query] * scale, k.bias[key], v.bias])
        return Layer(
            Matrix(self._after(layer.input_layernorm, qkv), bias),
            Matrix(attention.o_proj.weight, attention.o_proj.bias),
            Matrix(
                self._after(layer.post_attention_layernorm, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
                None if mlp.gate_proj.bias is None else torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias]),
            ),
            Matrix(mlp.down_proj.weight, mlp.down_proj.bias),
        )

    def _by_token(self):
        """[V, first_width]: of each token the first layer's query, key and value, and the stream (see normed).

        They depend on nothing but the token, so that small vocabularies look them up. None for large ones.
        """
        vocab_size, qkv = len(self.embedding), self.layers[0].qkv
        if vocab_size * self.first_width * self.embedding.element_size() > BY_TOKEN:
            return None
        table = self.embedding.new_zeros(vocab_size, self.first_width)
        stream = table[:, qkv.outputs : qkv.outputs + self.width + 1]
        stream[:, :-1], stream[:, -1] = self.embedding, self.beyond
        table[:, : qkv.outputs] = qkv.product(self.normed(stream))
        return table

    @property
    def first_width(self):
        """The width of by_token: qkv + d + 1, made even, since complex numbers lie at even places."""
        width = self.layers[0].qkv.outputs + self.width + 1
        return width + width % 2

    @property
    def beyond(self):
        """One more component of h, with which its length is √(‖h‖² + d·ε); the norm's √d is in the matrices."""
        return math.sqrt(self.width * self.epsilon)

    def normed(self, stream, norm=None, out=None):
        """h / √(‖h‖² + d·ε) [R, d] of a stream [R, d + 1] whose last component is beyond. norm [R, 1], out: buffers."""
        h = stream[:, :-1]
        if h.dtype == torch.float64:  # here too transformers takes the square root in float32
            single = h.float()
            scale = torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + self.epsilon)
            return torch.div((single * scale).double(), math.sqrt(self.width), out=out)
        return torch.div(h, torch.linalg.vector_norm(stream, dim=-1, keepdim=True, out=norm), out=out)

    def _paired(self, heads):
        """The order of a query or key matrix's rows in which the two halves of each head alternate.

        A rotation of the plane is then one complex product. Scores are sums over a head, so its order changes nothing.
        """
        half = torch.arange(self.size // 2)
        within = torch.stack([half, half + self.size // 2], dim=1).flatten()  # 0, s/2, 1, s/2 + 1, …
        return (torch.arange(heads)[:, None] * self.size + within).flatten()

    def _after(self, norm, weight):
        """weight [out, d] with the norm's own weight and √d folded in."""
        return (weight.double() * norm.weight.double() * math.sqrt(self.width)).to(weight.dtype)


class Projections:
    """Query, key and value [R, (H + 2K)·s], with the views that attention takes of them."""

    def __init__(self, weights: LeanWeights, rows: int, n: int, qkv: torch.Tensor):
        heads, kv, size = weights.heads, weights.kv_heads, weights.size
        self.qkv = qkv
        pairs = qkv.unflatten(-1, (heads + 2 * kv, size // 2, 2))
        self.rotated = torch.view_as_complex(pairs)[:, : heads + kv]  # [R, H + K, s/2]: query and key
        parts = qkv.unflatten(0, (rows, n)).unflatten(-1, (heads + 2 * kv, size))
        self.query = parts[:, :, :heads].transpose(1, 2)  # [B, H, n, s]
        self.key_value = parts[:, :, heads:].unflatten(2, (2, kv)).permute(2, 0, 3, 1, 4)  # [2, B, K, n, s]


class Buffers:
    """The buffers of a feed of n tokens in each of B rows, with the views that the layers take. R = B·n."""

    def __init__(self, weights: LeanWeights, rows: int, n: int, capacity: int):
        new = partial(torch.empty, dtype=weights.dtype)
        qkv = weights.layers[0].qkv.outputs
        self.first = new(rows * n, weights.first_width)  # as weights.by_token
        self.stream = self.first[:, qkv : qkv + weights.width + 1]
        self.stream[:, -1] = weights.beyond
        self.h = self.stream[:, :-1]  # [R, d]: the residual stream
        self.x, self.norm = new(rows * n, weights.width), new(rows * n, 1)
        # Those of the first layer, and those of all others.
        self.projections = [Projections(weights, rows, n, x) for x in (self.first[:, :qkv], new(rows * n, qkv))]
        self.gate_up = new(rows * n, weights.layers[0].gate_up.outputs)
        self.gate, self.up = self.gate_up.chunk(2, dim=-1)
        self.inner = new(self.gate.shape)
        # A mask for rows of equal length: 0 up to the token itself and -inf beyond. The first new token is column
        # `capacity`; the mask of a feed is a slice.
        self.causal = new(n, capacity + n).fill_(-torch.inf).triu(capacity + 1)[None, None]


class KeyValue(NamedTuple):
    """One layer's entries, both [B, K, capacity, s]."""

    keys: torch.Tensor
    values: torch.Tensor


class LeanCache(RaggedCache):
    """Keys and values [layers, 2, B, K, capacity, s]; within a key's head the two halves alternate."""

    backend = Lean.name

    @torch.inference_mode()
    def __init__(self, weights: LeanWeights, rows: int, capacity: int):
        super().__init__(rows, capacity)
        self.weights, self.rows = weights, rows
        shape = (len(weights.layers), 2, rows, weights.kv_heads, capacity, weights.size)
        self.keys_values = torch.zeros(shape, dtype=weights.dtype)
        self.flat = self.keys_values.flatten(0, 1)  # the same: keys, values, keys, values, …
        self.layers = [KeyValue(*layer) for layer in self.keys_values.unbind()]  # to be read by users
        self.buffers = {}  # by number of tokens

    def feed(self, tokens, count=None, layers=None):
        """As in models/protocol.py. layers: go through so many of the first layers only (None: all)."""
        n = tokens.shape[1]
        if n > PIECE:
            return torch.cat([self.feed(*piece, layers) for piece in self._pieces(tokens, count)], dim=1)
        if torch.is_inference_mode_enabled():
            logits = self._logits(self._forward(tokens, layers), n)
        else:
            with torch.inference_mode():  # without autograd's bookkeeping a call takes a fifth less
                logits = self._logits(self._forward(tokens, layers), n)
            logits = logits.clone()  # cloned outside of inference mode: an ordinary tensor
        self.advance(n, count)
        return logits

    def first_layers(self, n):
        return FirstLayers(self, partial(self.feed, layers=n))

    @torch.inference_mode()
    def prefill(self, tokens, count=None):
        for piece, advance in self._pieces(tokens, count):
            self._forward(piece)
            self.advance(piece.shape[1], advance)

    def _logits(self, b, n):
        """[B, n, V]"""
        return self.weights.head.product(self._normed(b)).view(self.rows, n, -1)

    def _forward(self, tokens, layers=None):
        """Buffers with the last layer's output for tokens [B, n], which are written behind each row's text."""
        w, n = self.weights, tokens.shape[1]
        shortest, longest = self._shortest_and_longest()
        end = longest + n  # of the keys that are read
        if n not in self.buffers:
            self.buffers[n] = Buffers(w, self.rows, n, self.capacity)
        b = self.buffers[n]
        at, mask = None, None
        if self.rows == 1 and end <= min(self.capacity, len(w.rotation)):  # the common case, without index tensors
            rotation = w.rotation[shortest:end]  # [R, 1, s/2]
        else:
            positions = self.positions(n)  # [B, n]; raises where they do not fit
            rotation = w.rotation[positions.flatten().clamp(max=len(w.rotation) - 1)]
        if shortest != longest:
            at = positions[None, :, None, :, None].expand(b.projections[0].key_value.shape)
            hidden = torch.arange(end) > positions[:, None, :, None]  # [B, 1, n, end]
            mask = torch.zeros(hidden.shape, dtype=w.dtype).masked_fill_(hidden, -torch.inf)
        elif n > 1:
            mask = b.causal.narrow(-1, self.capacity - shortest, end)

        new = self.keys_values.narrow(4, shortest, n).unbind() if at is None else None  # of each layer
        seen = self.flat.narrow(3, 0, end).unbind()  # [B, K, end, s] each
        looked_up = w.by_token is not None
        if looked_up:
            torch.index_select(w.by_token, 0, tokens.flatten(), out=b.first)
        else:
            torch.index_select(w.embedding, 0, tokens.flatten(), out=b.h)
        h = b.h
        for i, layer in enumerate(w.layers[:layers]):
            projected = b.projections[i > 0]
            if i > 0 or not looked_up:
                layer.qkv.product(self._normed(b), out=projected.qkv)
            projected.rotated.mul_(rotation)
            if at is None:
                new[i].copy_(projected.key_value)
            else:
                self.keys_values[i].scatter_(3, at, projected.key_value)
            attended = attention(projected.query, seen[2 * i], seen[2 * i + 1], attn_mask=mask)  # [B, H, n, s]
            if n > 1:  # a single token's attention heads already lie side by side
                attended = attended.transpose(1, 2)
            layer.output.add_to(h, attended.reshape(self.rows * n, -1))

            layer.gate_up.product(self._normed(b), out=b.gate_up)
            torch.mul(F.silu(b.gate), b.up, out=b.inner)
            layer.down.add_to(h, b.inner)

        return b

    def _pieces(self, tokens, count):
        """(tokens, count) of one piece after the other."""
        self.positions(tokens.shape[1])  # raises where they do not fit, before anything is written
        count = torch.full((self.rows,), tokens.shape[1]) if count is None else count.cpu()
        for begin in range(0, tokens.shape[1], PIECE):
            piece = tokens[:, begin : begin + PIECE]
            yield piece, (count - begin).clamp(0, piece.shape[1])

    def _shortest_and_longest(self):
        """The least and the largest cache length."""
        if self.rows == 1:
            return 2 * (self._lengths.item(),)
        return int(self._lengths.min()), int(self._lengths.max())

    def _normed(self, b):
        return self.weights.normed(b.stream, b.norm, b.x)
