"""A measured pair as data: acceptance, costs and speedups; predictions from them; to and from JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from specviz.speedup.theory import expected_tokens_by_position, round_cost, speedup
from specviz.speedup.verdict import Advice, advice, report, verdict
from specviz.trace import PHASES

VERSION = 2
BUNDLED = {"tales": Path(__file__).parent / "tales.json"}


@dataclass(frozen=True)
class MeasuredSpeedup:
    """Speedup over plain decoding in several runs, each of which decoded every measured prompt both ways."""

    median: float
    low: float  # the slowest and the fastest of the runs
    high: float
    runs: int


@dataclass(frozen=True, repr=False)
class Profile:
    """One pair on one machine, as profile() measures it.

    Times without a unit are in target steps: 1 is the target's forward over one token. The speedups come from one half
    of the prompts. All that the prediction is made of comes from forwards timed one by one and from the other half,
    decoded plainly and with the largest γ alone.

    Raises ValueError for numbers that cannot be: rates outside [0, 1], times that are not positive, no γ at all.
    """

    target: str
    drafter: str
    machine: str
    device: str
    dtype: str
    threads: int
    sampling: dict
    prompts: int
    max_new_tokens: int  # decoded after each prompt
    alpha_by_position: list[tuple[float, int]]  # (accepted / tested, tested) at draft position 1, 2, …
    alpha_intervals: list[tuple[float, float]]  # 95 %; see specviz.speedup.measure.acceptance
    draft_lengths: dict[int, float]  # {drafts proposed where the largest γ was asked for: share of such rounds}
    target_seconds: float  # a target step
    c: float  # a draft step: of a draft model its forward alone, of other drafters the draft phase a drafted token
    catch_up: float  # extra time of the draft's forward over two tokens, due after full acceptance, beyond c
    draft_prompt_seconds: float  # the draft's forward over the prompt, in the first round
    verify_cost: dict[int, float]  # {n: V(n)}
    plain_seconds: dict[str, float]  # {phase: seconds of a plain step outside its forward}
    outside_seconds: dict[str, list[float]]  # {phase: seconds of a round outside its forwards, by its drafts from 0 on}
    speedups: dict[int, MeasuredSpeedup]  # {γ: measured}
    tokens_per_round: dict[int, float]  # {γ: measured}
    operations_ratio: float | None = None  # ĉ: parameters of the draft over the target's
    version: int = VERSION

    def __post_init__(self):
        def check(holds, name, must):
            if not holds:
                raise ValueError(f"profile: {name}={getattr(self, name)!r}: must be {must}.")

        rates = [alpha for alpha, _ in self.alpha_by_position]
        check(all(0 <= a <= 1 for a in rates), "alpha_by_position", "(rate in [0, 1], count) by position")
        check(all(n > 0 for _, n in self.alpha_by_position), "alpha_by_position", "counted over at least one test")
        sound = len(self.alpha_intervals) == len(rates)
        sound = sound and all(0 <= low <= a <= high <= 1 for a, (low, high) in zip(rates, self.alpha_intervals))
        check(sound, "alpha_intervals", "(low, high) around the rate of each position")
        sound = min(self.draft_lengths, default=-1) >= 0 and min(self.draft_lengths.values()) >= 0
        sound = sound and abs(sum(self.draft_lengths.values()) - 1) < 1e-9
        check(sound, "draft_lengths", "{length: share}, the shares summing to 1")
        check(self.max_new_tokens >= 2 and self.max_new_tokens % 1 == 0, "max_new_tokens", "a whole number, at least 2")
        check(0 < self.target_seconds < np.inf, "target_seconds", "positive and finite")
        for name in ("c", "catch_up", "draft_prompt_seconds"):
            check(0 <= getattr(self, name) < np.inf, name, "a time >= 0")
        sound = self.verify_cost.get(1) == 1 == min(self.verify_cost) and min(self.verify_cost.values()) > 0
        check(sound, "verify_cost", "{n: V(n)} from V(1) = 1 on, all above 0")
        phases = f"times >= 0 for each of {', '.join(PHASES)}"
        sound = {*self.plain_seconds} == {*PHASES} and min(self.plain_seconds.values()) >= 0
        check(sound, "plain_seconds", phases)
        sound = {*self.outside_seconds} == {*PHASES} and len({*map(len, self.outside_seconds.values())}) == 1
        sound = sound and all(len(times) > 1 and min(times) >= 0 for times in self.outside_seconds.values())
        check(sound, "outside_seconds", f"{phases}, by the number of drafts from 0 on")
        check(min(self.speedups, default=0) >= 1, "speedups", "{γ: MeasuredSpeedup} with γ >= 1")
        for speed in self.speedups.values():
            check(0 < speed.low <= speed.median <= speed.high, "speedups", "positive, with low <= median <= high")
        sound = {*self.tokens_per_round} == {*self.speedups}
        sound = sound and all(1 <= n < np.inf for n in self.tokens_per_round.values())
        check(sound, "tokens_per_round", "1 or more for each γ of speedups")

    def __repr__(self):
        best = self.fastest
        return (
            f"<Profile of {self.target!r} with {self.drafter!r} on {self.machine}: α = {self.alpha:.2f}, "
            f"c = {self.c:.2f}, best measured {self.speedups[best].median:.2f}x at γ = {best}>"
        )

    @property
    def alpha(self) -> float:
        """Accepted / tested over all positions; 0 where nothing was ever drafted."""
        tested = sum(n for _, n in self.alpha_by_position)
        return sum(alpha * n for alpha, n in self.alpha_by_position) / tested if tested else 0.0

    @property
    def fastest(self) -> int:
        """The γ of the largest median speedup measured, be it above 1 or not."""
        return max(self.speedups, key=lambda gamma: self.speedups[gamma].median)

    @property
    def best_gamma(self) -> int:
        """The fastest γ, or 0 where even that was no faster than plain decoding: do not speculate."""
        return self.fastest if self.speedups[self.fastest].median > 1 else 0

    @property
    def verify_slope(self) -> float:
        """The slope of the straight line 1 + slope·(n - 1) nearest to the measured V(n), at least 0."""
        more = np.array([n - 1 for n in self.verify_cost])
        excess = np.array(list(self.verify_cost.values())) - 1
        return max(0.0, float(more @ excess / (more @ more))) if more.any() else 0.0

    def verify(self, n):
        """V(n), n numbers or arrays: between measured sizes on straight lines, beyond the largest on the last line."""
        return _along(self.verify_cost, n)

    def parts(self, gamma: int) -> dict[str, float]:
        """Where the time of a round goes, {part: target steps}; gamma = 0 is a plain step.

        "draft forwards" and "target forward" are the models; the other four are the rest of each phase: drawing the
        drafts from q, turning logits into p, the coins and the residual, the committing. Where the drafter proposes
        fewer tokens than gamma, the parts are means over the lengths that it proposed.
        """
        if gamma == 0:
            outside = {phase: self.plain_seconds[phase] / self.target_seconds for phase in PHASES}
            return {"draft forwards": 0.0, "target forward": 1.0, **outside}
        totals = dict.fromkeys(("draft forwards", "target forward", *PHASES), 0.0)
        for drafts, share in self._lengths(gamma).items():
            totals["draft forwards"] += share * drafts * self.c
            totals["target forward"] += share * float(self.verify(drafts + 1))
            for phase in PHASES:
                totals[phase] += share * self._outside(phase, drafts)
        return totals

    def overhead(self, gamma):
        """Time of a round outside the forwards (gamma, numbers or arrays; 0 is a plain step), in target steps."""
        return np.vectorize(lambda g: sum(self.parts(int(g))[phase] for phase in PHASES), otypes=[float])(gamma)[()]

    # --- predictions ----------------------------------------------------------------------------

    def iid(self, gamma):
        """The speedup at gamma (numbers or arrays) with one α for all positions: Theorem 3.8, with V(γ+1) for its 1."""
        return speedup(self.alpha, gamma, self.c, self.verify)

    def predicted(self, gamma, *, overhead=False):
        """The speedup that α by position, c and V(n) promise at gamma (a number or an array): E[N] / (γ c + V(γ+1)).

        overhead=True is the whole prediction, of texts of max_new_tokens tokens: it also counts the time outside the
        forwards (in plain decoding too), the draft's forward over the prompt, and the short windows at a text's end.
        Positions beyond those measured have the rate of the last one.
        """
        one = self._speedup_of_a_text if overhead else self._speedup_of_a_round
        return np.vectorize(lambda g: one(int(g)) if g else 1.0, otypes=[float])(gamma)[()]

    def predicted_tokens_per_round(self, gamma: int) -> float:
        """Tokens a round in texts of max_new_tokens tokens, their short last rounds included."""
        return self.max_new_tokens / float(self._rounds(gamma)[0].sum())

    def _speedup_of_a_round(self, gamma):
        rates, tokens, cost = self._rates(gamma), 0.0, 0.0
        for drafts, share in self._lengths(gamma).items():
            tokens += share * expected_tokens_by_position(rates[:drafts])
            cost += share * round_cost(drafts, self.c, self.verify)
        return tokens / cost

    def _speedup_of_a_text(self, gamma):
        plain = self.max_new_tokens * sum(self.parts(0).values())
        counts, catching_up = self._rounds(gamma)
        own = self.draft_prompt_seconds / self.target_seconds + catching_up * self.catch_up
        for drafts, rounds in enumerate(counts):
            outside = sum(self._outside(phase, drafts) for phase in PHASES)
            own += rounds * (round_cost(drafts, self.c, self.verify) + outside)
        return plain / own

    def _rounds(self, gamma):
        return expected_rounds(self._rates(gamma), self._lengths(gamma), self.max_new_tokens)

    def _rates(self, gamma):
        rates = [alpha for alpha, _ in self.alpha_by_position] or [0.0]
        return np.array((rates + rates[-1:] * gamma)[:gamma])

    def _lengths(self, gamma) -> dict[int, float]:
        """{drafts: share of rounds} at gamma. Rounds that filled the largest γ measured would fill a larger one too."""
        lengths, largest = {}, len(self.outside_seconds["draft"]) - 1
        for proposed, share in self.draft_lengths.items():
            drafts = gamma if proposed >= largest else min(proposed, gamma)
            lengths[drafts] = lengths.get(drafts, 0.0) + share
        return lengths

    def _outside(self, phase, drafts) -> float:
        return float(_along(dict(enumerate(self.outside_seconds[phase])), drafts)) / self.target_seconds

    # --- in words -------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """Whether to speculate, with which γ, the limit, and whether the prediction held: a few sentences."""
        return verdict(self)

    @property
    def advice(self) -> list[Advice]:
        """What to do about the findings of the verdict: (problem, remedy, lesson) each, empty if nothing helps."""
        return advice(self)

    def report(self) -> str:
        """Everything as text: acceptance, costs, predicted against measured, the verdict, the advice."""
        return report(self)

    # --- JSON -----------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The profile as JSON, with a version."""
        return json.dumps(asdict(self), allow_nan=False, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """The inverse of to_json. Raises ValueError for other JSON, for another version and for bad numbers."""
        try:
            data = json.loads(text, parse_constant=_refuse)
            if (version := data.get("version")) == VERSION:
                for name in ("draft_lengths", "verify_cost", "speedups", "tokens_per_round"):
                    data[name] = {int(key): value for key, value in data[name].items()}
                data["speedups"] = {gamma: MeasuredSpeedup(**speed) for gamma, speed in data["speedups"].items()}
                for name in ("alpha_by_position", "alpha_intervals"):
                    data[name] = [(float(rate), other) for rate, other in data[name]]
                return cls(**data)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"this is not the JSON of a profile: {error!r}.") from error
        raise ValueError(f"profile version {version!r}: this specviz reads version {VERSION}; measure anew.")

    @classmethod
    def bundled(cls, name="tales") -> Profile:
        """The profile of a bundled pair, as measured once on the machine that it names."""
        if name not in BUNDLED:
            raise ValueError(f"profile {name!r} is unknown: the bundled ones are {sorted(BUNDLED)}.")
        return cls.from_json(BUNDLED[name].read_text(encoding="utf-8"))


def expected_rounds(alphas, lengths, max_new_tokens):
    """The mean number of rounds of a text -> (rounds [γ+1] by drafts, rounds that catch up).

    alphas [γ]: acceptance rate by position, each given that all before were accepted. lengths {l: share}: tokens that
    the drafter proposes, up to γ. A round catches up if it has drafts and comes after full acceptance: the draft model
    has not been fed the last draft yet.

    Exact where acceptance depends on the position alone: with r tokens to come a round drafts L = min(l, r - 1),
    accepts k of them with probability Π_{i<=k} α_i·(1 - α_{k+1}) (no second factor for k = L), and leaves r - k - 1.
    In an endless text the mean tokens of a round are 1 + Σ_k Π_{i<=k} α_i: Equation 1 where all α_i are equal.
    """
    alphas = np.asarray(alphas, dtype=float)
    most = len(alphas)
    # ahead[r, late]: expected rounds by drafts, and in the last column those that catch up, with r tokens to come;
    # late: the round before accepted all its drafts
    ahead = np.zeros((max_new_tokens + 1, 2, most + 2))
    for r in range(1, max_new_tokens + 1):
        for length, share in lengths.items():
            drafts = min(length, most, r - 1)
            reached = np.append(1.0, np.cumprod(alphas[:drafts]))  # P(at least k are accepted)
            accepted = reached - np.append(reached[1:], 0.0)  # P(exactly k are)
            rest = sum(accepted[k] * ahead[r - k - 1, int(0 < k == drafts)] for k in range(drafts + 1))
            ahead[r] += share * rest
            ahead[r, :, drafts] += share
            ahead[r, 1, -1] += share * (drafts > 0)
    return ahead[max_new_tokens, 0, :-1], float(ahead[max_new_tokens, 0, -1])


def _refuse(constant):
    raise ValueError(f"{constant} is no JSON number")


def _along(points, at):
    """Piecewise linear through {x: y}; beyond the last point along the last piece, never falling; flat before."""
    x = np.array(sorted(points), dtype=float)
    y = np.array([points[int(i)] for i in x])
    at = np.asarray(at, dtype=float)
    rise = max(0.0, (y[-1] - y[-2]) / (x[-1] - x[-2])) if len(x) > 1 else 0.0
    return np.interp(at, x, y) + rise * np.maximum(at - x[-1], 0)
