"""Whether a model has changed since its weights were copied or its modules were looked up."""

from __future__ import annotations

import copy
from itertools import chain
from operator import attrgetter

import torch

SAMPLE = 32  # values of each tensor, spread over it
PLAIN = (bool, int, float, str, type(None))
ORDINARY = (torch.Tensor, torch.nn.Parameter)
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes: NaN is then equal to itself
_OF_ALL = vars(torch.nn.Module()).keys() - {"training"}  # the attributes that every module has


class Fingerprint:
    """The state of a transformers model's modules and tensors; matches() compares it with the state now.

    It finds modules, parameters and buffers that were exchanged, added or removed; changes of modules' classes, hooks,
    own forwards and plain attributes (numbers, names, and lists or dicts of these: the switches of adapters, dropout
    rates); tensors that moved, or were written to in ways that torch counts; and changes in a sample of each tensor's
    values, since torch does not count writes through .data. A merged adapter or another checkpoint changes nearly all
    values, and so the sample. It misses a few values written through .data beside the sample, functions patched into a
    class, and objects that modules keep and that are no plain attributes.
    """

    def __init__(self, model: torch.nn.Module):
        self.modules = list(model.modules())
        owns = self.owns = [vars(module) for module in self.modules]
        self.parts = [own[kind] for own in owns for kind in ("_modules", "_parameters", "_buffers")]
        self.hooks = [own[kind] for own in owns for kind in ("_forward_hooks", "_forward_pre_hooks")]
        self.config = getattr(model, "config", None)
        self.plain = [[name for name, value in own.items() if name not in _OF_ALL and _is_plain(value)] for own in owns]
        tensors = [*model.parameters(), *model.buffers()]
        # Quantised tensors have classes of their own, and are not compared.
        self.tensors = [w for w in tensors if type(w) in ORDINARY and w.device.type != "meta"]
        self.counted = [w for w in self.tensors if not w.is_inference()]  # others cannot be written to
        self.samples = _samples(self.tensors)
        self.was = copy.deepcopy(self._now())

    def matches(self) -> bool:
        """Whether nothing of it has changed; takes a fraction of a millisecond."""
        try:
            return self._now() == self.was
        except (KeyError, RuntimeError, ValueError):  # an attribute is gone, or cannot be compared any more
            return False

    def _now(self):
        return (
            [[own[name] for name in names] for own, names in zip(self.owns, self.plain)],
            list(map(type, self.modules)),
            list(map(len, self.owns)),
            list(map(id, chain.from_iterable(map(dict.values, self.parts)))),
            list(chain.from_iterable(self.hooks)),  # each hook has a number of its own
            list(map(torch.Tensor.data_ptr, self.tensors)),
            list(map(attrgetter("shape"), self.tensors)),
            list(map(attrgetter("_version"), self.counted)),
            getattr(self.config, "_attn_implementation", None),
            [torch.cat(views).cpu().numpy().tobytes() for views in self.samples],
        )


def _is_plain(value) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set)):
        return all(map(_is_plain, value))
    return isinstance(value, PLAIN)


def _samples(tensors):
    """Views [up to SAMPLE] of all tensors, as integers: one list for each device and size of number."""
    kinds = {}
    for w in tensors:
        n, ends = w.numel(), sum((size - 1) * step for size, step in zip(w.shape, w.stride()))
        if n == 0 or ends >= n or w.itemsize not in INTEGERS:
            continue  # its values lie in memory with gaps, or overlap
        step = max(1, n // SAMPLE)
        if n > SAMPLE**2 and step % 2 == 0:
            step += 1  # not always the same column
        view = w.detach().view(INTEGERS[w.itemsize]).as_strided((min(n, SAMPLE),), (step,), w.storage_offset())
        kinds.setdefault((w.device, w.itemsize), []).append(view)
    return list(kinds.values())
