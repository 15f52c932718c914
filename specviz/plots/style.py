"""The visual language of all figures: colours, patterns and glyphs, and the parts that figures share."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

# petroff10, a palette made for readability with impaired colour vision
BLUE, ORANGE, RED, GREY, PURPLE, TEAL = "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#0f7f7f"
INK, SOFT, LINE, BLUE_INK = "#1d2125", "#5b626b", "#d8dde2", "#1f5f9e"


@dataclass(frozen=True)
class Look:
    """How one outcome is drawn."""

    colour: str
    glyph: str
    hatch: str
    line: str


LOOKS = {
    "accepted": Look(BLUE, "✓", "", "-"),
    "rejected": Look(RED, "✗", "xx", "--"),
    "resampled": Look(PURPLE, "↻", "..", ":"),
    "bonus": Look(TEAL, "★", "oo", "-"),
    "plain": Look(GREY, "•", "", "-"),
    "unreached": Look(GREY, "·", "", ":"),
}
EDGE = dict(edgecolor="black", linewidth=0.6)
P_BAR = dict(facecolor=BLUE, **EDGE)
Q_BAR = dict(facecolor=ORANGE, hatch="///", **EDGE)
WHITE_BOX = dict(facecolor="white", edgecolor="none", alpha=0.85, pad=1.5)


def png(figure, dpi=100) -> bytes:
    """A figure as the bytes of a PNG, the value of an ipywidgets Image."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


def finish(ax, legend=None, *, ncols=1, **settings):
    """Labels and limits as in Axes.set(), a legend at a place, no frame at the top and on the right. Returns ax."""
    ax.set(**settings)
    if legend:
        ax.legend(loc=legend, frameon=False, fontsize=9, ncols=ncols)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def token_axis(ax, labels, highest):
    """The x axis of a bar for each token, and a legend above the bars."""
    count = len(ax.containers[0])
    names = [chr(ord("a") + i) for i in range(count)] if labels is None else list(labels)
    slanted = max(map(len, names)) * count > 40
    style = dict(rotation=30, ha="right", rotation_mode="anchor") if slanted else {}
    ax.set_xticks(range(count), names, family="monospace", parse_math=False, **style)
    ax.legend(loc="upper right", frameon=False, ncols=5, fontsize=9, handlelength=1.6, columnspacing=1.2)
    return finish(ax, ylim=(0, highest * 1.32))


def break_even(ax):
    """The line at speedup 1, and the region below it, where speculation is slower."""
    ax.axhspan(0, 1, facecolor=(RED, 0.08), edgecolor="none")
    ax.axhline(1, color=INK, linewidth=1.2)
    ax.text(0.99, 0.015, "slower than plain decoding", transform=ax.transAxes, ha="right", color=SOFT, fontsize=9)


def stacked(bars, ends, values, size, **look):
    """Draw one part of stacked bars by bars, Axes.bar or Axes.barh, on the ends of the parts before; the new ends."""
    start = {"bar": "bottom", "barh": "left"}[bars.__name__]
    bars(range(len(ends)), values, size, **{start: ends}, **look)
    return ends + values


def points_and_mean(ax, x, y, label):
    """One point for each pair, the mean of all of them, and the line where both are equal."""
    ends = [max(0.0, min(*x, *y) - 0.05), min(1.0, max(*x, *y) + 0.05)]
    ax.plot(ends, ends, color=GREY, linewidth=1, label="equal")
    ax.plot(x, y, "o", color=BLUE, markeredgecolor="black", alpha=0.8, label=label)
    look = dict(color=ORANGE, markeredgecolor="black", markersize=9, label="their mean")
    ax.plot(sum(x) / len(x), sum(y) / len(y), "D", **look)
    ax.set_aspect("equal")


LINES = ((GREY, "s", "--"), (BLUE, "o", "-"), (PURPLE, "^", ":"), (ORANGE, "D", "-."))  # colour, marker, line


def lines(ax, x, by_name):
    """A line for each name, by its own colour, marker and pattern."""
    for (colour, marker, line), (name, y) in zip(LINES, by_name.items(), strict=False):
        ax.plot(x, y, line, color=colour, marker=marker, markeredgecolor="black", label=name)
