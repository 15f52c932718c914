"""The layout in which this CPU multiplies a few rows by a weight matrix fastest: measured once, within a second."""

from __future__ import annotations

import copy
import statistics
import time
from functools import cached_property

import torch
import torch.nn.functional as F

from specviz.backends.transformers import Transformers, TransformersCache, whole_forward

# The numbers of rows that are measured. Others go by the next larger one; beyond the last, the layout hardly matters.
ROWS = (1, 2, 3, 5, 9, 16)
BUDGET = 0.01  # seconds for one layout at one number of rows, after which no further repeat begins
SAMPLE, REPEATS = 4, 5  # matrices of one shape, and repeats of each product, at most
LARGEST = 2**31  # bytes of weights: with more, reading them takes most of the time, and copies may not fit


def is_supported(model) -> bool:
    """Whether a transformers model may decode through copies of its weights: on the CPU, one dtype, not too large."""
    weights = list(model.parameters())
    return (
        {(w.device.type, w.dtype) for w in weights} in ({("cpu", torch.float32)}, {("cpu", torch.float64)})
        and sum(w.nbytes for w in weights) <= LARGEST
        and not hasattr(model, "_hf_hook")  # accelerate's
    )


class Tuned:
    """transformers' forward with the linear layers of this module."""

    name = "tuned"
    serves = "models in float32 or float64 on a CPU, of at most 2 GB"

    @staticmethod
    def abilities(model):
        return Transformers.abilities(model) - {"inspect"} if is_supported(model.model) else None

    def __init__(self, model):
        self.model, self.twin = model, tuned(model.model)
        self.forward = whole_forward(self.twin)

    def cache(self, rows, capacity):
        cache = TransformersCache(self.model, self.forward, rows, capacity, module=self.twin)
        cache.backend = self.name
        return cache


class Matrix:
    """x [rows, in] -> x @ weight.T + bias [rows, out], in the layout chosen for that number of rows.

    weight [out, in] itself is not kept, only the layouts of it that tune() chose.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.weight, self.bias = weight, bias
        self.inputs, self.outputs = weight.shape[1], weight.shape[0]
        self.layouts = [self.transposed] * (ROWS[-1] + 2)  # by number of rows; the last for more rows

    # The two plain layouts are multiplied by the same call: torch sees the strides.

    @cached_property
    def stored(self):
        return self.weight.contiguous().t()

    @cached_property
    def transposed(self):
        return self.weight.t().contiguous()

    @cached_property
    def packed(self):
        """oneDNN's own blocked layout, for float32; None where there is none."""
        if self.weight.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
            return None
        return Packed(self.weight)

    def product(self, x, out=None):
        """[rows, out], written into out if given."""
        layout = self.layouts[min(x.shape[0], ROWS[-1] + 1)]
        if type(layout) is Packed:
            y = layout(x)
            out = y if out is None else out.copy_(y)
        else:
            out = torch.mm(x, layout, out=out)
        return out if self.bias is None else out.add_(self.bias)

    def add_to(self, h, x):
        """h [rows, out] += product(x), in place."""
        layout = self.layouts[min(x.shape[0], ROWS[-1] + 1)]
        if type(layout) is Packed:
            h.add_(layout(x))
        else:
            h.addmm_(x, layout)
        if self.bias is not None:
            h.add_(self.bias)


class Packed:
    """A weight in oneDNN's blocked layout."""

    def __init__(self, weight):
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)

    def __call__(self, x):
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")


LAYOUTS = ("stored", "transposed", "packed")
SAVING = 0.8  # another layout for some numbers of rows must take at most this share of the usual one's time


@torch.no_grad()
def tune(matrices: list[Matrix]) -> None:
    """Choose the layouts of matrices of one shape, and keep no others."""
    chosen = choose(matrices)
    for matrix in matrices:
        by_rows = [next(name for limit, name in chosen.items() if rows <= limit) for rows in range(1, ROWS[-1] + 1)]
        matrix.layouts = [getattr(matrix, name) for name in [by_rows[0], *by_rows, by_rows[-1]]]
        matrix.weight = None
        for name in LAYOUTS:
            matrix.__dict__.pop(name, None)


def choose(matrices: list[Matrix]) -> dict[int, str]:
    """The layout for each number in ROWS: the same for all if possible.

    A second copy of the weights displaces the first from the CPU's caches, which these measurements do not see: V(5) of
    the bundled target was 1.6 where single tokens and five took different layouts, and 1.3 where they shared one.
    """
    sample = matrices[:SAMPLE]
    layouts = [name for name in LAYOUTS if all(getattr(m, name) is not None for m in sample)]
    times = {rows: time_layouts(sample, layouts, rows) for rows in ROWS}
    usual = min(layouts, key=lambda name: sum(of[name] / min(of.values()) for of in times.values()))
    best = {rows: min(of, key=of.get) for rows, of in times.items()}
    return {rows: name if times[rows][name] < SAVING * times[rows][usual] else usual for rows, name in best.items()}


def time_layouts(matrices, layouts, rows) -> dict[str, float]:
    """The median seconds of a product in each layout; the layouts take turns."""
    x = torch.randn(rows, matrices[0].inputs, dtype=matrices[0].weight.dtype)
    times = {name: [] for name in layouts}
    began = time.perf_counter()
    for repeat in range(REPEATS + 1):  # the first warms up
        for name in layouts:
            start = time.perf_counter()
            for matrix in matrices:
                layout = getattr(matrix, name)
                layout(x) if type(layout) is Packed else torch.mm(x, layout)
            if repeat:
                times[name].append(time.perf_counter() - start)
        if repeat and time.perf_counter() - began > BUDGET * len(layouts):
            break
    return {name: statistics.median(times[name]) for name in layouts}


class TunedLinear(torch.nn.Linear):
    """A linear layer whose weight has the layouts chosen for few rows."""

    def forward(self, x):
        rows = x.numel() // self.in_features
        if not 0 < rows <= ROWS[-1]:
            return F.linear(x, self.weight, self.bias)
        return self.matrix.product(x.reshape(rows, self.in_features)).view(*x.shape[:-1], self.out_features)


def tuned(model):
    """The same model with its linear layers tuned: a copy of the tree of modules, which shares all parameters."""
    copies = {}

    def copied(module):
        if module not in copies:
            twin = copies[module] = copy.copy(module)
            twin._modules = {name: child if child is None else copied(child) for name, child in module._modules.items()}
            if type(module) is torch.nn.Linear:
                twin.__class__, twin.matrix = TunedLinear, Matrix(module.weight, module.bias)
        return copies[module]

    twin = copied(model)
    shapes = {}
    for layer in copies.values():
        if type(layer) is TunedLinear:
            shapes.setdefault(layer.weight.shape, []).append(layer.matrix)
    for matrices in shapes.values():
        tune(matrices)
    return twin
