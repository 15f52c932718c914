"""One token drafted, and the rows of a verification (lessons 01 and 02)."""

from __future__ import annotations

from specviz.plots.caches import draw_cell
from specviz.plots.style import Q_BAR, WHITE_BOX, finish
from specviz.text import token_label


def draw_unit_interval(probs, u, ax, labels):
    """[0, 1) cut into one slice a token, of length probs[x]; each u falls into the slice of the token it draws."""
    left = 0.0
    for x, p in enumerate(map(float, probs)):
        drawn = any(left <= point < left + p for point in u)
        ax.barh(0, p, left=left, height=0.6, **Q_BAR | dict(linewidth=2.6 if drawn else 0.6))
        if p > 0:
            ax.text(left + p / 2, 0, f"{labels[x]}\n{p:.2f}", ha="center", va="center", bbox=WHITE_BOX)
        left += p
    for point in u:
        ax.annotate(f"u = {point:.2f}", (point, 0.3), (point, 0.62), ha="center", arrowprops=dict(arrowstyle="-|>"))
    ax.spines["left"].set_visible(False)
    return finish(ax, xlim=(0, 1), ylim=(-0.35, 0.85), yticks=[], xlabel="cumulative probability")


def draw_draft_step(q, token, pieces, ax, *, name="q", rows=4):
    """One draft distribution q [V]: its likeliest tokens, the drafted one (▸, thick edge), and all the others.

    pieces(id) gives the bytes of a token; name is the distribution's, such as "q_2".
    """
    q = [float(p) for p in q]
    kept = sorted(range(len(q)), key=lambda x: -q[x])[:rows]
    kept = kept if token in kept else [*kept[:-1], token]
    shown = [("▸ " if x == token else "") + token_label(pieces(x)) for x in kept]
    probs = [q[x] for x in kept]
    if len(kept) < len(q):
        shown.append("all others")
        probs.append(max(0.0, sum(q) - sum(probs)))
    bars = ax.barh(range(len(probs)), probs, height=0.7, **Q_BAR)
    bars[kept.index(token)].set_linewidth(2.6)
    ax.bar_label(bars, fmt="%.2f", fontsize=9, padding=4)
    ax.set_yticks(range(len(probs)), shown, family="monospace", parse_math=False)
    ax.invert_yaxis()
    ax.set_title(f"${name}$ of the drafted token: {q[token]:.3f}", fontsize=10)
    return finish(ax, xlim=(0, 1.2), xticks=[0, 0.5, 1])


def draw_forward_rows(last, drafts, ax):
    """One verification: the tokens fed (the last committed one, then the drafts), and what each row of p judges."""
    for i, fed in enumerate([last, *drafts]):
        judges = ("draft", f"judges\n{drafts[i]}") if i < len(drafts) else ("bonus", "★ bonus")
        for y, (kind, text) in enumerate((judges, ("row", f"$p_{{{i + 1}}}$"), ("draft" if i else "committed", fed))):
            draw_cell(ax, i, y, text, kind, width=0.8)
            if y:
                ax.annotate("", (i + 0.4, y - 0.32), (i + 0.4, y - 0.01), arrowprops=dict(arrowstyle="-|>"))
    for y, name in enumerate(("and so", "gives", "fed")):
        ax.text(-0.15, y + 0.34, name, ha="right", va="center")
    ax.set(xlim=(-0.7, len(drafts) + 1), ylim=(-0.1, 2.8))
    ax.axis("off")
    return ax
