"""Matplotlib figures of the lessons: each takes data and an Axes, and returns the Axes.

One visual language everywhere (figures and widgets): target p solid blue, draft q hatched orange; accepted ✓,
rejected ✗, resampled ↻ and bonus ★ differ in colour, glyph and pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.patheffects import withStroke

from specviz.text import token_label

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

INK, SOFT, LINE, BLUE_INK = "#1d2125", "#5b626b", "#d8dde2", "#1f5f9e"


# --- one round (lesson 03 and the README) ---------------------------------------------------------

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


def png(figure, dpi=100) -> bytes:
    """A figure as the bytes of a PNG, the value of an ipywidgets Image."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
    return buffer.getvalue()


# --- distributions and what becomes of them (lessons 03 and 04) -----------------------------------


def draw_overlap(p, q, ax, labels=None):
    """p beside q, token by token; the grey floor is min(p, q), whose sum is the overlap β."""
    p, q, x = np.asarray(p), np.asarray(q), np.arange(len(p))
    least = np.minimum(p, q)
    ax.bar(x - 0.2, p, 0.4, label="target p", **P_BAR)
    ax.bar(x + 0.2, q, 0.4, label="draft q", **Q_BAR)
    ax.bar(x, least, 0.86, color=INK, alpha=0.22, label="min(p, q)")
    ax.hlines(least, x - 0.45, x + 0.45, color=INK, linewidth=1.8)
    ax.set_title(f"overlap β = Σ min(p, q) = {least.sum():.2f}", loc="left", fontsize=11)
    return _tokens(ax, labels, max(p.max(), q.max()))


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
    return _tokens(ax, labels, max(p.max(), q.max()))


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
    return _tokens(ax, labels, max(p.max(), *(law.max() for law in laws.values())))


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
    return _bare(ax)


def draw_agreement(overlap, measured, ax):
    """One point a text: the mean overlap of its tested positions against the share of its drafts accepted."""
    ends = [max(0.0, min(*overlap, *measured) - 0.05), min(1.0, max(*overlap, *measured) + 0.05)]
    ax.plot(ends, ends, color=GREY, linewidth=1, label="equal")
    ax.plot(overlap, measured, "o", color=BLUE, markeredgecolor="black", label="one text")
    mean = dict(color=ORANGE, markeredgecolor="black", markersize=9, label="their mean")
    ax.plot(np.mean(overlap), np.mean(measured), "D", **mean)
    ax.set(xlabel="alpha_overlap: mean of Σ min(p, q)", ylabel="alpha: accepted / tested", aspect="equal")
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return _bare(ax)


def _tokens(ax, labels, highest):
    """The x axis of a bar for each token, and a legend above the bars."""
    count = len(ax.containers[0])
    names = [chr(ord("a") + i) for i in range(count)] if labels is None else list(labels)
    slanted = max(map(len, names)) * count > 40
    style = dict(rotation=30, ha="right", rotation_mode="anchor") if slanted else {}
    ax.set_xticks(range(count), names, family="monospace", parse_math=False, **style)
    ax.set_ylim(0, highest * 1.32)
    ax.legend(loc="upper right", frameon=False, ncols=5, fontsize=9, handlelength=1.6, columnspacing=1.2)
    return _bare(ax)


def _bare(ax):
    ax.spines[["top", "right"]].set_visible(False)
    return ax


# --- lessons 01 and 02: drafting, verifying, and the memory's tape -------------------------------


def draw_verify_cost(cost, ax):
    """Measured V(n), cost = {n: V(n)}, between its two extremes: n forwards of their own, and the paper's V = 1."""
    n = sorted(cost)
    ax.plot(n, n, color=GREY, linestyle="--", label="n forwards, one token each")
    ax.plot(n, [cost[i] for i in n], color=BLUE, marker="o", label="one forward with n tokens: V(n), measured")
    ax.plot(n, [1] * len(n), color="black", linestyle=":", label="the paper's assumption: V = 1")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(n, [str(i) for i in n])
    ticks = [2**k for k in range(max(n).bit_length())]
    ax.set_yticks(ticks, [str(i) for i in ticks])
    ax.minorticks_off()
    ax.set_xlabel("n, tokens in the forward")
    ax.set_ylabel("time / time for one token")
    ax.legend(frameon=False)
    return _bare(ax)


def draw_step_costs(verify, steps, ax):
    """Times of one verification and of γ+1 single steps, both {γ: seconds}, as pairs of bars in milliseconds."""
    at = range(len(verify))
    steps_ms = [1000 * steps[gamma] for gamma in verify]
    verify_ms = [1000 * seconds for seconds in verify.values()]
    ax.bar([i - 0.2 for i in at], steps_ms, 0.38, label="γ+1 steps, one token each", **_GREY_BAR)
    bars = ax.bar([i + 0.2 for i in at], verify_ms, 0.38, label="one forward with γ+1 tokens", **P_BAR)
    ax.bar_label(bars, fmt="%.1f", fontsize=9, padding=2)
    ax.set_xticks(at, [str(gamma) for gamma in verify])
    ax.set_xlabel("γ")
    ax.set_ylabel("milliseconds")
    ax.legend(frameon=False)
    return _bare(ax)


def draw_unit_interval(probs, u, ax, labels):
    """[0, 1) cut into one slice a token, of length probs[x]; each u falls into the slice of the token it draws."""
    left = 0.0
    for x, mass in enumerate(map(float, probs)):
        hits = [point for point in u if left <= point < left + mass]
        look = dict(Q_BAR, linewidth=2.6) if hits else Q_BAR
        ax.barh(0, mass, left=left, height=0.6, **look)
        if mass > 0:
            ax.text(left + mass / 2, 0, f"{labels[x]}\n{mass:.2f}", ha="center", va="center", bbox=_WHITE)
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
    return _bare(ax)


def draw_forward_rows(last, drafts, ax):
    """One verification: what is fed (the last committed token, then the drafts) and what each row of p judges."""
    for i, fed in enumerate([last, *drafts]):
        _cell(ax, i, 2, fed, "committed" if i == 0 else "draft", width=0.8)
        _cell(ax, i, 1, f"$p_{{{i + 1}}}$", "row", width=0.8)
        judged = i < len(drafts)
        _cell(ax, i, 0, f"judges\n{drafts[i]}" if judged else "★ bonus", "draft" if judged else "bonus", width=0.8)
        for top in (2, 1):
            ax.annotate("", (i + 0.4, top - 0.32), (i + 0.4, top - 0.01), arrowprops=dict(arrowstyle="-|>"))
    for y, name in ((2, "fed"), (1, "gives"), (0, "and so")):
        ax.text(-0.15, y + 0.34, name, ha="right", va="center")
    ax.set_xlim(-0.7, len(drafts) + 1)
    ax.set_ylim(-0.1, 2.8)
    ax.axis("off")
    return ax


def draw_cache(cells, heads, ax, names=None, drafted=None):
    """The tapes of a memory, one row each, with its head ▼ at the position that is written next.

    cells    the text at every position, "" where nothing was ever written
    heads    what lies at or beyond a row's head is stale
    names    what to write before each row
    drafted  the position where each row's drafts begin (default: no drafts)
    """
    rows, capacity = len(cells), len(cells[0])
    for row, (texts, head) in enumerate(zip(cells, heads, strict=True)):
        y = 1.35 * (rows - 1 - row)
        first_draft = capacity if drafted is None else drafted[row]
        for i, text in enumerate(texts):
            kind = "empty" if not text else "stale" if i >= head else "draft" if i >= first_draft else "committed"
            _cell(ax, i, y, text, kind)
        ax.plot(head + 0.46, y + 0.86, marker="v", color="black", markersize=8)
        if names:
            ax.text(-0.2, y + 0.34, names[row], ha="right", va="center")
    for i in range(capacity):
        ax.text(i + 0.46, -0.3, str(i), ha="center", va="center", fontsize=8, color=SOFT)
    ax.set_xlim(-0.3, capacity + 0.8)
    ax.set_ylim(-0.5, 1.35 * rows - 0.2)
    ax.axis("off")
    return ax


def draw_mask(visible, ax, queries, keys, kinds):
    """An attention mask: one row for each query of the forward, one column for each position of the memory.

    visible [n, K] bool; kinds [K]: "committed", "draft", "stale" or "empty". A dot is a key that the query sees.
    """
    n = len(queries)
    for column, kind in enumerate(kinds):
        _cell(ax, column, n + 0.15, keys[column], kind)
        for row in range(n):
            seen = bool(visible[row][column])
            look = _CELLS["seen"] if seen else _CELLS["hidden stale"] if kind == "stale" else _CELLS["empty"]
            ax.add_patch(Rectangle((column, n - 1 - row), 0.92, 0.92, **look))
            if seen:
                ax.plot(column + 0.46, n - 1 - row + 0.46, marker="o", color="black", markersize=5)
    for row, query in enumerate(queries):
        ax.text(-0.2, n - 1 - row + 0.46, query, ha="right", va="center")
    ax.text(-0.2, n + 0.49, "query ↓   key →", ha="right", va="center", color=SOFT, fontsize=9)
    ax.set_xlim(-0.3, len(kinds) + 0.8)  # as wide as draw_cache, so that columns meet
    ax.set_ylim(-0.1, n + 0.95)
    ax.axis("off")
    return ax


def draw_memory_legend(ax, kinds=("committed", "draft", "stale", "empty"), **where):
    """Say what the cells of draw_cache() and draw_mask() mean."""
    words = {
        "committed": "committed",
        "draft": "draft",
        "stale": "stale: beyond the head, never read",
        "empty": "never written",
        "seen": "● key that the query sees",
    }
    ax.legend(handles=[Rectangle((0, 0), 1, 1, label=words[k], **_CELLS[k]) for k in kinds], frameon=False, **where)
    return ax


def _cell(ax, x, y, text, kind, width=0.92):
    ax.add_patch(Rectangle((x, y), width, 0.68, **_CELLS[kind]))
    behind = _WHITE if _CELLS[kind].get("hatch") else None
    fontsize = 10 if max(map(len, text.split("\n"))) < 8 else 8
    ax.text(x + width / 2, y + 0.34, text, ha="center", va="center", fontsize=fontsize, color="black", bbox=behind)


_WHITE = dict(facecolor="white", edgecolor="none", alpha=0.85, pad=1.5)
_GREY_BAR = dict(color=GREY, edgecolor="black", linewidth=0.6, hatch="..")
_CELLS = {
    "committed": dict(facecolor="#dcebf8", edgecolor=BLUE, linewidth=1.4),
    "row": dict(facecolor=BLUE, edgecolor="black", linewidth=0.8, alpha=0.55),
    "draft": dict(facecolor="#fff1d6", edgecolor=ORANGE, linewidth=1.2, hatch="///"),
    "bonus": dict(facecolor="#d9ecec", edgecolor=TEAL, linewidth=1.4),
    "stale": dict(facecolor="#f6e3df", edgecolor=RED, linewidth=0.8, linestyle="--", hatch="xx"),
    "hidden stale": dict(facecolor="white", edgecolor=RED, linewidth=0.5, linestyle="--", hatch="xx"),
    "empty": dict(facecolor="white", edgecolor=GREY, linewidth=0.6),
    "seen": dict(facecolor=BLUE, edgecolor=BLUE, linewidth=0.6, alpha=0.55),
}


# --- exactness (lesson 05) ------------------------------------------------------------------------


def draw_sampled(counts, probs, ax, labels=None, *, n=None):
    """What was sampled, points with error bars of 2 standard errors, on what was promised, bars.

    counts [K] of K events with probabilities probs [K]. n: of how many samples; by default all counts together
    (give it when the events are those of several positions).
    """
    share, probs, error = _shares(counts, probs, n)
    x = np.arange(len(probs))
    ax.bar(x, probs, 0.72, facecolor=(BLUE, 0.45), edgecolor="black", linewidth=0.6, label="promised: p")
    ax.errorbar(
        x, share, 2 * error, fmt="o", color=INK, markerfacecolor="white", markersize=5, capsize=4, linewidth=1.2,
        label="sampled, ±2 standard errors",
    )  # fmt: skip
    ax.set(ylabel="probability", xlim=(-0.6, len(probs) - 0.4))
    return _tokens(ax, labels, max(probs.max(), (share + 2 * error).max()))


def draw_residuals(counts, probs, ax, labels=None, *, n=None):
    """How far off each count is, in standard errors: ● within 2, ◆ within 3, ✗ beyond. See draw_sampled().

    An event of probability 0 that occurred stands at the upper end, as ✗.
    """
    share, probs, error = _shares(counts, probs, n)
    off = np.divide(share - probs, error, out=np.where(share > 0, np.inf, 0.0), where=error > 0)
    size = np.abs(off)
    reach = max(4.0, 1.15 * size[np.isfinite(size)].max(initial=0))
    off, x = off.clip(-reach, reach), np.arange(len(probs))
    ax.axhspan(-2, 2, facecolor=(BLUE, 0.16), edgecolor="none")
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.bar(x, off, 0.06, color=SOFT)
    for kind, colour, marker, where in (
        ("within 2", BLUE, "o", size <= 2),
        ("within 3", ORANGE, "D", (2 < size) & (size <= 3)),
        ("beyond 3", RED, "X", 3 < size),
    ):
        if where.any():
            look = dict(color=colour, markeredgecolor="black", markeredgewidth=0.7, markersize=7, label=kind)
            ax.plot(x[where], off[where], marker, **look)
    ax.set(ylabel="off by … standard errors", xlim=(-0.6, len(probs) - 0.4))  # as draw_sampled
    _tokens(ax, labels, 1)
    ax.set_ylim(-reach, 1.35 * reach)  # the legend has the top
    return ax


def _shares(counts, probs, n):
    """Shares of the samples, probabilities, and the standard errors that the promised law has."""
    counts, probs = np.asarray(counts), np.asarray(probs)
    n = counts.sum() if n is None else n
    return counts / n, probs, np.sqrt(probs * (1 - probs) / n)


def draw_chi_square_growth(n, statistics, dof, ax, *, share=0.99):
    """Pearson's statistic against the number of samples n [N], a thin line for each run, on two logarithmic axes.

    statistics {name: [runs, N]}. The band holds that share of the statistics of a correct sampler, at any n.
    """
    from scipy import stats  # plots alone need no scipy

    low, high = stats.chi2.interval(share, dof)
    ax.axhspan(low, high, facecolor=(BLUE, 0.16), edgecolor="none", label=f"{share:.0%} of correct samplers")
    styles = [(BLUE, "-", "o"), (PURPLE, ":", "^"), (RED, "--", "X"), (ORANGE, "-.", "D")]
    for (name, runs), (colour, line, marker) in zip(statistics.items(), styles, strict=False):
        for i, run in enumerate(np.asarray(runs)):
            look = dict(color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1, alpha=0.8)
            ax.plot(n, run, label=name if i == 0 else None, **look)
    ax.set(xscale="log", yscale="log", xlabel="samples n", ylabel=f"χ² ({dof} degrees of freedom)")
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return _bare(ax)


def draw_p_values(p_values, ax, *, bins=20):
    """Histograms of p-values, {name: [tests]}, as shares of the tests; flat at 1/bins where the promise is kept."""
    styles = [dict(facecolor=BLUE), dict(facecolor=(RED, 0.25), hatch="xx"), dict(facecolor=ORANGE, hatch="///")]
    edges, width = np.linspace(0, 1, bins + 1), 0.9 / bins / len(p_values)
    for i, (name, values) in enumerate(p_values.items()):
        share = np.histogram(values, edges)[0] / len(values)
        look = dict(edgecolor="black", linewidth=0.6) | styles[i % len(styles)]
        ax.bar(edges[:-1] + 0.05 / bins + (i + 0.5) * width, share, width, label=name, **look)
    ax.axhline(1 / bins, color=INK, linestyle="--", linewidth=1.2, label="every p-value equally likely")
    ax.set(xlim=(0, 1), xlabel="p-value", ylabel="share of the tests")
    ax.legend(loc="upper right", frameon=False, fontsize=9)
    return _bare(ax)


def draw_two_rules(least, product, ax):
    """Real positions, one point each: acceptance Σ min(p, q) of the paper's rule against Σ p·q of sample-and-match."""
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="equal")
    ax.plot(least, product, "o", color=BLUE, markeredgecolor="black", markersize=5, alpha=0.7, label="one position")
    mean = dict(color=ORANGE, markeredgecolor="black", markersize=9, label="their mean")
    ax.plot(np.mean(least), np.mean(product), "D", **mean)
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
    ax.set(xlabel="accept or resample: Σ min(p, q)", ylabel="sample and match: Σ p·q")
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return _bare(ax)


# --- speedup (lesson 06) --------------------------------------------------------------------------


def draw_speedup_curve(alpha, c, ax, *, verify_slope=0.0, max_gamma=12, profile=None):
    """The formula's speedup over γ with its best γ, the break-even line, and a Profile's measured points, if given."""
    from specviz.speedup.theory import best_gamma, linear_cost, speedup

    cost = linear_cost(verify_slope)
    gammas = np.arange(1, max_gamma + 1)
    factors, best = speedup(alpha, gammas, c, cost), int(best_gamma(alpha, c, cost, max_gamma=max_gamma))
    ax.plot(gammas, factors, color=BLUE, linewidth=2.4, marker="o", markersize=4, label="formula")
    highest = factors.max()
    if profile is not None:
        for gamma, speed in profile.speedups.items():
            spread = [[speed.median - speed.low], [speed.high - speed.median]]
            label = None if gamma != min(profile.speedups) else f"measured, {speed.runs} runs: median and extremes"
            ax.errorbar(
                gamma, speed.median, spread, fmt="o", color=INK, markerfacecolor="white", capsize=3, label=label
            )
            highest = max(highest, speed.high)
    ax.axhspan(0, 1, facecolor=(RED, 0.08), edgecolor="none")
    ax.axhline(1, color=INK, linewidth=1.2)
    ax.text(max_gamma + 0.3, 0.05, "slower than plain decoding", ha="right", va="bottom", color=SOFT, fontsize=9)
    if best:
        ax.plot(best, factors[best - 1], "o", markersize=13, markerfacecolor="none", markeredgecolor=ORANGE, mew=2.4)
        at = dict(textcoords="offset points", xytext=(0, 11), ha="center", fontsize=9, fontweight="bold")
        ax.annotate(f"best γ = {best}: {factors[best - 1]:.2f}×", (best, factors[best - 1]), **at)
    ax.set(xticks=gammas, xlabel="γ: drafts a round", ylabel="speedup over plain decoding")
    ax.set(xlim=(0.5, max_gamma + 0.5), ylim=(0, max(1.3, highest * 1.35)))
    ax.legend(loc="upper right", frameon=False, fontsize=9, ncols=2)
    return _bare(ax)


def draw_round_timeline(gamma, alpha, c, ax, *, verify_slope=0.0):
    """One round to scale (γ draft steps, one verification), and the plain steps that bring as many tokens."""
    from specviz.speedup.theory import expected_tokens, linear_cost, round_cost

    tokens = float(expected_tokens(alpha, gamma))
    whole = float(round_cost(gamma, c, linear_cost(verify_slope)))
    for i in range(gamma if c else 0):
        ax.barh(1, c, left=i * c, height=0.5, **Q_BAR)
    ax.barh(1, whole - gamma * c, left=gamma * c, height=0.5, **P_BAR | dict(alpha=0.55))
    ax.text(gamma * c + (whole - gamma * c) / 2, 1, f"verify {gamma + 1}", ha="center", va="center", fontsize=9)
    for i in range(int(np.ceil(tokens))):
        ax.barh(0, min(1, tokens - i), left=i, height=0.5, color=GREY, edgecolor="black", linewidth=0.6, alpha=0.55)
    names = [f"plain decoding:\n{tokens:.2f} steps", f"a round, γ = {gamma}:\n{whole:.2f} steps"]
    ax.set_yticks([0, 1], names)
    ax.set(xlabel=f"time in target steps; both rows bring E[N] = {tokens:.2f} tokens", ylim=(-0.45, 1.45))
    ax.set_xlim(0, max(tokens, whole) * 1.02)
    ax.spines[["left", "right", "top"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return ax


PARTS = {  # of a round's time: (what it is called, how it looks)
    "draft forwards": ("draft forwards", Q_BAR),
    "draft": ("drawing the drafts from q", dict(facecolor="#ffe3b0", edgecolor="black", linewidth=0.6, hatch="....")),
    "target forward": ("target forward", P_BAR),
    "target": ("turning logits into p", dict(facecolor="#cfe3f6", edgecolor="black", linewidth=0.6, hatch="....")),
    "verify": ("coins, residual, next token", dict(facecolor="white", edgecolor=PURPLE, linewidth=0.6, hatch="xxxx")),
    "commit": ("keeping the books", dict(facecolor=GREY, edgecolor="black", linewidth=0.6, hatch="\\\\\\")),
}


def draw_profile(profile, ax):
    """A Profile's speedups over γ: measured with the spread of the runs, predicted, and predicted as if i.i.d."""
    gammas = np.array(sorted(profile.speedups))
    iid, predicted = profile.iid(gammas), profile.predicted(gammas, overhead=True)
    speeds = [profile.speedups[int(gamma)] for gamma in gammas]
    median, low, high = (np.array([getattr(speed, name) for speed in speeds]) for name in ("median", "low", "high"))
    ax.axhspan(0, 1, facecolor=(RED, 0.08), edgecolor="none")
    ax.axhline(1, color=INK, linewidth=1.2)
    ax.plot(gammas, iid, "s:", color=PURPLE, markersize=5, markerfacecolor="white", label="i.i.d.: one α, models only")
    whole = "predicted: α by position, all of a round's time"
    ax.plot(gammas, predicted, "D-", color=BLUE, linewidth=2.2, markersize=5, label=whole)
    runs = f"measured: median, slowest and fastest of {speeds[0].runs} runs"
    spread = [median - low, high - median]
    ax.errorbar(gammas, median, spread, fmt="o", color=INK, markerfacecolor="white", capsize=3, zorder=4, label=runs)
    ax.text(0.995, 0.015, "slower than plain decoding", transform=ax.transAxes, ha="right", color=SOFT, fontsize=9)
    ax.set(xticks=gammas, xlabel="γ: drafts a round", ylabel="speedup over plain decoding")
    ax.set(xlim=(gammas[0] - 0.5, gammas[-1] + 0.5), ylim=(0, max(1.2, *iid, *predicted, *high) * 1.45))
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return _bare(ax)


def draw_round_time(profile, ax):
    """Where the time of a plain step and of a round with each measured γ goes: a bar each, by phase, in target steps.

    The number behind a bar is the share of what is neither the draft's forward nor the target's.
    """
    gammas = [0, *sorted(profile.speedups)]
    parts = [profile.parts(gamma) for gamma in gammas]
    left = np.zeros(len(gammas))
    for part, (name, look) in PARTS.items():
        wide = np.array([times[part] for times in parts])
        ax.barh(range(len(gammas)), wide, 0.68, left=left, label=name, **look)
        left = left + wide
    for row, (times, end) in enumerate(zip(parts, left)):
        outside = 1 - (times["draft forwards"] + times["target forward"]) / end
        ax.text(end + 0.01 * left.max(), row, f" {outside:.0%} outside", va="center", fontsize=9, color=SOFT)
    ax.set_yticks(range(len(gammas)), ["plain", *(f"γ = {gamma}" for gamma in gammas[1:])])
    ax.set(xlabel=f"target steps (one is {profile.target_seconds * 1e3:.2g} ms)", xlim=(0, left.max() * 1.16))
    ax.invert_yaxis()
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False, fontsize=9)
    return _bare(ax)


# --- drafters (lesson 07) -------------------------------------------------------------------------


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


def draw_drafter_map(drafters, ax, *, verify_slope=0.0):
    """Kinds of drafters {name: (α, c)} on the map of predicted speedup at the best γ, V(n) = 1 + slope·(n - 1).

    Hatched: no γ pays. A drafter whose c is beyond the map stands at its upper edge.
    """
    from specviz.speedup.theory import best_gamma, linear_cost, speedup

    top = 1.0
    alpha, c = np.meshgrid(np.linspace(0, 0.98, 50), np.linspace(0, top, 41))
    cost = linear_cost(verify_slope)
    best = best_gamma(alpha, c, cost, max_gamma=32)
    factor = np.where(best > 0, speedup(alpha, best, c, cost), 1.0)
    lines = ax.contour(alpha, c, factor, [1.1, 1.25, 1.5, 2, 3, 5], colors=BLUE_INK, linewidths=1)
    ax.clabel(lines, fmt=lambda level: f"{level:g}×", fontsize=8)
    ax.contourf(alpha, c, best == 0, [0.5, 1.5], colors=[(RED, 0.1)], hatches=["x"])
    for (name, (a, price)), marker in zip(drafters.items(), "osD^vP*X", strict=False):
        colour = (BLUE, TEAL, PURPLE, ORANGE, GREY, RED)["osD^vP*X".index(marker) % 6]
        look = dict(color=colour, markeredgecolor="black", markersize=9, clip_on=False, zorder=5)
        ax.plot(a, min(price, top), marker, label=name, linestyle="none", **look)
    ax.set(xlim=(0, 1), ylim=(0, top), xlabel="α: acceptance rate", ylabel="c: a draft, in target steps")
    return _bare(ax)


# --- hardware (lesson 08) -------------------------------------------------------------------------


def draw_roofline(work, memory, arithmetic, ax):
    """Measured forwards under the two roofs of a machine, both axes logarithmic.

    work {n: (operations, bytes, seconds)} of a forward over n tokens; memory {name: bytes/s} one or several slanted
    roofs, the first being the highest; arithmetic operations/s, the flat one.
    """
    points = {n: (operations / size, operations / seconds) for n, (operations, size, seconds) in work.items()}
    x = np.array([0.7 * min(p[0] for p in points.values()), 4 * max(p[0] for p in points.values())])
    x = np.geomspace(x[0], max(x[1], 2 * arithmetic / min(memory.values())), 200)
    for (name, bandwidth), line in zip(memory.items(), ("-", "--", ":"), strict=False):
        ax.plot(x, np.minimum(bandwidth * x, arithmetic), line, color=INK, linewidth=1.6, label=name)
    ax.fill_between(x, np.minimum(max(memory.values()) * x, arithmetic), 1e30, facecolor=(GREY, 0.15), linewidth=0)
    ax.plot(*zip(*points.values()), "o", color=BLUE, markeredgecolor="black", label="a forward over n tokens")
    for n, (intensity, rate) in points.items():
        ax.annotate(f"n = {n}", (intensity, rate), (5, -11), textcoords="offset points", fontsize=8)
    lowest = min(rate for _, rate in points.values())
    ax.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(0.4 * lowest, 3 * arithmetic))
    ax.set(xlabel="operations for each byte of weights", ylabel="operations a second")
    ax.legend(loc="lower right", fontsize=8, framealpha=1)
    return _bare(ax)


def draw_forward_times(measured, moving, computing, ax):
    """Seconds of a forward over n tokens: measured {n: s} against moving (a number) and computing {n: s}, in ms."""
    n = sorted(measured)
    least = [max(moving, computing[i]) for i in n]
    ax.fill_between(n, 0, [1e3 * s for s in least], facecolor=(GREY, 0.2), linewidth=0, label="under the roofs")
    ax.plot(n, [1e3 * moving] * len(n), "--", color=INK, label="moving the weights")
    ax.plot(n, [1e3 * computing[i] for i in n], ":", color=INK, linewidth=2, label="computing")
    ax.plot(n, [1e3 * measured[i] for i in n], "o-", color=BLUE, markeredgecolor="black", label="measured")
    ax.set(xlabel="n: tokens in the forward", ylabel="milliseconds", xlim=(0, max(n) * 1.03), ylim=(0, None))
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return _bare(ax)


def draw_layouts(times, ax):
    """Seconds of the same product by several layouts of the weights, {name: {rows: s}}, in microseconds over rows."""
    looks = zip(((GREY, "s", "--"), (BLUE, "o", "-"), (PURPLE, "^", ":"), (ORANGE, "D", "-.")), times.items())
    for (colour, marker, line), (name, by_rows) in looks:
        microseconds = [1e6 * seconds for seconds in by_rows.values()]
        ax.plot(
            range(len(by_rows)), microseconds, line, color=colour, marker=marker, markeredgecolor="black", label=name
        )
    ax.set_xticks(range(len(by_rows)), by_rows)
    ax.set(xlabel="rows in the product", ylabel="microseconds", ylim=(0, None))
    ax.legend(frameon=False, fontsize=9)
    return _bare(ax)


def draw_memory(parts, labels, ax, *, limit=None):
    """Stacked bars of memory in GB, parts {name: [bytes for each bar]}; limit: what there is."""
    looks = [dict(facecolor=GREY), dict(facecolor=BLUE), dict(facecolor=ORANGE, hatch="///")]
    looks.append(dict(facecolor=RED, hatch="xx"))
    below = np.zeros(len(labels))
    for (name, size), look in zip(parts.items(), looks, strict=False):
        size = np.broadcast_to(size, below.shape) / 1e9
        ax.bar(range(len(labels)), size, 0.62, bottom=below, edgecolor="black", linewidth=0.6, label=name, **look)
        below = below + size
    for x, height in enumerate(below):
        ax.text(x, height, f"{height:,.0f}", ha="center", va="bottom", fontsize=9)
    if limit is not None:
        ax.axhline(limit / 1e9, color=INK, linestyle="--", linewidth=1.4, label=f"one device: {limit / 1e9:.0f} GB")
    ax.set_xticks(range(len(labels)), labels)
    ax.set(ylabel="GB", ylim=(0, 1.15 * max(below.max(), (limit or 0) / 1e9)))
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return _bare(ax)


def draw_batch_speedup(batches, measured, predicted, ax, *, title=""):
    """Speedup of a batch's tokens a second over plain decoding of the same batch, over the batch size."""
    ax.axhspan(0, 1, facecolor=(RED, 0.08), edgecolor="none")
    ax.axhline(1, color=INK, linewidth=1.2)
    ax.plot(batches, predicted, "D--", color=BLUE, markersize=5, label="tokens a round / (γ·c + V), of the batch")
    ax.plot(batches, measured, "o-", color=INK, markerfacecolor="white", label="measured")
    for batch, factor in zip(batches, measured):
        halo = dict(path_effects=[withStroke(linewidth=3, foreground="white")], zorder=5)
        place = dict(xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8)
        ax.annotate(f"{factor:.2f}", (batch, factor), **place, **halo)
    ax.text(0.99, 0.02, "slower than plain decoding", transform=ax.transAxes, ha="right", color=SOFT, fontsize=9)
    ax.set_xscale("log", base=2)
    ax.set_xticks(batches, [str(batch) for batch in batches])
    ax.minorticks_off()
    ax.set(xlabel="batch size B", ylabel="speedup", ylim=(0, 1.4 * max(1.2, *measured, *predicted)))
    ax.set_title(title, fontsize=10)
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return _bare(ax)


def draw_token_budget(steps, budget, ax):
    """A server's forwards one after another, steps [(emitted, in vain, prompt tokens)], as bars under their budget."""
    emitted, vain, prompts = np.array(steps).T
    at, edge = np.arange(1, len(steps) + 1), dict(edgecolor="black", linewidth=0.4)
    ax.bar(at, emitted, 0.9, facecolor=BLUE, label="rows that brought a token", **edge)
    ax.bar(at, vain, 0.9, bottom=emitted, facecolor=(RED, 0.25), hatch="xx", label="rows verified in vain", **edge)
    look = dict(facecolor=(TEAL, 0.3), hatch="..", label="prompt tokens (chunked prefill)")
    ax.bar(at, prompts, 0.9, bottom=emitted + vain, **look, **edge)
    ax.axhline(budget, color=INK, linestyle="--", linewidth=1.2)
    ax.text(0.6, budget, "token budget", va="bottom", fontsize=9)
    ax.set(xlabel="forward of the server", ylabel="tokens", xlim=(0.4, len(steps) + 0.6), ylim=(0, 1.45 * budget))
    ax.legend(loc="upper right", frameon=False, fontsize=9, ncols=3)
    return _bare(ax)


def draw_latency(rates, latency, ax):
    """Milliseconds a token over a server's requests a second, latency {γ: [ms at each rate]}; γ = 0 is plain."""
    looks = zip(((GREY, "s", "--"), (TEAL, "^", ":"), (BLUE, "o", "-"), (PURPLE, "D", "-.")), latency.items())
    for (colour, marker, line), (gamma, milliseconds) in looks:
        look = dict(color=colour, marker=marker, linestyle=line, markeredgecolor="black")
        ax.plot(rates, milliseconds, label=f"γ = {gamma}" if gamma else "plain", **look)
    ax.set(xlabel="requests a second", ylabel="milliseconds a token", xticks=rates, ylim=(0, None))
    ax.legend(loc="upper left", frameon=False)
    return _bare(ax)
