"""The pictures of lessons 01 and 02 show the data they are given: bar lengths, lines, cells, cache lengths, dots."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch

from specviz import plots


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    figure.canvas.draw()  # nothing in it may fail to be drawn
    plt.close(figure)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def cells(ax):
    """{(x, y): patch} of the rectangles that were added by hand."""
    return {(round(patch.get_x(), 2), round(patch.get_y(), 2)): patch for patch in ax.patches}


def looks(*kinds):
    """How the legend shows these kinds of cells: its patches."""
    figure, ax = plt.subplots()
    patches = plots.draw_cache_legend(ax, kinds).get_legend().get_patches()
    plt.close(figure)
    return patches


def filled(patch, kind):
    return patch.get_facecolor() == looks(kind)[0].get_facecolor()


def test_verify_cost(ax):
    assert plots.draw_verify_cost({4: 1.5, 1: 1.0, 2: 1.2}, ax) is ax
    separate, measured, ideal = ax.lines
    assert list(measured.get_xdata()) == [1, 2, 4]
    assert list(measured.get_ydata()) == [1.0, 1.2, 1.5]
    assert list(separate.get_ydata()) == [1, 2, 4]
    assert list(ideal.get_ydata()) == [1, 1, 1]


def test_step_costs(ax):
    assert plots.draw_step_costs({1: 0.010, 2: 0.012}, {1: 0.02, 2: 0.03}, ax) is ax
    steps, verify = ax.containers[:2]
    assert [bar.get_height() for bar in steps] == pytest.approx([20, 30])
    assert [bar.get_height() for bar in verify] == pytest.approx([10, 12])
    assert steps[0].get_hatch() != verify[0].get_hatch()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2"]


def test_unit_interval(ax):
    probs = torch.tensor([0.5, 0.0, 0.25, 0.25])
    assert plots.draw_unit_interval(probs, [0.6], ax, "abcd") is ax
    bars = [bar for container in ax.containers for bar in container]
    assert [bar.get_width() for bar in bars] == pytest.approx(probs.tolist())
    assert [bar.get_x() for bar in bars] == pytest.approx([0, 0.5, 0.5, 0.75])
    (arrow,) = (text for text in ax.texts if text.get_text() == "u = 0.60")
    assert bars[2].get_x() <= arrow.xy[0] < bars[2].get_x() + bars[2].get_width()
    assert not any(text.startswith("b") for text in texts(ax)), "an empty slice has no name"


@pytest.mark.parametrize("token, place", [(1, 0), (3, 2)], ids=["likeliest", "outside the top"])
def test_draft_step(ax, token, place):
    q = torch.tensor([0.2, 0.4, 0.25, 0.05, 0.1])
    assert plots.draw_draft_step(q, token, lambda i: b" %d" % i, ax, name="q_1", rows=3) is ax
    names = [label.get_text() for label in ax.get_yticklabels()]
    widths = [bar.get_width() for bar in ax.containers[0]]
    assert names[place] == f"▸ ␣{token}"
    assert names[-1] == "all others"
    assert widths[place] == pytest.approx(q[token].item())
    assert sum(widths) == pytest.approx(1)
    assert ax.get_title() == f"$q_1$ of the drafted token: {q[token]:.3f}"


def test_draft_step_with_a_small_vocabulary(ax):
    plots.draw_draft_step([0.75, 0.25], 0, lambda i: b"%d" % i, ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["▸ 0", "1"]


def test_forward_rows(ax):
    assert plots.draw_forward_rows("was", ["a", "tree"], ax) is ax
    said = texts(ax)
    for text in ("was", "a", "tree", "$p_{1}$", "$p_{3}$", "judges\na", "judges\ntree", "★ bonus"):
        assert text in said
    placed = {text.get_text(): text.get_position()[0] for text in ax.texts}
    assert placed["was"] == placed["$p_{1}$"] == placed["judges\na"], "p_1 is read after the last committed token"
    assert placed["tree"] == placed["$p_{3}$"] == placed["★ bonus"]


def test_cache(ax):
    rows = [["A", "B", "C", ""], ["A", "", "", ""]]
    assert plots.draw_cache(rows, [2, 1], ax, names=["one", "two"], drafted=[1, 4]) is ax
    drawn = cells(ax)
    kinds = {(0, 1.35): "committed", (1, 1.35): "draft", (2, 1.35): "stale", (3, 1.35): "empty"}
    kinds |= {(0, 0): "committed", (1, 0): "empty"}
    for place, kind in kinds.items():
        assert filled(drawn[place], kind), place
    marks = [(line.get_xdata()[0], line.get_marker()) for line in ax.lines]
    assert marks == [(pytest.approx(2.46), "v"), (pytest.approx(1.46), "v")]
    assert {"one", "two", "A", "B", "C"} <= set(texts(ax))


def test_mask(ax):
    visible = torch.tensor([[True, True, False, False], [True, True, True, False]])
    kinds = ["committed", "committed", "draft", "stale"]
    assert plots.draw_mask(visible, ax, ["b", "x"], ["a", "b", "x", "old"], kinds) is ax
    dots = {(round(line.get_xdata()[0] - 0.46), round(line.get_ydata()[0] - 0.46)) for line in ax.lines}
    assert dots == {(column, 1 - row) for row in range(2) for column in range(4) if visible[row, column]}
    drawn = cells(ax)
    assert filled(drawn[0, 1], "seen") and filled(drawn[2, 1], "empty")
    assert drawn[3, 0].get_hatch() == "xx" and filled(drawn[3, 2.15], "stale")


def test_cache_legend(ax):
    assert plots.draw_cache_legend(ax, ("seen", "stale"), loc="upper left") is ax
    assert len(ax.get_legend().get_texts()) == 2


def test_kinds_of_cells_differ_in_more_than_colour():
    patches = looks("committed", "draft", "stale", "empty")
    assert len({(patch.get_hatch(), patch.get_linestyle(), patch.get_linewidth()) for patch in patches}) == 4


def test_tokens_that_read_alike_have_a_bar_each(ax):
    plots.draw_draft_step([0.5, 0.3, 0.2], 1, lambda i: b"interesting", ax)
    assert [bar.get_width() for bar in ax.containers[0]] == [0.5, 0.3, 0.2]
