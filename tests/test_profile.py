"""Profiles: what measure() measures, on a clock of its own; the JSON; predictions."""

import dataclasses
import json
import time

import numpy as np
import pytest

from specviz import SamplingParams, TableModel, decoding, load_pair
from specviz.speedup.profile import BUNDLED, Profile, Speed, machine, measure
from specviz.speedup.theory import linear_cost, speedup

TARGET_STEP, DRAFT_STEP, EXTRA_TOKEN, OVERHEAD = 0.010, 0.001, 0.0005, 0.0004


class Clocked:
    """A model on a clock of the test's: its forwards take what they are said to take, and nothing else takes time."""

    def __init__(self, model, clock, step, extra_token):
        self.model, self.clock, self.step, self.extra_token = model, clock, step, extra_token

    def __getattr__(self, name):
        return getattr(self.model, name)

    def start(self, prompts, capacity):
        memory = self.model.start(prompts, capacity)
        feed = memory.feed

        def timed(tokens, count=None):
            self.clock[0] += self.step + self.extra_token * (tokens.shape[1] - 1)
            return feed(tokens, count)

        memory.feed = timed
        return memory


@pytest.fixture
def clocked_pair(monkeypatch):
    clock, verify = [0.0], decoding.verify

    def timed_verify(*arguments):
        clock[0] += OVERHEAD
        return verify(*arguments)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(decoding, "verify", timed_verify)
    target, draft = (TableModel.random(4, order=1, seed=seed) for seed in (1, 2))
    return Clocked(target, clock, TARGET_STEP, EXTRA_TOKEN), Clocked(draft, clock, DRAFT_STEP, 0)


def small(**changes):
    """A profile made up."""
    fields = dict(
        target="T", drafter="D", machine="M", device="cpu", dtype="float32", threads=1, sampling={"temperature": 1.0},
        prompts=2, new_tokens=8, alpha_by_position=[(0.8, 10), (0.5, 8)], target_seconds=0.01, c=0.1,
        verify_cost={1: 1.0, 2: 1.1, 4: 1.2}, overhead_seconds={0: 0.001, 1: 0.002, 3: 0.004},
        speedups={1: Speed(1.3, 1.2, 1.4, 3), 3: Speed(1.2, 1.1, 1.3, 3)}, operations_ratio=0.15,
    )  # fmt: skip
    return Profile(**fields | changes)


# --- measuring ----------------------------------------------------------------------------------


def test_measure_finds_what_the_clock_says(clocked_pair):
    profile = measure(*clocked_pair, [[0, 1, 2], [3]], gammas=(1, 2, 4), new_tokens=40, runs=3, progress=False)
    assert profile.target_seconds == pytest.approx(TARGET_STEP)
    assert profile.c == pytest.approx(DRAFT_STEP / TARGET_STEP)
    slope = EXTRA_TOKEN / TARGET_STEP
    assert profile.verify_cost == pytest.approx({n: 1 + slope * (n - 1) for n in (1, 2, 3, 5)})
    assert profile.verify_slope == pytest.approx(slope)
    assert profile.overhead_seconds == pytest.approx(dict.fromkeys((0, 1, 2, 4), OVERHEAD))
    assert (profile.prompts, profile.new_tokens, profile.threads, profile.device) == (2, 40, 1, "cpu")
    assert all(speed.runs == 3 and speed.low <= speed.median <= speed.high for speed in profile.speedups.values())
    # With every cost known the only differences left are chance and the short last rounds of a text.
    for gamma, speed in profile.speedups.items():
        assert profile.predicted(gamma, overhead=True) == pytest.approx(speed.median, rel=0.1)


def test_measure_counts_acceptance_at_each_position(clocked_pair):
    profile = measure(*clocked_pair, [[0]], gammas=(1, 3), new_tokens=30, runs=2, progress=False)
    counts = [tested for _, tested in profile.alpha_by_position]
    assert len(counts) == 3 and counts == sorted(counts, reverse=True)
    accepted = [round(alpha * tested) for alpha, tested in profile.alpha_by_position]
    assert accepted[1] >= counts[2]  # tested at position 3: who passed position 2, but where a text ended before
    assert profile.alpha == pytest.approx(sum(accepted) / sum(counts))


def test_a_target_that_drafts_for_itself_accepts_all(clocked_pair):
    target = clocked_pair[0]
    profile = measure(target, target, [[0]], gammas=(2,), new_tokens=12, runs=1, progress=False)
    assert profile.alpha == 1 and profile.c == pytest.approx(1)
    assert profile.speedups[2].median < 1  # three forwards and a longer one for three tokens


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(gammas=()), "gammas=\\(\\) is empty"),
        (dict(gammas=(0,)), "gammas: a γ=0: must be an integer >= 1"),
        (dict(gammas=(8,), new_tokens=8), "γ=8 never fits into new_tokens=8"),
        (dict(runs=0), "runs=0"),
        (dict(new_tokens=1), "new_tokens=1"),
        (dict(new_tokens=10**7), "ask for less"),
        (dict(prompts=[[]]), "empty"),
        (dict(drafter=7), "drafter is a int"),
        (dict(target="gpt2"), "target is a str"),
    ],
)
def test_measure_refuses(clocked_pair, changes, says):
    arguments = dict(target=clocked_pair[0], drafter=clocked_pair[1], prompts=[[0]], progress=False) | changes
    with pytest.raises(ValueError, match=says):
        measure(**arguments)


def test_measure_draws_a_progress_bar_and_takes_its_sampling(clocked_pair, capfd):
    settings = dict(gammas=(1,), new_tokens=4, runs=1, sampling=SamplingParams(temperature=0.5))
    profile = measure(*clocked_pair, [[0]], progress=True, **settings)
    assert "measuring" in capfd.readouterr().err
    assert profile.sampling["temperature"] == 0.5


def test_the_bundled_pair_can_be_measured():
    target, draft = load_pair("tales", device="cpu")
    profile = measure(target, draft, ["Once upon a time"], gammas=(2,), new_tokens=12, runs=1, progress=False)
    assert profile.c > 0 and profile.verify_cost[3] > 0
    assert profile.operations_ratio == pytest.approx(0.1465, abs=0.001)
    assert profile.machine == machine("cpu") and profile.target == "tales-target"


# --- predictions --------------------------------------------------------------------------------


def test_predicted_uses_each_position_and_each_cost():
    profile = small()
    assert profile.predicted(1) == pytest.approx(1.8 / (0.1 + 1.1))
    assert profile.predicted(2) == pytest.approx((1 + 0.8 + 0.4) / (0.2 + 1.15))  # V(3) lies half way
    assert profile.predicted(3) == pytest.approx((1 + 0.8 + 0.4 + 0.2) / (0.3 + 1.2))  # the last rate again
    assert profile.predicted(1, overhead=True) == pytest.approx(1.8 * (1 + 0.1) / (0.1 + 1.1 + 0.2))
    assert profile.predicted([[1, 2], [3, 1]]).shape == (2, 2)
    assert profile.predicted(np.arange(4))[[0, 2]] == pytest.approx([1, float(profile.predicted(2))])


def test_costs_beyond_the_largest_size_go_on_rising():
    profile = small()
    assert profile.verify([1, 2, 3, 4, 6]) == pytest.approx([1, 1.1, 1.15, 1.2, 1.3])
    assert profile.overhead([0, 2, 5]) == pytest.approx([0.1, 0.3, 0.6])
    assert small(verify_cost={1: 1.0, 2: 1.4, 3: 1.2}).verify(9) == pytest.approx(1.2)  # never falling
    assert small(verify_cost={1: 1.0}).verify(9) == 1 and small(verify_cost={1: 1.0}).verify_slope == 0


def test_with_equal_rates_and_a_straight_cost_it_is_the_theory():
    profile = small(alpha_by_position=[(0.7, 5)] * 4, verify_cost={n: 1 + 0.05 * (n - 1) for n in (1, 2, 3, 9)})
    gamma = np.arange(1, 12)
    assert profile.predicted(gamma) == pytest.approx(speedup(0.7, gamma, 0.1, linear_cost(0.05)))
    assert profile.verify_slope == pytest.approx(0.05) and profile.alpha == pytest.approx(0.7)


# --- JSON ---------------------------------------------------------------------------------------


def test_json_round_trip():
    text = small().to_json()
    assert Profile.from_json(text) == small()
    assert Profile.from_json(text).to_json() == text
    assert json.loads(text)["version"] == 1


def data(**changes):
    return json.dumps(json.loads(small().to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "not the JSON of a profile"),
        ("[]", "profile version None: this specviz reads version 1; measure anew"),
        (data(version=2), "version 2"),
        (data(version="1"), "version '1'"),
        (data(colour="red"), "'colour'"),
        (data(c=-0.1), "c=-0.1: must be a time ratio"),
        (data(c="fast"), "complete profile"),
        (data(alpha_by_position=[[1.2, 3]]), "alpha_by_position=.*rate in \\[0, 1\\]"),
        (data(alpha_by_position=[]), "alpha_by_position"),
        (data(alpha_by_position=[[0.5, 0]]), "at least one test"),
        (data(verify_cost={"2": 1.1}), "V\\(1\\) = 1"),
        (data(verify_cost={"1": 1.0, "2": 0.0}), "all above 0"),
        (data(verify_cost={"one": 1.0}), "complete profile"),
        (data(target_seconds=0), "target_seconds"),
        (data(speedups={}), "speedups"),
        (data(speedups={"1": {"median": 2, "low": 3, "high": 4, "runs": 1}}), "low <= median <= high"),
        (data(overhead_seconds={"1": 0.1}), "overhead_seconds"),
        (small().to_json().replace("0.15", "NaN"), "NaN is no JSON number"),
        (json.dumps({k: v for k, v in json.loads(small().to_json()).items() if k != "c"}), "'c'"),
    ],
)
def test_from_json_refuses(text, says):
    with pytest.raises(ValueError, match=says):
        Profile.from_json(text)


def test_a_profile_says_what_it_is():
    assert repr(small()) == "<Profile of 'T' with 'D' on M: α = 0.67, c = 0.10, best measured 1.30x at γ = 1>"
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().c = 0


# --- the bundled profile ------------------------------------------------------------------------


def test_the_bundled_profile():
    profile = Profile.bundled()
    assert profile == Profile.bundled("tales")
    assert (profile.target, profile.drafter, profile.device) == ("tales-target", "tales-draft", "cpu")
    assert list(profile.speedups) == [1, 2, 3, 4, 5, 6, 8] and profile.prompts >= 5
    assert 0.6 < profile.alpha < 0.85 and 0.05 < profile.c < 0.3
    assert sum(tested for _, tested in profile.alpha_by_position) > 5000
    text = BUNDLED["tales"].read_text(encoding="utf-8")
    assert text == profile.to_json() + "\n" and "/" not in profile.machine


def test_an_unknown_bundled_profile():
    with pytest.raises(ValueError, match="profile 'gpt2' is unknown: the bundled ones are \\['tales'\\]"):
        Profile.bundled("gpt2")
