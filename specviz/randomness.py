"""Randomness as an argument: the decoder asks for draws and coin flips, and one of three answers.

Seeded runs, Scripted replays with chosen uniforms, Exhaustive visits every outcome with its probability.
"""

from __future__ import annotations

import copy
import hashlib
import math
import numbers
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch

from specviz.arguments import integer
from specviz.arrays import as_array, as_tensor, beside

STREAMS = ("draft", "coin", "next")


class Drawn(NamedTuple):
    token: torch.Tensor  # [B] int64, where the probabilities are
    u: torch.Tensor  # [B] float64, on the CPU; NaN where nothing was drawn


class Flipped(NamedTuple):
    accepted: torch.Tensor  # [B] int64, on the CPU: leading successes, or the place of the last one
    u: torch.Tensor  # [B, gamma] float64, on the CPU; NaN where nothing was flipped


class Randomness(Protocol):
    """The questions of a decoder, asked with numpy's arrays on a CPU, with tensors elsewhere, and answered in kind.

    Rows that are not active consume nothing and count nowhere: their answers are to be ignored.
    """

    def begin(self, rows: int) -> None:
        """A decoding of that many rows begins. Raises ValueError where this cannot decide for so many."""

    def begin_round(self, round: int, length: list[int]) -> None:
        """A round begins; length [B]: the position in each row's text of the token that comes next."""

    def draw(self, probs, stream: str = "draft", slot: int = 0, active=None) -> Drawn:
        """Draw one token a row from probs [B, V], which need not sum to 1."""

    def flip(self, prob, active=None, *, last: bool = False) -> Flipped:
        """Flip coins with success probabilities prob [B, gamma], left to right.

        accepted counts the successes before the first failure. last=True flips all of them, and gives the place of
        the last success instead (1 .. gamma, 0 if there is none), as block verification asks.
        """

    def child(self, name: str) -> Randomness:
        """For a decoding inside a decoding (a draft that is itself decoded speculatively): other noise."""


def inverse_cdf(probs, u):
    """The token in whose slice of the cumulative distribution u falls. [B, V], [B] -> [B] int64.

    probs need not sum to 1: u in [0, 1) is scaled by their float64 total. A token of probability zero has an empty
    slice and never comes out, neither at u = 0 nor as u nears 1 (u * total, rounded, is below the total).
    """
    if isinstance(probs, np.ndarray):
        cumulative = np.add.accumulate(probs, -1, np.float64)  # cumsum() without its detour through Python
        return (cumulative > (u * cumulative[:, -1])[:, None]).argmax(-1)  # the first that is true
    array = as_array(probs)
    if isinstance(array, np.ndarray):
        return as_tensor(inverse_cdf(array, as_array(u)), probs.device)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    point = beside(u, cumulative)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, point, right=True)[:, 0].clamp(max=cumulative.shape[-1] - 1)


def _like(answer, asked):
    """answer in the kind of asked: numpy's array or a tensor."""
    return answer if isinstance(asked, np.ndarray) else as_tensor(answer)


class _Uniform:
    """Draws and flips decided by uniforms that a subclass supplies."""

    round = 0

    def begin_round(self, round: int, length=None) -> None:
        """A round begins: its number is part of what a uniform depends on."""
        self.round = round

    def _uniforms(self, stream: str, slots: int, rows: int) -> np.ndarray:
        """[rows, slots] float64, the caller's to keep."""
        raise NotImplementedError

    def draw(self, probs, stream="draft", slot=0, active=None) -> Drawn:
        """Draw one token a row. probs [B, V] -> Drawn; rows that are not active give a token to ignore."""
        u = self._uniforms(stream, slot + 1, probs.shape[0])[:, slot]
        return Drawn(inverse_cdf(probs, u), _like(_mask(u, active), probs))

    def flip(self, prob, active=None, *, last=False) -> Flipped:
        """Flip coins left to right until the first failure, or all of them (last). prob [B, gamma] -> Flipped."""
        u = self._uniforms("coin", prob.shape[1], prob.shape[0])
        accepted = (last_success if last else leading_successes)(u < _on_host(prob))
        return Flipped(_like(accepted, prob), _like(_mask(u, active), prob))


def leading_successes(success: np.ndarray) -> np.ndarray:
    """[B, n] bool -> [B] int64: how many are true before the first that is not."""
    return np.array([row.index(False) if False in row else len(row) for row in success.tolist()])


def last_success(success: np.ndarray) -> np.ndarray:
    """[B, n] bool -> [B] int64: the place of the last that is true, counted from 1; 0 if there is none."""
    return (success * np.arange(1, success.shape[1] + 1)).max(-1, initial=0)


def _on_host(x) -> np.ndarray:
    x = as_array(x)
    return x if isinstance(x, np.ndarray) else x.cpu().numpy()


def _mask(u, active):
    """u with NaN in the rows that are not active: they consume nothing."""
    if active is None or all(active.tolist()):
        return u
    return np.where(np.array(active.tolist()).reshape(-1, *[1] * (u.ndim - 1)), u, math.nan)


# --- Seeded -------------------------------------------------------------------------------------

AHEAD = 4096  # uniforms made at a time: numbers cost less by the thousand
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(seed, n):
    """Output number n (from 0) of the SplitMix64 generator started at seed; uint64, broadcasting.

    Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        z = np.asarray(seed, np.uint64) + (np.asarray(n, np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


class Seeded(_Uniform):
    """Reproducible uniforms, u = hash(seed, row, round, stream, slot): counters, not a generator that is used up.

    rows are the row numbers that are hashed, 0 .. B-1 by default, so that row r of a batch run alone is
    Seeded(seed, rows=[r]). Every row, round, stream and slot has a uniform of its own: the draws of a row
    never depend on its batch mates, on the device, or on the version of a library.

    It remembers the number of the current round alone (and uniforms made ahead), so give each decoding one of its own.

    Raises ValueError for a seed that is not an integer in [0, 2**64) or for bad rows.
    """

    def __init__(self, seed: int, rows=None):
        self.seed = integer(seed, "seed", 0, " and < 2**64")
        if self.seed >= 2**64:
            raise ValueError(f"seed={seed!r}: must be an integer >= 0 and < 2**64.")
        try:
            self.rows = None if rows is None else [integer(row, "rows: a row number", 0) for row in rows]
        except TypeError:
            raise ValueError(f"rows={rows!r}: must be a list of row numbers.") from None
        self._first, self._ahead = 0, np.empty((0, 0, len(STREAMS), 0))  # the uniforms of some rounds from _first on

    def begin(self, rows: int) -> None:
        """A decoding of that many rows begins. Raises ValueError where rows= named another number of them."""
        if self.rows is not None and len(self.rows) != rows:
            raise ValueError(
                f"randomness is for {len(self.rows)} rows, and prompt has {rows}: give as many prompts as it has rows."
            )

    def child(self, name: str) -> Seeded:
        """Uniforms of another seed, hashed from this one and the name, for the same rows."""
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        return Seeded(int(splitmix64(splitmix64(self.seed, 0), int.from_bytes(digest, "little"))), self.rows)

    def _uniforms(self, stream, slots, rows):
        rounds, made, _, width = self._ahead.shape
        if made != rows or width < slots or not self._first <= self.round < self._first + rounds:
            self._first, self._ahead = self.round, self._block(rows, max(slots, 8))
        return self._ahead[self.round - self._first, :, STREAMS.index(stream), :slots].copy()

    def _block(self, rows, width):
        """[rounds, rows, streams, width]: the uniforms of this round and as many after it as AHEAD allows."""
        rounds = max(1, AHEAD // (rows * len(STREAMS) * width))
        rows = range(rows) if self.rows is None else self.rows
        # Nested streams: each field picks one output of the generator that the fields before it seeded.
        h = splitmix64(self.seed, np.array(rows, np.uint64))
        h = splitmix64(h, self.round + np.arange(rounds, dtype=np.uint64)[:, None])
        for count in (len(STREAMS), width):
            h = splitmix64(h[..., None], np.arange(count, dtype=np.uint64))
        return (h >> np.uint64(11)).astype(np.float64) * 2.0**-53


# --- Scripted -----------------------------------------------------------------------------------


def _is_slot(key) -> bool:
    if not (isinstance(key, tuple) and len(key) == 4 and key[2] in STREAMS):
        return False
    row, round, stream, slot = key
    whole = all(isinstance(number, (int, np.integer)) and number >= 0 for number in (row, round, slot))
    return whole and (stream != "next" or slot == 0)


class Scripted(_Uniform):
    """Chosen uniforms: {(row, round, stream, slot): u}; those missing come from base.

    Rows count from 0 in the decoding at hand: a row of a batch that is replayed by itself is row 0. Streams are
    "draft" (slot = draft position), "coin" (likewise) and "next" (slot 0). Change one coin of a
    decoded text and keep all others: Scripted({(0, 3, "coin", 1): 0.99}, base=Scripted.from_trace(trace)).

    Raises ValueError for a malformed key or a u outside [0, 1), and LookupError when the decoder needs a
    uniform that neither the script nor a base has.
    """

    def __init__(self, uniforms: dict, base: _Uniform | None = None):
        for key, u in uniforms.items():
            if not _is_slot(key):
                raise ValueError(
                    f"uniforms key {key!r}: must be (row, round, stream, slot), integers from 0 and a stream out of "
                    f'{STREAMS} ("next" has slot 0 alone).'
                )
            if not isinstance(u, numbers.Real) or not 0 <= u < 1:
                raise ValueError(f"uniforms[{key!r}] = {u!r}: must be a number in [0, 1).")
        if base is not None and not isinstance(base, _Uniform):
            raise ValueError(f"base={base!r}: must be a Seeded or another Scripted.")
        self.uniforms, self.base = dict(uniforms), base

    @classmethod
    def from_trace(cls, trace) -> Scripted:
        """The uniforms that a recorded Trace used, to replay it exactly as a single row."""
        uniforms = {}
        for number, round in enumerate(trace.rounds):
            if round.coins is None:
                raise ValueError("trace was recorded with record='none': it holds no uniforms to replay.")
            recorded = {("next", 0): round.u_next}
            recorded |= {("draft", i): u for i, u in enumerate(round.u_draft)}
            recorded |= {("coin", i): u for i, u in enumerate(round.coins)}
            uniforms |= {(0, number, *slot): u for slot, u in recorded.items() if not math.isnan(u)}
        return cls(uniforms, base=None if trace.seed is None else Seeded(trace.seed, rows=[trace.row]))

    def begin(self, rows: int) -> None:
        """A decoding of that many rows begins. Raises ValueError where a key is of a row beyond them."""
        if beyond := [key for key in self.uniforms if key[0] >= rows]:
            raise ValueError(f"uniforms name {beyond[0]}, but rows count from 0 and prompt has {rows}.")
        if self.base is not None:
            self.base.begin(rows)

    def begin_round(self, round: int, length=None) -> None:
        """A round begins, of this script and of its base."""
        super().begin_round(round)
        if self.base is not None:
            self.base.begin_round(round, length)

    def child(self, name: str) -> Scripted:
        """The base's child: a script's keys are of the outer decoding."""
        return Scripted({}, base=None if self.base is None else self.base.child(name))

    def _uniforms(self, stream, slots, rows):
        u = np.full((rows, slots), math.nan) if self.base is None else self.base._uniforms(stream, slots, rows)
        for row in range(rows):
            for slot in range(slots):
                u[row, slot] = self.uniforms.get((row, self.round, stream, slot), u[row, slot])
        return u

    def draw(self, probs, stream="draft", slot=0, active=None) -> Drawn:
        drawn = super().draw(probs, stream, slot, active)
        for row in np.flatnonzero([math.isnan(u) for u in drawn.u.tolist()]).tolist():
            if active is None or active[row]:
                self._missing(row, stream, slot)
        return drawn

    def flip(self, prob, active=None, *, last=False) -> Flipped:
        flipped = super().flip(prob, active, last=last)
        # A coin that was never given fails. Where that could have decided, it is asked for: the coin that ended the
        # leading successes, or any behind the last success. At probability 0 it decided nothing.
        for row, place in enumerate(flipped.accepted.tolist()):
            if active is None or active[row]:
                for slot in range(place, prob.shape[1] if last else min(place + 1, prob.shape[1])):
                    if prob[row, slot] != 0 and math.isnan(flipped.u[row, slot]):
                        self._missing(row, "coin", slot)
        return flipped

    def _missing(self, row, stream, slot):
        key = (row, self.round, stream, slot)
        raise LookupError(f"Scripted has no uniform for (row, round, stream, slot) = {key}; add it or give a base.")


# --- Exhaustive ---------------------------------------------------------------------------------


@dataclass
class Branch:
    """One batch of branches, a row each: follows the choices given, then takes the first of each later one."""

    paths: list[list[int]]  # of each row its root, then its choices
    weight: np.ndarray = field(init=False)  # [rows] float64: the probability of each row's choices
    options: np.ndarray = field(init=False)  # [rows] float64: product of the numbers of options at its choices
    unexplored: list[list[int]] = field(init=False, default_factory=list)
    used: bool = field(init=False, default=False)  # whether a decoding, or a round, began with it

    def __post_init__(self):
        self.weight, self.options = np.ones(len(self.paths)), np.ones(len(self.paths))
        self._taken = [1] * len(self.paths)

    @property
    def rows(self) -> int:
        return len(self.paths)

    @property
    def roots(self) -> list[int]:
        """[rows]: the tree that each row is a branch of."""
        return [path[0] for path in self.paths]

    def begin(self, rows: int) -> None:
        if rows != self.rows:
            raise ValueError(
                f"randomness is a branch of {self.rows} rows, and prompt has {rows}: give [prompt] * branch.rows."
            )
        if self.used:
            raise ValueError("randomness is a branch that was decoded before: give each branch one decoding.")
        self.used = True

    def begin_round(self, round: int, length=None) -> None:
        self.used = True

    def child(self, name: str) -> Branch:
        """The same paths, for a decoding of its own: choices inside a decoding are choices like any other."""
        child = copy.copy(self)
        child.used = False
        return child

    def draw(self, probs, stream="draft", slot=0, active=None) -> Drawn:
        probabilities = _on_host(probs).astype(np.float64)
        if (probabilities < 0).any():
            raise ValueError(
                f"the {stream!r} draw is from negative probabilities; clamp them at 0, as residual() does."
            )
        with np.errstate(invalid="ignore"):  # rows that are not active may be of nothing but zeros
            tokens = self._choose(probabilities / probabilities.sum(-1, keepdims=True), active)
        return Drawn(beside(tokens, probs), _like(np.full(self.rows, math.nan), probs))

    def flip(self, prob, active=None, *, last=False) -> Flipped:
        a = _on_host(prob).astype(np.float64).clip(0, 1)  # a coin below 1.7 is a coin below 1
        ones = np.ones((self.rows, 1))
        if last:  # k: a success at k, failures behind it
            weights = np.hstack([ones, a]) * np.cumprod(np.hstack([1 - a, ones])[:, ::-1], axis=1)[:, ::-1]
        else:  # k leading successes: A(x_1) ... A(x_k), then a failure (none is left to fail after gamma of them)
            weights = np.cumprod(np.hstack([ones, a]), axis=1) * np.hstack([1 - a, ones])
        return Flipped(_like(self._choose(weights, active), prob), _like(np.full(a.shape, math.nan), prob))

    def _choose(self, weights, active):
        of_row, ids = np.nonzero(weights)  # NaN counts: the decoder reports it at the commit
        bounds, ids = np.searchsorted(of_row, range(self.rows + 1)).tolist(), ids.tolist()
        self.used, chosen = True, np.zeros(self.rows, np.int64)
        for row in range(self.rows) if active is None else np.flatnonzero(active.tolist()).tolist():
            path, options = self.paths[row], ids[bounds[row] : bounds[row + 1]]
            if self._taken[row] == len(path):
                path.append(self._first_visit(path, options))
            choice = chosen[row] = path[self._taken[row]]
            if choice not in options:
                raise RuntimeError("Exhaustive: a replay met other choices; decoding must depend on its draws alone.")
            self._taken[row] += 1
            self.weight[row] *= weights[row, choice]
            self.options[row] *= len(options)
        return chosen

    def _first_visit(self, path, options):
        self.unexplored += [[*path, other] for other in options[:0:-1]]
        return options[0]


class Exhaustive:
    """Every branch of a decoding, with its exact probability: depth-first, by replay.

        for branch in Exhaustive(rows=64):
            traces = speculate(target, drafter, [prompt] * branch.rows, randomness=branch, record="none")
            for trace, weight in zip(traces, branch.weight): ...

    Each of a branch's rows is one way the decoding can go; the weights of all add up to 1. The number of
    accepted drafts is one choice of gamma + 1, not gamma coins. Several prompts are searched in one go with roots:
    a row of branch.roots[row] decodes that prompt.
    """

    def __init__(self, rows: int = 1, roots: int = 1):
        self.rows = integer(rows, "rows", 1, " (branches decoded at once)")
        self.roots = integer(roots, "roots", 1, " (prompts)")

    def __iter__(self):
        stack = [[root] for root in reversed(range(self.roots))]
        while stack:
            branch = Branch(stack[-self.rows :])
            del stack[-self.rows :]
            yield branch
            unmet = any(taken < len(path) for taken, path in zip(branch._taken, branch.paths, strict=True))
            if unmet or not branch.used:
                raise RuntimeError("Exhaustive: a branch was not decoded; pass it as randomness= in the loop.")
            stack += branch.unexplored
