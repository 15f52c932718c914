"""The visual language of all figures: colours, patterns and glyphs, and what axes share."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

# petroff10, a palette made for readability with impaired colour vision
BLUE, ORANGE, RED, GREY, PURPLE, TEAL = "#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6", "#0f7f7f"


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
P_BAR = dict(facecolor=BLUE, edgecolor="black", linewidth=0.6)
Q_BAR = dict(facecolor=ORANGE, edgecolor="black", linewidth=0.6, hatch="///")
GREY_BAR = dict(color=GREY, edgecolor="black", linewidth=0.6, hatch="..")
WHITE_BOX = dict(facecolor="white", edgecolor="none", alpha=0.85, pad=1.5)

INK, SOFT, LINE, BLUE_INK = "#1d2125", "#5b626b", "#d8dde2", "#1f5f9e"


def png(figure, dpi=100) -> bytes:
    """A figure as the bytes of a PNG, the value of an ipywidgets Image."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


def token_axis(ax, labels, highest):
    """The x axis of a bar for each token, and a legend above the bars."""
    count = len(ax.containers[0])
    names = [chr(ord("a") + i) for i in range(count)] if labels is None else list(labels)
    slanted = max(map(len, names)) * count > 40
    style = dict(rotation=30, ha="right", rotation_mode="anchor") if slanted else {}
    ax.set_xticks(range(count), names, family="monospace", parse_math=False, **style)
    ax.set_ylim(0, highest * 1.32)
    ax.legend(loc="upper right", frameon=False, ncols=5, fontsize=9, handlelength=1.6, columnspacing=1.2)
    return bare(ax)


def bare(ax):
    ax.spines[["top", "right"]].set_visible(False)
    return ax
