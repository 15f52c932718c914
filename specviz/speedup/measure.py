"""Measuring a pair: forwards one by one, a calibration on half of the prompts, speedups on the other half."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import optimize, stats

from specviz.arguments import as_prompts, check_model, integer
from specviz.decoding import autoregress, speculate
from specviz.drafters.model import ModelDrafter, as_drafter
from specviz.drafters.protocol import Drafter
from specviz.models.protocol import LanguageModel
from specviz.progress import progress_bar
from specviz.sampling import SamplingParams, as_sampling
from specviz.speedup.result import MeasuredSpeedup, Profile
from specviz.trace import PHASES


def profile(
    target, drafter, prompts, *, gammas=tuple(range(1, 9)), max_new_tokens=64, sampling=None, runs=5, seed=0,
    progress=None,
) -> Profile:  # fmt: skip
    """Measure a pair -> Profile. Decodes about runs * (number of prompts) * (number of gammas + 3) / 2 texts.

    target      a language model
    drafter     another one, or any drafter (PromptLookup(), LayerSkip(8), …)
    prompts     at least two: text, token ids or chat messages. Numbers 0, 2, 4, … calibrate the prediction (plain
                decoding and the largest γ alone); speedups are those of 1, 3, 5, …
    gammas      the γ to measure
    max_new_tokens  length of each text, exactly: EOS does not end it
    sampling    SamplingParams, by default temperature 1
    runs        repetitions of it all, each with another seed; a run's speedup is that of its prompts together
    progress    True shows a bar at once, None after two seconds, False never

    In each run a prompt is decoded plainly and with every γ, one right after the other and in changing order, so that a
    busy moment of the machine hits all alike; after each text forwards of the same sizes are timed by themselves. The
    prompt's own forward through the target is left out, and nothing is recorded meanwhile (record="none").

    Raises ValueError for wrong arguments and for a text that exceeds the target's context, before anything is decoded,
    and KeyboardInterrupt when interrupted.
    """
    setting = _checked(target, drafter, prompts, gammas, max_new_tokens, sampling, runs, seed)
    prompts, gammas, runs, largest = setting.prompts, setting.gammas, setting.runs, setting.gammas[-1]
    forwards = _Forwards(setting)
    calibration, plain_steps = [], []  # (number of the prompt, rounds) of each text; rounds
    totals = {gamma: [[] for _ in range(runs)] for gamma in (0, *gammas)}  # seconds of each text, by run
    counts = {gamma: [] for gamma in (0, *gammas)}  # rounds of each text

    with progress_bar(len(prompts) * runs + 1, "profiling", progress, unit="prompts") as bar:
        for gamma in (0, largest):  # to warm up
            setting.decode(0, gamma, setting.seed)
        for n in forwards.sizes:
            forwards.time_rounds(n, keep=False)
        bar.update()
        for i in range(len(prompts) * runs):
            run, number = divmod(i, len(prompts))
            measured = number % 2 == 1
            windows = [0, *gammas] if measured else [0, largest]
            for gamma in np.roll(windows, run + number // 2).tolist():  # each comes first in its turn
                rounds = setting.decode(number, gamma, setting.seed + i)
                forwards.time_rounds(gamma + 1)  # at the same moment, with the same data in the processor's caches
                if measured:
                    totals[gamma][run].append(sum(sum(r.seconds.values()) for r in rounds))
                    counts[gamma].append(len(rounds))
                elif gamma:
                    calibration.append((number, rounds))
                else:
                    plain_steps += rounds
            if not measured:
                for n in forwards.sizes:  # all, since windows shrink where a text ends
                    forwards.time_rounds(n)
            bar.update()

    by_prompt = [(number, r) for number, rounds in calibration for r in rounds]
    rates, intervals = acceptance(by_prompt)
    lengths = Counter(len(r.draft_tokens) for _, r in by_prompt if r.gamma_used == largest)
    seconds = {gamma: [sum(texts) for texts in by_run] for gamma, by_run in totals.items()}
    return Profile(
        target=target.name, drafter=setting.drafter.name, machine=machine(target.device),
        device=torch.device(target.device).type, dtype=str(target.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(), sampling=setting.sampling.to_dict(), prompts=len(prompts),
        max_new_tokens=setting.max_new_tokens, alpha_by_position=rates, alpha_intervals=intervals,
        draft_lengths={n: lengths[n] / lengths.total() for n in sorted(lengths)},
        speedups={gamma: _speedup(seconds[0], seconds[gamma]) for gamma in gammas},
        tokens_per_round={gamma: setting.max_new_tokens / statistics.mean(counts[gamma]) for gamma in gammas},
        operations_ratio=_operations_ratio(target, setting.drafter),
        **_costs(forwards, [rounds for _, rounds in calibration], plain_steps, largest),
    )  # fmt: skip


# --- arguments ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Setting:
    """The arguments of profile(), checked."""

    target: LanguageModel
    drafter: Drafter
    prompts: list[list[int]]
    gammas: list[int]
    max_new_tokens: int
    sampling: SamplingParams
    runs: int
    seed: int

    @property
    def lengths(self) -> list[int]:
        """The tokens before each text: its prompt's, or an encoder-decoder's start tokens."""
        begin = getattr(self.target, "start_tokens", None)
        return [len(prompt if begin is None else begin) for prompt in self.prompts]

    def decode(self, number, gamma, seed):
        """The rounds of one text after prompt number; gamma = 0 decodes plainly."""
        settings = dict(max_new_tokens=self.max_new_tokens, sampling=self.sampling, eos=(), seed=seed, record="none")
        if gamma == 0:
            trace = autoregress(self.target, self.prompts[number], **settings)
        else:
            trace = speculate(self.target, self.drafter, self.prompts[number], gamma=gamma, **settings)
        if trace.finish_reason == "interrupted":  # the decoder keeps its text, but half a profile is of no use
            raise KeyboardInterrupt
        return trace.rounds


def _checked(target, drafter, prompts, gammas, max_new_tokens, sampling, runs, seed) -> _Setting:
    check_model(target)
    if drafter is None:
        raise ValueError("drafter=None: there is nothing to profile; give a draft model or a drafter.")
    drafter = as_drafter(drafter)
    drafter.check_target(target)
    empty = prompts is None or (hasattr(prompts, "__len__") and len(prompts) == 0)
    prompts = [] if empty else as_prompts(target, prompts)[0]
    if len(prompts) < 2:
        raise ValueError(
            f"prompts: there is {'only one' if prompts else 'none'}; give at least two, since half of them calibrate "
            "the prediction and the others are measured."
        )
    listed = hasattr(gammas, "__iter__") and not isinstance(gammas, (str, bytes))
    gammas = sorted({integer(gamma, "gammas: a γ", 1) for gamma in (gammas if listed else [gammas])})
    if not gammas:
        raise ValueError("gammas=() is empty: give at least one γ, such as (1, 2, 4).")
    max_new_tokens, runs, seed = (
        integer(value, name, least)
        for value, name, least in ((max_new_tokens, "max_new_tokens", 2), (runs, "runs", 1), (seed, "seed", 0))
    )
    if seed >= 2**63:
        raise ValueError(f"seed={seed}: each text has a seed of its own from there on; give one below 2**63.")
    setting = _Setting(target, drafter, prompts, gammas, max_new_tokens, as_sampling(sampling), runs, seed)
    if (longest := max(setting.lengths)) + max_new_tokens > target.context:
        raise ValueError(
            f"max_new_tokens={max_new_tokens}: with a prompt of {longest} tokens that is more than the context of "
            f"{target.name!r} ({target.context}); ask for less."
        )
    if gammas[-1] >= max_new_tokens:
        raise ValueError(
            f"gammas: γ={gammas[-1]} never fits into max_new_tokens={max_new_tokens}; ask for a longer text."
        )
    return setting


# --- forwards, one by one -----------------------------------------------------------------------


class _Forwards:
    """Times single forwards as the decoder runs them: draft steps, then the target, at the text's mean length.

    KV caches are as long as the decoder's. A draft step feeds one token, or two after full acceptance; both are timed.
    Only a draft model has steps of its own: the cost of other drafters is in the calibration's draft phase.
    """

    def __init__(self, setting):
        prompts = setting.prompts
        self.sizes = range(1, setting.gammas[-1] + 2)
        self.models = {"target": setting.target}
        if isinstance(setting.drafter, ModelDrafter):
            self.models["draft"] = setting.drafter.model
        mean = round(statistics.mean(setting.lengths))
        room = min(model.context for model in self.models.values()) - len(self.sizes) - 1
        self.at = max(1, min(mean + setting.max_new_tokens // 2, room))
        capacity = max(mean + setting.max_new_tokens, self.at) + len(self.sizes)
        ids = [token for prompt in prompts for token in prompt]
        least = min(model.vocab_size for model in self.models.values())
        self.ids = torch.tensor(ids * math.ceil((self.at + len(self.sizes)) / len(ids))).clamp(max=least - 1)[None]
        self.caches = {name: model.new_cache([prompts[0]], capacity) for name, model in self.models.items()}
        for name, model in self.models.items():
            self.caches[name].feed(self.ids[:, : self.at].to(model.device))
        self.seconds = {}

    def time_rounds(self, n, keep=True):
        """Some rounds in a row of n - 1 draft steps and a target forward over n tokens; the first two warm up."""
        for repeat in range(6):
            timed = keep and repeat > 1
            if n > 1 and "draft" in self.models:
                self._time("draft", 2, timed)
                for _ in range(n - 1):
                    self._time("draft", 1, timed)
            self._time("target", n, timed)

    @torch.inference_mode()  # as in a round
    def _time(self, name, n, keep):
        cache, device = self.caches[name], self.models[name].device
        cache.rewind(torch.tensor([self.at]))
        fed = self.ids[:, self.at : self.at + n].to(device)
        _wait(device)
        began = time.perf_counter()
        cache.feed(fed)
        _wait(device)
        if keep:
            self.seconds.setdefault((name, n), []).append(time.perf_counter() - began)

    def typical(self, name, n) -> float:
        return typical(self.seconds[name, n])


def _wait(device):
    if torch.device(device).type != "cpu":
        getattr(torch, torch.device(device).type).synchronize()


# --- from readings to parameters ----------------------------------------------------------------


def typical(seconds) -> float:
    """The mean of the middle half: stalls do not move it, and where the machine has two speeds it does not jump."""
    return float(stats.trim_mean(list(seconds), 0.25))


def _costs(forwards, texts, plain_steps, largest) -> dict:
    """The fields of a Profile that are times. texts: the rounds of each calibration text; plain_steps: Rounds."""
    step = forwards.typical("target", 1)
    verify_cost = {n: forwards.typical("target", n) / step for n in forwards.sizes}
    later = [(before, r) for rounds in texts for before, r in zip(rounds, rounds[1:])]
    if "draft" in forwards.models:
        c, late = (forwards.typical("draft", n) for n in (1, 2))
        extra = max(0.0, late - c)
    else:
        drafting = [r.seconds["draft"] / len(r.draft_tokens) for rounds in texts for r in rounds if r.draft_tokens]
        c, extra = typical(drafting) if drafting else 0.0, 0.0

    def alone(phase, before, r):
        """The time of a round's forwards by themselves in that phase."""
        if phase == "target":
            return verify_cost[len(r.draft_tokens) + 1] * step
        catches_up = r.draft_tokens and before.outcome == "bonus"
        return len(r.draft_tokens) * c + (extra if catches_up else 0.0) if phase == "draft" else 0.0

    plain = {phase: [r.seconds[phase] - (step if phase == "target" else 0.0) for r in plain_steps] for phase in PHASES}
    outside = {}
    for phase in PHASES:
        readings = [(len(r.draft_tokens), r.seconds[phase] - alone(phase, before, r)) for before, r in later]
        if phase != "draft" or "draft" in forwards.models:  # other drafters search in vain: no plain step does that
            readings += [(0, seconds) for seconds in plain[phase]]
        outside[phase] = _straight(readings, largest)
    first = []
    for rounds in texts:
        drafts = len(rounds[0].draft_tokens)
        first.append(rounds[0].seconds["draft"] - drafts * c - outside["draft"][drafts])
    return dict(
        target_seconds=step,
        c=c / step,
        catch_up=extra / step,
        draft_prompt_seconds=max(0.0, typical(first)),
        verify_cost=verify_cost,
        plain_seconds={phase: max(0.0, typical(seconds)) for phase, seconds in plain.items()},
        outside_seconds=outside,
    )


def _straight(readings, largest) -> list[float]:
    """[(drafts, seconds)] -> seconds with 0, 1, … largest drafts: a + b·drafts, with a and b at least 0.

    The line is fitted to the typical reading of each number of drafts, weighted by how many there are: nearly all are
    of no drafts or of the largest number, the few in between come from the ends of texts.
    """
    by_drafts = {}
    for drafts, seconds in readings:
        by_drafts.setdefault(drafts, []).append(seconds)
    drafts = np.array(list(by_drafts), dtype=float)
    weight = np.sqrt([len(seconds) for seconds in by_drafts.values()])
    seconds = np.array([typical(seconds) for seconds in by_drafts.values()])
    columns = np.stack([np.ones_like(drafts), drafts], axis=1)
    (a, b), _ = optimize.nnls(columns * weight[:, None], seconds * weight)
    return (a + b * np.arange(largest + 1)).tolist()


def acceptance(rounds) -> tuple[list[tuple[float, int]], list[tuple[float, float]]]:
    """[(number of the prompt, Round)] -> ([(accepted / tested, tested)], [(low, high)]) by draft position.

    The 95 % intervals are for other prompts like these. Coins of one text go together (easy passages, hard ones), so
    the prompts count as independent, not the coins: Wilson's interval, with the number tested divided by the design
    effect (the variance of the rate between prompts over that of independent coins, at least 1) and corrected for the
    small number of prompts by Student's t (Korn and Graubard 1998). From one prompt alone the interval is (0, 1).
    """
    rates, intervals = [], []
    for position in range(max((r.tested for _, r in rounds), default=0)):
        counts = {}
        for number, r in rounds:
            if r.tested > position:
                accepted, tested = counts.get(number, (0, 0))
                counts[number] = accepted + (r.accepted > position), tested + 1
        accepted, tested = np.array(list(counts.values())).T
        rates.append((float(accepted.sum() / tested.sum()), int(tested.sum())))
        intervals.append(_interval(accepted, tested))
    return rates, intervals


def _interval(accepted, tested) -> tuple[float, float]:
    """accepted, tested by prompt -> the interval of acceptance()."""
    prompts, n = len(tested), tested.sum()
    if prompts == 1:
        return 0.0, 1.0
    rate, z = accepted.sum() / n, stats.norm.ppf(0.975)
    independent = rate * (1 - rate) / n
    between = prompts / (prompts - 1) * ((accepted - rate * tested) ** 2).sum() / n**2
    effect = max(1.0, between / independent) if independent else 1.0
    n = n / effect * (z / stats.t.ppf(0.975, prompts - 1)) ** 2
    middle, half = rate + z**2 / (2 * n), z * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    return min(rate, max(0.0, (middle - half) / scale)), max(rate, min(1.0, (middle + half) / scale))


def _speedup(plain, speculative) -> MeasuredSpeedup:
    ratios = [a / b for a, b in zip(plain, speculative, strict=True)]
    return MeasuredSpeedup(statistics.median(ratios), min(ratios), max(ratios), len(ratios))


def _operations_ratio(target, drafter) -> float | None:
    """ĉ, as a token takes about two operations a parameter; None for drafters and models without parameters."""
    try:
        return drafter.model.model.num_parameters() / target.model.num_parameters()
    except AttributeError:
        return None


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
