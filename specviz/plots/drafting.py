"""One token drafted, and the rows of a verification (lessons 01 and 02)."""

from __future__ import annotations

from specviz.plots.caches import cell
from specviz.plots.style import Q_BAR, WHITE_BOX, bare
from specviz.text import token_label


def draw_unit_interval(probs, u, ax, labels):
    """[0, 1) cut into one slice a token, of length probs[x]; each u falls into the slice of the token it draws."""
    left = 0.0
    for x, mass in enumerate(map(float, probs)):
        hits = [point for point in u if left <= point < left + mass]
        look = dict(Q_BAR, linewidth=2.6) if hits else Q_BAR
        ax.barh(0, mass, left=left, height=0.6, **look)
        if mass > 0:
            ax.text(left + mass / 2, 0, f"{labels[x]}\n{mass:.2f}", ha="center", va="center", bbox=WHITE_BOX)
        left += mass
    for point in u:
        ax.annotate(f"u = {point:.2f}", (point, 0.3), (point, 0.62), ha="center", arrowprops=dict(arrowstyle="-|>"))
    ax.set_xlim(0, 1)
    ax.set_ylim(-0.35, 0.85)
    ax.set_yticks([])
    ax.set_xlabel("cumulative probability")
    ax.spines[["left", "right", "top"]].set_visible(False)
    return ax


def draw_draft_step(q, token, pieces, ax, *, name="q", rows=4):
    """One draft distribution q [V]: its likeliest tokens, the drafted one (▸, thick edge), and all the others.

    pieces(id) gives the bytes of a token; name is what the distribution is called, such as "q_2".
    """
    q = [float(mass) for mass in q]
    kept = sorted(range(len(q)), key=lambda x: -q[x])[:rows]
    kept = kept if token in kept else [*kept[:-1], token]
    masses = [q[x] for x in kept]
    names = [f"▸ {token_label(pieces(x))}" if x == token else token_label(pieces(x)) for x in kept]
    if len(kept) < len(q):
        masses.append(max(0.0, sum(q) - sum(masses)))
        names.append("all others")
    bars = ax.barh(range(len(masses)), masses, height=0.7, **Q_BAR)
    bars[kept.index(token)].set_linewidth(2.6)
    for y, mass in enumerate(masses):
        ax.text(mass + 0.03, y, f"{mass:.2f}", va="center", fontsize=9)
    ax.set_yticks(range(len(masses)), names, family="monospace", parse_math=False)
    ax.set_xlim(0, 1.2)
    ax.set_xticks([0, 0.5, 1])
    ax.invert_yaxis()
    ax.set_title(f"${name}$ of the drafted token: {q[token]:.3f}", fontsize=10)
    return bare(ax)


def draw_forward_rows(last, drafts, ax):
    """One verification: what is fed (the last committed token, then the drafts) and what each row of p judges."""
    for i, fed in enumerate([last, *drafts]):
        cell(ax, i, 2, fed, "committed" if i == 0 else "draft", width=0.8)
        cell(ax, i, 1, f"$p_{{{i + 1}}}$", "row", width=0.8)
        judged = i < len(drafts)
        cell(ax, i, 0, f"judges\n{drafts[i]}" if judged else "★ bonus", "draft" if judged else "bonus", width=0.8)
        for top in (2, 1):
            ax.annotate("", (i + 0.4, top - 0.32), (i + 0.4, top - 0.01), arrowprops=dict(arrowstyle="-|>"))
    for y, name in ((2, "fed"), (1, "gives"), (0, "and so")):
        ax.text(-0.15, y + 0.34, name, ha="right", va="center")
    ax.set_xlim(-0.7, len(drafts) + 1)
    ax.set_ylim(-0.1, 2.8)
    ax.axis("off")
    return ax
