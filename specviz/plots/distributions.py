"""Distributions p and q, their overlap, and the acceptance rate that follows from it (lessons 03 and 04)."""

from __future__ import annotations

import numpy as np

from specviz.plots.style import BLUE, GREY, INK, LOOKS, ORANGE, P_BAR, Q_BAR, bare, token_axis


def draw_overlap(p, q, ax, labels=None):
    """p beside q, token by token; the grey floor is min(p, q), whose sum is the overlap β."""
    p, q, x = np.asarray(p), np.asarray(q), np.arange(len(p))
    least = np.minimum(p, q)
    ax.bar(x - 0.2, p, 0.4, label="target p", **P_BAR)
    ax.bar(x + 0.2, q, 0.4, label="draft q", **Q_BAR)
    ax.bar(x, least, 0.86, color=INK, alpha=0.22, label="min(p, q)")
    ax.hlines(least, x - 0.45, x + 0.45, color=INK, linewidth=1.8)
    ax.set_title(f"overlap β = Σ min(p, q) = {least.sum():.2f}", loc="left", fontsize=11)
    return token_axis(ax, labels, max(p.max(), q.max()))


def draw_two_paths(p, q, ax, labels=None):
    """Accepted mass min(p, q) below, corrected mass Z p' = max(0, p - q) above: they stack exactly to p."""
    p, q, x = np.asarray(p), np.asarray(q), np.arange(len(p))
    least = np.minimum(p, q)
    accepted, resampled = LOOKS["accepted"], LOOKS["resampled"]
    ax.bar(x, least, 0.62, color=accepted.colour, edgecolor="black", linewidth=0.6, label="✓ min(p, q)")
    ax.bar(
        x, p - least, 0.62, bottom=least, facecolor=(resampled.colour, 0.25), edgecolor=resampled.colour,
        linewidth=1.2, hatch=resampled.hatch, label="↻ Z p'",
    )  # fmt: skip
    ax.hlines(p, x - 0.42, x + 0.42, color=INK, linewidth=2.2, label="target p")
    ax.set_title(f"β = {least.sum():.2f} accepted + Z = {(p - least).sum():.2f} corrected = p", loc="left", fontsize=11)
    return token_axis(ax, labels, max(p.max(), q.max()))


def draw_laws(laws, p, ax, labels=None):
    """What decoders emit, {name: probabilities}, as bars beside each other, against a line for the target's p."""
    p, x = np.asarray(p), np.arange(len(p))
    laws = {name: np.asarray(law) for name, law in laws.items()}
    styles = [("#92dadd", ""), ("#a96b59", "\\\\\\"), ("#b9ac70", ".."), ("#717581", "xx")]
    width = 0.8 / len(laws)
    for i, (name, law) in enumerate(laws.items()):
        colour, hatch = styles[i % len(styles)]
        at = x + (i - (len(laws) - 1) / 2) * width
        ax.bar(at, law, width, facecolor=colour, edgecolor="black", linewidth=0.6, hatch=hatch, label=name)
    ax.hlines(p, x - 0.46, x + 0.46, color=INK, linewidth=2.2, label="target p")
    return token_axis(ax, labels, max(p.max(), *(law.max() for law in laws.values())))


def draw_alpha_by_position(by_position, ax):
    """[(accepted / tested, tested)] as bars, and the product up to each position: the share of rounds that reach it."""
    alpha = np.array([a for a, _ in by_position])
    x = np.arange(1, len(alpha) + 1)
    look = LOOKS["accepted"]
    ax.bar(x, alpha, 0.6, facecolor=(look.colour, 0.45), edgecolor="black", linewidth=0.6, label="α at this position")
    ax.plot(x, np.cumprod(alpha), "o--", color=INK, markerfacecolor="white", label="product of the α so far")
    for i, (a, tested) in enumerate(by_position):
        ax.text(i + 1, 0.02, f"{tested}\ntested", ha="center", va="bottom", fontsize=8, color=INK)
        ax.text(i + 1, a + 0.015, f"{a:.2f}", ha="center", va="bottom", fontsize=9)
    ax.set(xticks=x, xlabel="draft position", ylim=(0, 1.28), yticks=[0, 0.5, 1])
    ax.legend(loc="upper right", frameon=False, ncols=2, fontsize=9)
    return bare(ax)


def draw_agreement(overlap, measured, ax):
    """One point a text: the mean overlap of its tested positions against the share of its drafts accepted."""
    ends = [max(0.0, min(*overlap, *measured) - 0.05), min(1.0, max(*overlap, *measured) + 0.05)]
    ax.plot(ends, ends, color=GREY, linewidth=1, label="equal")
    ax.plot(overlap, measured, "o", color=BLUE, markeredgecolor="black", label="one text")
    mean = dict(color=ORANGE, markeredgecolor="black", markersize=9, label="their mean")
    ax.plot(np.mean(overlap), np.mean(measured), "D", **mean)
    ax.set(xlabel="alpha_overlap: mean of Σ min(p, q)", ylabel="alpha: accepted / tested", aspect="equal")
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return bare(ax)
