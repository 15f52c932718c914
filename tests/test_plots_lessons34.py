"""The pictures of lessons 03 and 04 show the numbers that they are given."""

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from specviz import Scripted, TableModel, speculate
from specviz.plots import (
    LOOKS,
    draw_agreement,
    draw_alpha_by_position,
    draw_laws,
    draw_overlap,
    draw_round,
    draw_two_paths,
    png,
)
from specviz.text import token_label

P = np.array([0.30, 0.22, 0.05, 0.18, 0.25])
Q = np.array([0.10, 0.35, 0.25, 0.20, 0.10])
PIECES = {i: " abc"[i].encode() if i else b" king" for i in range(4)}


def axes(size=(9, 5)):
    return Figure(figsize=size).add_axes([0, 0, 1, 1])


def heights(container):
    return np.array([bar.get_height() for bar in container])


def texts(ax):
    return [text.get_text() for text in ax.texts]


def a_trace(coins, gamma=3, max_new_tokens=20, **settings):
    """A trace over three symbols, whose first round tosses these coins; A = 0.5 for symbol 0, 1 for 1 and 2."""
    target = TableModel.from_probabilities([0.4, 0.3, 0.3])
    drafter = TableModel.from_probabilities([0.8, 0.1, 0.1])
    script = {(0, n, "draft", i): 0.0 for n in range(30) for i in range(gamma)}
    script |= {(0, n, "next", 0): 0.5 for n in range(30)}
    script |= {(0, n, "coin", i): coins[i] for n in range(30) for i in range(gamma)}
    return speculate(
        target, drafter, [0], gamma=gamma, max_new_tokens=max_new_tokens, randomness=Scripted(script), **settings
    )


# --- a round ------------------------------------------------------------------------------------


def test_round_shows_each_coin_at_its_height():
    round = a_trace([0.1, 0.4, 0.9]).rounds[0]
    assert (round.accepted, round.outcome) == (2, "resampled")
    ax = axes()
    assert draw_round(round, PIECES, ax) is ax
    discs = [patch for patch in ax.patches if isinstance(patch, Circle)]
    heights = [disc.center[1] for disc in discs]
    unit = (heights[2] - heights[0]) / 0.8  # the height of a gauge, from 0 to 1
    assert heights == pytest.approx([heights[0] + unit * (u - 0.1) for u in (0.1, 0.4, 0.9)])
    assert [disc.get_linestyle() for disc in discs] == ["-", "-", "--"]  # not by colour alone
    across = [line for line in ax.lines if len(set(line.get_ydata())) == 1]
    centres = [disc.center[0] for disc in discs]
    levels = [line.get_ydata()[0] for x in centres for line in across if sum(line.get_xdata()) / 2 == pytest.approx(x)]
    assert levels == pytest.approx([heights[0] + unit * (0.5 - 0.1)] * 3)


@pytest.mark.parametrize(
    "coins, glyphs",
    [
        ([0.1, 0.4, 0.9], ["✓", "✓", "✗", "↻"]),
        ([0.9, 0.1, 0.1], ["✗", "·", "·", "↻"]),
        ([0.1, 0.1, 0.1], ["✓", "✓", "✓", "★"]),
    ],
)
def test_round_marks_each_outcome(coins, glyphs):
    ax = draw_round(a_trace(coins).rounds[0], PIECES, axes())
    drawn = [text for text in ax.texts if text.get_text() in {look.glyph for look in LOOKS.values()}]
    lowest = min(text.get_position()[1] for text in drawn)  # the outcomes stand below the coins
    outcomes = {text.get_position()[0]: text.get_text() for text in drawn if text.get_position()[1] == lowest}
    assert [outcomes[x] for x in sorted(outcomes)] == glyphs


def test_round_bars_are_the_probabilities():
    round = a_trace([0.1, 0.4, 0.9]).rounds[0]
    ax = draw_round(round, PIECES, axes())
    bars = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    track = max(bar.get_width() for bar in bars)
    shares = sorted(bar.get_width() / track for bar in bars if bar.get_width() < track)
    assert shares == pytest.approx([0.4] * 3 + [0.8] * 3)


def test_round_without_drafts_or_next_token():
    trace = a_trace([0.1, 0.1, 0.1], max_new_tokens=5)  # 4 tokens, then a plain step
    assert [round.outcome for round in trace.rounds] == ["bonus", "plain"]
    assert LOOKS["plain"].glyph in texts(draw_round(trace.rounds[1], PIECES, axes()))
    ended = a_trace([0.1, 0.1, 0.1], eos=[0]).rounds[0]
    assert ended.outcome == "ended"
    shown = texts(draw_round(ended, PIECES, axes()))
    assert not {LOOKS[kind].glyph for kind in ("resampled", "bonus", "plain")} & set(shown)


def test_round_needs_probabilities():
    round = a_trace([0.1, 0.1, 0.1], record="none").rounds[0]
    with pytest.raises(ValueError, match="record='none'"):
        draw_round(round, PIECES, axes())


def test_text_of_a_round_grows_with_the_axes():
    round = a_trace([0.1, 0.4, 0.9]).rounds[0]
    small, large = (draw_round(round, PIECES, axes(size)).texts[0].get_fontsize() for size in ((4.5, 2.5), (9, 5)))
    assert large == pytest.approx(2 * small)


@pytest.mark.parametrize(
    "piece, label",
    [(b" king", "␣king"), (b"\n", "↵"), (b"a very long one", "a␣very␣l…"), (b"\xe2\x80", "‹e2›‹80›"), (b"$x", "$x")],
)
def test_token_label(piece, label):
    assert token_label(piece) == label


def test_dollar_signs_are_no_mathematics():
    ax = draw_round(a_trace([0.1, 0.4, 0.9]).rounds[0], {i: b"$\\x" for i in range(3)}, axes())
    assert png(ax.figure).startswith(b"\x89PNG")


# --- distributions ------------------------------------------------------------------------------


def test_overlap_bars():
    ax = draw_overlap(P, Q, axes())
    drawn_p, drawn_q, least = (heights(container) for container in ax.containers[:3])
    assert drawn_p == pytest.approx(P) and drawn_q == pytest.approx(Q)
    assert least == pytest.approx(np.minimum(P, Q))
    assert "0.65" in ax.get_title(loc="left")
    assert [label.get_text() for label in ax.get_xticklabels()] == list("abcde")


def test_two_paths_stack_to_p():
    ax = draw_two_paths(P, Q, axes(), labels=["v", "w", "x", "y", "$"])
    accepted, corrected = ax.containers[:2]
    assert heights(accepted) == pytest.approx(np.minimum(P, Q))
    assert [bar.get_y() for bar in corrected] == pytest.approx(heights(accepted))
    assert heights(accepted) + heights(corrected) == pytest.approx(P)
    assert {bar.get_hatch() for bar in corrected} == {LOOKS["resampled"].hatch}
    png(ax.figure)


def test_laws():
    wrong = np.array([0.2, 0.3, 0.1, 0.2, 0.2])
    ax = draw_laws({"right": P, "wrong": wrong}, P, axes())
    assert heights(ax.containers[0]) == pytest.approx(P) and heights(ax.containers[1]) == pytest.approx(wrong)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"right", "wrong", "target p"} <= set(names)


def test_alpha_by_position():
    ax = draw_alpha_by_position([(0.8, 10), (0.5, 8)], axes())
    assert heights(ax.containers[0]) == pytest.approx([0.8, 0.5])
    assert ax.lines[0].get_ydata() == pytest.approx([0.8, 0.4])
    assert {"10\ntested", "8\ntested"} <= set(texts(ax))


def test_agreement():
    ax = draw_agreement([0.6, 0.7], [0.5, 0.8], axes())
    points = next(line for line in ax.lines if line.get_label() == "one text")
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([0.6, 0.7], [0.5, 0.8])
