"""The choice of a backend: the fastest that meets all needs and gives transformers' logits."""

from __future__ import annotations

import warnings

from specviz.backends.graphs import CudaGraphs
from specviz.backends.onnxruntime import OnnxRuntime
from specviz.backends.precision import distance, tolerance
from specviz.backends.protocol import check_needs
from specviz.backends.transformers import Transformers

BY_ITSELF = (OnnxRuntime, Transformers)  # the fastest first
BY_NAME = {backend.name: backend for backend in (*BY_ITSELF, CudaGraphs)}


class Backends:
    """The backends of one wrapped model. Each is made, and compared with transformers' logits, when first chosen.

    asked: "auto", or the name of the only one that may be taken.
    logits(cache): logits of a few ragged feeds, for a cache of two rows.

    Raises ValueError for an unknown name, and for a named backend that does not serve the model or gives other logits.
    """

    def __init__(self, model, asked, logits):
        if asked != "auto" and asked not in BY_NAME:
            raise ValueError(f"backend={asked!r}: must be one of auto, {', '.join(BY_NAME)}.")
        self.model, self.asked, self.logits = model, asked, logits
        self.made = {}  # by class; None where the logits differ
        candidates = BY_ITSELF if asked == "auto" else (BY_NAME[asked],)
        abilities = {backend: backend.abilities(model) for backend in candidates}
        self.abilities = {backend: can for backend, can in abilities.items() if can is not None}
        if asked != "auto":
            self._check_named(BY_NAME[asked])

    def can(self, needs) -> bool:
        return any(needs <= can for can in self.abilities.values())

    def choose(self, needs):
        """The fastest backend that can do all of needs (a frozenset). ValueError where none can."""
        for backend, can in self.abilities.items():
            if needs <= can and self._made(backend) is not None:
                return self.made[backend]
        can = frozenset().union(*self.abilities.values())
        check_needs(needs, can, f"{self.model.name!r} with backend={self.asked!r}")

    def _made(self, backend):
        """The backend for this model; None where its logits differ from transformers' own."""
        if backend not in self.made:
            compared = backend not in (Transformers, CudaGraphs)  # CUDA graphs are compared when they are recorded
            self.made[backend] = self._compared(backend) if compared else backend(self.model)
        return self.made[backend]

    def _compared(self, backend):
        expected = self.logits(Transformers(self.model).cache(2, 8))
        try:
            made = backend(self.model)
            logits = self.logits(made.cache(2, 8))
        except Exception:  # an older onnxruntime lacks operators, and says so in errors of many kinds
            if self.asked != "auto":
                raise
            return None
        return made if distance(logits, expected) <= tolerance(expected) else None

    def _check_named(self, backend):
        name = self.model.name
        if backend not in self.abilities:
            raise ValueError(
                f"backend={self.asked!r} cannot serve {name!r}: it serves {backend.serves}. backend='auto' finds one "
                "that can."
            )
        if self._made(backend) is None:
            raise ValueError(
                f"backend={self.asked!r} gives other logits for {name!r} than transformers; backend='auto' finds one "
                "that does not."
            )
        if backend is CudaGraphs:
            warnings.warn(
                f"{name}: CUDA graphs have not been tried on a GPU by this project; compare texts with "
                "backend='transformers' before you rely on them.",
                RuntimeWarning,
                stacklevel=5,
            )
