"""The speedup, predicted and measured, and where a round's time goes (lessons 01, 06 and 07)."""

from __future__ import annotations

import numpy as np

from specviz.plots.style import BLUE, BLUE_INK, GREY, GREY_BAR, INK, ORANGE, P_BAR, PURPLE, Q_BAR, RED, SOFT, TEAL, bare


def draw_verify_cost(cost, ax):
    """Measured V(n), cost = {n: V(n)}, between its two extremes: n forwards of their own, and the paper's V = 1."""
    n = sorted(cost)
    ax.plot(n, n, color=GREY, linestyle="--", label="n forwards, one token each")
    ax.plot(n, [cost[i] for i in n], color=BLUE, marker="o", label="one forward with n tokens: V(n), measured")
    ax.plot(n, [1] * len(n), color="black", linestyle=":", label="the paper's assumption: V = 1")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(n, [str(i) for i in n])
    ticks = [2**k for k in range(max(n).bit_length())]
    ax.set_yticks(ticks, [str(i) for i in ticks])
    ax.minorticks_off()
    ax.set_xlabel("n, tokens in the forward")
    ax.set_ylabel("time / time for one token")
    ax.legend(frameon=False)
    return bare(ax)


def draw_step_costs(verify, steps, ax):
    """Times of one verification and of γ+1 single steps, both {γ: seconds}, as pairs of bars in milliseconds."""
    at = range(len(verify))
    steps_ms = [1000 * steps[gamma] for gamma in verify]
    verify_ms = [1000 * seconds for seconds in verify.values()]
    ax.bar([i - 0.2 for i in at], steps_ms, 0.38, label="γ+1 steps, one token each", **GREY_BAR)
    bars = ax.bar([i + 0.2 for i in at], verify_ms, 0.38, label="one forward with γ+1 tokens", **P_BAR)
    ax.bar_label(bars, fmt="%.1f", fontsize=9, padding=2)
    ax.set_xticks(at, [str(gamma) for gamma in verify])
    ax.set_xlabel("γ")
    ax.set_ylabel("milliseconds")
    ax.legend(frameon=False)
    return bare(ax)


def draw_speedup_curve(alpha, c, ax, *, verify_slope=0.0, max_gamma=12, profile=None):
    """The formula's speedup over γ with its best γ, the break-even line, and a Profile's measured points, if given."""
    from specviz.speedup.theory import best_gamma, linear_cost, speedup

    cost = linear_cost(verify_slope)
    gammas = np.arange(1, max_gamma + 1)
    factors, best = speedup(alpha, gammas, c, cost), int(best_gamma(alpha, c, cost, max_gamma=max_gamma))
    ax.plot(gammas, factors, color=BLUE, linewidth=2.4, marker="o", markersize=4, label="formula")
    highest = factors.max()
    if profile is not None:
        for gamma, speed in profile.speedups.items():
            spread = [[speed.median - speed.low], [speed.high - speed.median]]
            label = None if gamma != min(profile.speedups) else f"measured, {speed.runs} runs: median and extremes"
            ax.errorbar(
                gamma, speed.median, spread, fmt="o", color=INK, markerfacecolor="white", capsize=3, label=label
            )
            highest = max(highest, speed.high)
    ax.axhspan(0, 1, facecolor=(RED, 0.08), edgecolor="none")
    ax.axhline(1, color=INK, linewidth=1.2)
    ax.text(max_gamma + 0.3, 0.05, "slower than plain decoding", ha="right", va="bottom", color=SOFT, fontsize=9)
    if best:
        ax.plot(best, factors[best - 1], "o", markersize=13, markerfacecolor="none", markeredgecolor=ORANGE, mew=2.4)
        at = dict(textcoords="offset points", xytext=(0, 11), ha="center", fontsize=9, fontweight="bold")
        ax.annotate(f"best γ = {best}: {factors[best - 1]:.2f}×", (best, factors[best - 1]), **at)
    ax.set(xticks=gammas, xlabel="γ: drafts a round", ylabel="speedup over plain decoding")
    ax.set(xlim=(0.5, max_gamma + 0.5), ylim=(0, max(1.3, highest * 1.35)))
    ax.legend(loc="upper right", frameon=False, fontsize=9, ncols=2)
    return bare(ax)


def draw_round_timeline(gamma, alpha, c, ax, *, verify_slope=0.0):
    """One round to scale (γ draft steps, one verification), and the plain steps that bring as many tokens."""
    from specviz.speedup.theory import expected_tokens, linear_cost, round_cost

    tokens = float(expected_tokens(alpha, gamma))
    whole = float(round_cost(gamma, c, linear_cost(verify_slope)))
    for i in range(gamma if c else 0):
        ax.barh(1, c, left=i * c, height=0.5, **Q_BAR)
    ax.barh(1, whole - gamma * c, left=gamma * c, height=0.5, **P_BAR | dict(alpha=0.55))
    ax.text(gamma * c + (whole - gamma * c) / 2, 1, f"verify {gamma + 1}", ha="center", va="center", fontsize=9)
    for i in range(int(np.ceil(tokens))):
        ax.barh(0, min(1, tokens - i), left=i, height=0.5, color=GREY, edgecolor="black", linewidth=0.6, alpha=0.55)
    names = [f"plain decoding:\n{tokens:.2f} steps", f"a round, γ = {gamma}:\n{whole:.2f} steps"]
    ax.set_yticks([0, 1], names)
    ax.set(xlabel=f"time in target steps; both rows bring E[N] = {tokens:.2f} tokens", ylim=(-0.45, 1.45))
    ax.set_xlim(0, max(tokens, whole) * 1.02)
    ax.spines[["left", "right", "top"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


PARTS = {  # of a round's time: (what it is called, how it looks)
    "draft forwards": ("draft forwards", Q_BAR),
    "draft": ("drawing the drafts from q", dict(facecolor="#ffe3b0", edgecolor="black", linewidth=0.6, hatch="....")),
    "target forward": ("target forward", P_BAR),
    "target": ("turning logits into p", dict(facecolor="#cfe3f6", edgecolor="black", linewidth=0.6, hatch="....")),
    "verify": ("coins, residual, next token", dict(facecolor="white", edgecolor=PURPLE, linewidth=0.6, hatch="xxxx")),
    "commit": ("keeping the books", dict(facecolor=GREY, edgecolor="black", linewidth=0.6, hatch="\\\\\\")),
}


def draw_profile(profile, ax):
    """A Profile's speedups over γ: measured with the spread of the runs, predicted, and predicted as if i.i.d."""
    gammas = np.array(sorted(profile.speedups))
    iid, predicted = profile.iid(gammas), profile.predicted(gammas, overhead=True)
    speeds = [profile.speedups[int(gamma)] for gamma in gammas]
    median, low, high = (np.array([getattr(speed, name) for speed in speeds]) for name in ("median", "low", "high"))
    ax.axhspan(0, 1, facecolor=(RED, 0.08), edgecolor="none")
    ax.axhline(1, color=INK, linewidth=1.2)
    ax.plot(gammas, iid, "s:", color=PURPLE, markersize=5, markerfacecolor="white", label="i.i.d.: one α, models only")
    whole = "predicted: α by position, all of a round's time"
    ax.plot(gammas, predicted, "D-", color=BLUE, linewidth=2.2, markersize=5, label=whole)
    runs = f"measured: median, slowest and fastest of {speeds[0].runs} runs"
    spread = [median - low, high - median]
    ax.errorbar(gammas, median, spread, fmt="o", color=INK, markerfacecolor="white", capsize=3, zorder=4, label=runs)
    ax.text(0.995, 0.015, "slower than plain decoding", transform=ax.transAxes, ha="right", color=SOFT, fontsize=9)
    ax.set(xticks=gammas, xlabel="γ: drafts a round", ylabel="speedup over plain decoding")
    ax.set(xlim=(gammas[0] - 0.5, gammas[-1] + 0.5), ylim=(0, max(1.2, *iid, *predicted, *high) * 1.45))
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return bare(ax)


def draw_round_time(profile, ax):
    """Where the time of a plain step and of a round with each measured γ goes: a bar each, by phase, in target steps.

    The number behind a bar is the share of what is neither the draft's forward nor the target's.
    """
    gammas = [0, *sorted(profile.speedups)]
    parts = [profile.parts(gamma) for gamma in gammas]
    left = np.zeros(len(gammas))
    for part, (name, look) in PARTS.items():
        wide = np.array([times[part] for times in parts])
        ax.barh(range(len(gammas)), wide, 0.68, left=left, label=name, **look)
        left = left + wide
    for row, (times, end) in enumerate(zip(parts, left)):
        outside = 1 - (times["draft forwards"] + times["target forward"]) / end
        ax.text(end + 0.01 * left.max(), row, f" {outside:.0%} outside", va="center", fontsize=9, color=SOFT)
    ax.set_yticks(range(len(gammas)), ["plain", *(f"γ = {gamma}" for gamma in gammas[1:])])
    ax.set(xlabel=f"target steps (one is {profile.target_seconds * 1e3:.2g} ms)", xlim=(0, left.max() * 1.16))
    ax.invert_yaxis()
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize=9)
    return bare(ax)


def draw_drafter_map(drafters, ax, *, verify_slope=0.0):
    """Kinds of drafters {name: (α, c)} on the map of predicted speedup at the best γ, V(n) = 1 + slope·(n - 1).

    Hatched: no γ pays. A drafter whose c is beyond the map stands at its upper edge.
    """
    from specviz.speedup.theory import best_gamma, linear_cost, speedup

    top = 1.0
    alpha, c = np.meshgrid(np.linspace(0, 0.98, 50), np.linspace(0, top, 41))
    cost = linear_cost(verify_slope)
    best = best_gamma(alpha, c, cost, max_gamma=32)
    factor = np.where(best > 0, speedup(alpha, best, c, cost), 1.0)
    lines = ax.contour(alpha, c, factor, [1.1, 1.25, 1.5, 2, 3, 5], colors=BLUE_INK, linewidths=1)
    ax.clabel(lines, fmt=lambda level: f"{level:g}×", fontsize=8)
    ax.contourf(alpha, c, best == 0, [0.5, 1.5], colors=[(RED, 0.1)], hatches=["x"])
    for (name, (a, price)), marker in zip(drafters.items(), "osD^vP*X", strict=False):
        colour = (BLUE, TEAL, PURPLE, ORANGE, GREY, RED)["osD^vP*X".index(marker) % 6]
        look = dict(color=colour, markeredgecolor="black", markersize=9, clip_on=False, zorder=5)
        ax.plot(a, min(price, top), marker, label=name, linestyle="none", **look)
    ax.set(xlim=(0, 1), ylim=(0, top), xlabel="α: acceptance rate", ylabel="c: a draft, in target steps")
    return bare(ax)
