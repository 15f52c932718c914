"""One decoded round, and the rounds of a batch (lessons 03, 04 and 07)."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.patheffects import withStroke

from specviz.plots.style import BLUE, BLUE_INK, GREY, INK, LINE, LOOKS, P_BAR, Q_BAR, SOFT
from specviz.text import token_label

# Measures of the picture, in units: a column is PITCH wide, and everything scales with the Axes.
LEFT, PITCH, WIDE, HIGH = 0.98, 1.5, 1.36, 4.62
DRAFT_Y, TARGET_Y, GAUGE_Y, OUT_Y = 3.72, 2.72, 1.2, 0.36
DRAFT_H, TARGET_H, GAUGE_H, OUT_H = 0.8, 0.62, 1.2, 0.5
HALO = [withStroke(linewidth=4, foreground="white")]


def draw_round(round, pieces, ax):
    """One decoded Round: the drafts with q, the target's one forward, the coins against A(x), the outcome.

    pieces {id: bytes} is Trace.pieces. Raises ValueError for a round recorded with record="none".
    """
    if round.q is None:
        raise ValueError("round was recorded with record='none': it holds no probabilities to draw.")
    drafts = len(round.draft_tokens)
    columns = max(round.gamma_asked, drafts) + 1
    pen = _Pen(ax, LEFT + PITCH * columns, HIGH)
    rows = [("draft q", DRAFT_Y + DRAFT_H / 2), ("target p", TARGET_Y + TARGET_H / 2)]
    for name, y in [*rows, ("coin u\nagainst A", GAUGE_Y + GAUGE_H / 2), ("outcome", OUT_Y + OUT_H / 2)]:
        pen.text(0, y, name, ha="left", color=SOFT)
    pen.box(LEFT - 0.05, TARGET_Y, columns * PITCH - 0.04, TARGET_H, facecolor=(BLUE, 0.16), edgecolor=BLUE)
    pen.text(LEFT, TARGET_Y + TARGET_H + 0.15, f"one forward over {drafts + 1} positions", ha="left", color=BLUE_INK)
    for i, token in enumerate(round.draft_tokens):
        _draw_draft(pen, round, i, token_label(pieces[token]))
    _draw_last(pen, round, LEFT + (columns - 1) * PITCH, pieces)
    return ax


def _draw_draft(pen, round, i, name):
    """The column of draft i: q, p, the coin, and what became of it."""
    x, token = LEFT + i * PITCH, round.draft_tokens[i]
    pen.box(x, DRAFT_Y, WIDE, DRAFT_H, facecolor=(Q_BAR["facecolor"], 0.18), edgecolor=Q_BAR["facecolor"])
    pen.token(x + WIDE / 2, DRAFT_Y + 0.56, name)
    pen.level(x, DRAFT_Y, "q", i, round.q[i][token], Q_BAR)
    pen.level(x, TARGET_Y, "p", i, round.p[i][token], P_BAR)
    if i:
        pen.text(x - (PITCH - WIDE) / 2, DRAFT_Y + DRAFT_H / 2, "›", color=SOFT)
    kind = "unreached" if i >= round.tested else "accepted" if i < round.accepted else "rejected"
    pen.outcome(x, name, kind)
    if kind == "unreached":
        pen.text(x + WIDE / 2, GAUGE_Y + GAUGE_H / 2, "not\ntested", color=SOFT, size=0.13)
    else:
        pen.coin(x + WIDE / 2, round.accept_probability[i], round.coins[i], LOOKS[kind])


def _draw_last(pen, round, x, pieces):
    """The last column: the token that follows the accepted drafts, and where it was drawn from."""
    kind, drafts, middle = round.outcome, len(round.draft_tokens), x + WIDE / 2
    if kind in ("bonus", "plain"):
        pen.level(x, TARGET_Y, "p", drafts, round.p[drafts][round.next_token], P_BAR)
    else:
        pen.text(middle, TARGET_Y + TARGET_H / 2, f"$p_{{{drafts + 1}}}$", color=SOFT, size=0.17)
    if round.next_token is None:
        return
    colour = LOOKS[kind].colour
    pen.outcome(x, token_label(pieces[round.next_token]), kind)
    if kind == "bonus":
        pen.text(x + WIDE, 0.14, f"all accepted: drawn from $p_{{{drafts + 1}}}$", ha="right", color=colour)
    elif kind == "resampled":
        start = LEFT + round.accepted * PITCH + WIDE / 2
        pen.arc(start, middle, OUT_Y - 0.03, LOOKS[kind])
        words = f"drawn from $p'_{{{round.accepted + 1}}}$"
        if middle - start < 1.5 * PITCH:
            pen.text(start + 0.1, 0.04, words, ha="right", color=colour)
        else:
            box = dict(facecolor="white", edgecolor="none", pad=1)
            pen.text((start + middle) / 2, -0.04, f"{words} in its place", color=colour, bbox=box)


def _digits(probability) -> str:
    return f"{probability:.2f}" if probability >= 0.1 else f"{probability:.2g}"


def _short(number) -> str:
    return "1" if number == 1 else f"{min(number, 0.994):.2f}".lstrip("0")  # .99 and more is still not 1


class _Pen:
    """Draws on an Axes in units that keep their shape, with text that grows with the Axes."""

    def __init__(self, ax, width, height):
        bottom = -0.16
        ax.set(xlim=(0, width), ylim=(bottom, height), aspect="equal")
        ax.axis("off")
        box = ax.get_window_extent()
        inches = min(box.width / width, box.height / (height - bottom)) / ax.figure.dpi
        self.ax, self.points = ax, 72 * inches  # points a unit

    def text(self, x, y, text, *, size=0.155, ha="center", color=INK, **style):
        self.ax.text(x, y, text, ha=ha, va="center", fontsize=size * self.points, color=color, **style)

    def token(self, x, y, name, **style):
        size = 0.18 if len(name) < 9 else 0.16
        self.text(x, y, name, size=size, family="monospace", parse_math=False, **style)

    def box(self, x, y, width, height, *, rounding=0.1, linewidth=1.4, **style):
        shape = f"round,pad=0,rounding_size={min(rounding, width / 2, height / 2)}"
        self.ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, linewidth=linewidth, **style))

    def level(self, x, y, name, i, probability, bar):
        """A probability: its text, and below it a bar on a track that stands for 1."""
        track, thin = WIDE - 0.2, dict(linewidth=0.5)
        self.text(x + WIDE / 2, y + 0.32, f"${name}_{{{i + 1}}}$ = {_digits(probability)}", size=0.145)
        empty = dict(facecolor="white", edgecolor=LINE)
        self.ax.add_patch(Rectangle((x + 0.1, y + 0.08), track, 0.1, **empty | thin))
        self.ax.add_patch(Rectangle((x + 0.1, y + 0.08), track * probability, 0.1, **bar | thin))

    def coin(self, x, a, u, look):
        """A gauge from 0 to 1, filled up to A(x), with the coin at the height u."""
        gauge, level, y = dict(width=0.3, rounding=0.05), GAUGE_Y + GAUGE_H * a, GAUGE_Y + GAUGE_H * u
        self.box(x - 0.15, GAUGE_Y, height=GAUGE_H, facecolor="white", edgecolor=GREY, **gauge)
        if a > 0:
            self.box(x - 0.15, GAUGE_Y, height=GAUGE_H * a, facecolor=(BLUE, 0.35), edgecolor="none", **gauge)
        self.ax.plot([x - 0.2, x + 0.2], [level, level], color=INK, linewidth=1.6, solid_capstyle="butt")
        self.text(x + 0.24, level, f"A = {_short(a)}", ha="left", size=0.135)
        if np.isnan(u):  # an exhaustive branch has no uniforms
            return
        disc = dict(facecolor="white", edgecolor=look.colour, linestyle=look.line, linewidth=1.8, zorder=3)
        self.ax.add_patch(Circle((x, y), 0.13, **disc))
        self.text(x, y, look.glyph, color=look.colour, size=0.15, weight="bold")
        self.text(x - 0.2, y, f"u = {_short(u)}", ha="right", size=0.135)

    def outcome(self, x, name, kind):
        look, middle, gone = LOOKS[kind], OUT_Y + OUT_H / 2, kind in ("rejected", "unreached")
        fill = dict(facecolor=(look.colour, 0 if gone else 0.14), edgecolor=(look.colour, 0.25))
        self.box(x, OUT_Y, WIDE, OUT_H, hatch="" if gone else look.hatch, linewidth=0, **fill)
        self.box(x, OUT_Y, WIDE, OUT_H, facecolor="none", edgecolor=look.colour, linestyle=look.line, linewidth=1.8)
        self.text(x + 0.17, middle, look.glyph, size=0.19, color=look.colour, weight="bold", path_effects=HALO)
        self.token(x + 0.76, middle, name, color=SOFT if gone else INK, path_effects=HALO)
        if kind == "rejected":
            ends = [x + 0.76 - 0.06 * len(name), x + 0.76 + 0.06 * len(name)]
            self.ax.plot(ends, [middle, middle], color=look.colour, linewidth=1.2, zorder=4)

    def arc(self, start, end, y, look):
        shape = dict(connectionstyle="arc3,rad=0.12", arrowstyle="-|>", mutation_scale=0.16 * self.points)
        style = dict(color=look.colour, linestyle=look.line, linewidth=1.6, shrinkA=0, shrinkB=0)
        self.ax.add_patch(FancyArrowPatch((start, y), (end, y), **shape, **style))


def draw_ragged_batch(traces, ax):
    """The tokens that each row of a batch got from each round, glyph by glyph; hatched where a row had ended before.

    traces: of one batch. Accepted drafts are ✓, then comes ↻, ★ or • (nothing drafted); the number is the row's length.
    """
    rounds = max(len(trace.rounds) for trace in traces)
    for row, trace in enumerate(traces):
        lengths = np.cumsum([len(round.tokens) for round in trace.rounds])
        for x, (round, length) in enumerate(zip(trace.rounds, lengths)):
            look = LOOKS.get(round.outcome, LOOKS["accepted"])  # "ended": inside the drafts
            ax.add_patch(Rectangle((x, row), 0.96, 0.9, facecolor=(look.colour, 0.22), edgecolor=look.colour))
            glyphs = LOOKS["accepted"].glyph * round.accepted + (look.glyph if round.next_token is not None else "")
            ax.text(x + 0.48, row + 0.32, glyphs, ha="center", va="center", fontsize=9, color=INK)
            ax.text(x + 0.48, row + 0.68, length, ha="center", va="center", fontsize=8, color=SOFT)
        if len(trace.rounds) < rounds:
            idle = dict(facecolor="white", edgecolor=GREY, hatch="//", linewidth=0.6)
            ax.add_patch(Rectangle((len(trace.rounds), row), rounds - len(trace.rounds) - 0.04, 0.9, **idle))
    ax.set(xlim=(-0.05, rounds), ylim=(len(traces), -0.1), xlabel="round (one forward of the target for all rows)")
    ax.set_yticks(np.arange(len(traces)) + 0.45, [f"row {row}" for row in range(len(traces))])
    ax.set_xticks(np.arange(rounds) + 0.48, range(1, rounds + 1))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax
