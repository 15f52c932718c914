"""Roofs, layouts, memory, batches and servers (lesson 08)."""

from __future__ import annotations

import numpy as np
from matplotlib.patheffects import withStroke

from specviz.plots.style import BLUE, GREY, INK, ORANGE, PURPLE, RED, SOFT, TEAL, bare


def draw_roofline(work, memory, arithmetic, ax):
    """Measured forwards under the two roofs of a machine, both axes logarithmic.

    work {n: (operations, bytes, seconds)} of a forward over n tokens; memory {name: bytes/s} one or several slanted
    roofs, the first being the highest; arithmetic operations/s, the flat one.
    """
    points = {n: (operations / size, operations / seconds) for n, (operations, size, seconds) in work.items()}
    x = np.array([0.7 * min(p[0] for p in points.values()), 4 * max(p[0] for p in points.values())])
    x = np.geomspace(x[0], max(x[1], 2 * arithmetic / min(memory.values())), 200)
    for (name, bandwidth), line in zip(memory.items(), ("-", "--", ":"), strict=False):
        ax.plot(x, np.minimum(bandwidth * x, arithmetic), line, color=INK, linewidth=1.6, label=name)
    ax.fill_between(x, np.minimum(max(memory.values()) * x, arithmetic), 1e30, facecolor=(GREY, 0.15), linewidth=0)
    ax.plot(*zip(*points.values()), "o", color=BLUE, markeredgecolor="black", label="a forward over n tokens")
    for n, (intensity, rate) in points.items():
        ax.annotate(f"n = {n}", (intensity, rate), (5, -11), textcoords="offset points", fontsize=8)
    lowest = min(rate for _, rate in points.values())
    ax.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(0.4 * lowest, 3 * arithmetic))
    ax.set(xlabel="operations for each byte of weights", ylabel="operations a second")
    ax.legend(loc="lower right", fontsize=8, framealpha=1)
    return bare(ax)


def draw_forward_times(measured, moving, computing, ax):
    """Seconds of a forward over n tokens: measured {n: s} against moving (a number) and computing {n: s}, in ms."""
    n = sorted(measured)
    least = [max(moving, computing[i]) for i in n]
    ax.fill_between(n, 0, [1e3 * s for s in least], facecolor=(GREY, 0.2), linewidth=0, label="under the roofs")
    ax.plot(n, [1e3 * moving] * len(n), "--", color=INK, label="moving the weights")
    ax.plot(n, [1e3 * computing[i] for i in n], ":", color=INK, linewidth=2, label="computing")
    ax.plot(n, [1e3 * measured[i] for i in n], "o-", color=BLUE, markeredgecolor="black", label="measured")
    ax.set(xlabel="n: tokens in the forward", ylabel="milliseconds", xlim=(0, max(n) * 1.03), ylim=(0, None))
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return bare(ax)


def draw_layouts(times, ax):
    """Seconds of the same product by several layouts of the weights, {name: {rows: s}}, in microseconds over rows."""
    looks = zip(((GREY, "s", "--"), (BLUE, "o", "-"), (PURPLE, "^", ":"), (ORANGE, "D", "-.")), times.items())
    for (colour, marker, line), (name, by_rows) in looks:
        microseconds = [1e6 * seconds for seconds in by_rows.values()]
        ax.plot(
            range(len(by_rows)), microseconds, line, color=colour, marker=marker, markeredgecolor="black", label=name
        )
    ax.set_xticks(range(len(by_rows)), by_rows)
    ax.set(xlabel="rows in the product", ylabel="microseconds", ylim=(0, None))
    ax.legend(frameon=False, fontsize=9)
    return bare(ax)


def draw_memory(parts, labels, ax, *, limit=None):
    """Stacked bars of memory in GB, parts {name: [bytes for each bar]}; limit: what there is."""
    looks = [dict(facecolor=GREY), dict(facecolor=BLUE), dict(facecolor=ORANGE, hatch="///")]
    looks.append(dict(facecolor=RED, hatch="xx"))
    below = np.zeros(len(labels))
    for (name, size), look in zip(parts.items(), looks, strict=False):
        size = np.broadcast_to(size, below.shape) / 1e9
        ax.bar(range(len(labels)), size, 0.62, bottom=below, edgecolor="black", linewidth=0.6, label=name, **look)
        below = below + size
    for x, height in enumerate(below):
        ax.text(x, height, f"{height:,.0f}", ha="center", va="bottom", fontsize=9)
    if limit is not None:
        ax.axhline(limit / 1e9, color=INK, linestyle="--", linewidth=1.4, label=f"one device: {limit / 1e9:.0f} GB")
    ax.set_xticks(range(len(labels)), labels)
    ax.set(ylabel="GB", ylim=(0, 1.15 * max(below.max(), (limit or 0) / 1e9)))
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return bare(ax)


def draw_batch_speedup(batches, measured, predicted, ax, *, title=""):
    """Speedup of a batch's tokens a second over plain decoding of the same batch, over the batch size."""
    ax.axhspan(0, 1, facecolor=(RED, 0.08), edgecolor="none")
    ax.axhline(1, color=INK, linewidth=1.2)
    ax.plot(batches, predicted, "D--", color=BLUE, markersize=5, label="tokens a round / (γ·c + V), of the batch")
    ax.plot(batches, measured, "o-", color=INK, markerfacecolor="white", label="measured")
    for batch, factor in zip(batches, measured):
        halo = dict(path_effects=[withStroke(linewidth=3, foreground="white")], zorder=5)
        place = dict(xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8)
        ax.annotate(f"{factor:.2f}", (batch, factor), **place, **halo)
    ax.text(0.99, 0.02, "slower than plain decoding", transform=ax.transAxes, ha="right", color=SOFT, fontsize=9)
    ax.set_xscale("log", base=2)
    ax.set_xticks(batches, [str(batch) for batch in batches])
    ax.minorticks_off()
    ax.set(xlabel="batch size B", ylabel="speedup", ylim=(0, 1.4 * max(1.2, *measured, *predicted)))
    ax.set_title(title, fontsize=10)
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return bare(ax)


def draw_token_budget(steps, budget, ax):
    """A server's forwards one after another, steps [(emitted, in vain, prompt tokens)], as bars under their budget."""
    emitted, vain, prompts = np.array(steps).T
    at, edge = np.arange(1, len(steps) + 1), dict(edgecolor="black", linewidth=0.4)
    ax.bar(at, emitted, 0.9, facecolor=BLUE, label="rows that brought a token", **edge)
    ax.bar(at, vain, 0.9, bottom=emitted, facecolor=(RED, 0.25), hatch="xx", label="rows verified in vain", **edge)
    look = dict(facecolor=(TEAL, 0.3), hatch="..", label="prompt tokens (chunked prefill)")
    ax.bar(at, prompts, 0.9, bottom=emitted + vain, **look, **edge)
    ax.axhline(budget, color=INK, linestyle="--", linewidth=1.2)
    ax.text(0.6, budget, "token budget", va="bottom", fontsize=9)
    ax.set(xlabel="forward of the server", ylabel="tokens", xlim=(0.4, len(steps) + 0.6), ylim=(0, 1.45 * budget))
    ax.legend(loc="upper right", frameon=False, fontsize=9, ncols=3)
    return bare(ax)


def draw_latency(rates, latency, ax):
    """Milliseconds a token over a server's requests a second, latency {γ: [ms at each rate]}; γ = 0 is plain."""
    looks = zip(((GREY, "s", "--"), (TEAL, "^", ":"), (BLUE, "o", "-"), (PURPLE, "D", "-.")), latency.items())
    for (colour, marker, line), (gamma, milliseconds) in looks:
        look = dict(color=colour, marker=marker, linestyle=line, markeredgecolor="black")
        ax.plot(rates, milliseconds, label=f"γ = {gamma}" if gamma else "plain", **look)
    ax.set(xlabel="requests a second", ylabel="milliseconds a token", xticks=rates, ylim=(0, None))
    ax.legend(loc="upper left", frameon=False)
    return bare(ax)
