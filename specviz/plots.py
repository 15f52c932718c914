"""Matplotlib figures of the lessons: each takes data and an Axes, and returns the Axes.

One visual language everywhere (figures and widgets): target p solid blue, draft q hatched orange; accepted ✓,
rejected ✗, resampled ↻ and bonus ★ differ in colour, glyph and pattern.
"""

from __future__ import annotations

from dataclasses import dataclass

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
P_BAR = dict(color=BLUE, edgecolor="black", linewidth=0.6)
Q_BAR = dict(facecolor=ORANGE, edgecolor="black", linewidth=0.6, hatch="///")
