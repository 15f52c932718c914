"""The verdict on a profile, the advice that follows from it, and both in a report.

findings() yields sentences with their causes: verdict() takes the sentences, advice() looks the causes up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specviz.trace import PHASES

if TYPE_CHECKING:
    from specviz.speedup.result import Profile

NEAR = (0.9, 1.1)  # measured / predicted within these limits is called as predicted
WORTH = 1.05  # less is not called a gain
FAST_DRAFT = 0.1  # a draft with a c up to this does not hold a pair back
GOOD_ALPHA = 0.8  # the acceptance of a good draft, to ask whether a better one would help


class Advice(NamedTuple):
    """What to do about one finding of a verdict, and the lesson that explains it."""

    problem: str
    remedy: str
    lesson: str

    def __str__(self):
        return f"{self.problem}: {self.remedy}. See {self.lesson}."


_FILE = Path(__file__).parent / "advice.json"
ADVICE = {cause: Advice(**advice) for cause, advice in json.loads(_FILE.read_text(encoding="utf-8")).items()}


def verdict(profile: Profile) -> str:
    """Whether to speculate, with which γ, the limit, and whether the prediction held: a few sentences.

    Speedups whose ranges (slowest to fastest run) overlap count as ties.
    """
    return " ".join(sentence for sentence, _ in findings(profile))


def advice(profile: Profile) -> list[Advice]:
    """What to do about each finding of the verdict; empty where nothing can be gained."""
    return [ADVICE[cause] for _, cause in findings(profile) if cause is not None]


def findings(profile: Profile) -> Iterator[tuple[str, str | None]]:
    """The sentences of the verdict, each with its cause: a key of ADVICE, or None."""
    best = profile.fastest
    speed = profile.speedups[best]
    measured = f"{speed.median:.2f}x ({speed.low:.2f}–{speed.high:.2f} in {speed.runs} run{'s' * (speed.runs > 1)})"
    if speed.low > 1 and speed.median >= WORTH:
        yield f"Speculate: γ = {best}, {measured}.", None
        ties = [gamma for gamma in profile.speedups if gamma != best and profile.speedups[gamma].high >= speed.low]
        if ties:
            are = "is a tie" if len(ties) == 1 else "are ties"
            yield f"γ = {_listed(ties)} {are} with it, within the spread.", None
        yield from _why_not_more(profile, max([best, *ties]))
    else:
        slower = f"Do not speculate here: even the best window, γ = {best}, decodes at {measured} of plain speed."
        no_gain = f"Speculation brings no clear gain here: the best window, γ = {best}, {measured}."
        yield slower if speed.high < 1 else no_gain, None
        yield _greatest_loss(profile, best)
    if speed.runs < 3:
        yield "So few runs say little about the spread: take at least three.", "runs"
    yield from _misses(profile)


def _why_not_more(profile, gamma):
    """The gain and the cost of one draft more than gamma; the position where acceptance falls."""
    if gamma == max(profile.speedups):
        longest = f"γ = {gamma} is the longest window tried"
        if profile.predicted(gamma + 1, overhead=True) > profile.predicted(gamma, overhead=True):
            yield f"{longest}, and a longer one may be better still: try larger γ.", "longer"
        else:
            yield f"{longest}; the prediction sees nothing in a longer one.", None
        return
    gain = profile.predicted_tokens_per_round(gamma + 1) - profile.predicted_tokens_per_round(gamma)
    before, after = profile.parts(gamma), profile.parts(gamma + 1)
    more = {part: after[part] - before[part] for part in after}
    costs = {
        "draft": more["draft forwards"],
        "verify": more["target forward"],
        "outside": sum(more[phase] for phase in PHASES),
    }
    words = {"draft": "the draft's own forward", "verify": "verification", "outside": "time outside the models"}
    dearest = max(costs, key=costs.get)
    sentence = f"One draft more than {gamma} would bring {gain:.2f} tokens a round and cost "
    sentence += f"{sum(costs.values()):.2f} target steps, most of it {words[dearest]}"
    if profile.c <= FAST_DRAFT and dearest != "draft":
        sentence += "; the draft is fast enough"
    yield f"{sentence}.", dearest
    if (position := _falls_after(profile)) is not None:
        yield f"Acceptance falls after position {position}.", "falls"


def _falls_after(profile) -> int | None:
    """The position behind which the rate falls most, of those where the fall is clear: outside either's interval."""
    rates, intervals = [alpha for alpha, _ in profile.alpha_by_position], profile.alpha_intervals
    positions = range(1, len(rates))
    clear = [i for i in positions if rates[i] < intervals[i - 1][0] and rates[i - 1] > intervals[i][1]]
    return max(clear, key=lambda i: rates[i - 1] - rates[i], default=None)


def _greatest_loss(profile, gamma):
    """The one cost (or the acceptance) without which the prediction would be fastest."""
    if profile.draft_lengths.get(0, 0.0) > 0.5:
        return f"The drafter finds nothing to propose in {profile.draft_lengths[0]:.0%} of the rounds.", "nothing"
    rates = [(max(alpha, GOOD_ALPHA), tested) for alpha, tested in profile.alpha_by_position]
    drafts = len(profile.outside_seconds["draft"])
    as_plain = {phase: [seconds] * drafts for phase, seconds in profile.plain_seconds.items()}
    losses = {  # cause: (the profile without it, the cost in words, its absence in words)
        "draft": (
            replace(profile, c=0.0, catch_up=0.0),
            f"the draft is dear: a draft step costs {profile.c:.2f} target steps and α is {profile.alpha:.2f}",
            "if drafts were free",
        ),
        "draft_prompt": (
            replace(profile, draft_prompt_seconds=0.0),
            f"reading the prompt takes the draft {profile.draft_prompt_seconds / profile.target_seconds:.1f} target "
            f"steps, and texts have {profile.max_new_tokens} tokens only",
            "in longer texts, or if that were free",
        ),
        "verify": (
            replace(profile, verify_cost=dict.fromkeys(profile.verify_cost, 1.0)),
            f"verification of {gamma + 1} tokens costs {float(profile.verify(gamma + 1)):.1f} steps",
            "if it cost one step",
        ),
        "outside": (
            replace(profile, outside_seconds=as_plain),
            f"a round spends {profile.overhead(gamma):.2f} steps outside the models, and a plain step only "
            f"{profile.overhead(0):.2f}",
            "if a round took no more of it than a plain step",
        ),
        "alpha": (
            replace(profile, alpha_by_position=rates, alpha_intervals=[(0.0, 1.0)] * len(rates)),
            f"acceptance is low: α is {profile.alpha:.2f}",
            f"at α = {GOOD_ALPHA:g}",
        ),
    }
    gammas = list(profile.speedups)
    speedups = {cause: other.predicted(gammas, overhead=True).max() for cause, (other, *_) in losses.items()}
    cause = max(speedups, key=speedups.get)
    _, cost, condition = losses[cause]
    return f"What holds it back most: {cost}; {condition}, {speedups[cause]:.2f}x would be predicted.", cause


def _misses(profile):
    """The windows whose speedup is far from the predicted one, and beyond its own spread."""
    ratios = {
        gamma: speed.median / profile.predicted(gamma, overhead=True) for gamma, speed in profile.speedups.items()
    }

    def far(gamma):
        speed, ratio = profile.speedups[gamma], ratios[gamma]
        within_spread = speed.low <= speed.median / ratio <= speed.high
        return not NEAR[0] <= ratio <= NEAR[1] and not within_spread

    missed = [gamma for gamma in ratios if far(gamma)]
    if not missed:
        return
    worst = max(missed, key=lambda gamma: abs(np.log(ratios[gamma])))
    tokens = profile.tokens_per_round[worst] / profile.predicted_tokens_per_round(worst)
    pace = ratios[worst] / tokens  # of rounds, measured against plain steps; 1 as predicted, larger is faster
    sentence = f"Measured is far from predicted at γ = {_listed(missed)} ({ratios[worst]:.2f} of it at γ = {worst}): "
    if abs(np.log(tokens)) > abs(np.log(pace)):
        sentence += f"a round yielded {tokens:.2f} times the tokens that the calibration prompts promised."
        yield sentence, "prompts"
    else:
        yield f"{sentence}a round took {1 / pace:.2f} times as long as its parts one by one.", "noise"


def _listed(numbers) -> str:
    return ", ".join(map(str, sorted(numbers)))


def report(profile: Profile) -> str:
    """Everything as text: acceptance, costs, predicted against measured, the verdict, the advice."""
    step, sampling = profile.target_seconds, profile.sampling.items()
    settings = ", ".join(f"{name} {value}" for name, value in sampling if value is not None)
    alpha = f"{profile.alpha:.3f}; by position, with 95 % intervals:" if profile.alpha_by_position else "nothing tested"
    lines = [
        f"{profile.target} with {profile.drafter}, {profile.machine} ({profile.device}, {profile.dtype}, "
        f"threads: {profile.threads})",
        f"{profile.prompts} prompts, {profile.max_new_tokens} new tokens each, {settings}",
        "",
        f"target step  {step * 1e3:.2f} ms, and {profile.overhead(0) * step * 1e3:.2f} ms outside it in plain decoding",
        f"draft step   c = {profile.c:.3f}",
        "V(n)         " + "  ".join(f"{n}: {cost:.2f}" for n, cost in profile.verify_cost.items()),
        f"α            {alpha}",
    ]
    by_position = zip(profile.alpha_by_position, profile.alpha_intervals)
    for i, ((alpha, tested), (low, high)) in enumerate(by_position, 1):
        lines.append(f"             {i}: {alpha:.3f} ({low:.2f}–{high:.2f}), {tested} tested")
    lines += ["", "  γ   i.i.d.   predicted   measured (slowest–fastest run)   measured/predicted   outside the models"]
    for gamma, speed in profile.speedups.items():
        predicted, parts = profile.predicted(gamma, overhead=True), profile.parts(gamma)
        share = sum(parts[phase] for phase in PHASES) / sum(parts.values())
        lines.append(
            f"{gamma:3d} {profile.iid(gamma):7.2f}x {predicted:10.2f}x {speed.median:10.2f}x "
            f"({speed.low:.2f}–{speed.high:.2f}) {speed.median / predicted:23.2f} {share:20.0%}"
        )
    lines += ["", profile.verdict]
    if profile.advice:
        lines += ["", "What to do:", *(f"- {advice}" for advice in profile.advice)]
    return "\n".join(lines)
