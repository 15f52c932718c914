"""Distributions p and q, their overlap, and the acceptance rate that follows from it (lessons 03 and 04)."""

from __future__ import annotations

import numpy as np

from specviz.plots.style import EDGE, INK, LOOKS, P_BAR, Q_BAR, finish, points_and_mean, token_axis


def draw_overlap(p, q, ax, labels=None):
    """p [V] beside q [V], token by token; the grey floor is min(p, q), whose sum is the overlap β."""
    p, q, x = np.asarray(p), np.asarray(q), np.arange(len(p))
    least = np.minimum(p, q)
    ax.bar(x - 0.2, p, 0.4, label="target p", **P_BAR)
    ax.bar(x + 0.2, q, 0.4, label="draft q", **Q_BAR)
    ax.bar(x, least, 0.86, color=INK, alpha=0.22, label="min(p, q)")
    ax.hlines(least, x - 0.45, x + 0.45, color=INK, linewidth=1.8)
    ax.set_title(f"overlap β = Σ min(p, q) = {least.sum():.2f}", loc="left", fontsize=11)
    return token_axis(ax, labels, max(p.max(), q.max()))


def draw_two_paths(p, q, ax, labels=None):
    """The accepted share min(p, q) below, the corrected one Z p' = max(0, p - q) above: they stack exactly to p [V]."""
    p, q, x = np.asarray(p), np.asarray(q), np.arange(len(p))
    least, purple = np.minimum(p, q), LOOKS["resampled"].colour
    corrected = dict(facecolor=(purple, 0.25), edgecolor=purple, linewidth=1.2, hatch=LOOKS["resampled"].hatch)
    ax.bar(x, least, 0.62, label="✓ min(p, q)", **P_BAR)
    ax.bar(x, p - least, 0.62, bottom=least, label="↻ Z p'", **corrected)
    ax.hlines(p, x - 0.42, x + 0.42, color=INK, linewidth=2.2, label="target p")
    ax.set_title(f"β = {least.sum():.2f} accepted + Z = {(p - least).sum():.2f} corrected = p", loc="left", fontsize=11)
    return token_axis(ax, labels, max(p.max(), q.max()))


def draw_laws(laws, p, ax, labels=None):
    """Distributions that decoders emit, {name: [V]}, as bars beside each other; lines show the target's p [V]."""
    p, x, width = np.asarray(p), np.arange(len(p)), 0.8 / len(laws)
    laws = {name: np.asarray(law) for name, law in laws.items()}
    looks = [("#92dadd", ""), ("#a96b59", "\\\\\\"), ("#b9ac70", ".."), ("#717581", "xx")]
    for i, (name, law) in enumerate(laws.items()):
        colour, hatch = looks[i % len(looks)]
        ax.bar(x + (i - (len(laws) - 1) / 2) * width, law, width, facecolor=colour, hatch=hatch, label=name, **EDGE)
    ax.hlines(p, x - 0.46, x + 0.46, color=INK, linewidth=2.2, label="target p")
    return token_axis(ax, labels, max(p.max(), *(law.max() for law in laws.values())))


def draw_alpha_by_position(by_position, ax):
    """[(accepted / tested, tested)] as bars, and the product up to each position: the share of rounds that reach it."""
    alpha, x = np.array([a for a, _ in by_position]), np.arange(1, len(by_position) + 1)
    ax.bar(x, alpha, 0.6, facecolor=(LOOKS["accepted"].colour, 0.45), label="α at this position", **EDGE)
    ax.plot(x, np.cumprod(alpha), "o--", color=INK, markerfacecolor="white", label="product of the α so far")
    for i, (a, tested) in enumerate(by_position):
        ax.text(i + 1, 0.02, f"{tested}\ntested", ha="center", va="bottom", fontsize=8, color=INK)
        ax.text(i + 1, a + 0.015, f"{a:.2f}", ha="center", va="bottom", fontsize=9)
    return finish(ax, "upper right", ncols=2, xticks=x, xlabel="draft position", ylim=(0, 1.28), yticks=[0, 0.5, 1])


def draw_agreement(overlap, measured, ax):
    """One point a text: the mean overlap of its tested positions against the share of its drafts accepted."""
    points_and_mean(ax, overlap, measured, "one text")
    return finish(ax, "upper left", xlabel="alpha_overlap: mean of Σ min(p, q)", ylabel="alpha: accepted / tested")
