"""OverlapExplorer without a browser: its arguments, its traits, a real position, the exported page."""

import json
import math

import numpy as np
import pytest
import torch
import traitlets

from specviz import SamplingParams, TableModel, speculate
from specviz.equivalence import mutants
from specviz.widgets import OverlapExplorer
from specviz.widgets.base import texts
from specviz.widgets.modules import joined
from specviz.widgets.overlap import MAX_BARS, REAL_PROMPT, RULES

P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]


def test_what_it_starts_with():
    explorer = OverlapExplorer(P, Q, rule="resample_from_p", seed=7)
    assert (explorer.p, explorer.q, explorer.labels) == (P, Q, ["a", "b", "c"])
    assert (explorer.rule, explorer.seed, explorer.counts, explorer.accepted) == ("resample_from_p", 7, [], [])
    assert (
        explorer.error == ""
        and explorer.data["presets"][0] | {"p": P, "q": Q, "name": "given"} == (explorer.data["presets"][0])
    )
    json.dumps(explorer.state(), allow_nan=False)


def test_without_arguments_it_shows_the_far_pair():
    explorer = OverlapExplorer()
    assert explorer.p == OverlapExplorer.presets["far"].p
    assert [preset["name"] for preset in explorer.data["presets"]] == ["close", "far", "disjoint", "equal", "real"]


def test_what_is_a_preset_is_not_offered_twice():
    for name, preset in OverlapExplorer.presets.items():
        assert len(OverlapExplorer(*preset).data["presets"]) == 5, name


@pytest.mark.parametrize("convert", [np.array, torch.tensor, tuple])
def test_any_kind_of_array_will_do(convert):
    explorer = OverlapExplorer(convert(P), convert(Q), labels=["x", "␣y", "</script>"])
    assert np.allclose(explorer.p, P, atol=1e-6) and all(type(prob) is float for prob in explorer.p)
    assert abs(math.fsum(explorer.p) - 1) < 1e-12  # float32 is scaled to sum to 1 to the last digit


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (dict(p=[0.5, 0.6, 0.2]), r"^p sums to 1\.3: must sum to 1"),
        (dict(q=[0.5, 0.6, -0.1]), r"^q\[2\] = -0\.1: must be a probability"),
        (dict(q=[math.nan, 0.5, 0.5]), r"^q\[0\] = nan: must be a probability"),
        (dict(p=[math.inf, 0.5, 0.5]), r"^p\[0\] = inf"),
        (dict(p=[0.5, 0.5]), r"^p has 2 entries and q 3: give both over the same tokens"),
        (dict(p=[1.0]), r"^p has shape \[1\]: must be one list of 2 to 24 probabilities"),
        (dict(p=[P, P]), r"^p has shape \[2, 3\]"),
        (dict(p="abc"), r"^p='abc': must be a list of probabilities"),
        (dict(p=None), r"^p=None|^p has shape"),
        (dict(q=[1 / 25] * 25), r"^q has shape \[25\]: .* keep the likeliest"),
        (dict(labels=["a", "b"]), r"^labels=\['a', 'b'\]: must be 3 strings"),
        (dict(labels="abc"), r"^labels='abc': must be 3 strings"),
        (dict(labels=[1, 2, 3]), r"^labels=\[1, 2, 3\]"),
    ],
)
def test_bad_arguments_are_named(arguments, says):
    with pytest.raises(ValueError, match=says):
        OverlapExplorer(**({"p": P, "q": Q} | arguments))


def test_as_many_bars_as_can_be_told_apart():
    assert len(OverlapExplorer([1 / MAX_BARS] * MAX_BARS, [1 / MAX_BARS] * MAX_BARS).p) == MAX_BARS


@pytest.mark.parametrize(
    ("name", "value"),
    [("p", [0.5, 0.6]), ("q", [math.nan, 1.0]), ("p", []), ("rule", "x"), ("seed", -1), ("seed", 2**53), ("seed", 0.5)],
)
def test_traits_refuse_what_the_constructor_refuses(name, value):
    explorer = OverlapExplorer(P, Q)
    before = getattr(explorer, name)
    with pytest.raises(traitlets.TraitError, match=name):
        setattr(explorer, name, value)
    assert getattr(explorer, name) == before
    if name in ("rule", "seed"):
        with pytest.raises(traitlets.TraitError, match=name):
            OverlapExplorer(P, Q, **{name: value})


def test_show_brings_another_pair_of_another_length():
    explorer = OverlapExplorer(P, Q)
    explorer.counts, explorer.accepted = [1, 2, 3], [1, 1, 1]
    explorer.show([0.25] * 4, [0.1, 0.2, 0.3, 0.4], ["w", "x", "y", "z"])
    assert explorer.q == [0.1, 0.2, 0.3, 0.4] and explorer.labels == ["w", "x", "y", "z"] and explorer.counts == []
    with pytest.raises(ValueError, match="q sums to 2"):
        explorer.show([0.5, 0.5], [1.0, 1.0])
    assert explorer.p == [0.25] * 4


@pytest.mark.parametrize(("name", "value"), [("p", Q), ("q", P), ("rule", "swap_p_and_q"), ("seed", 1)])
def test_samples_are_forgotten_when_their_source_changes(name, value):
    explorer = OverlapExplorer(P, Q)
    explorer.counts, explorer.accepted = [5, 3, 2], [1, 1, 1]
    setattr(explorer, name, value)
    assert explorer.counts == explorer.accepted == []
    # The browser sends what belongs together, in one message.
    explorer.set_state({"p": [0.2, 0.2, 0.6], "counts": [1, 0, 0], "accepted": [1, 0, 0]})
    assert explorer.counts == [1, 0, 0]


def test_what_comes_from_the_browser_is_not_altered():
    """Else it would be sent back, and the browser would take it for other bars."""
    explorer = OverlapExplorer(P, Q)
    nearly = [0.1, 0.2, 0.7 - 1e-14]
    explorer.set_state({"p": nearly})
    assert explorer.p == nearly


def test_rules_are_those_of_the_mutants():
    source = joined("rules.js")
    for rule in RULES:
        assert f"\n  {rule}: {{" in source
        assert rule == "right" or hasattr(mutants, rule)


def test_every_text_is_there_and_used():
    known, source = texts("overlap"), joined("overlap.js")
    for rule in RULES:
        assert known[f"rule_{rule}"] and known[f"says_{rule}"] and known[f"replaced_{rule}"]
    for name in ["given", *OverlapExplorer.presets]:
        assert known[f"preset_{name}"]
    composed = ("rule_", "says_", "replaced_", "preset_", "how_", "from_", "fit_", "number_", "column_", "story_")
    composed += ("bar_", "verdict_", "tale_")
    for name in set(texts("overlap")) - set(texts("common")):
        assert f'"{name}"' in source or name.startswith(composed), name


# --- real positions -----------------------------------------------------------------------------


def a_round(gamma=2, **settings):
    target, drafter = TableModel.random(40, 1, seed=3), TableModel.random(40, 1, seed=4)
    trace = speculate(target, drafter, [0], gamma=gamma, max_new_tokens=4, seed=0, **settings)
    return trace.rounds[0], {token: b" %d" % token for token in range(40)}


@pytest.mark.parametrize("record", ["top", "full"])
def test_from_round(record):
    round, pieces = a_round(record=record)
    explorer = OverlapExplorer.from_round(round, 1, pieces, top=5, rule="accept_everything")
    assert explorer.rule == "accept_everything"
    drafted = round.draft_tokens[1]
    assert f"␣{drafted}" in explorer.labels and explorer.labels[-1] == "rest" and len(explorer.labels) == 6
    for label, p, q in list(zip(explorer.labels, explorer.p, explorer.q))[:-1]:
        assert p == pytest.approx(round.p[1][int(label[1:])]) and q == pytest.approx(round.q[1][int(label[1:])])
    assert sum(explorer.p) == pytest.approx(1) and sum(explorer.q) == pytest.approx(1)
    given = explorer.data["presets"][0]
    assert given["overlap"] == round.overlap[1] <= np.minimum(explorer.p, explorer.q).sum() + 1e-9


def test_from_round_says_what_is_wrong():
    round, pieces = a_round()
    for i in (-1, 2, 0.5):
        with pytest.raises(ValueError, match="^i="):
            OverlapExplorer.from_round(round, i, pieces)
    for top in (0, MAX_BARS):
        with pytest.raises(ValueError, match="^top="):
            OverlapExplorer.from_round(round, 0, pieces, top=top)
    with pytest.raises(ValueError, match="record='none'"):
        OverlapExplorer.from_round(a_round(record="none")[0], 0, pieces)


@pytest.mark.slow
def test_the_real_position_is_the_bundled_pairs():
    from specviz import load_pair

    target, drafter = load_pair("tales")
    cool = SamplingParams(temperature=0.8)
    # The draft of this seed is one of the preset's tokens.
    trace = speculate(target, drafter, REAL_PROMPT, gamma=1, max_new_tokens=2, seed=6, sampling=cool)
    found, kept = OverlapExplorer.from_round(trace.rounds[0], 0, trace.pieces), OverlapExplorer.presets["real"]
    assert found.labels == kept.labels
    assert np.allclose(found.p, kept.p, atol=2e-3) and np.allclose(found.q, kept.q, atol=2e-3)
    assert found.data["presets"][0]["overlap"] == pytest.approx(kept.overlap, abs=2e-3)


# --- the exported page --------------------------------------------------------------------------


def test_the_page_is_self_contained(tmp_path):
    explorer = OverlapExplorer(P, Q, ["</script>", "<b>&", "\u2028"])
    text = explorer.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>Overlap explorer</title>" in text and "<b>&" not in text
    assert text.count("http://") + text.count("https://") == 1  # the name of SVG, and no address
