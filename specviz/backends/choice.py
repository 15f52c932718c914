"""Which backend computes a decoding: the fastest that can do what is needed and gives transformers' logits."""

from __future__ import annotations

import warnings

from specviz.backends.graphs import CudaGraphs
from specviz.backends.kernels import Tuned
from specviz.backends.lean import Lean
from specviz.backends.precision import distance, tolerance
from specviz.backends.protocol import NEEDS, check_needs
from specviz.backends.transformers import Transformers

BY_ITSELF = (Lean, Tuned, Transformers)  # the fastest first
BY_NAME = {backend.name: backend for backend in (*BY_ITSELF, CudaGraphs)}


class Backends:
    """The backends of one wrapped model. Each is made, and compared with transformers' logits, when first chosen.

    asked: "auto", or the name of the only one that may be taken. Raises ValueError for an unknown name, and for a
    backend that does not serve the model or gives other logits.
    """

    def __init__(self, model, asked, logits):
        """logits(memory) -> those of a few ragged feeds, for memories of two rows."""
        if asked != "auto" and asked not in BY_NAME:
            raise ValueError(f"backend={asked!r}: must be one of auto, {', '.join(BY_NAME)}.")
        self.model, self.asked, self.logits = model, asked, logits
        self.made = {}  # by class; None where the logits differ
        self.chosen = {}  # by (rows, needs): to ask all again would take as long as the rest of a start
        self.candidates = BY_ITSELF if asked == "auto" else (BY_NAME[asked],)
        if asked != "auto":
            self._refuse_unless_right(BY_NAME[asked])
        if asked == CudaGraphs.name:
            warnings.warn(
                f"{model.name}: CUDA graphs have not been tried on a GPU by this project; compare texts with "
                "backend='transformers' before you rely on them.",
                RuntimeWarning,
                stacklevel=4,
            )

    def can(self, needs, rows=1) -> bool:
        return any(backend.supports(self.model, rows, needs) for backend in self.candidates)

    def choose(self, rows, needs):
        """The fastest backend that can do all of needs. ValueError where none can."""
        needs = frozenset(needs)
        if (rows, needs) not in self.chosen:
            self.chosen[rows, needs] = self._fastest(rows, needs)
        return self.chosen[rows, needs]

    def _fastest(self, rows, needs):
        for backend in self.candidates:
            if backend.supports(self.model, rows, needs) and self._right(backend) is not None:
                return self.made[backend]
        can = frozenset(need for need in NEEDS if self.can(frozenset({need}), rows))
        check_needs(needs, can, f"{self.model.name!r} with backend={self.asked!r}")
        raise ValueError(f"{self.model.name!r}: no backend can do {', '.join(sorted(needs))} together.")

    def _right(self, backend):
        """It, made for this model; None where its logits differ from transformers' own."""
        if backend not in self.made:
            made = backend(self.model)
            if backend not in (Transformers, CudaGraphs):  # the latter compares what it records, when it does
                usual = self.logits(Transformers(self.model).cache(2, 8))
                if not distance(self.logits(made.cache(2, 8)), usual) <= tolerance(usual):
                    made = None
            self.made[backend] = made
        return self.made[backend]

    def _refuse_unless_right(self, backend):
        if not backend.supports(self.model, 1, frozenset()):
            raise ValueError(
                f"backend={backend.name!r} cannot serve {self.model.name!r}: it serves {backend.serves}. "
                "backend='auto' finds one that can."
            )
        if self._right(backend) is None:
            raise ValueError(
                f"backend={backend.name!r} gives other logits for {self.model.name!r} than transformers; "
                "backend='auto' finds one that does not."
            )
