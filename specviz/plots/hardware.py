"""Roofs, layouts, memory, batches and servers (lesson 08)."""

from __future__ import annotations

import numpy as np
from matplotlib.patheffects import withStroke

from specviz.plots.style import BLUE, EDGE, GREY, INK, ORANGE, RED, TEAL, break_even, finish, lines, stacked


def draw_roofline(work, memory, arithmetic, ax):
    """Measured forwards under the two roofs of a machine, both axes logarithmic.

    work {n: (operations, bytes, seconds)} of a forward over n tokens; memory {name: bytes/s} one or several slanted
    roofs, the first being the highest; arithmetic operations/s, the flat one.
    """
    points = {n: (operations / size, operations / seconds) for n, (operations, size, seconds) in work.items()}
    intensities, rates = zip(*points.values())
    x = np.geomspace(0.7 * min(intensities), max(4 * max(intensities), 2 * arithmetic / min(memory.values())), 200)
    for (name, bandwidth), line in zip(memory.items(), ("-", "--", ":"), strict=False):
        ax.plot(x, np.minimum(bandwidth * x, arithmetic), line, color=INK, linewidth=1.6, label=name)
    ax.fill_between(x, np.minimum(max(memory.values()) * x, arithmetic), 1e30, facecolor=(GREY, 0.15), linewidth=0)
    ax.plot(intensities, rates, "o", color=BLUE, markeredgecolor="black", label="a forward over n tokens")
    for n, point in points.items():
        ax.annotate(f"n = {n}", point, (5, -11), textcoords="offset points", fontsize=8)
    ax.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(0.4 * min(rates), 3 * arithmetic))
    ax.legend(loc="lower right", fontsize=8, framealpha=1)
    return finish(ax, xlabel="operations for each byte of weights", ylabel="operations a second")


def draw_forward_times(measured, moving, computing, ax):
    """Seconds of a forward over n tokens: measured {n: s} against moving (a number) and computing {n: s}, in ms."""
    n = sorted(measured)
    least = [1e3 * max(moving, computing[i]) for i in n]
    ax.fill_between(n, 0, least, facecolor=(GREY, 0.2), linewidth=0, label="under the roofs")
    ax.plot(n, [1e3 * moving] * len(n), "--", color=INK, label="moving the weights")
    ax.plot(n, [1e3 * computing[i] for i in n], ":", color=INK, linewidth=2, label="computing")
    ax.plot(n, [1e3 * measured[i] for i in n], "o-", color=BLUE, markeredgecolor="black", label="measured")
    limits = dict(xlim=(0, max(n) * 1.03), ylim=(0, None))
    return finish(ax, "upper left", xlabel="n: tokens in the forward", ylabel="milliseconds", **limits)


def draw_layouts(times, ax):
    """Seconds of the same product by several layouts of the weights, {name: {rows: s}}, in microseconds over rows."""
    rows = [*next(iter(times.values()))]
    lines(ax, range(len(rows)), {name: [1e6 * by_rows[n] for n in rows] for name, by_rows in times.items()})
    ax.set_xticks(range(len(rows)), rows)
    return finish(ax, "best", xlabel="rows in the product", ylabel="microseconds", ylim=(0, None))


def draw_memory(parts, labels, ax, *, limit=None):
    """Stacked bars of memory in GB, parts {name: [bytes for each bar]}; limit: the bytes of one device."""
    looks = [dict(facecolor=GREY), dict(facecolor=BLUE), dict(facecolor=ORANGE, hatch="///")]
    looks += [dict(facecolor=RED, hatch="xx")]
    tops, limit = np.zeros(len(labels)), (limit or 0) / 1e9
    for (name, size), look in zip(parts.items(), looks, strict=False):
        tops = stacked(ax.bar, tops, np.broadcast_to(size, tops.shape) / 1e9, 0.62, label=name, **look, **EDGE)
    for x, height in enumerate(tops):
        ax.text(x, height, f"{height:,.0f}", ha="center", va="bottom", fontsize=9)
    if limit:
        ax.axhline(limit, color=INK, linestyle="--", linewidth=1.4, label=f"one device: {limit:.0f} GB")
    ax.set_xticks(range(len(labels)), labels)
    return finish(ax, "upper left", ylabel="GB", ylim=(0, 1.15 * max(tops.max(), limit)))


def draw_batch_speedup(batches, measured, predicted, ax, *, title=""):
    """Speedup of a batch's tokens a second over plain decoding of the same batch, over the batch size."""
    break_even(ax)
    ax.plot(batches, predicted, "D--", color=BLUE, markersize=5, label="tokens a round / (γ·c + V), of the batch")
    ax.plot(batches, measured, "o-", color=INK, markerfacecolor="white", label="measured")
    style = dict(path_effects=[withStroke(linewidth=3, foreground="white")], zorder=5, ha="center", fontsize=8)
    for batch, factor in zip(batches, measured):
        ax.annotate(f"{factor:.2f}", (batch, factor), (0, 9), textcoords="offset points", **style)
    ax.set_xscale("log", base=2)
    ax.set_xticks(batches, [str(batch) for batch in batches])
    ax.minorticks_off()
    ax.set_title(title, fontsize=10)
    highest = max(1.2, *measured, *predicted)
    return finish(ax, "upper left", xlabel="batch size B", ylabel="speedup", ylim=(0, 1.4 * highest))


def draw_token_budget(steps, budget, ax):
    """A server's forwards one after another, steps [(emitted, in vain, prompt tokens)], as bars under their budget."""
    tops, edge = np.zeros(len(steps)), dict(edgecolor="black", linewidth=0.4)
    for tokens, look in zip(np.array(steps).T, (
        dict(label="rows that brought a token", facecolor=BLUE),
        dict(label="rows verified in vain", facecolor=(RED, 0.25), hatch="xx"),
        dict(label="prompt tokens (chunked prefill)", facecolor=(TEAL, 0.3), hatch=".."),
    )):  # fmt: skip
        tops = stacked(ax.bar, tops, tokens, 0.9, **look, **edge)
    ax.axhline(budget, color=INK, linestyle="--", linewidth=1.2)
    ax.text(-0.4, budget, "token budget", va="bottom", fontsize=9)
    limits = dict(xlim=(-0.6, len(steps) - 0.4), ylim=(0, 1.45 * budget))
    return finish(ax, "upper right", ncols=3, xlabel="forward of the server", ylabel="tokens", **limits)


def draw_latency(rates, latency, ax):
    """Milliseconds a token over a server's requests a second, latency {γ: [ms at each rate]}; γ = 0 is plain."""
    lines(ax, rates, {f"γ = {gamma}" if gamma else "plain": times for gamma, times in latency.items()})
    axes = dict(xlabel="requests a second", ylabel="milliseconds a token", xticks=rates, ylim=(0, None))
    return finish(ax, "upper left", **axes)
