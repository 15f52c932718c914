"""Randomness as an argument: the decoder asks for draws and coin flips, and one of three answers.

Seeded runs, Scripted replays with chosen uniforms, Exhaustive visits every outcome with its probability.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field

import numpy as np
import torch

from specviz.arguments import integer

STREAMS = ("draft", "coin", "next")


@dataclass
class Drawn:
    token: torch.Tensor  # [B] int64, on the device of the probabilities
    u: torch.Tensor  # [B] float64, on the CPU; NaN where nothing was drawn

    def __iter__(self):
        return iter((self.token, self.u))


@dataclass
class Flipped:
    accepted: torch.Tensor  # [B] int64: number of leading successes, on the device of the probabilities
    u: torch.Tensor  # [B, gamma] float64, on the CPU; NaN where nothing was flipped

    def __iter__(self):
        return iter((self.accepted, self.u))


def inverse_cdf(probs: torch.Tensor, u: torch.Tensor | np.ndarray) -> torch.Tensor:
    """The token in whose slice of the cumulative distribution u falls. [B, V], [B] -> [B] int64.

    With u [B, n], n tokens of each distribution: [B, n]. probs need not sum to 1: u in [0, 1) is scaled by their
    float64 total. A token of probability zero has an empty slice and never comes out, neither at u = 0 nor as u
    nears 1.
    """
    if probs.requires_grad:
        probs = probs.detach()
    if probs.is_cpu and u.shape == (1,) and probs.dtype != torch.bfloat16:  # numpy has less to do for a single number
        return torch.from_numpy(np.array([inverse_cdf_row(probs.numpy()[0], u.item())]))
    home, u = probs.device, torch.as_tensor(u)
    if probs.is_mps:  # no float64 there
        probs = probs.cpu()
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:].contiguous()
    point = (u if u.ndim == 2 else u[:, None]).to(cumulative.device) * total
    token = torch.searchsorted(cumulative, point, right=True)
    last = torch.searchsorted(cumulative, total)  # the last token that adds mass
    return torch.minimum(token, last).clamp(max=probs.shape[-1] - 1).view(u.shape).to(home)


def inverse_cdf_row(mass: np.ndarray, u: float) -> int:
    """inverse_cdf() for one distribution, mass [V], on the CPU."""
    cumulative = torch.from_numpy(mass).cumsum(0, dtype=torch.float64).numpy()
    total = cumulative[-1]
    token = int(cumulative.searchsorted(u * total, side="right"))
    if token == len(cumulative):  # the product was rounded up to the total (or is NaN)
        token = int(cumulative.searchsorted(total))
    return token


def leading_successes(success: torch.Tensor) -> torch.Tensor:
    """[B, n] bool -> [B] int64: how many are true before the first that is not."""
    return success.cumprod(-1).sum(-1)


class _Uniform:
    """Draws and flips decided by uniforms that a subclass supplies."""

    round = 0
    batch: int | None = None  # the number of rows that can be decoded; None if any

    def begin_round(self, round: int) -> None:
        self.round = round

    def _uniforms(self, stream: str, slots: int, batch: int) -> np.ndarray:
        """[batch, at least that many slots] float64."""
        raise NotImplementedError

    def draw(self, probs, stream="draft", slot=0, active=None) -> Drawn:
        """Draw one token a row. probs [B, V] -> Drawn; rows that are not active give a token to ignore."""
        u = self._uniforms(stream, slot + 1, probs.shape[0])[:, slot]
        return Drawn(inverse_cdf(probs, u), torch.from_numpy(_mask(u, active)))

    def flip(self, prob, active=None) -> Flipped:
        """Flip coins left to right until the first failure. prob [B, gamma] -> Flipped."""
        u = self._uniforms("coin", prob.shape[1], prob.shape[0])[:, : prob.shape[1]]
        coins, home = torch.from_numpy(u), prob.device
        if prob.is_mps:  # no float64 there
            prob = prob.cpu()
        if prob.shape[1] == 0:
            return Flipped(torch.zeros(len(prob), dtype=torch.long, device=home), coins)
        return Flipped(leading_successes(coins.to(prob.device) < prob).to(home), torch.from_numpy(_mask(u, active)))

    # The same for a single row on the CPU, in numbers: mass [V] an array, prob a list.

    def draw_row(self, mass, stream="draft", slot=0) -> int:
        return inverse_cdf_row(mass, self._uniforms(stream, slot + 1, 1)[0, slot])

    def flip_row(self, prob) -> int:
        coins = self._uniforms("coin", len(prob), 1)[0].tolist()
        return next((i for i, a in enumerate(prob) if not coins[i] < a), len(prob))


def _mask(u, active):
    """u with NaN in the rows that are not active: they consume nothing."""
    if active is None or all(active.tolist()):
        return u
    return np.where(active.cpu().numpy().reshape(-1, *[1] * (u.ndim - 1)), u, math.nan)


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
    Seeded(seed, rows=[r]). Every row, round, stream and slot has a uniform of its own: what one row draws
    never depends on its batch mates, on the device, or on the version of a library.

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
        self.batch = None if self.rows is None else len(self.rows)
        self._first, self._ahead = 0, np.empty((0, 0, len(STREAMS), 0))  # the uniforms of some rounds from _first on

    def _uniforms(self, stream, slots, batch):
        rounds, rows, _, width = self._ahead.shape
        if rows != batch or width < slots or not self._first <= self.round < self._first + rounds:
            self._first, self._ahead = self.round, self._block(batch, max(slots, 8))
        return self._ahead[self.round - self._first, :, STREAMS.index(stream)]

    def _block(self, batch, width):
        """[rounds, batch, streams, width]: the uniforms of this round and as many after it as AHEAD allows."""
        rounds = max(1, AHEAD // (batch * len(STREAMS) * width))
        rows = range(batch) if self.rows is None else self.rows
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
        self.batch = None if base is None else base.batch

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

    def begin_round(self, round: int) -> None:
        super().begin_round(round)
        if self.base is not None:
            self.base.begin_round(round)

    def _uniforms(self, stream, slots, batch):
        if self.base is None:
            u = np.full((batch, slots), math.nan)
        else:
            u = self.base._uniforms(stream, slots, batch).copy()
        for row in range(batch):
            for slot in range(slots):
                u[row, slot] = self.uniforms.get((row, self.round, stream, slot), u[row, slot])
        return u

    def draw(self, probs, stream="draft", slot=0, active=None) -> Drawn:
        drawn = super().draw(probs, stream, slot, active)
        for row in drawn.u.isnan().nonzero().flatten().tolist():
            if active is None or active[row]:
                self._missing(row, stream, slot)
        return drawn

    def flip(self, prob, active=None) -> Flipped:
        flipped = super().flip(prob, active)
        for row, slot in enumerate(flipped.accepted.tolist()):
            # Only the coin that ended the successes can be one that was never given; at probability 0 it
            # decided nothing.
            if slot < prob.shape[1] and prob[row, slot] != 0 and flipped.u[row, slot].isnan():
                if active is None or active[row]:
                    self._missing(row, "coin", slot)
        return flipped

    def draw_row(self, mass, stream="draft", slot=0) -> int:
        if math.isnan(self._uniforms(stream, slot + 1, 1)[0, slot]):
            self._missing(0, stream, slot)
        return super().draw_row(mass, stream, slot)

    def flip_row(self, prob) -> int:
        accepted = super().flip_row(prob)
        if accepted < len(prob) and prob[accepted] != 0:
            if math.isnan(self._uniforms("coin", len(prob), 1)[0, accepted]):
                self._missing(0, "coin", accepted)
        return accepted

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

    @property
    def batch(self) -> int:
        return self.rows

    def begin_round(self, round: int) -> None:
        pass

    def draw(self, probs, stream="draft", slot=0, active=None) -> Drawn:
        mass = probs.cpu().double()
        if (mass < 0).any():
            raise ValueError(
                f"the {stream!r} draw is from negative probabilities; clamp them at 0, as residual() does."
            )
        tokens = self._choose((mass / mass.sum(-1, keepdim=True)).numpy(), active)
        return Drawn(torch.tensor(tokens, device=probs.device), torch.full((self.rows,), math.nan, dtype=torch.float64))

    def flip(self, prob, active=None) -> Flipped:
        a = prob.cpu().double().numpy().clip(0, 1)  # a coin below 1.7 is a coin below 1
        ones = np.ones((self.rows, 1))
        # k leading successes: A(x_1) ... A(x_k), then a failure (none is left to fail after gamma of them)
        weights = np.cumprod(np.hstack([ones, a]), axis=1) * np.hstack([1 - a, ones])
        accepted = self._choose(weights, active)
        return Flipped(
            torch.tensor(accepted, device=prob.device), torch.full(prob.shape, math.nan, dtype=torch.float64)
        )

    def draw_row(self, mass, stream="draft", slot=0) -> int:
        return self.draw(torch.from_numpy(mass)[None], stream, slot).token.item()

    def flip_row(self, prob) -> int:
        return self.flip(torch.tensor([prob], dtype=torch.float64)).accepted.item()

    def _choose(self, weights, active):
        of_row, ids = np.nonzero(weights)  # NaN counts: the decoder reports it at the commit
        bounds, ids = np.searchsorted(of_row, range(self.rows + 1)).tolist(), ids.tolist()
        chosen = [0] * self.rows
        for row in range(self.rows) if active is None else active.nonzero().flatten().tolist():
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
            if any(taken < len(path) for taken, path in zip(branch._taken, branch.paths, strict=True)):
                raise RuntimeError("Exhaustive: a branch was not decoded; pass it as randomness= in the loop.")
            stack += branch.unexplored


class Probe(Branch):
    """Branches that choose at random, to estimate how many there are without visiting them.

    After a decoding, the mean of options is an unbiased estimate of the number of branches, and draws[i] one of how
    many different ways lead to its draw number i (Knuth: Estimating the efficiency of backtrack programs, 1975).
    """

    def __init__(self, rows: int, seed: int = 0):
        super().__init__([[0] for _ in range(rows)])
        self.draws: list[float] = []
        self._generator = np.random.default_rng(seed)

    def draw(self, probs, stream="draft", slot=0, active=None) -> Drawn:
        of_active = self.options if active is None else np.where(active.cpu().numpy(), self.options, 0)
        self.draws.append(float(of_active.mean()))
        return super().draw(probs, stream, slot, active)

    def _first_visit(self, path, options):
        return options[self._generator.integers(len(options))]
