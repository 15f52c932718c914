"""What a profile says, in plain words: does speculation pay, with which γ, what sets the limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specviz.speedup.result import NEAR, Profile
from specviz.trace import PHASES

WORTH = 1.05  # less is not called a gain
FAST_DRAFT = 0.1  # a c up to this is not what holds a pair back
GOOD_ALPHA = 0.8  # the acceptance of a good draft, to ask whether a better one would help


def verdict(profile: Profile) -> str:
    """Whether to speculate, with which γ, what sets the limit, and whether the prediction held: a few sentences.

    Speedups whose ranges (slowest to fastest run) overlap count as ties.
    """
    best = profile.fastest
    speed = profile.speedups[best]
    measured = f"{speed.median:.2f}x ({speed.low:.2f}–{speed.high:.2f} in {speed.runs} run{'s' * (speed.runs > 1)})"
    ties = [gamma for gamma in profile.speedups if gamma != best and profile.speedups[gamma].high >= speed.low]
    if speed.low > 1 and speed.median >= WORTH:
        sentences = [f"Speculate: γ = {best}, {measured}.", _ties(ties), _why_not_more(profile, max([best, *ties]))]
    elif speed.high < 1:
        sentences = [f"Do not speculate here: even the best window, γ = {best}, decodes at {measured} of plain speed."]
        sentences.append(_what_is_dear(profile, best))
    else:
        sentences = [f"Speculation brings no clear gain here: the best window, γ = {best}, {measured}."]
        sentences.append(_what_is_dear(profile, best))
    if speed.runs < 3:
        sentences.append("So few runs say little about the spread: take at least three.")
    return " ".join(filter(None, [*sentences, _misses(profile)]))


def _ties(gammas) -> str:
    if not gammas:
        return ""
    return f"γ = {_runs(gammas)} {'is a tie' if len(gammas) == 1 else 'are ties'} with it, within the spread."


def _why_not_more(profile, gamma) -> str:
    """What one draft more than gamma would bring and cost; where acceptance falls."""
    if gamma == max(profile.speedups):
        if profile.predicted(gamma + 1, overhead=True) > profile.predicted(gamma, overhead=True):
            return f"γ = {gamma} is the longest window tried, and a longer one may be better still: try larger γ."
        return f"γ = {gamma} is the longest window tried; the prediction sees nothing in a longer one."
    brings = profile.predicted_tokens_per_round(gamma + 1) - profile.predicted_tokens_per_round(gamma)
    before, after = profile.parts(gamma), profile.parts(gamma + 1)
    more = {part: after[part] - before[part] for part in after}
    costs = {
        "the draft's own forward": more["draft forwards"],
        "verification": more["target forward"],
        "time outside the models": sum(more[phase] for phase in PHASES),
    }
    dearest = max(costs, key=costs.get)
    sentence = f"One draft more than {gamma} would bring {brings:.2f} tokens a round and cost "
    sentence += f"{sum(costs.values()):.2f} target steps, most of it {dearest}"
    if profile.c <= FAST_DRAFT and dearest != "the draft's own forward":
        sentence += "; the draft is fast enough"
    falls = _falls_after(profile)
    return sentence + (f"; acceptance falls after position {falls}." if falls else ".")


def _falls_after(profile) -> int | None:
    """The position behind which the rate falls most, of those where the fall is clear: outside either's interval."""
    rates, intervals = [alpha for alpha, _ in profile.alpha_by_position], profile.alpha_intervals
    positions = range(1, len(rates))
    clear = [i for i in positions if rates[i] < intervals[i - 1][0] and rates[i - 1] > intervals[i][1]]
    return max(clear, key=lambda i: rates[i - 1] - rates[i], default=None)


def _what_is_dear(profile, gamma) -> str:
    """The one cost (or the acceptance) without which the prediction would be fastest."""
    if profile.draft_lengths.get(0, 0.0) > 0.5:
        return f"The drafter finds nothing to propose in {profile.draft_lengths[0]:.0%} of the rounds."
    rates = [(max(alpha, GOOD_ALPHA), tested) for alpha, tested in profile.alpha_by_position]
    intervals = [(0.0, 1.0)] * len(rates)
    others = {
        "draft": profile.without("draft"),
        "draft_prompt": profile.without("draft_prompt"),
        "verify": profile.without("verify"),
        "outside": profile.without("outside"),
        "alpha": replace(profile, alpha_by_position=rates, alpha_intervals=intervals),
    }
    speedups = {
        name: max(float(other.predicted(g, overhead=True)) for g in profile.speedups) for name, other in others.items()
    }
    cause = max(speedups, key=speedups.get)
    words, remedy = {
        "draft": (
            f"the draft is dear: a draft step costs {profile.c:.2f} target steps and α is {profile.alpha:.2f}",
            "if drafts were free",
        ),
        "draft_prompt": (
            f"reading the prompt takes the draft {profile.draft_prompt_seconds / profile.target_seconds:.1f} target "
            f"steps, and texts have {profile.max_new_tokens} tokens only",
            "in longer texts, or if that were free",
        ),
        "verify": (
            f"verification of {gamma + 1} tokens costs {float(profile.verify(gamma + 1)):.1f} steps",
            "if it cost one step",
        ),
        "outside": (
            f"a round spends {profile.overhead(gamma):.2f} steps outside the models, and a plain step only "
            f"{profile.overhead(0):.2f}",
            "if a round took no more of it than a plain step",
        ),
        "alpha": (f"acceptance is low: α is {profile.alpha:.2f}", f"at α = {GOOD_ALPHA:g}"),
    }[cause]
    return f"What holds it back most: {words}; {remedy}, {speedups[cause]:.2f}x would be predicted."


def _misses(profile) -> str:
    """Where measured is far from predicted, and beyond its own spread; empty where the prediction held."""
    ratios = {
        gamma: speed.median / profile.predicted(gamma, overhead=True) for gamma, speed in profile.speedups.items()
    }

    def far(gamma):
        speed, ratio = profile.speedups[gamma], ratios[gamma]
        within_spread = speed.low <= speed.median / ratio <= speed.high
        return not NEAR[0] <= ratio <= NEAR[1] and not within_spread

    missed = [gamma for gamma in ratios if far(gamma)]
    if not missed:
        return ""
    worst = max(missed, key=lambda gamma: abs(np.log(ratios[gamma])))
    yields = profile.tokens_per_round[worst] / profile.predicted_tokens_per_round(worst)
    pace = ratios[worst] / yields  # how much faster rounds passed, against plain steps, than predicted
    if abs(np.log(yields)) > abs(np.log(pace)):
        why = f"a round yielded {yields:.2f} times the tokens that the calibration prompts promised"
    else:
        why = f"a round took {1 / pace:.2f} times as long as its parts one by one; measure again on a quiet machine"
    return f"Measured is far from predicted at γ = {_runs(missed)} ({ratios[worst]:.2f} of it at γ = {worst}): {why}."


def _runs(numbers) -> str:
    """[1, 2, 3, 5] as "1–3, 5"."""
    runs = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def report(profile: Profile) -> str:
    """Everything as text: acceptance, costs, predicted against measured, the verdict."""
    step = profile.target_seconds
    lines = [
        f"{profile.target} with {profile.drafter}, {profile.machine} ({profile.device}, {profile.dtype}, "
        f"threads: {profile.threads})",
        f"{profile.prompts} prompts, {profile.max_new_tokens} new tokens each, {_settings(profile.sampling)}",
        "",
        f"target step  {step * 1e3:.2f} ms, and {profile.overhead(0) * step * 1e3:.2f} ms outside it in plain decoding",
        f"draft step   c = {profile.c:.3f}",
        "V(n)         " + "  ".join(f"{n}: {cost:.2f}" for n, cost in profile.verify_cost.items()),
        f"α            {profile.alpha:.3f}; by position, with 95 % intervals:",
        *(
            f"             {i}: {alpha:.3f} ({low:.2f}–{high:.2f}), {tested} tested"
            for i, ((alpha, tested), (low, high)) in enumerate(
                zip(profile.alpha_by_position, profile.alpha_intervals), 1
            )
        ),
        "",
        "  γ   i.i.d.   predicted   measured (slowest–fastest run)   measured/predicted   outside the models",
    ]
    for gamma, speed in profile.speedups.items():
        predicted, parts = profile.predicted(gamma, overhead=True), profile.parts(gamma)
        share = sum(parts[phase] for phase in PHASES) / sum(parts.values())
        lines.append(
            f"{gamma:3d} {profile.iid(gamma):7.2f}x {predicted:10.2f}x {speed.median:10.2f}x "
            f"({speed.low:.2f}–{speed.high:.2f}) {speed.median / predicted:23.2f} {share:20.0%}"
        )
    return "\n".join([*lines, "", profile.verdict])


def _settings(sampling) -> str:
    return ", ".join(f"{name} {value}" for name, value in sampling.items() if value is not None)
