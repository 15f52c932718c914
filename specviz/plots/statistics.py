"""Counts against a distribution, residuals, p-values (lesson 05)."""

from __future__ import annotations

import numpy as np

from specviz.plots.style import BLUE, GREY, INK, ORANGE, PURPLE, RED, SOFT, bare, token_axis


def draw_sampled(counts, probs, ax, labels=None, *, n=None):
    """What was sampled, points with error bars of 2 standard errors, on what was promised, bars.

    counts [K] of K events with probabilities probs [K]. n: of how many samples; by default all counts together
    (give it when the events are those of several positions).
    """
    share, probs, error = _shares(counts, probs, n)
    x = np.arange(len(probs))
    ax.bar(x, probs, 0.72, facecolor=(BLUE, 0.45), edgecolor="black", linewidth=0.6, label="promised: p")
    ax.errorbar(
        x, share, 2 * error, fmt="o", color=INK, markerfacecolor="white", markersize=5, capsize=4, linewidth=1.2,
        label="sampled, ±2 standard errors",
    )  # fmt: skip
    ax.set(ylabel="probability", xlim=(-0.6, len(probs) - 0.4))
    return token_axis(ax, labels, max(probs.max(), (share + 2 * error).max()))


def draw_residuals(counts, probs, ax, labels=None, *, n=None):
    """How far off each count is, in standard errors: ● within 2, ◆ within 3, ✗ beyond. See draw_sampled().

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
    """Shares of the samples, probabilities, and the standard errors that the promised law has."""
    counts, probs = np.asarray(counts), np.asarray(probs)
    n = counts.sum() if n is None else n
    return counts / n, probs, np.sqrt(probs * (1 - probs) / n)


def draw_chi_square_growth(n, statistics, dof, ax, *, share=0.99):
    """Pearson's statistic against the number of samples n [N], a thin line for each run, on two logarithmic axes.

    statistics {name: [runs, N]}. The band holds that share of the statistics of a correct sampler, at any n.
    """
    from scipy import stats  # plots alone need no scipy

    low, high = stats.chi2.interval(share, dof)
    ax.axhspan(low, high, facecolor=(BLUE, 0.16), edgecolor="none", label=f"{share:.0%} of correct samplers")
    styles = [(BLUE, "-", "o"), (PURPLE, ":", "^"), (RED, "--", "X"), (ORANGE, "-.", "D")]
    for (name, runs), (colour, line, marker) in zip(statistics.items(), styles, strict=False):
        for i, run in enumerate(np.asarray(runs)):
            look = dict(color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1, alpha=0.8)
            ax.plot(n, run, label=name if i == 0 else None, **look)
    ax.set(xscale="log", yscale="log", xlabel="samples n", ylabel=f"χ² ({dof} degrees of freedom)")
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return bare(ax)


def draw_p_values(p_values, ax, *, bins=20):
    """Histograms of p-values, {name: [tests]}, as shares of the tests; flat at 1/bins where the promise is kept."""
    styles = [dict(facecolor=BLUE), dict(facecolor=(RED, 0.25), hatch="xx"), dict(facecolor=ORANGE, hatch="///")]
    edges, width = np.linspace(0, 1, bins + 1), 0.9 / bins / len(p_values)
    for i, (name, values) in enumerate(p_values.items()):
        share = np.histogram(values, edges)[0] / len(values)
        look = dict(edgecolor="black", linewidth=0.6) | styles[i % len(styles)]
        ax.bar(edges[:-1] + 0.05 / bins + (i + 0.5) * width, share, width, label=name, **look)
    ax.axhline(1 / bins, color=INK, linestyle="--", linewidth=1.2, label="every p-value equally likely")
    ax.set(xlim=(0, 1), xlabel="p-value", ylabel="share of the tests")
    ax.legend(loc="upper right", frameon=False, fontsize=9)
    return bare(ax)


def draw_two_rules(least, product, ax):
    """Real positions, one point each: acceptance Σ min(p, q) of the paper's rule against Σ p·q of sample-and-match."""
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="equal")
    ax.plot(least, product, "o", color=BLUE, markeredgecolor="black", markersize=5, alpha=0.7, label="one position")
    mean = dict(color=ORANGE, markeredgecolor="black", markersize=9, label="their mean")
    ax.plot(np.mean(least), np.mean(product), "D", **mean)
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    ax.set(xlabel="accept or resample: Σ min(p, q)", ylabel="sample and match: Σ p·q")
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return bare(ax)
