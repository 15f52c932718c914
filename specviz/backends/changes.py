"""Whether a model has changed since its weights were copied or its modules were looked up."""

from __future__ import annotations

import copy
from itertools import chain
from operator import attrgetter, itemgetter

import numpy as np
import torch

SAMPLE = 32  # values of each tensor, spread over it
PLAIN = (bool, int, float, str, type(None))
ORDINARY = (torch.Tensor, torch.nn.Parameter)
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes: NaN is then equal to itself


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
        self.settings = [_settings(own) for own in owns]  # a getter, and its result at first
        self.lists = [(own, name, copy.deepcopy(own[name])) for own in owns for name in _lists(own)]
        tensors = [*model.parameters(), *model.buffers()]  # quantised ones have other classes, and are left out
        self.tensors = [w for w in tensors if type(w) in ORDINARY and w.device.type != "meta"]
        self.counted = [w for w in self.tensors if not w.is_inference()]  # others cannot be written to
        self.samples = _samples(self.tensors)
        self.was = self._now()

    def matches(self) -> bool:
        """Whether nothing of it has changed."""
        try:
            return (
                all([get(own) == was for own, (get, was) in zip(self.owns, self.settings)])
                and all([own[name] == was for own, name, was in self.lists])
                and self._now() == self.was
            )
        except (KeyError, RuntimeError, ValueError):  # an attribute is gone, or cannot be compared any more
            return False

    def _now(self):
        return (
            list(map(type, self.modules)),
            list(map(len, self.owns)),
            list(map(id, chain.from_iterable(map(dict.values, self.parts)))),
            list(chain.from_iterable(self.hooks)),  # each hook has a number of its own
            list(map(torch.Tensor.data_ptr, self.tensors)),
            list(map(attrgetter("shape"), self.tensors)),
            list(map(attrgetter("_version"), self.counted)),
            getattr(self.config, "_attn_implementation", None),
            [_values(views) for views in self.samples],
        )


_OF_ALL = vars(torch.nn.Module()).keys() - {"training"}  # the attributes that every module has


def _settings(own):
    """A getter for the plain attributes of a module, and its result now."""
    names = [name for name, value in own.items() if isinstance(value, PLAIN) and name not in _OF_ALL]
    get = itemgetter(*names)
    return get, get(own)


def _lists(own):
    return [name for name, value in own.items() if name not in _OF_ALL and _is_list(value)]


def _is_list(value):
    values = value.values() if isinstance(value, dict) else value
    return isinstance(value, (list, tuple, dict, set)) and all(isinstance(x, PLAIN) or _is_list(x) for x in values)


def _samples(tensors):
    """The views [up to SAMPLE] of all tensors, as integers: one list for each device and size of number."""
    kinds = {}
    for w in tensors:
        n, ends = w.numel(), sum((size - 1) * step for size, step in zip(w.shape, w.stride()))
        if n == 0 or ends >= n or w.itemsize not in INTEGERS:
            continue  # it lies in memory with gaps, or overlaps itself
        step = max(1, n // SAMPLE)
        if n > SAMPLE**2 and step % 2 == 0:
            step += 1  # not always the same column
        view = w.detach().view(INTEGERS[w.itemsize]).as_strided((min(n, SAMPLE),), (step,), w.storage_offset())
        on_cpu = w.device.type == "cpu"  # where numpy joins them in a third of the time
        kinds.setdefault((w.device, w.itemsize), []).append(view.numpy() if on_cpu else view)
    return list(kinds.values())


def _values(views) -> bytes:
    return (np.concatenate(views) if isinstance(views[0], np.ndarray) else torch.cat(views).cpu().numpy()).tobytes()
