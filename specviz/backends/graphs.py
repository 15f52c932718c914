"""CUDA graphs: a few tokens through a model without Python between its kernels.

A step of a small model on a GPU takes as long as Python needs to launch its kernels one by one. A graph launches them
all at once, with the addresses and the numbers that it was recorded with. So tokens, cache lengths, keys and values,
which change from feed to feed, lie in tensors that stay where they are. Recording takes as long as many steps; so these
tensors and their graphs form a slot, which outlives one decoding and serves the next of the same shape.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from contextlib import contextmanager

import torch

from specviz.backends.precision import distance, tolerance
from specviz.backends.ragged import RaggedCache
from specviz.backends.transformers import Transformers, TransformersCache, fed_through
from specviz.progress import progress_bar

TOKENS, IN_ALL = 16, 256  # the largest feeds that are recorded, in tokens a row and in all rows: more keep a GPU busy
STEP = 256  # capacities are rounded up to multiples, so that texts of different lengths share slots
FREE, FREE_BYTES = 4, 2**30  # slots that wait for another decoding, and the bytes of their caches together
WARM_UPS = 3


def is_supported(model) -> bool:
    """Whether a transformers model is on one CUDA device, and accelerate does not move its weights about."""
    devices = {weight.device for weight in model.parameters()}
    return len(devices) == 1 and devices.pop().type == "cuda" and not hasattr(model, "_hf_hook")


class CudaGraphs:
    """Steps are recorded when they first come, then replayed. Never run on a GPU, and so taken only by name."""

    name = "cuda-graphs"
    serves = "models on one CUDA device, not spread by accelerate, whose windowed layers take a mask"

    @staticmethod
    def abilities(model):
        # A model with a window of its own depends on the cache's capacity, and a slot's is larger.
        if model.window is not None or not is_supported(model.model):
            return None
        return Transformers.abilities(model) - {"inspect"}

    def __init__(self, model):
        self.model, self.graphs = model, Graphs(model.name)

    def cache(self, rows, capacity):
        usual = Transformers(self.model).cache
        if not self.graphs.work:
            return usual(rows, capacity)
        return self.graphs.new_cache(usual, rows, capacity, self.model.context)


class Recording:
    """The work of run() on a CUDA device, as a graph. beside: another graph, which shares its memory.

    run() reads and writes tensors that stay where they are, and returns one. Its errors are raised again, and
    RuntimeError where it waits for the device, which no graph can do.
    """

    def __init__(self, run, device, beside=None):
        self.graph = torch.cuda.CUDAGraph()
        pool = None if beside is None else beside.graph.pool()
        side = _side_stream(device)
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream()
            side.wait_stream(stream)
            with torch.cuda.stream(side):  # left also when the capture fails, where torch.cuda.graph does not
                for _ in range(WARM_UPS - 1):
                    run()
                with _waiting_is_an_error():  # in a capture, it would leave torch before 2.13 in disorder
                    run()
                with torch.cuda.graph(self.graph, pool, side, capture_error_mode="thread_local"):
                    self.output = run()
            stream.wait_stream(side)

    def replay(self) -> torch.Tensor:
        """Run it again. Returns the same tensor each time; replays of graphs that share its memory overwrite it."""
        self.graph.replay()
        return self.output


@functools.cache
def _side_stream(device):
    return torch.cuda.Stream(device)


@contextmanager
def _waiting_is_an_error():
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Slot:
    """A cache for B rows, the tensors that feed it, and the recordings made on them, by tokens a row."""

    def __init__(self, cache: TransformersCache):
        self.cache = cache
        self.shape = len(cache.length), cache.capacity
        self.length = torch.zeros(len(cache.length), 1, dtype=torch.long, device=cache.device)
        self.tokens = {}  # n: [B, n]
        self.recordings = {}  # n: Recording

    def compute(self, forward, tokens, keep=0) -> torch.Tensor:
        """Logits [B, n, V] of tokens [B, n], which are written at length [B, 1]. Reads the slot's own tensors only."""
        return self.cache.compute(forward, tokens, self.length + self.cache.keys[: tokens.shape[1]], keep)

    def clear(self):
        """Empty the cache. Entries beyond a length are hidden by a mask, which would not hide a NaN."""
        for layer in self.cache.layers:
            layer.reset()

    @property
    def nbytes(self):
        """The size of its cache, by far its largest part."""
        return sum(x.nbytes for layer in self.cache.layers if layer.is_initialized for x in (layer.keys, layer.values))


class Graphs:
    """The free slots of one model, the last used at the end; and whether recording works for it.

    Nothing here is locked: decode with one model in one thread at a time.
    """

    def __init__(self, name):
        self.name, self.work, self.free = name, True, []

    @torch.inference_mode(False)  # a slot may outlive the caller's
    def new_cache(self, usual, rows, capacity, context) -> GraphedCache:
        """A cache in a slot of its own. usual(rows, capacity) makes an empty TransformersCache."""
        least = capacity + 1  # a recording is tried one position further on
        # Not beyond the context without need: some models keep masks of that size.
        shape = rows, max(least, min(-(-least // STEP) * STEP, context))
        slot = next((slot for slot in reversed(self.free) if slot.shape == shape), None)
        if slot is not None:
            self.free.remove(slot)
            slot.clear()
        while len(self.free) >= FREE or sum(other.nbytes for other in self.free) > FREE_BYTES:
            self.free.pop(0)
        cache = GraphedCache(self, slot or Slot(usual(*shape)), capacity)
        weakref.finalize(cache, self.free.append, cache.slot).atexit = False
        return cache


class GraphedCache(RaggedCache):
    """A TransformersCache in a slot: a number of tokens that comes for the first time is recorded, then replayed.

    The first feed is not recorded: it is the prompt, of a length that may never come again. Where recording fails, or a
    replay gives other logits than the model itself, the model decodes without graphs from then on, and a RuntimeWarning
    says so. A forward other than the slot's own is called without recording.
    """

    backend = CudaGraphs.name

    def __init__(self, graphs: Graphs, slot: Slot, capacity: int):
        super().__init__(slot.shape[0], capacity)
        self.graphs, self.slot = graphs, slot
        self.forward, self.layers = slot.cache.forward, slot.cache.layers

    @torch.inference_mode(False)
    @torch.no_grad()
    def feed(self, tokens, count=None, keep=0):
        """As TransformersCache.feed; a recorded feed gives the logits of all tokens, whatever keep is."""
        n = tokens.shape[1]
        self.positions(n)  # raises where they do not fit
        self.slot.length.copy_(self.length[:, None], non_blocking=True)
        if self._is_step(n) and (n in self.slot.recordings or self._record(tokens)):
            self.slot.tokens[n].copy_(tokens, non_blocking=True)
            logits = self.slot.recordings[n].replay().clone()
        else:
            logits = self.slot.compute(self.forward, tokens.to(self.slot.length.device), keep)
        self.advance(n, count)
        return logits

    def prefill(self, tokens, count=None):
        self.feed(tokens, count, keep=1)

    def first_layers(self, n):
        return fed_through(self, self.slot.cache.forward_of_first_layers(n))

    def _is_step(self, n):
        few = 0 < n <= TOKENS and len(self.length) * n <= IN_ALL
        return few and self.graphs.work and self.forward is self.slot.cache.forward and bool(self.length.any())

    def _record(self, tokens) -> bool:
        """Record a feed of so many tokens a row. Returns whether it worked."""
        n = tokens.shape[1]
        try:
            self.slot.recordings[n] = self._checked_recording(tokens)
        except Exception as error:  # a model may do anything that a graph cannot
            self.graphs.work = False
            warnings.warn(
                f"{self.graphs.name}: decodes without CUDA graphs from now on, which is slower; recording {n} tokens a "
                f"row failed ({error!r}). backend='auto' does without them from the start.",
                RuntimeWarning,
                stacklevel=2,
            )
        self.slot.length.copy_(self.length[:, None], non_blocking=True)
        return self.graphs.work

    def _checked_recording(self, tokens):
        """Record with other tokens, one position further on, so that a number frozen by mistake shows in the logits.

        All entries that this writes lie beyond the rows' lengths, where no text is yet.
        """
        slot, n = self.slot, tokens.shape[1]
        with progress_bar(WARM_UPS + 2, f"{self.graphs.name}: CUDA graph, {n} tokens", unit="run") as bar:
            inputs = slot.tokens[n] = (tokens == 0).to(slot.length)
            slot.length += 1

            def run():
                bar.update()
                return slot.compute(slot.cache.forward, inputs)

            recording = Recording(run, slot.length.device, beside=next(iter(slot.recordings.values()), None))
            slot.length -= 1
            inputs.copy_(tokens)
            replayed, expected = recording.replay(), run()
            if not distance(replayed, expected) <= tolerance(expected):
                raise RuntimeError("replayed, it gives other logits than the model itself")
        return recording
