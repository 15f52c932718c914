"""The forward of Llama and its kin by onnxruntime, on a CPU.

The graph (llama_graph.py) is made in memory and reads the model's own weights: there are no files. The cache lies in
arrays that onnxruntime reads and writes in place, so that a rewind is nothing but a smaller number.
"""

from __future__ import annotations

import warnings
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch

from specviz.backends.ragged import FirstLayers, RaggedCache
from specviz.backends.transformers import FULL

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROTATIONS = ("default", "linear", "llama3")  # angles that do not depend on the length of the text
LARGEST = 2**31  # bytes of weights, since onnxruntime arranges a copy of them for the processor
ONE_THREAD = 2**22  # bytes of weights up to which a second thread costs as much as it saves
PIECE = 256  # a long prompt is fed in pieces of so many tokens: masks and scores grow with the square
INSTALL = "pip install onnxruntime onnx"


def is_supported(model) -> bool:
    """Whether this transformers model is of Llama's architecture, in float32 on the CPU and not too large."""
    config, weights = model.config, list(model.parameters())
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return (
        type(model).__name__ in FAMILIES
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in ROTATIONS
        and not (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True))
        and {(w.device.type, w.dtype) for w in weights} == {("cpu", torch.float32)}
        and sum(w.nbytes for w in weights) <= LARGEST
        and not hasattr(model, "_hf_hook")  # accelerate's
    )


class OnnxRuntime:
    """Forwards in which calls take little time, so that single tokens of small models are fast."""

    name = "onnxruntime"
    serves = (
        "Llama, Mistral, Qwen2 and Qwen3 models without a sliding window, in float32 on a CPU and of at most 2 GB, "
        f"after {INSTALL}"
    )

    @staticmethod
    def abilities(model):
        if model.attention != FULL or not is_supported(model.model):
            return None
        if not all(find_spec(package) for package in ("onnx", "onnxruntime")):
            warnings.warn(f"{INSTALL} makes decoding of small models on this CPU several times as fast.", stacklevel=5)
            return None
        return {"first_layers", "hidden_states"}

    def __init__(self, model):
        self.model = model.model
        self.small = sum(w.nbytes for w in self.model.parameters()) <= ONE_THREAD
        self.threads, self.sessions = None, {}
        self.session()

    def session(self, layers=None):
        """A session of the first layers (None: of all), with as many threads as torch has now."""
        threads = 1 if self.small else torch.get_num_threads()
        if threads != self.threads:
            self.threads, self.sessions = threads, {}
        if layers not in self.sessions:
            self.sessions[layers] = Session(self.model, layers, threads)
        return self.sessions[layers]

    def cache(self, rows, capacity):
        return OnnxCache(self, rows, capacity)


class Session:
    """A graph that is ready to run, and the arrays of weights that it reads."""

    def __init__(self, model, layers, threads):
        import onnxruntime

        from specviz.backends.llama_graph import LlamaGraph

        graph = LlamaGraph(model, layers)
        self.weights = {name: onnxruntime.OrtValue.ortvalue_from_numpy(w) for name, w in graph.weights.items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # errors are raised, and warnings are for those who make graphs
        options.add_external_initializers(list(self.weights), list(self.weights.values()))
        self.session = onnxruntime.InferenceSession(graph.serialized(), options, providers=["CPUExecutionProvider"])


class OnnxCache(RaggedCache):
    """Keys and values [layers, 2, B, K, capacity, s]."""

    backend = OnnxRuntime.name

    def __init__(self, program: OnnxRuntime, rows: int, capacity: int):
        super().__init__(rows, capacity)
        self.program, self.rows = program, rows
        config, rotary = program.model.config, program.model.model.rotary_emb
        half = len(rotary.inv_freq)
        shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, capacity, 2 * half)
        self.keys_values = np.zeros(shape, np.float32)
        angle = torch.arange(capacity).float()[:, None] * rotary.inv_freq.float()
        self.rotation = [(x * rotary.attention_scaling).numpy() for x in (angle.cos(), angle.sin())]  # [capacity, s/2]
        self.forwards = {}

    def feed(self, tokens, count=None, layers=None):
        """As in models/protocol.py. layers: go through so many of the first layers only (None: all)."""
        n = tokens.shape[1]
        if n > PIECE:
            return torch.cat([self.feed(*piece, layers) for piece in self._pieces(tokens, count)], dim=1)
        self.last = self._forward(layers)
        self.last.run(tokens)
        self.advance(n, count)
        return self.last.output("logits")

    @property
    def hidden_states(self):
        """[B, n, d]: what the head read at the tokens of the last feed (at most PIECE of them)."""
        return self.last.output("hidden")

    def prefill(self, tokens, count=None):
        for piece, advance in self._pieces(tokens, count):
            self._forward(head=False).run(piece)
            self.advance(piece.shape[1], advance)

    def first_layers(self, n):
        return FirstLayers(self, partial(self.feed, layers=n))

    def _forward(self, layers=None, head=True):
        if (layers, head) not in self.forwards:
            self.forwards[layers, head] = Forward(self, layers, head)
        return self.forwards[layers, head]

    def _pieces(self, tokens, count):
        """(tokens, count) of one piece after the other."""
        self.positions(tokens.shape[1])  # raises where they do not fit, before anything is written
        count = torch.full((self.rows,), tokens.shape[1]) if count is None else count.cpu()
        for begin in range(0, tokens.shape[1], PIECE):
            piece = tokens[:, begin : begin + PIECE]
            yield piece, (count - begin).clamp(0, piece.shape[1])


class Forward:
    """A session bound to a cache's arrays. head: whether it computes logits."""

    def __init__(self, cache, layers, head):
        import onnxruntime

        self.cache, self.value = cache, onnxruntime.OrtValue.ortvalue_from_numpy  # in the array's own memory
        self.owner = cache.program.session(layers)
        self.session = self.owner.session
        self.options = None  # a run with options takes 50 microseconds more
        if not head:
            self.options = onnxruntime.RunOptions()
            self.options.only_execute_path_to_fetches = True
        self.widths = {output.name: output.shape[-1] for output in self.session.get_outputs()[:2]} if head else {}
        self.binding = self.session.io_binding()
        self.lengths = np.zeros(cache.rows, np.int64)
        cosine, sine = cache.rotation
        self._bind({"lengths": self.lengths, "cosine": cosine, "sine": sine}, {})
        for i, layer in enumerate(cache.keys_values[:layers]):
            for name, entries in zip(("keys", "values"), layer, strict=True):
                self._bind({f"{name}_{i}": entries}, {f"new_{name}_{i}": entries})
        self.tokens = np.zeros((cache.rows, 0), np.int64)

    def run(self, tokens):
        """Write the keys and values of tokens [B, n] behind each row's text, and compute the outputs."""
        n = tokens.shape[1]
        if n != self.tokens.shape[1]:
            self._make_room(n)
        self.tokens[:] = tokens.numpy()
        self.lengths[:] = self.cache._lengths
        try:
            self.session.run_with_iobinding(self.binding, self.options)
        except Exception:
            self.cache.positions(n)  # raises ValueError where the tokens do not fit
            raise

    def output(self, name):
        """logits [B, n, V] or hidden [B, n, d] of the last run: a copy, since the next one overwrites them."""
        return torch.from_numpy(self.outputs[name].copy())

    def _make_room(self, n):
        rows = self.cache.rows
        self.tokens = np.zeros((rows, n), np.int64)
        self.outputs = {name: np.zeros((rows, n, width), np.float32) for name, width in self.widths.items()}
        self._bind({"tokens": self.tokens}, self.outputs)

    def _bind(self, inputs, outputs):
        for name, array in inputs.items():
            self.binding.bind_ortvalue_input(name, self.value(array))
        for name, array in outputs.items():
            if name in self.widths:
                array = array.reshape(-1, array.shape[-1])  # as the graph has it
            self.binding.bind_ortvalue_output(name, self.value(array))
