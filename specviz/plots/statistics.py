"""Counts against a distribution, residuals, p-values (lesson 05)."""

from __future__ import annotations

import numpy as np

from specviz.plots.style import BLUE, EDGE, INK, ORANGE, PURPLE, RED, SOFT, finish, points_and_mean, token_axis


def draw_sampled(counts, probs, ax, labels=None, *, n=None):
    """The shares sampled, points with error bars of 2 standard errors, on the promised probabilities, bars.

    counts [K] of K events with probabilities probs [K]. n: the number of samples; by default all counts together
    (give it when the events are those of several positions).
    """
    share, probs, error = _shares(counts, probs, n)
    x = np.arange(len(probs))
    ax.bar(x, probs, 0.72, facecolor=(BLUE, 0.45), label="promised: p", **EDGE)
    look = dict(fmt="o", color=INK, markerfacecolor="white", markersize=5, capsize=4, linewidth=1.2)
    ax.errorbar(x, share, 2 * error, label="sampled, ±2 standard errors", **look)
    ax.set(ylabel="probability", xlim=(-0.6, len(probs) - 0.4))
    return token_axis(ax, labels, max(probs.max(), (share + 2 * error).max()))


def draw_residuals(counts, probs, ax, labels=None, *, n=None):
    """The distance of each count, in standard errors: ● within 2, ◆ within 3, ✗ beyond. Arguments of draw_sampled().

    An event of probability 0 that occurred stands at the upper end, as ✗.
    """
    share, probs, error = _shares(counts, probs, n)
    off = np.divide(share - probs, error, out=np.where(share > 0, np.inf, 0.0), where=error > 0)
    size = np.abs(off)
    reach = max(4.0, 1.15 * size[np.isfinite(size)].max(initial=0))
    off, x = off.clip(-reach, reach), np.arange(len(probs))
    ax.axhspan(-2, 2, facecolor=(BLUE, 0.16), edgecolor="none")
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.bar(x, off, 0.06, color=SOFT)
    for kind, colour, marker, where in (
        ("within 2", BLUE, "o", size <= 2),
        ("within 3", ORANGE, "D", (2 < size) & (size <= 3)),
        ("beyond 3", RED, "X", 3 < size),
    ):
        if where.any():
            look = dict(color=colour, markeredgecolor="black", markeredgewidth=0.7, markersize=7, label=kind)
            ax.plot(x[where], off[where], marker, **look)
    ax.set(ylabel="off by … standard errors", xlim=(-0.6, len(probs) - 0.4))  # as draw_sampled
    token_axis(ax, labels, 1)
    ax.set_ylim(-reach, 1.35 * reach)  # the legend has the top
    return ax


def _shares(counts, probs, n):
    """Shares of the samples, probabilities, and the standard errors of a sampler that keeps the promise."""
    counts, probs = np.asarray(counts), np.asarray(probs)
    n = counts.sum() if n is None else n
    return counts / n, probs, np.sqrt(probs * (1 - probs) / n)


def draw_chi_square_growth(n, statistics, dof, ax, *, share=0.99):
    """Pearson's statistic against the number of samples n [N], a thin line for each run, on two logarithmic axes.

    statistics {name: [runs, N]}. The band holds that share of the statistics of a correct sampler, at any n.
    """
    from scipy import stats  # the other figures need no scipy

    low, high = stats.chi2.interval(share, dof)
    ax.axhspan(low, high, facecolor=(BLUE, 0.16), edgecolor="none", label=f"{share:.0%} of correct samplers")
    looks = [(BLUE, "-", "o"), (PURPLE, ":", "^"), (RED, "--", "X"), (ORANGE, "-.", "D")]
    for (name, runs), (colour, line, marker) in zip(statistics.items(), looks, strict=False):
        look = dict(color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1, alpha=0.8)
        labels = [name] + [None] * (len(runs) - 1)  # the legend names each sampler once
        ax.plot(n, np.transpose(runs), label=labels, **look)
    ax.set(xscale="log", yscale="log")
    return finish(ax, "upper left", xlabel="samples n", ylabel=f"χ² ({dof} degrees of freedom)")


def draw_p_values(p_values, ax, *, bins=20):
    """Histograms of p-values, {name: [tests]}, as shares of the tests; flat at 1/bins where the promise is kept."""
    looks = [dict(facecolor=BLUE), dict(facecolor=(RED, 0.25), hatch="xx"), dict(facecolor=ORANGE, hatch="///")]
    edges, width = np.linspace(0, 1, bins + 1), 0.9 / bins / len(p_values)
    for i, (name, values) in enumerate(p_values.items()):
        share = np.histogram(values, edges)[0] / len(values)
        left = edges[:-1] + 0.05 / bins + (i + 0.5) * width
        ax.bar(left, share, width, label=name, **EDGE | looks[i % len(looks)])
    ax.axhline(1 / bins, color=INK, linestyle="--", linewidth=1.2, label="every p-value equally likely")
    return finish(ax, "upper right", xlim=(0, 1), xlabel="p-value", ylabel="share of the tests")


def draw_two_rules(least, product, ax):
    """Real positions, one point each: acceptance Σ min(p, q) of the paper's rule against Σ p·q of sample-and-match."""
    points_and_mean(ax, least, product, "one position")
    axes = dict(xlabel="accept or resample: Σ min(p, q)", ylabel="sample and match: Σ p·q")
    return finish(ax, "upper left", xlim=(0, 1.02), ylim=(0, 1.02), **axes)
