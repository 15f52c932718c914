"""The figures of lesson 07: they draw what happened, and the map is the theory's."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import Rectangle

from specviz import TableModel, speculate
from specviz.plots import draw_drafter_map, draw_ragged_batch


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(10, 3.6), layout="constrained")
    yield ax
    plt.close(figure)


@pytest.mark.parametrize("eos", [(), 1])
def test_each_cell_tells_its_round(ax, eos):
    pair = [TableModel.random(4, 1, seed=seed, eos=eos) for seed in (1, 2)]
    traces = speculate(*pair, [[0], [2, 3], [3]], gamma=3, max_new_tokens=12, seed=0)
    assert draw_ragged_batch(traces, ax) is ax
    texts = [text.get_text() for text in ax.texts]
    cells = [round for trace in traces for round in trace.rounds]
    assert [len(told) for told in texts[::2]] == [len(round.tokens) for round in cells]
    assert [told.count("✓") for told in texts[::2]] == [round.accepted for round in cells]
    lengths = [len(trace.tokens) for trace in traces]
    assert set(map(str, lengths)) <= set(texts[1::2])
    rounds = [len(trace.rounds) for trace in traces]
    idle = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    assert len(idle) == sum(n < max(rounds) for n in rounds)
    ax.figure.canvas.draw()


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_drafters_stand_where_they_were_measured(ax, slope):
    drafters = {"model": (0.7, 0.1), "bigram": (0.2, 0.01), "dear": (0.8, 3.0)}
    assert draw_drafter_map(drafters, ax, verify_slope=slope) is ax
    points = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines}
    assert points == {"model": (0.7, 0.1), "bigram": (0.2, 0.01), "dear": (0.8, 1.0)}
    assert len({line.get_marker() for line in ax.lines}) == 3
    ax.figure.canvas.draw()
