"""The pictures of lesson 05 show the counts, residuals and statistics that they are given."""

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from specviz import plots
from specviz.plots import draw_chi_square_growth, draw_p_values, draw_residuals, draw_sampled, draw_two_rules

P = np.array([0.5, 0.3, 0.2])
COUNTS = np.array([56, 24, 20])


@pytest.fixture
def ax():
    figure = Figure(figsize=(6, 4))
    yield figure.add_subplot()
    plots.png(figure)  # nothing in it may fail to be drawn


def heights(container):
    return np.array([bar.get_height() for bar in container])


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_sampled_shares_stand_on_the_promise(ax):
    assert draw_sampled(COUNTS, P, ax, labels=["x", "y", "z"]) is ax
    bars, points = ax.containers
    assert heights(bars) == pytest.approx(P)
    line, _, (errors,) = points
    assert line.get_ydata() == pytest.approx([0.56, 0.24, 0.20])
    lengths = [top - bottom for (_, bottom), (_, top) in errors.get_segments()]
    assert lengths == pytest.approx(4 * np.sqrt(P * (1 - P) / 100))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["x", "y", "z"]


def test_sampled_at_several_positions(ax):
    draw_sampled(np.tile(COUNTS, 2), np.tile(P, 2), ax, n=100)
    assert ax.containers[1][0].get_ydata() == pytest.approx(np.tile(COUNTS / 100, 2))


def test_residuals_are_in_standard_errors(ax):
    counts = np.array([62, 18, 20])
    draw_residuals(counts, P, ax)
    off = (counts - 100 * P) / np.sqrt(100 * P * (1 - P))
    assert heights(ax.containers[0]) == pytest.approx(off)
    assert 2 < abs(off[0]) < 3 and 2 < abs(off[1]) < 3 and off[2] == 0
    assert legend(ax) == ["within 2", "within 3"]
    markers = {line.get_label(): line.get_marker() for line in ax.lines}
    assert (markers["within 2"], markers["within 3"]) == ("o", "D")  # not by colour alone


def test_residuals_far_off_are_all_on_the_picture(ax):
    draw_residuals(np.array([900, 50, 50]), P, ax)
    low, high = ax.get_ylim()
    assert all(low < height < high for height in heights(ax.containers[0]))
    assert legend(ax) == ["beyond 3"]


def test_residual_of_an_impossible_event(ax):
    draw_residuals(np.array([50, 30, 20, 1, 0]), np.array([0.5, 0.3, 0.2, 0.0, 0.0]), ax)
    off = heights(ax.containers[0])
    assert off[3] == 4 and off[4] == 0
    (beyond,) = (line for line in ax.lines if line.get_label() == "beyond 3")
    assert list(beyond.get_xdata()) == [3]


def test_chi_square_growth(ax):
    runs = {"right": [[3, 5], [4, 2]], "wrong": [[40, 400]]}
    assert draw_chi_square_growth([100, 1000], runs, 4, ax) is ax
    assert [list(line.get_ydata()) for line in ax.lines] == [[3, 5], [4, 2], [40, 400]]
    assert legend(ax) == ["99% of correct samplers", "right", "wrong"]
    (band,) = ax.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx(stats.chi2.interval(0.99, 4))
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    looks = {(line.get_linestyle(), line.get_marker()) for line in ax.lines}
    assert len(looks) == 2  # not by colour alone


def test_p_values(ax):
    draw_p_values({"right": np.linspace(0.001, 0.999, 100), "wrong": np.full(50, 1e-9)}, ax, bins=10)
    right, wrong = ax.containers
    assert heights(right) == pytest.approx(np.full(10, 0.1))
    assert heights(wrong) == pytest.approx([1] + [0] * 9)
    assert ax.lines[0].get_ydata()[0] == 0.1
    edges = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in [*right, *wrong]]
    assert min(edges)[0] >= 0 and max(edges)[1] <= 1
    assert right[0].get_x() + right[0].get_width() == pytest.approx(wrong[0].get_x())


def test_two_rules(ax):
    draw_two_rules([0.6, 0.8], [0.1, 0.3], ax)
    points, mean = ax.lines[1:]
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([0.6, 0.8], [0.1, 0.3])
    assert (mean.get_xdata()[0], mean.get_ydata()[0]) == pytest.approx((0.7, 0.2))
