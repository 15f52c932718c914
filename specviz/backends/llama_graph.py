"""The forward of Llama and its kin as an ONNX graph: a text of operators, and the model's own weights."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser


class LlamaGraph:
    """The graph of a model's first layers (None: of all of them).

    text: its inputs, outputs and operators. weights {name: array}: the constants that it names, in the model's memory.
    B rows of n tokens, R = B·n; V ids, width d, H query and K key-value heads of size s.
    """

    def __init__(self, model, layers: int | None = None):
        decoder, config = model.model, model.config
        stack = decoder.layers[:layers]
        self.norm = f"SimplifiedLayerNormalization <axis = -1, epsilon = {config.rms_norm_eps}>"
        self.lines, self.weights = [], {}

        self._weight("embedding", decoder.embed_tokens)
        self._weight("norm_0", stack[0].input_layernorm)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._add(f"""
            zero = Constant <value_int = 0> ()
            one = Constant <value_int = 1> ()
            first = Constant <value_ints = [0]> ()
            second = Constant <value_ints = [1]> ()
            third = Constant <value_ints = [2]> ()
            second_and_last = Constant <value_ints = [1, 3]> ()
            rest = Constant <value_ints = [-1]> ()
            heads_and_size = Constant <value_ints = [-1, {size}]> ()
            flat = Constant <value_ints = [-1, {config.num_attention_heads * size}]> ()

            rows_and_n = Shape (tokens)
            by_head = Concat <axis = 0> (rows_and_n, heads_and_size)
            n = Shape <start = 1> (tokens)
            longest = ReduceMax (lengths)
            end = Add (longest, n)                                          # [1]: the places in use
            n_number = Squeeze (n)
            end_number = Squeeze (end)
            new = Range (zero, n_number, one)
            row_starts = Unsqueeze (lengths, second)
            positions = Add (row_starts, new)                               # [B, n]
            queries = Unsqueeze (positions, second_and_last)
            places = Range (zero, end_number, one)
            mask = LessOrEqual (places, queries)                            # [B, 1, n, end]

            ids = Reshape (tokens, rest)
            h_0 = Gather (embedding, ids)
            x_0 = {self.norm} (h_0, norm_0)""")
        next_norms = [layer.input_layernorm for layer in stack[1:]] + [decoder.norm]
        for i, (layer, next_norm) in enumerate(zip(stack, next_norms, strict=True)):
            self._layer(i, layer, next_norm)
        self.lines[-1] = self.lines[-1].replace(f"x_{len(stack)}, ", "hidden, ")
        self._linear("logits", "hidden", model.lm_head)

        cache = [f"{name}_{i}" for i in range(len(stack)) for name in ("keys", "values")]
        entries = f"float[B, {config.num_key_value_heads}, capacity, {size}]"
        angles = f"float[capacity, {size // 2}]"
        inputs = ["int64[B, n] tokens", "int64[B] lengths", f"{angles} cosine", f"{angles} sine"]
        outputs = [f"float[R, {model.lm_head.out_features}] logits", f"float[R, {config.hidden_size}] hidden"]
        inputs = ", ".join(inputs + [f"{entries} {name}" for name in cache])
        outputs = ", ".join(outputs + [f"{entries} new_{name}" for name in cache])
        self.text = f"decoder ({inputs})\n=> ({outputs}) {{\n" + "\n".join(self.lines) + "\n}"

    def _layer(self, i, layer, next_norm):
        """From the residual stream h_i [R, d] and its norm x_i to the same after the layer."""
        attention, mlp = layer.self_attn, layer.mlp
        add_and_norm = self.norm.replace("Simplified", "SkipSimplified").replace("axis = -1, ", "")
        for name in "qkv":
            self._linear(f"{name}_{i}", f"x_{i}", getattr(attention, f"{name}_proj"))
            self._add(f"{name}_heads_{i} = Reshape ({name}_{i}, by_head)")
        normed = ""
        if hasattr(attention, "q_norm"):  # Qwen3
            normed = "_normed"
            for name in "qk":
                self._weight(f"{name}_norm_{i}", getattr(attention, f"{name}_norm"))
                self._add(f"{name}_heads_normed_{i} = {self.norm} ({name}_heads_{i}, {name}_norm_{i})")
        self._add(f"""
            q_turned_{i} = Transpose <perm = [0, 2, 1, 3]> (q_heads{normed}_{i})        # [B, H, n, s]
            k_turned_{i} = Transpose <perm = [0, 2, 1, 3]> (k_heads{normed}_{i})        # [B, K, n, s]
            v_turned_{i} = Transpose <perm = [0, 2, 1, 3]> (v_heads_{i})
            q_rotated_{i} = com.microsoft.RotaryEmbedding (q_turned_{i}, positions, cosine, sine)
            k_rotated_{i} = com.microsoft.RotaryEmbedding (k_turned_{i}, positions, cosine, sine)
            new_keys_{i} = TensorScatter <axis = 2> (keys_{i}, k_rotated_{i}, lengths)  # in place
            new_values_{i} = TensorScatter <axis = 2> (values_{i}, v_turned_{i}, lengths)
            keys_in_use_{i} = Slice (new_keys_{i}, first, end, third)
            values_in_use_{i} = Slice (new_values_{i}, first, end, third)
            seen_{i} = Attention <scale = {attention.scaling}> (q_rotated_{i}, keys_in_use_{i}, values_in_use_{i}, mask)
            seen_by_token_{i} = Transpose <perm = [0, 2, 1, 3]> (seen_{i})
            attended_{i} = Reshape (seen_by_token_{i}, flat)""")
        self._linear(f"o_{i}", f"attended_{i}", attention.o_proj)
        self._weight(f"middle_norm_{i}", layer.post_attention_layernorm)
        self._add(f'y_{i}, "", "", middle_{i} = com.microsoft.{add_and_norm} (h_{i}, o_{i}, middle_norm_{i})')
        self._linear(f"gate_{i}", f"y_{i}", mlp.gate_proj)
        self._linear(f"up_{i}", f"y_{i}", mlp.up_proj)
        self._add(f"""
            silu_{i} = com.microsoft.QuickGelu <alpha = 1.0> (gate_{i})
            inner_{i} = Mul (silu_{i}, up_{i})""")
        self._linear(f"down_{i}", f"inner_{i}", mlp.down_proj)
        self._weight(f"norm_{i + 1}", next_norm)
        self._add(f'x_{i + 1}, "", "", h_{i + 1} = com.microsoft.{add_and_norm} (middle_{i}, down_{i}, norm_{i + 1})')

    def _linear(self, out, x, module):
        self._weight(f"{out}_weight", module)
        bias = ""
        if module.bias is not None:
            bias = f", {out}_bias"
            self.weights[f"{out}_bias"] = module.bias.detach().numpy()
        self._add(f"{out} = Gemm <transB = 1> ({x}, {out}_weight{bias})")

    def _weight(self, name, module):
        self.weights[name] = np.ascontiguousarray(module.weight.detach().numpy())

    def _add(self, text):
        self.lines.append(text)

    def serialized(self) -> bytes:
        """The graph as onnxruntime reads it; each weight is a name, whose array a session must be given."""
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]> {self.text}')
        for name, array in self.weights.items():
            tensor = model.graph.initializer.add(name=name, dims=array.shape, data_type=onnx.TensorProto.FLOAT)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="memory")
        return model.SerializeToString()
