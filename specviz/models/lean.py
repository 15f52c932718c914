"""A lean forward for Llama-family weights on a CPU: transformers' arithmetic in a fifth of the calls.

For a few tokens a small model's forward is overhead and memory traffic. So: query, key and value in one matrix, gate
and up in another, norms folded into the matrices behind them, buffers that are used again, and for every matrix the
layout that this CPU multiplies fastest (kernels.py).
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from specviz.models.kernels import Matrix, tune
from specviz.models.protocol import Tape

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
PIECE = 256  # tokens at a time of a long prompt: masks and buffers grow with their product
ROTATIONS = ("default", "linear", "llama3")  # angles that do not depend on the length of the text


def suits(model) -> bool:
    """Whether this transformers model is of Llama's architecture, without a sliding window."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return (
        type(model).__name__ in FAMILIES
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in ROTATIONS
        and not (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True))
    )


class Layer(NamedTuple):
    qkv: Matrix  # query, key and value
    output: Matrix
    gate_up: Matrix
    down: Matrix


class LeanWeights:
    """A Llama's weights, copied and arranged for decoding. V ids, width d, H query and K key-value heads of size s."""

    @torch.no_grad()
    def __init__(self, model, context: int):
        decoder, config = model.model, model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.embedding = decoder.embed_tokens.weight  # [V, d], the model's own
        self.dtype = self.embedding.dtype
        self.width = config.hidden_size
        self.epsilon = config.rms_norm_eps
        # ‖x‖ -> √(‖x‖² + d·ε) is a hypotenuse; the norm's other factor √d goes into the matrices.
        self.leg = torch.tensor([[math.sqrt(self.width * self.epsilon)]])
        self.layers = [self._layer(layer) for layer in decoder.layers]
        self.head = Matrix(self._after(decoder.norm, model.lm_head.weight), model.lm_head.bias)
        for matrices in [*zip(*self.layers, strict=True), (self.head,)]:
            tune(list(matrices))
        # Angles in float32, whatever the weights are: transformers' own rounding is part of the model.
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

    def _paired(self, heads):
        """Rows of a query or key matrix so that the two halves of each head alternate: a rotation of the plane is
        then one complex product. Scores are sums over a head, so the order within it changes nothing."""
        half = torch.arange(self.size // 2)
        within = torch.stack([half, half + self.size // 2], dim=1).flatten()  # 0, s/2, 1, s/2 + 1, …
        return (torch.arange(heads)[:, None] * self.size + within).flatten()

    def _after(self, norm, weight):
        """weight [out, d] with the norm's own weight and √d folded in."""
        return (weight.double() * norm.weight.double() * math.sqrt(self.width)).to(weight.dtype)


class Buffers:
    """What n tokens in each of B rows are computed in, with the views that every layer takes. R = B·n."""

    def __init__(self, weights: LeanWeights, rows: int, n: int, capacity: int):
        heads, kv, size = weights.heads, weights.kv_heads, weights.size
        new = partial(torch.empty, dtype=weights.dtype)
        self.x, self.norm = new(rows * n, weights.width), new(rows * n, 1)
        self.qkv = new(rows * n, (heads + 2 * kv) * size)
        pairs = self.qkv.view(rows * n, heads + 2 * kv, size // 2, 2)
        self.rotated = torch.view_as_complex(pairs)[:, : heads + kv]  # [R, H + K, s/2]: query and key
        parts = self.qkv.view(rows, n, heads + 2 * kv, size)
        self.key_value = parts[:, :, heads:].unflatten(2, (2, kv)).permute(2, 0, 3, 1, 4)  # [2, B, K, n, s]
        self.attended = new(rows * n, heads * size)
        # Heads that share a key stand one below the other: [B, K, H/K, n, s], and for one key all in a matrix.
        grouped = (2, (kv, heads // kv))
        self.query = parts[:, :, :heads].unflatten(*grouped).permute(0, 2, 3, 1, 4)
        self.queries = self.query if rows * n == 1 else new(self.query.shape)  # one token's lie in that order already
        self.by_group = self.attended.view(rows, n, heads, size).unflatten(*grouped).permute(0, 2, 3, 1, 4)
        self.gate_up = new(rows * n, weights.layers[0].gate_up.outputs)
        self.gate, self.up = self.gate_up.chunk(2, dim=-1)
        self.inner = new(self.gate.shape)
        # For rows that are all equally long: token i sees what lies before it and itself, 0 there and -inf beyond.
        # Columns are counted from the first new token, which is column `capacity`; the mask of a feed is a slice.
        self.causal = new(n, capacity + n).fill_(-torch.inf).triu(capacity + 1).repeat(heads // kv, 1)[None, None]


class KeyValue(NamedTuple):
    """What one layer remembers, both [B, K, capacity, s]; within a key's head the two halves alternate."""

    keys: torch.Tensor
    values: torch.Tensor


class LeanMemory(Tape):
    """Keys and values of each layer [2, B, K, capacity, s] with one head a row; what that means, CausalMemory says."""

    def __init__(self, weights: LeanWeights, rows: int, capacity: int):
        super().__init__(rows, capacity)
        self.weights, self.rows = weights, rows
        shape = (2, rows, weights.kv_heads, capacity, weights.size)
        self.tapes = [torch.zeros(shape, dtype=weights.dtype) for _ in weights.layers]
        self.layers = [KeyValue(*tape.unbind()) for tape in self.tapes]
        self.buffers = {}  # by number of tokens

    @torch.no_grad()
    def feed(self, tokens, count=None, layers=None):
        """As in models/protocol.py. layers: go through the first ones only (None: through all)."""
        w, n = self.weights, tokens.shape[1]
        if n > PIECE:
            return self._feed_in_pieces(tokens, count, layers)
        first, last = self._ends()
        end = last + n  # of the keys that are looked at
        if n not in self.buffers:
            self.buffers[n] = Buffers(w, self.rows, n, self.capacity)
        b = self.buffers[n]
        at, mask = None, None
        if self.rows == 1 and end <= min(self.capacity, len(w.rotation)):  # the common case, without index tensors
            rotation = w.rotation[first:end]  # [R, 1, s/2]
        else:
            positions = self.positions(n)  # [B, n]; raises where they do not fit
            rotation = w.rotation[positions.flatten().clamp(max=len(w.rotation) - 1)]
        if first != last:
            at = positions[None, :, None, :, None].expand(b.key_value.shape)
            hidden = torch.arange(end) > positions[:, None, :, None]  # [B, 1, n, end]
            mask = torch.zeros(hidden.shape, dtype=w.dtype).masked_fill_(hidden, -torch.inf)
            mask = mask.repeat(1, 1, w.heads // w.kv_heads, 1)  # [B, 1, H/K·n, end]
        elif n > 1:
            mask = b.causal.narrow(-1, self.capacity - first, end)

        h = torch.embedding(w.embedding, tokens.flatten())  # [R, d]
        for i, layer in enumerate(w.layers[:layers]):
            layer.qkv.product(self._normed(h, b), out=b.qkv)
            b.rotated.mul_(rotation)
            if at is None:
                self.tapes[i].narrow(3, first, n).copy_(b.key_value)
            else:
                self.tapes[i].scatter_(3, at, b.key_value)
            if b.queries is not b.query:
                b.queries.copy_(b.query)
            keys, values = self.tapes[i].narrow(3, 0, end).unbind()  # [B, K, end, s]
            attended = F.scaled_dot_product_attention(b.queries.flatten(2, 3), keys, values, attn_mask=mask, scale=1.0)
            b.by_group.copy_(attended.view(b.by_group.shape))
            layer.output.add_to(h, b.attended)

            layer.gate_up.product(self._normed(h, b), out=b.gate_up)
            torch.mul(F.silu(b.gate), b.up, out=b.inner)
            layer.down.add_to(h, b.inner)

        self.advance(n, count)
        return w.head.product(self._normed(h, b)).view(self.rows, n, -1)

    def _feed_in_pieces(self, tokens, count, layers):
        self.positions(tokens.shape[1])  # raises where they do not fit, before anything is written
        count = torch.full((self.rows,), tokens.shape[1]) if count is None else count.cpu()
        logits = []
        for begin in range(0, tokens.shape[1], PIECE):
            piece = tokens[:, begin : begin + PIECE]
            logits.append(self.feed(piece, (count - begin).clamp(0, piece.shape[1]), layers))
        return torch.cat(logits, dim=1)

    def _ends(self):
        """The least and the furthest head."""
        if self.rows == 1:
            return 2 * (self.length.item(),)
        return tuple(int(x) for x in torch.aminmax(self.length))

    def _normed(self, h, b):
        """h / √(‖h‖² + d·ε), row by row."""
        if h.dtype == torch.float64:  # transformers takes the square root in float32 all the same
            single = h.float()
            scale = torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + self.weights.epsilon)
            return torch.div((single * scale).double(), math.sqrt(self.weights.width), out=b.x)
        torch.linalg.vector_norm(h, dim=-1, keepdim=True, out=b.norm)
        return torch.div(h, torch.hypot(b.norm, self.weights.leg, out=b.norm), out=b.x)
