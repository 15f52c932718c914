"""Which way of multiplying a few rows by a weight matrix this CPU likes best: measured once, within a second."""

from __future__ import annotations

import copy
import statistics
import time
from functools import cached_property

import torch
import torch.nn.functional as F

from specviz.backends.transformers import Transformers, cache_of, whole_forward

# Row counts that are measured; others go by the next larger one, and beyond the last the layout hardly matters.
ROWS = (1, 2, 3, 5, 9, 16)
BUDGET = 0.01  # seconds for one way at one number of rows, after which no further repeat begins
SAMPLE, REPEATS = 4, 5  # matrices of one shape, and how often each is multiplied at most
LARGEST = 2**31  # bytes of weights: beyond, decoding is reading them, and there may be no room for copies


def is_supported(model) -> bool:
    """Whether a transformers model may decode through copies of its weights: on the CPU, one dtype, not too large."""
    weights = list(model.parameters())
    return (
        {(w.device.type, w.dtype) for w in weights} in ({("cpu", torch.float32)}, {("cpu", torch.float64)})
        and sum(w.nbytes for w in weights) <= LARGEST
        and not hasattr(model, "_hf_hook")  # accelerate's
    )


class Tuned:
    """transformers' forward with the linear layers of this file."""

    name = "tuned"
    serves = "models in float32 or float64 on a CPU, of at most 2 GB"

    @staticmethod
    def supports(model, rows, needs):
        return is_supported(model.model) and "inspect" not in needs and Transformers.supports(model, rows, needs)

    def __init__(self, model):
        self.model, self.twin = model, tuned(model.model)
        self.forward = whole_forward(self.twin)

    def cache(self, rows, capacity, needs=frozenset()):
        cache = cache_of(self.model, self.forward, rows, capacity, stack=self.twin)
        cache.backend = self.name
        return cache


class Matrix:
    """x [rows, in] -> x @ weight.T + bias [rows, out], by whichever way was chosen for that many rows.

    weight [out, in] is not kept itself, only the layouts of it that were chosen. See tune().
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.weight, self.bias = weight, bias
        self.inputs, self.outputs = weight.shape[1], weight.shape[0]
        self.layouts = [self.transposed] * (ROWS[-1] + 2)  # by number of rows; the last is for all that are more

    # The two plain layouts are multiplied by the same call: torch sees how the matrix lies in memory.

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
        """[rows, out], into out if that is given."""
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


WAYS = ("stored", "transposed", "packed")
SAVING = 0.8  # another way for some numbers of rows must take at most so much of the usual one's time


@torch.no_grad()
def tune(matrices: list[Matrix]) -> None:
    """Choose how matrices of one shape are multiplied, and keep no other layouts."""
    chosen = choose(matrices)
    for matrix in matrices:
        by_rows = [next(way for limit, way in chosen.items() if rows <= limit) for rows in range(1, ROWS[-1] + 1)]
        matrix.layouts = [getattr(matrix, way) for way in [by_rows[0], *by_rows, by_rows[-1]]]
        matrix.weight = None
        for way in WAYS:
            matrix.__dict__.pop(way, None)


def choose(matrices: list[Matrix]) -> dict[int, str]:
    """The way for each number in ROWS: one for all if possible.

    A second copy of the weights has to come into the caches again, which these measurements do not see: V(5) of the
    bundled target was 1.6 where single tokens and five took different layouts, and 1.3 where they took one.
    """
    sample = matrices[:SAMPLE]
    ways = [way for way in WAYS if all(getattr(m, way) is not None for m in sample)]
    times = {rows: seconds(sample, ways, rows) for rows in ROWS}
    usual = min(ways, key=lambda way: sum(of[way] / min(of.values()) for of in times.values()))
    best = {rows: min(of, key=of.get) for rows, of in times.items()}
    return {rows: way if times[rows][way] < SAVING * times[rows][usual] else usual for rows, way in best.items()}


def seconds(matrices, ways, rows) -> dict[str, float]:
    """The median time of each way, ways taking turns."""
    x = torch.randn(rows, matrices[0].inputs, dtype=matrices[0].weight.dtype)
    times = {way: [] for way in ways}
    began = time.perf_counter()
    for repeat in range(REPEATS + 1):  # the first warms up
        for way in ways:
            start = time.perf_counter()
            for matrix in matrices:
                layout = getattr(matrix, way)
                layout(x) if type(layout) is Packed else torch.mm(x, layout)
            if repeat:
                times[way].append(time.perf_counter() - start)
        if repeat and time.perf_counter() - began > BUDGET * len(ways):
            break
    return {way: statistics.median(times[way]) for way in ways}


class TunedLinear(torch.nn.Linear):
    """A linear layer with its weight in the layouts that were chosen for few rows."""

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
