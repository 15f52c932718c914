"""One decoded round, and the rounds of a batch."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.patheffects import withStroke

from specviz.plots.style import BLUE, BLUE_INK, GREY, INK, LINE, LOOKS, ORANGE, Q_BAR, SOFT
from specviz.text import token_label

# Measures of the picture, in units: a column is PITCH wide, and everything scales with the Axes.
LEFT, PITCH, WIDE, HIGH = 0.98, 1.5, 1.36, 4.62
DRAFT_Y, TARGET_Y, GAUGE_Y, OUT_Y = 3.72, 2.72, 1.2, 0.36
DRAFT_H, TARGET_H, GAUGE_H, OUT_H = 0.8, 0.62, 1.2, 0.5


def draw_round(round, pieces, ax):
    """One decoded Round: the drafts with q, the target's one forward, the coins against A(x), the outcome.

    pieces {id: bytes} is Trace.pieces. Raises ValueError for a round recorded with record="none".
    """
    if round.q is None:
        raise ValueError("round was recorded with record='none': it holds no probabilities to draw.")
    columns = max(round.gamma_asked, len(round.draft_tokens)) + 1
    pen = _Pen(ax, LEFT + PITCH * columns, HIGH)
    names = [token_label(pieces[token]) for token in round.draft_tokens]
    rows = [("draft q", DRAFT_Y + DRAFT_H / 2), ("target p", TARGET_Y + TARGET_H / 2)]
    for name, y in [*rows, ("coin u\nagainst A", GAUGE_Y + GAUGE_H / 2), ("outcome", OUT_Y + OUT_H / 2)]:
        pen.text(0, y, name, ha="left", color=SOFT)

    for i, name in enumerate(names):
        x, q = LEFT + i * PITCH, round.q[i][round.draft_tokens[i]]
        pen.box(x, DRAFT_Y, WIDE, DRAFT_H, facecolor=(ORANGE, 0.18), edgecolor=ORANGE)
        pen.token(x + WIDE / 2, DRAFT_Y + 0.56, name)
        pen.level(x, DRAFT_Y, q, rf"$q_{{{i + 1}}}$ = {_digits(q)}", Q_BAR)
        if i:
            pen.text(x - (PITCH - WIDE) / 2, DRAFT_Y + DRAFT_H / 2, "›", color=SOFT)
    _draw_target(pen, round, columns)
    for i in range(round.tested):
        _draw_coin(pen, round, i)
    for i in range(round.tested, len(names)):
        pen.text(LEFT + i * PITCH + WIDE / 2, GAUGE_Y + GAUGE_H / 2, "not\ntested", color=SOFT, size=0.13)
    _draw_outcomes(pen, round, columns, names, pieces)
    return ax


def _draw_target(pen, round, columns):
    drafts, last = len(round.draft_tokens), LEFT + (columns - 1) * PITCH
    pen.box(LEFT - 0.05, TARGET_Y, columns * PITCH - 0.04, TARGET_H, facecolor=(BLUE, 0.16), edgecolor=BLUE)
    for i in range(drafts):
        p = round.p[i][round.draft_tokens[i]]
        pen.level(LEFT + i * PITCH, TARGET_Y, p, rf"$p_{{{i + 1}}}$ = {_digits(p)}", dict(facecolor=BLUE))
    if round.outcome in ("bonus", "plain"):
        p = round.p[drafts][round.next_token]
        pen.level(last, TARGET_Y, p, rf"$p_{{{drafts + 1}}}$ = {_digits(p)}", dict(facecolor=BLUE))
    else:
        pen.text(last + WIDE / 2, TARGET_Y + TARGET_H / 2, rf"$p_{{{drafts + 1}}}$", color=SOFT, size=0.17)
    pen.text(LEFT, TARGET_Y + TARGET_H + 0.15, f"one forward over {drafts + 1} positions", ha="left", color=BLUE_INK)


def _draw_coin(pen, round, i):
    centre, a, u = LEFT + i * PITCH + WIDE / 2, round.accept_probability[i], round.coins[i]
    pen.box(centre - 0.15, GAUGE_Y, 0.3, GAUGE_H, facecolor="white", edgecolor=GREY, rounding=0.05)
    if a > 0:
        pen.box(centre - 0.15, GAUGE_Y, 0.3, GAUGE_H * a, facecolor=(BLUE, 0.35), edgecolor="none", rounding=0.05)
    level = GAUGE_Y + GAUGE_H * a
    pen.line([centre - 0.2, centre + 0.2], [level, level], color=INK, linewidth=1.6)
    pen.text(centre + 0.24, level, f"A = {_short(a)}", ha="left", size=0.135)
    if u == u:  # an exhaustive branch has no uniforms
        look, y = LOOKS["accepted" if i < round.accepted else "rejected"], GAUGE_Y + GAUGE_H * u
        pen.disc(centre, y, 0.13, facecolor="white", edgecolor=look.colour, linestyle=look.line)
        pen.text(centre, y, look.glyph, color=look.colour, size=0.15, weight="bold")
        pen.text(centre - 0.2, y, f"u = {_short(u)}", ha="right", size=0.135)


def _draw_outcomes(pen, round, columns, names, pieces):
    for i, name in enumerate(names):
        kind = "unreached" if i >= round.tested else "accepted" if i < round.accepted else "rejected"
        pen.outcome(LEFT + i * PITCH, name, kind)
    if round.next_token is None:
        return
    kind, x = round.outcome, LEFT + (columns - 1) * PITCH
    pen.outcome(x, token_label(pieces[round.next_token]), kind)
    if kind == "resampled":
        start = LEFT + round.accepted * PITCH + WIDE / 2
        pen.arc(start, x + WIDE / 2, OUT_Y - 0.03, LOOKS[kind])
        word = rf"drawn from $p'_{{{round.accepted + 1}}}$ in its place"
        if columns - 1 - round.accepted < 2:
            word = rf"drawn from $p'_{{{round.accepted + 1}}}$"
            pen.text(start + 0.1, 0.04, word, ha="right", color=LOOKS[kind].colour)
        else:
            pen.text(start / 2 + (x + WIDE / 2) / 2, -0.04, word, color=LOOKS[kind].colour, behind="white")
    elif kind == "bonus":
        word = rf"all accepted: drawn from $p_{{{len(names) + 1}}}$"
        pen.text(x + WIDE, 0.14, word, ha="right", color=LOOKS[kind].colour)


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

    def text(self, x, y, text, *, size=0.155, ha="center", color=INK, behind=None, **style):
        box = None if behind is None else dict(facecolor=behind, edgecolor="none", pad=1)
        self.ax.text(x, y, text, ha=ha, va="center", fontsize=size * self.points, color=color, bbox=box, **style)

    def token(self, x, y, name, **style):
        style = dict(size=0.18 if len(name) < 9 else 0.16, family="monospace", parse_math=False) | style
        self.text(x, y, name, **style)

    def box(self, x, y, width, height, *, rounding=0.1, linewidth=1.4, **style):
        shape = f"round,pad=0,rounding_size={min(rounding, width / 2, height / 2)}"
        self.ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, linewidth=linewidth, **style))

    def disc(self, x, y, radius, **style):
        self.ax.add_patch(Circle((x, y), radius, linewidth=1.8, zorder=3, **style))

    def line(self, x, y, **style):
        self.ax.plot(x, y, solid_capstyle="butt", **style)

    def level(self, x, y, mass, text, bar):
        """A probability: its text, and below it a bar on a track that stands for 1."""
        track = WIDE - 0.2
        self.text(x + WIDE / 2, y + 0.32, text, size=0.145)
        self.ax.add_patch(Rectangle((x + 0.1, y + 0.08), track, 0.1, facecolor="white", edgecolor=LINE, linewidth=0.5))
        self.ax.add_patch(Rectangle((x + 0.1, y + 0.08), track * mass, 0.1, **bar | dict(linewidth=0.5)))

    def outcome(self, x, name, kind):
        look, middle = LOOKS[kind], OUT_Y + OUT_H / 2
        fill = (look.colour, 0 if kind in ("rejected", "unreached") else 0.14)
        hatch = look.hatch if kind in ("resampled", "bonus") else ""
        self.box(x, OUT_Y, WIDE, OUT_H, facecolor=fill, hatch=hatch, edgecolor=(look.colour, 0.25), linewidth=0)
        self.box(x, OUT_Y, WIDE, OUT_H, facecolor="none", edgecolor=look.colour, linestyle=look.line, linewidth=1.8)
        halo = dict(path_effects=[withStroke(linewidth=4, foreground="white")])
        self.text(x + 0.17, middle, look.glyph, size=0.19, color=look.colour, weight="bold", **halo)
        colour = SOFT if kind in ("rejected", "unreached") else INK
        self.token(x + 0.76, middle, name, color=colour, **halo)
        if kind == "rejected":
            half = 0.06 * len(name)
            self.line([x + 0.76 - half, x + 0.76 + half], [middle, middle], color=look.colour, linewidth=1.2, zorder=4)

    def arc(self, start, end, y, look):
        path = FancyArrowPatch(
            (start, y), (end, y), connectionstyle="arc3,rad=0.12", arrowstyle="-|>", mutation_scale=0.16 * self.points,
            color=look.colour, linestyle=look.line, linewidth=1.6, shrinkA=0, shrinkB=0,
        )  # fmt: skip
        self.ax.add_patch(path)


def draw_ragged_batch(traces, ax):
    """What each row of a batch got from each round, glyph by glyph; hatched where a row had already ended.

    traces: of one batch. Accepted drafts are ✓, then comes ↻, ★ or • (nothing drafted); the number is the row's length.
    """
    rounds = max(len(trace.rounds) for trace in traces)
    for row, trace in enumerate(traces):
        length = 0
        for at, round in enumerate(trace.rounds):
            look = LOOKS.get(round.outcome, LOOKS["accepted"])  # "ended": inside the drafts
            ax.add_patch(Rectangle((at, row), 0.96, 0.9, facecolor=(look.colour, 0.22), edgecolor=look.colour))
            told = LOOKS["accepted"].glyph * round.accepted + (look.glyph if round.next_token is not None else "")
            ax.text(at + 0.48, row + 0.32, told, ha="center", va="center", fontsize=9, color=INK)
            length += len(round.tokens)
            ax.text(at + 0.48, row + 0.68, length, ha="center", va="center", fontsize=8, color=SOFT)
        if len(trace.rounds) < rounds:
            idle = dict(facecolor="white", edgecolor=GREY, hatch="//", linewidth=0.6)
            ax.add_patch(Rectangle((len(trace.rounds), row), rounds - len(trace.rounds) - 0.04, 0.9, **idle))
    ax.set(xlim=(-0.05, rounds), ylim=(len(traces), -0.1), xlabel="round (one forward of the target for all rows)")
    ax.set_yticks(np.arange(len(traces)) + 0.45, [f"row {row}" for row in range(len(traces))])
    ax.set_xticks(np.arange(rounds) + 0.48, range(1, rounds + 1))
    ax.tick_params(length=0)
    ax.spines[["left", "right", "top", "bottom"]].set_visible(False)
    return ax
