"""The figures of lesson 08: they draw the numbers that they are given, and nothing lies above a roof by drawing."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from specviz import plots
from specviz.exercises.lesson08 import STORED_LAYOUTS, stored_batches
from specviz.trace import PHASES


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
    yield ax
    figure.canvas.draw()
    plt.close(figure)


def test_a_roofline_is_the_lower_of_two_roofs(ax):
    work = {n: (2e6 * n, 4e6, 1e-3) for n in (1, 8, 64)}  # operations, bytes, seconds
    memory = {"cache": 2e10, "memory": 1e10}
    assert plots.draw_roofline(work, memory, 1e11, ax) is ax
    for line, bandwidth in zip(ax.lines[:2], memory.values(), strict=True):
        x, y = line.get_data()
        assert np.allclose(y, np.minimum(bandwidth * x, 1e11))
        assert y[0] < y[-1] == 1e11  # both roofs are in the picture
    x, y = ax.lines[2].get_data()
    assert np.allclose(x, [0.5, 4, 32]) and np.allclose(y, [2e9, 16e9, 128e9])


def test_forward_times_are_in_milliseconds(ax):
    assert plots.draw_forward_times({1: 2e-3, 4: 3e-3}, 1e-3, {1: 2e-4, 4: 8e-4}, ax) is ax
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    assert np.allclose(lines["measured"], [2, 3])
    assert np.allclose(lines["moving the weights"], [1, 1])
    assert np.allclose(lines["computing"], [0.2, 0.8])


def test_each_layout_has_a_line_and_a_marker_of_its_own(ax):
    times = {name: {1: 1e-6, 2: 2e-6, 16: 3e-6} for name in ("a", "b", "c")}
    assert plots.draw_layouts(times, ax) is ax
    assert [line.get_label() for line in ax.lines] == ["a", "b", "c"]
    assert len({(line.get_marker(), line.get_linestyle()) for line in ax.lines}) == 3
    assert np.allclose(ax.lines[0].get_ydata(), [1, 2, 3])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "16"]


def test_memory_is_stacked(ax):
    parts = {"weights": 2e9, "cache": np.array([1e9, 8e9]), "draft": [1e9, 1e9], "window": [0, 1e6]}
    assert plots.draw_memory(parts, ["one", "eight"], ax, limit=5e9) is ax
    tops = [bars[-1].get_y() + bars[-1].get_height() for bars in ax.containers]
    assert np.allclose(tops, [2, 10, 11, 11.001])
    assert {"4", "11"} <= {text.get_text() for text in ax.texts}
    assert np.allclose(ax.lines[0].get_ydata(), 5)


def test_batches_show_measured_beside_predicted(ax):
    assert plots.draw_batch_speedup([1, 4, 16], [1.5, 1.1, 0.7], [1.4, 1.0, 0.6], ax, title="here") is ax
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert lines["measured"] == [1.5, 1.1, 0.7]
    assert [1.4, 1.0, 0.6] in lines.values()
    assert ax.get_title() == "here"


def test_a_forward_of_the_server_is_one_bar(ax):
    steps = [(3, 5, 0), (2, 6, 100), (0, 0, 128)]
    assert plots.draw_token_budget(steps, 128, ax) is ax
    tops = [bar.get_y() + bar.get_height() for bar in ax.containers[-1]]
    assert tops == [8, 108, 128]


def test_latency_names_plain_decoding(ax):
    assert plots.draw_latency([10, 20], {0: [4, 5], 3: [2, 6]}, ax) is ax
    assert [line.get_label() for line in ax.lines] == ["plain", "γ = 3"]


def test_stored_results_name_their_machine():
    stored = stored_batches()
    assert stored["machine"] and STORED_LAYOUTS["about"]
    batches = [row["batch"] for row in stored["rows"]]
    assert batches == sorted(batches) and batches[0] == 1
    for row in stored["rows"]:
        assert row["plain"]["rounds"] * row["batch"] == stored["prompts"] * stored["max_new_tokens"]
        assert row["speculative"]["rounds"] < row["plain"]["rounds"]
        assert all(
            {*row[kind]} == {*PHASES, "rounds"} and min(row[kind].values()) > 0 for kind in ("plain", "speculative")
        )
