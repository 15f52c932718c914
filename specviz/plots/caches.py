"""A KV cache: its cells, and the mask of a forward (lesson 02)."""

from __future__ import annotations

from matplotlib.patches import Rectangle

from specviz.plots.style import BLUE, GREY, ORANGE, RED, SOFT, TEAL, WHITE_BOX

CELLS = {
    "committed": dict(facecolor="#dcebf8", edgecolor=BLUE, linewidth=1.4),
    "row": dict(facecolor=BLUE, edgecolor="black", linewidth=0.8, alpha=0.55),
    "draft": dict(facecolor="#fff1d6", edgecolor=ORANGE, linewidth=1.2, hatch="///"),
    "bonus": dict(facecolor="#d9ecec", edgecolor=TEAL, linewidth=1.4),
    "stale": dict(facecolor="#f6e3df", edgecolor=RED, linewidth=0.8, linestyle="--", hatch="xx"),
    "hidden stale": dict(facecolor="white", edgecolor=RED, linewidth=0.5, linestyle="--", hatch="xx"),
    "empty": dict(facecolor="white", edgecolor=GREY, linewidth=0.6),
    "seen": dict(facecolor=BLUE, edgecolor=BLUE, linewidth=0.6, alpha=0.55),
}
LEGEND = {
    "committed": "committed",
    "draft": "draft",
    "stale": "stale: beyond the length, never read",
    "empty": "never written",
    "seen": "● key that the query sees",
}


def draw_cache(cells, lengths, ax, names=None, drafted=None):
    """A KV cache, row by row, with its length ▼: the position that is written next.

    cells    the text at every position, "" for an empty cell
    lengths  [rows]: cells at or beyond a row's length are stale
    names    a label before each row
    drafted  the position where each row's drafts begin (default: no drafts)
    """
    rows, capacity = len(cells), len(cells[0])
    for row, (texts, length) in enumerate(zip(cells, lengths, strict=True)):
        y = 1.35 * (rows - 1 - row)
        first_draft = capacity if drafted is None else drafted[row]
        for i, text in enumerate(texts):
            kind = "empty" if not text else "stale" if i >= length else "draft" if i >= first_draft else "committed"
            draw_cell(ax, i, y, text, kind)
        ax.plot(length + 0.46, y + 0.86, marker="v", color="black", markersize=8)
        if names:
            ax.text(-0.2, y + 0.34, names[row], ha="right", va="center")
    for i in range(capacity):
        ax.text(i + 0.46, -0.3, str(i), ha="center", va="center", fontsize=8, color=SOFT)
    return _only_cells(ax, capacity, -0.5, 1.35 * rows - 0.2)


def draw_mask(visible, ax, queries, keys, kinds):
    """An attention mask: one row for each query of the forward, one column for each position of the cache.

    visible [n, K] bool; kinds [K]: "committed", "draft", "stale" or "empty". A dot is a key that the query sees.
    """
    n = len(queries)
    for column, kind in enumerate(kinds):
        draw_cell(ax, column, n + 0.15, keys[column], kind)
        for row in range(n):
            seen, y = bool(visible[row][column]), n - 1 - row
            look = "seen" if seen else "hidden stale" if kind == "stale" else "empty"
            ax.add_patch(Rectangle((column, y), 0.92, 0.92, **CELLS[look]))
            if seen:
                ax.plot(column + 0.46, y + 0.46, marker="o", color="black", markersize=5)
    for row, query in enumerate(queries):
        ax.text(-0.2, n - 1 - row + 0.46, query, ha="right", va="center")
    ax.text(-0.2, n + 0.49, "query ↓   key →", ha="right", va="center", color=SOFT, fontsize=9)
    return _only_cells(ax, len(kinds), -0.1, n + 0.95)


def draw_cache_legend(ax, kinds=("committed", "draft", "stale", "empty"), **where):
    """The meaning of the cells of draw_cache() and draw_mask(); where goes to Axes.legend()."""
    handles = [Rectangle((0, 0), 1, 1, label=LEGEND[kind], **CELLS[kind]) for kind in kinds]
    ax.legend(handles=handles, frameon=False, **where)
    return ax


def draw_cell(ax, x, y, text, kind, width=0.92):
    """One cell with its text, in the look of its kind."""
    ax.add_patch(Rectangle((x, y), width, 0.68, **CELLS[kind]))
    behind = WHITE_BOX if CELLS[kind].get("hatch") else None
    fontsize = 10 if max(map(len, text.split("\n"))) < 8 else 8
    ax.text(x + width / 2, y + 0.34, text, ha="center", va="center", fontsize=fontsize, color="black", bbox=behind)


def _only_cells(ax, columns, bottom, top):
    """Limits that put the columns of a cache and of its mask below each other, and no axes."""
    ax.set(xlim=(-0.3, columns + 0.8), ylim=(bottom, top))
    ax.axis("off")
    return ax
