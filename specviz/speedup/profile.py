"""A measured pair: what its drafts are worth, what its forwards cost, and how fast it was."""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch

from specviz.arguments import as_prompts, check_target, integer
from specviz.decoding import autoregress, speculate
from specviz.drafters.model import ModelDrafter, as_drafter
from specviz.progress import progress_bar
from specviz.sampling import SamplingParams
from specviz.speedup.theory import expected_tokens_by_position, round_cost

VERSION = 1
BUNDLED = {"tales": Path(__file__).parent / "tales.json"}


@dataclass(frozen=True)
class Speed:
    """Speedup over plain decoding in several runs, each of which decoded every prompt both ways."""

    median: float
    low: float  # the slowest and the fastest of the runs
    high: float
    runs: int


@dataclass(frozen=True, repr=False)
class Profile:
    """One pair on one machine. Times without unit are in target steps: the target's forward over one token.

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
    new_tokens: int  # decoded after each prompt
    alpha_by_position: list[tuple[float, int]]  # (accepted / tested, tested) at draft position 1, 2, …
    target_seconds: float  # a target step
    c: float  # a draft step (its forward alone)
    verify_cost: dict[int, float]  # {n: V(n)}
    overhead_seconds: dict[int, float]  # {γ: seconds of a round outside the forwards}; γ = 0 is plain decoding
    speedups: dict[int, Speed]  # {γ: measured}
    operations_ratio: float | None = None  # ĉ: parameters of the draft over the target's
    version: int = VERSION

    def __post_init__(self):
        def check(holds, name, must):
            if not holds:
                raise ValueError(f"profile: {name}={getattr(self, name)!r}: must be {must}.")

        rates = [alpha for alpha, _ in self.alpha_by_position]
        check(self.version == VERSION, "version", f"{VERSION}, which is what this specviz reads; measure anew")
        check(rates and all(0 <= a <= 1 for a in rates), "alpha_by_position", "(rate in [0, 1], count) by position")
        check(all(n > 0 for _, n in self.alpha_by_position), "alpha_by_position", "counted over at least one test")
        check(self.target_seconds > 0, "target_seconds", "positive")
        check(self.c >= 0, "c", "a time ratio >= 0")
        check(self.verify_cost.get(1) == 1 and min(self.verify_cost) == 1, "verify_cost", "{n: V(n)} from V(1) = 1 on")
        check(all(cost > 0 for cost in self.verify_cost.values()), "verify_cost", "{n: V(n)}, all above 0")
        check(self.speedups and all(g >= 1 for g in self.speedups), "speedups", "{γ: Speed} with γ >= 1")
        for speed in self.speedups.values():
            check(0 < speed.low <= speed.median <= speed.high, "speedups", "positive, with low <= median <= high")
        check({0, *self.speedups} <= set(self.overhead_seconds), "overhead_seconds", "given for γ = 0 and each γ")

    def __repr__(self):
        best = max(self.speedups, key=lambda gamma: self.speedups[gamma].median)
        return (
            f"<Profile of {self.target!r} with {self.drafter!r} on {self.machine}: α = {self.alpha:.2f}, "
            f"c = {self.c:.2f}, best measured {self.speedups[best].median:.2f}x at γ = {best}>"
        )

    @property
    def alpha(self) -> float:
        """Accepted / tested over all positions."""
        tested = sum(n for _, n in self.alpha_by_position)
        return sum(alpha * n for alpha, n in self.alpha_by_position) / tested

    @property
    def verify_slope(self) -> float:
        """The slope of the straight line 1 + slope·(n - 1) nearest to the measured V(n), at least 0."""
        more = np.array([n - 1 for n in self.verify_cost])
        excess = np.array(list(self.verify_cost.values())) - 1
        return max(0.0, float(more @ excess / (more @ more))) if more.any() else 0.0

    def verify(self, n):
        """V(n), numbers or arrays: between measured sizes along straight lines, beyond the largest along the last."""
        return _along(self.verify_cost, n)

    def overhead(self, gamma):
        """Time of a round outside the forwards, in target steps, between and beyond measured γ in the same way."""
        return _along(self.overhead_seconds, gamma) / self.target_seconds

    def predicted(self, gamma, *, overhead=False):
        """The speedup that α by position, c and V(n) promise at gamma (a number or an array).

        Positions beyond those measured are given the last one's rate. overhead=True also counts the time outside the
        forwards (drawing tokens, tossing coins, bookkeeping), in this and in plain decoding.
        """
        gamma = np.asarray(gamma)
        rates = [alpha for alpha, _ in self.alpha_by_position]
        longest = max(int(gamma.max()), 1)
        rates = np.array((rates + rates[-1:] * longest)[:longest])
        used = np.where(np.arange(longest) < gamma[..., None], rates, 0)  # a rate of 0 ends the product
        cost, plain = round_cost(gamma, self.c, self.verify), 1.0
        if overhead:
            cost, plain = cost + self.overhead(gamma), plain + self.overhead(0)
        return expected_tokens_by_position(used) * plain / cost

    def to_json(self) -> str:
        """The profile as JSON, with a version."""
        return json.dumps(asdict(self), allow_nan=False, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """The inverse of to_json. Raises ValueError for other JSON, for another version and for bad numbers."""
        try:
            data = json.loads(text, parse_constant=_refuse)
        except (TypeError, ValueError) as error:
            raise ValueError(f"this is not the JSON of a profile: {error}.") from error
        version = data.get("version") if isinstance(data, dict) else None
        if type(version) is not int or version != VERSION:
            raise ValueError(f"profile version {version!r}: this specviz reads version {VERSION}; measure anew.")
        if unknown := set(data) - {field.name for field in fields(cls)}:
            raise ValueError(f"this is not the JSON of a profile: it has {sorted(unknown)} besides.")
        try:
            for name in ("verify_cost", "overhead_seconds", "speedups"):
                data[name] = {int(key): value for key, value in data[name].items()}
            data["speedups"] = {gamma: Speed(**speed) for gamma, speed in data["speedups"].items()}
            data["alpha_by_position"] = [(float(alpha), int(tested)) for alpha, tested in data["alpha_by_position"]]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"this is not the JSON of a complete profile: {error!r}.") from error
        try:
            return cls(**data)
        except TypeError as error:  # a field that lacks, or text where a number belongs
            raise ValueError(f"this is not the JSON of a complete profile: {error}.") from error

    @classmethod
    def bundled(cls, name="tales") -> Profile:
        """The profile of a bundled pair, as measured once on the machine that it names."""
        if name not in BUNDLED:
            raise ValueError(f"profile {name!r} is unknown: the bundled ones are {sorted(BUNDLED)}.")
        return cls.from_json(BUNDLED[name].read_text(encoding="utf-8"))


def measure(
    target, drafter, prompts, *, gammas=(1, 2, 3, 4, 5, 6, 8), new_tokens=64, sampling=None, runs=5, seed=0,
    progress=None,
) -> Profile:  # fmt: skip
    """Measure a pair, drafter being a language model -> Profile. Takes runs * len(prompts) * (len(gammas) + 1) texts.

    Every run decodes each prompt plainly and with each γ, one right after the other, so that a busy moment of the
    machine hits all alike, and times single forwards in between. A run's speedup is that of all its prompts together;
    the first prompt is decoded once more before, unmeasured, to warm up. Texts have exactly new_tokens tokens (EOS
    does not end them), the time of the prompt's own forward is left out, and nothing is recorded meanwhile.
    progress: True shows a bar at once, None after two seconds, False never.

    Raises ValueError for wrong arguments, and for a text that hits the target's context.
    """
    check_target(target)
    drafter = as_drafter(drafter)
    if not isinstance(drafter, ModelDrafter):
        raise ValueError(
            f"drafter is a {type(drafter).__name__}: measure needs a draft model, whose step has a cost c."
        )
    drafter.fit(target)
    prompts, _ = as_prompts(target, prompts)
    gammas = sorted({integer(gamma, "gammas: a γ", 1) for gamma in gammas})
    if not gammas:
        raise ValueError("gammas=() is empty: give at least one γ, such as (1, 2, 4).")
    new_tokens, runs = integer(new_tokens, "new_tokens", 2), integer(runs, "runs", 1)
    if (longest := max(map(len, prompts))) + new_tokens > target.context:
        raise ValueError(
            f"new_tokens={new_tokens}: with a prompt of {longest} tokens that is more than the context of "
            f"{target.name!r} ({target.context}); ask for less."
        )
    if gammas[-1] >= new_tokens:
        raise ValueError(f"gammas: γ={gammas[-1]} never fits into new_tokens={new_tokens}; ask for a longer text.")
    sampling = SamplingParams() if sampling is None else sampling
    windows = [0, *gammas]
    costs = _Costs(target, drafter.model, windows)
    totals = {gamma: [] for gamma in windows}  # seconds of all prompts together, one entry a run
    done = {gamma: [] for gamma in windows}  # rounds
    texts = [(-1, prompts[0])] + [(run, prompt) for run in range(runs) for prompt in prompts]

    with progress_bar(len(texts), "measuring", progress, unit="text") as bar:
        for i, (run, prompt) in enumerate(texts):
            first = (i - 1) % len(prompts) == 0  # of its run
            for gamma in np.roll(windows, i).tolist():  # nobody is always first
                settings = dict(max_new_tokens=new_tokens, sampling=sampling, eos=(), seed=seed + i, record="none")
                if gamma == 0:
                    trace = autoregress(target, prompt, **settings)
                else:
                    trace = speculate(target, drafter, prompt, gamma=gamma, **settings)
                if run < 0:
                    continue
                if first:
                    totals[gamma].append(0.0)
                totals[gamma][-1] += sum(sum(r.seconds.values()) for r in trace.rounds)
                done[gamma] += trace.rounds
            costs.time_forwards(keep=run >= 0)
            bar.update()
    return Profile(
        target=target.name,
        drafter=drafter.name,
        machine=machine(target.device),
        device=target.device.type,
        dtype=str(target.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        sampling=sampling.to_dict(),
        prompts=len(prompts),
        new_tokens=new_tokens,
        alpha_by_position=_alpha_by_position([r for gamma in gammas for r in done[gamma]]),
        overhead_seconds={gamma: costs.outside(gamma, done[gamma]) for gamma in windows},
        speedups={gamma: _speed(totals[0], totals[gamma]) for gamma in gammas},
        operations_ratio=_operations_ratio(target, drafter.model),
        **costs.ratios(),
    )


class _Costs:
    """Times single forwards after a short prompt, in the order of a round: its draft steps, then the verification."""

    PROMPT = 64  # tokens; what a token costs grows little with the text

    def __init__(self, target, draft, windows):
        self.models = {"target": target, "draft": draft}
        self.sizes = sorted({1, 2, *(gamma + 1 for gamma in windows)})
        capacity = min(self.PROMPT, target.context // 2) + max(self.sizes)
        self.memories = {name: model.start([[0]], capacity) for name, model in self.models.items()}
        for memory in self.memories.values():
            memory.feed(torch.zeros(1, capacity - max(self.sizes), dtype=torch.long))
        self.start = capacity - max(self.sizes)
        self.seconds = {("draft", 1): [], **{("target", n): [] for n in self.sizes}}

    def time_forwards(self, keep):
        for n in self.sizes:
            for name, tokens in [("draft", 1)] * max(1, n - 1) + [("target", n)]:
                memory, device = self.memories[name], self.models[name].device
                memory.rewind(self.start)
                fed = torch.zeros(1, tokens, dtype=torch.long, device=device)
                _wait(device)
                began = time.perf_counter()
                memory.feed(fed)
                _wait(device)
                if keep:
                    self.seconds[name, tokens].append(time.perf_counter() - began)

    def ratios(self):
        step = self._median("target", 1)
        return dict(
            target_seconds=step,
            c=self._median("draft", 1) / step,
            verify_cost={n: self._median("target", n) / step for n in self.sizes},
        )

    def outside(self, gamma, rounds):
        """Seconds of a full round beyond its forwards; never below 0."""
        whole = statistics.median(sum(r.seconds.values()) for r in rounds if len(r.draft_tokens) == gamma)
        return max(0.0, whole - gamma * self._median("draft", 1) - self._median("target", gamma + 1))

    def _median(self, name, n):
        return statistics.median(self.seconds[name, n])


def _refuse(constant):
    raise ValueError(f"{constant} is no JSON number")


def machine(device) -> str:
    """The processor's name, or the GPU's."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _wait(device):
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def _alpha_by_position(rounds) -> list[tuple[float, int]]:
    tested = [sum(r.tested > i for r in rounds) for i in range(max(r.tested for r in rounds))]
    accepted = [sum(r.accepted > i for r in rounds) for i in range(len(tested))]
    return [(a / n, n) for a, n in zip(accepted, tested, strict=True)]


def _speed(plain, speculative) -> Speed:
    ratios = [a / b for a, b in zip(plain, speculative, strict=True)]
    return Speed(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def _operations_ratio(target, draft) -> float | None:
    """By the rule that a token takes two operations a parameter; None for models without parameters."""
    try:
        return draft.model.num_parameters() / target.model.num_parameters()
    except AttributeError:
        return None


def _along(points, at):
    """Piecewise linear through {x: y}; beyond the last point along the last piece, never falling; flat before."""
    x = np.array(sorted(points), dtype=float)
    y = np.array([points[int(i)] for i in x])
    at = np.asarray(at, dtype=float)
    rise = max(0.0, (y[-1] - y[-2]) / (x[-1] - x[-2])) if len(x) > 1 else 0.0
    return np.interp(at, x, y) + rise * np.maximum(at - x[-1], 0)
