"""The figures of lesson 06: they draw what the theory says, and keep their words apart."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest

from specviz.plots import draw_profile, draw_round_time, draw_round_timeline, draw_speedup_curve
from specviz.speedup import Profile
from specviz.speedup.theory import expected_tokens, linear_cost, round_cost, speedup


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    yield ax
    plt.close(figure)


def assert_words_apart(ax):
    ax.figure.canvas.draw()
    texts = [text for text in [*ax.texts, *ax.get_legend().get_texts()] if text.get_text()]
    for a, b in itertools.combinations(texts, 2):
        assert not a.get_window_extent().overlaps(b.get_window_extent()), (a.get_text(), b.get_text())


@pytest.mark.parametrize(
    ("alpha", "c", "slope"), [(0.72, 0.08, 0.05), (0.2, 0.3, 0.3), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)]
)
def test_the_curve_is_the_theory(ax, alpha, c, slope):
    assert draw_speedup_curve(alpha, c, ax, verify_slope=slope) is ax
    line = ax.lines[0].get_xydata()
    np.testing.assert_allclose(line[:, 1], speedup(alpha, line[:, 0], c, linear_cost(slope)))
    assert ax.get_ylim()[1] > line[:, 1].max()
    assert_words_apart(ax)


def test_measured_points_lie_over_it(ax):
    profile = Profile.bundled()
    draw_speedup_curve(profile.alpha, profile.c, ax, verify_slope=profile.verify_slope, profile=profile)
    heights = [container[0].get_ydata()[0] for container in ax.containers]
    assert heights == [speed.median for speed in profile.speedups.values()]
    assert_words_apart(ax)


@pytest.mark.parametrize("c", [0.0, 0.1])
def test_the_timeline_is_to_scale(ax, c):
    assert draw_round_timeline(4, 0.7, c, ax, verify_slope=0.05) is ax
    rows = {y: [patch for patch in ax.patches if round(patch.get_y() + 0.25) == y] for y in (0, 1)}
    ends = {y: max(patch.get_x() + patch.get_width() for patch in patches) for y, patches in rows.items()}
    assert ends[1] == pytest.approx(round_cost(4, c, 1.2)) and ends[0] == pytest.approx(expected_tokens(0.7, 4))
    assert len(rows[1]) == (5 if c else 1)


def test_a_profiles_figure_shows_both_predictions_and_what_was_measured(ax):
    profile = Profile.bundled()
    assert draw_profile(profile, ax) is ax
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    gammas = list(profile.speedups)
    np.testing.assert_allclose(lines["i.i.d.: one α, models only"], profile.iid(gammas))
    whole = lines["predicted: α by position, all of a round's time"]
    np.testing.assert_allclose(whole, profile.predicted(gammas, overhead=True))
    ((points, caps, bars),) = ax.containers
    assert points.get_ydata().tolist() == [speed.median for speed in profile.speedups.values()]
    ends = [segment[:, 1] for segment in bars[0].get_segments()]
    np.testing.assert_allclose(ends, [(speed.low, speed.high) for speed in profile.speedups.values()])
    assert_words_apart(ax)


def test_the_bars_of_a_rounds_time_are_its_parts(ax):
    profile = Profile.bundled()
    assert draw_round_time(profile, ax) is ax
    gammas = [0, *profile.speedups]
    for part, bars in zip(profile.parts(0), sorted(ax.containers, key=lambda bars: order(bars.get_label()))):
        expected = [profile.parts(gamma)[part] for gamma in gammas]
        np.testing.assert_allclose([bar.get_width() for bar in bars], expected, err_msg=part)
    ends = [max(bars[row].get_x() + bars[row].get_width() for bars in ax.containers) for row in range(len(gammas))]
    np.testing.assert_allclose(ends, [sum(profile.parts(gamma).values()) for gamma in gammas])
    looks = {(bars[0].get_facecolor(), bars[0].get_hatch()) for bars in ax.containers}
    hatches = [bars[0].get_hatch() for bars in ax.containers]
    assert len(looks) == 6 and all(a != b for a, b in zip(hatches, hatches[1:]))  # neighbours differ in pattern too
    assert_words_apart(ax)


def order(label):
    """The place of a bar's part in Profile.parts()."""
    names = ["draft forwards", "target forward", "drawing the drafts from q", "turning logits into p"]
    return [*names, "coins, residual, next token", "keeping the books"].index(label)
