"""The speedup, predicted and measured, and where a round's time goes (lessons 01, 06 and 07)."""

from __future__ import annotations

import numpy as np

from specviz.plots.style import (
    BLUE,
    BLUE_INK,
    EDGE,
    GREY,
    INK,
    ORANGE,
    P_BAR,
    PURPLE,
    Q_BAR,
    RED,
    SOFT,
    TEAL,
    break_even,
    finish,
    stacked,
)  # fmt: skip
from specviz.speedup.theory import best_gamma, expected_tokens, linear_cost, round_cost, speedup

MEASURED = dict(fmt="o", color=INK, markerfacecolor="white", capsize=3, zorder=4)
PARTS = {  # of a round's time: (name, look)
    "draft forwards": ("draft forwards", Q_BAR),
    "draft": ("drawing the drafts from q", dict(facecolor="#ffe3b0", hatch="....", **EDGE)),
    "target forward": ("target forward", P_BAR),
    "target": ("turning logits into p", dict(facecolor="#cfe3f6", hatch="....", **EDGE)),
    "verify": ("coins, residual, next token", dict(facecolor="white", edgecolor=PURPLE, linewidth=0.6, hatch="xxxx")),
    "commit": ("keeping the books", dict(facecolor=GREY, hatch="\\\\\\", **EDGE)),
}


def draw_verify_cost(cost, ax):
    """Measured V(n), cost = {n: V(n)}, between its two extremes: n forwards of their own, and the paper's V = 1."""
    n = sorted(cost)
    ax.plot(n, n, color=GREY, linestyle="--", label="n forwards, one token each")
    ax.plot(n, [cost[i] for i in n], color=BLUE, marker="o", label="one forward with n tokens: V(n), measured")
    ax.plot(n, [1] * len(n), color="black", linestyle=":", label="the paper's assumption: V = 1")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks = [2**k for k in range(max(n).bit_length())]
    ax.set(xticks=n, xticklabels=n, yticks=ticks, yticklabels=ticks)
    ax.minorticks_off()
    return finish(ax, "upper left", xlabel="n, tokens in the forward", ylabel="time / time for one token")


def draw_step_costs(verify, steps, ax):
    """Times of one verification and of γ+1 single steps, both {γ: seconds}, as pairs of bars in milliseconds."""
    x, grey = np.arange(len(verify)), dict(facecolor=GREY, hatch="..", **EDGE)
    ax.bar(x - 0.2, [1000 * steps[gamma] for gamma in verify], 0.38, label="γ+1 steps, one token each", **grey)
    verify_ms = [1000 * seconds for seconds in verify.values()]
    bars = ax.bar(x + 0.2, verify_ms, 0.38, label="one forward with γ+1 tokens", **P_BAR)
    ax.bar_label(bars, fmt="%.1f", fontsize=9, padding=2)
    return finish(ax, "upper left", xticks=x, xticklabels=verify, xlabel="γ", ylabel="milliseconds")


def draw_speedup_curve(alpha, c, ax, *, verify_slope=0.0, max_gamma=12, profile=None):
    """The formula's speedup over γ with its best γ, the break-even line, and a Profile's measured points, if given."""
    cost, gammas = linear_cost(verify_slope), np.arange(1, max_gamma + 1)
    factors, best = speedup(alpha, gammas, c, cost), int(best_gamma(alpha, c, cost, max_gamma=max_gamma))
    ax.plot(gammas, factors, color=BLUE, linewidth=2.4, marker="o", markersize=4, label="formula")
    highest = factors.max()
    for gamma, speed in profile.speedups.items() if profile else ():
        spread = [[speed.median - speed.low], [speed.high - speed.median]]
        first = gamma == min(profile.speedups)
        label = f"measured, {speed.runs} runs: median and extremes" if first else None
        ax.errorbar(gamma, speed.median, spread, label=label, **MEASURED)
        highest = max(highest, speed.high)
    break_even(ax)
    if best:
        top = best, factors[best - 1]
        ax.plot(*top, "o", markersize=13, markerfacecolor="none", markeredgecolor=ORANGE, markeredgewidth=2.4)
        style = dict(textcoords="offset points", ha="center", fontsize=9, fontweight="bold")
        ax.annotate(f"best γ = {best}: {top[1]:.2f}×", top, (0, 11), **style)
    limits = dict(xlim=(0.5, max_gamma + 0.5), ylim=(0, max(1.3, highest * 1.35)), xticks=gammas)
    axes = dict(xlabel="γ: drafts a round", ylabel="speedup over plain decoding")
    return finish(ax, "upper right", ncols=2, **limits, **axes)


def draw_round_timeline(gamma, alpha, c, ax, *, verify_slope=0.0):
    """One round to scale (γ draft steps, one verification), and the plain steps that bring as many tokens."""
    tokens, whole = float(expected_tokens(alpha, gamma)), float(round_cost(gamma, c, linear_cost(verify_slope)))
    verify = whole - gamma * c
    for i in range(gamma if c else 0):
        ax.barh(1, c, left=i * c, height=0.5, **Q_BAR)
    ax.barh(1, verify, left=gamma * c, height=0.5, alpha=0.55, **P_BAR)
    ax.text(gamma * c + verify / 2, 1, f"verify {gamma + 1}", ha="center", va="center", fontsize=9)
    for i in range(int(np.ceil(tokens))):
        ax.barh(0, min(1, tokens - i), left=i, height=0.5, color=GREY, alpha=0.55, **EDGE)
    names = [f"plain decoding:\n{tokens:.2f} steps", f"a round, γ = {gamma}:\n{whole:.2f} steps"]
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    time = f"time in target steps; both rows bring E[N] = {tokens:.2f} tokens"
    limits = dict(xlim=(0, max(tokens, whole) * 1.02), ylim=(-0.45, 1.45))
    return finish(ax, xlabel=time, yticks=[0, 1], yticklabels=names, **limits)


def draw_profile(profile, ax):
    """A Profile's speedups over γ: measured with the spread of the runs, predicted, and predicted as if i.i.d."""
    gammas = np.array(sorted(profile.speedups))
    iid, predicted = profile.iid(gammas), profile.predicted(gammas, overhead=True)
    speeds = [profile.speedups[int(gamma)] for gamma in gammas]
    median, low, high = np.array([(speed.median, speed.low, speed.high) for speed in speeds]).T
    break_even(ax)
    ax.plot(gammas, iid, "s:", color=PURPLE, markersize=5, markerfacecolor="white", label="i.i.d.: one α, models only")
    whole = "predicted: α by position, all of a round's time"
    ax.plot(gammas, predicted, "D-", color=BLUE, linewidth=2.2, markersize=5, label=whole)
    runs = f"measured: median, slowest and fastest of {speeds[0].runs} runs"
    ax.errorbar(gammas, median, [median - low, high - median], label=runs, **MEASURED)
    highest = max(1.2, *iid, *predicted, *high)
    limits = dict(xlim=(gammas[0] - 0.5, gammas[-1] + 0.5), ylim=(0, highest * 1.45), xticks=gammas)
    return finish(ax, "upper left", xlabel="γ: drafts a round", ylabel="speedup over plain decoding", **limits)


def draw_round_time(profile, ax):
    """The time of a plain step and of a round with each measured γ, as a bar each, by phase, in target steps.

    The number behind a bar is the share that is neither the draft's forwards nor the target's.
    """
    gammas = [0, *sorted(profile.speedups)]
    parts, ends = [profile.parts(gamma) for gamma in gammas], np.zeros(len(gammas))
    for part, (name, look) in PARTS.items():
        ends = stacked(ax.barh, ends, np.array([times[part] for times in parts]), 0.68, label=name, **look)
    for row, (times, end) in enumerate(zip(parts, ends)):
        outside = 1 - (times["draft forwards"] + times["target forward"]) / end
        ax.text(end + 0.01 * ends.max(), row, f" {outside:.0%} outside", va="center", fontsize=9, color=SOFT)
    ax.set_yticks(range(len(gammas)), ["plain", *(f"γ = {gamma}" for gamma in gammas[1:])])
    ax.invert_yaxis()
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize=9)
    step = f"target steps (one is {profile.target_seconds * 1e3:.2g} ms)"
    return finish(ax, xlabel=step, xlim=(0, ends.max() * 1.16))


def draw_drafter_map(drafters, ax, *, verify_slope=0.0):
    """Kinds of drafters {name: (α, c)} on the map of predicted speedup at the best γ, V(n) = 1 + slope·(n - 1).

    Hatched: no γ pays. A drafter whose c is beyond the map stands at its upper edge.
    """
    top, cost = 1.0, linear_cost(verify_slope)
    alpha, c = np.meshgrid(np.linspace(0, 0.98, 50), np.linspace(0, top, 41))
    best = best_gamma(alpha, c, cost, max_gamma=32)
    factor = np.where(best > 0, speedup(alpha, best, c, cost), 1.0)
    contours = ax.contour(alpha, c, factor, [1.1, 1.25, 1.5, 2, 3, 5], colors=BLUE_INK, linewidths=1)
    ax.clabel(contours, fmt=lambda level: f"{level:g}×", fontsize=8)
    ax.contourf(alpha, c, best == 0, [0.5, 1.5], colors=[(RED, 0.1)], hatches=["x"])
    colours = (BLUE, TEAL, PURPLE, ORANGE, GREY, RED, BLUE, TEAL)
    for (name, (a, price)), marker, colour in zip(drafters.items(), "osD^vP*X", colours, strict=False):
        look = dict(color=colour, markeredgecolor="black", markersize=9, clip_on=False, zorder=5)
        ax.plot(a, min(price, top), marker, label=name, **look)
    return finish(ax, xlim=(0, 1), ylim=(0, top), xlabel="α: acceptance rate", ylabel="c: a draft, in target steps")
