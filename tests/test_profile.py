"""Profiles: profile() on a clock of the test; predictions; the JSON. The verdicts: test_verdict.py."""

import dataclasses
import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tiny import language_model

from specviz import SamplingParams, TableModel, load_pair, speculate
from specviz.drafters.layer_skip import LayerSkip
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.protocol import Proposal
from specviz.rules import RULES, STANDARD
from specviz.speedup import MeasuredSpeedup, Profile, measure, profile
from specviz.speedup.measure import acceptance, machine
from specviz.speedup.result import BUNDLED, expected_rounds
from specviz.speedup.theory import expected_tokens, expected_tokens_by_position, linear_cost, speedup
from specviz.trace import PHASES

TARGET_STEP, DRAFT_STEP, EXTRA_TOKEN, OVERHEAD = 0.010, 0.001, 0.0005, 0.0004
PROMPTS = [[0, 1, 2], [3], [1, 1], [2, 0]]


class Clocked:
    """A model on a clock of the test: its forwards take the seconds named here, and nothing else takes any."""

    def __init__(self, model, clock, step, extra_token):
        self.model, self.clock, self.step, self.extra_token = model, clock, step, extra_token

    def __getattr__(self, name):
        return getattr(self.model, name)

    def new_cache(self, prompts, capacity, needs=frozenset()):
        cache = self.model.new_cache(prompts, capacity, needs)
        feed = cache.feed

        def timed(tokens, count=None):
            self.clock[0] += self.step + self.extra_token * (tokens.shape[1] - 1)
            return feed(tokens, count)

        cache.feed = timed
        return cache


@pytest.fixture
def clocked_pair(monkeypatch):
    clock = [0.0]

    def timed_verify(*arguments):
        clock[0] += OVERHEAD
        return STANDARD.verify(*arguments)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setitem(RULES, "standard", dataclasses.replace(STANDARD, verify=timed_verify))
    target, draft = (TableModel.random(4, order=1, seed=seed) for seed in (1, 2))
    return Clocked(target, clock, TARGET_STEP, EXTRA_TOKEN), Clocked(draft, clock, DRAFT_STEP, EXTRA_TOKEN)


def nothing(drafts):
    return {phase: [0.0] * (drafts + 1) for phase in PHASES}


def small(**changes):
    """A profile made up."""
    fields = dict(
        target="T", drafter="D", machine="M", device="cpu", dtype="float32", threads=1, sampling={"temperature": 1.0},
        prompts=2, max_new_tokens=8, alpha_by_position=[(0.8, 10), (0.5, 8)], alpha_intervals=[(0.6, 0.9), (0.3, 0.7)],
        draft_lengths={3: 1.0}, target_seconds=0.01, c=0.1, catch_up=0.05, draft_prompt_seconds=0.002,
        verify_cost={1: 1.0, 2: 1.1, 4: 1.2}, plain_seconds=dict.fromkeys(PHASES, 0.0) | {"verify": 0.001},
        outside_seconds=nothing(3) | {"draft": [0.0, 0.001, 0.002, 0.003], "verify": [0.001] * 4},
        speedups={1: MeasuredSpeedup(1.3, 1.2, 1.4, 3), 3: MeasuredSpeedup(1.2, 1.1, 1.3, 3)},
        tokens_per_round={1: 1.7, 3: 2.2},
        operations_ratio=0.15,
    )  # fmt: skip
    return Profile(**fields | changes)


def straight(alpha, gamma, c, slope, **changes):
    """A made-up profile of the paper's world: one α, V(n) = 1 + slope (n - 1), no time outside, γ up to gamma."""
    fields = dict(
        alpha_by_position=[(alpha, 100)] * gamma, alpha_intervals=[(0.0, 1.0)] * gamma, draft_lengths={gamma: 1.0}, c=c,
        catch_up=0.0, draft_prompt_seconds=0.0, verify_cost={n: 1 + slope * (n - 1) for n in range(1, gamma + 2)},
        plain_seconds=dict.fromkeys(PHASES, 0.0), outside_seconds=nothing(gamma),
    )  # fmt: skip
    return small(**fields | changes)


# --- measuring ----------------------------------------------------------------------------------


def test_profile_finds_what_the_clock_says(clocked_pair):
    found = profile(*clocked_pair, PROMPTS, gammas=(1, 2, 4), max_new_tokens=40, runs=4, progress=False)
    assert found.target_seconds == pytest.approx(TARGET_STEP)
    assert found.c == pytest.approx(DRAFT_STEP / TARGET_STEP)
    assert found.catch_up == pytest.approx(EXTRA_TOKEN / TARGET_STEP)
    slope = EXTRA_TOKEN / TARGET_STEP
    assert found.verify_cost == pytest.approx({n: 1 + slope * (n - 1) for n in range(1, 6)})
    assert found.verify_slope == pytest.approx(slope)
    assert found.plain_seconds == pytest.approx(dict.fromkeys(PHASES, 0.0) | {"verify": OVERHEAD}, abs=1e-12)
    for phase in PHASES:
        expected = OVERHEAD if phase == "verify" else 0.0
        assert found.outside_seconds[phase] == pytest.approx([expected] * 5, abs=1e-12)
    assert found.draft_prompt_seconds == pytest.approx(EXTRA_TOKEN * 1.5)  # prompts 0 and 2 have 3 and 2 tokens
    assert (found.prompts, found.max_new_tokens, found.threads, found.device) == (4, 40, 1, "cpu")
    assert found.draft_lengths == {4: 1.0}
    assert all(speed.runs == 4 and speed.low <= speed.median <= speed.high for speed in found.speedups.values())
    # With every cost known only chance is left: the calibration's α is not quite that of the measured texts.
    for gamma, speed in found.speedups.items():
        assert found.predicted(gamma, overhead=True) == pytest.approx(speed.median, rel=0.1)


def test_a_prediction_from_the_measured_texts_own_rates_is_exact_but_for_chance(clocked_pair):
    """Two tables of order 0 have one α for all positions, known exactly."""
    p, q = [0.4, 0.3, 0.2, 0.1], [0.1, 0.3, 0.2, 0.4]  # overlap 0.7
    target, draft = (TableModel(np.log(probs).tolist(), symbols="abcd") for probs in (p, q))
    pair = [Clocked(model, m.clock, m.step, m.extra_token) for model, m in zip((target, draft), clocked_pair)]
    found = profile(*pair, [[0]] * 12, gammas=(1, 3, 8), max_new_tokens=24, runs=7, progress=False)
    exact = dataclasses.replace(found, alpha_by_position=[(0.7, 1)] * 8, alpha_intervals=[(0, 1)] * 8)
    for gamma, speed in found.speedups.items():
        yields = found.tokens_per_round[gamma] / exact.predicted_tokens_per_round(gamma)
        assert yields == pytest.approx(1, abs=0.08)  # chance: 42 texts
        assert speed.median == pytest.approx(yields * exact.predicted(gamma, overhead=True), rel=0.02)


def test_the_prediction_sees_one_half_of_the_prompts_and_the_largest_gamma_alone(clocked_pair, monkeypatch):
    seen = set()

    def noting(target, drafter, prompt, *, gamma, **settings):
        seen.add((prompt[0], gamma))
        trace = speculate(target, drafter, prompt, gamma=gamma, **settings)
        for round in trace.rounds:
            if prompt[0] % 2:  # a measured text is all rejection, slow, and the prediction does not care
                round.accepted, round.seconds = 0, dict.fromkeys(PHASES, 1000.0)
        return trace

    settings = dict(gammas=(1, 3), max_new_tokens=12, runs=2, progress=False)
    prompts = [[0], [1], [2], [3]]
    before = profile(*clocked_pair, prompts, **settings)
    monkeypatch.setattr(measure, "speculate", noting)
    after = profile(*clocked_pair, prompts, **settings)
    assert seen == {(0, 3), (2, 3), (1, 1), (1, 3), (3, 1), (3, 3)}
    assert after.predicted([1, 3], overhead=True) == pytest.approx(before.predicted([1, 3], overhead=True))
    assert after.alpha_by_position == before.alpha_by_position and after.speedups[1].high < 0.01


def test_a_target_that_drafts_for_itself_accepts_all(clocked_pair):
    target = clocked_pair[0]
    found = profile(target, target, [[0], [1]], gammas=(2,), max_new_tokens=13, runs=1, progress=False)
    assert found.alpha == 1 and found.c == pytest.approx(1)
    assert found.speedups[2].median < 1  # three forwards and a longer one for three tokens
    assert found.predicted(2, overhead=True) == pytest.approx(found.speedups[2].median)
    assert found.tokens_per_round[2] == found.predicted_tokens_per_round(2) == pytest.approx(13 / 5)


def test_a_drafter_without_a_model_is_priced_by_its_draft_phase_and_by_what_it_finds(monkeypatch):
    target = language_model("llama", 0)
    repeating = [[0, 1, 2, 0, 1, 2, 0, 1], [2, 2, 1, 1, 0, 0, 2, 2]]
    settings = dict(gammas=(1, 2, 4), max_new_tokens=12, runs=2, progress=False)
    found = profile(target, PromptLookup(), repeating, **settings)
    assert found.drafter == "prompt lookup" and found.catch_up == 0 and found.operations_ratio is None
    assert set(found.draft_lengths) <= {0, 1, 2, 3, 4} and found.c >= 0
    assert Profile.from_json(found.to_json()) == found
    assert found.verdict and found.report()


def test_layer_skip_can_be_profiled():
    found = profile(language_model("llama", 0), LayerSkip(1), [[0], [1]], gammas=(2,), max_new_tokens=8, runs=1)
    assert found.drafter == "first 1 layers" and found.c > 0 and found.draft_lengths == {2: 1.0}


class Silent:
    """A drafter that never has anything to propose."""

    name = "silent"

    def check_target(self, target):
        pass

    def new_session(self, target, prompts, capacity, eos, target_cache):
        return self

    def rewind(self, length):
        pass

    def propose(self, committed, lengths, gamma, sampling, randomness):
        none = torch.zeros(1, 0, dtype=torch.long)
        return Proposal(none, torch.zeros(1, 0, 4), torch.tensor([0]), torch.zeros(1, 0, dtype=torch.float64))


def test_a_drafter_that_never_proposes_is_no_error(clocked_pair):
    found = profile(clocked_pair[0], Silent(), [[0], [1]], gammas=(2,), max_new_tokens=6, runs=1, progress=False)
    assert found.alpha == 0 and found.alpha_by_position == [] and found.draft_lengths == {0: 1.0} and found.c == 0
    assert found.predicted(2) == found.predicted(2, overhead=True) == pytest.approx(1)
    assert "finds nothing to propose in 100% of the rounds" in found.verdict
    assert "α            nothing tested\n\n" in found.report()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(gammas=()), "gammas=\\(\\) is empty"),
        (dict(gammas=(0,)), "gammas: a γ=0: must be an integer >= 1"),
        (dict(gammas="1-8"), "gammas: a γ='1-8': must be an integer"),
        (dict(gammas=(8,), max_new_tokens=8), "γ=8 never fits into max_new_tokens=8"),
        (dict(runs=0), "runs=0"),
        (dict(max_new_tokens=1), "max_new_tokens=1"),
        (dict(max_new_tokens=10**7), "ask for less"),
        (dict(prompts=[[0], []]), "empty"),
        (dict(prompts=[[0]]), "prompts: there is only one; give at least two, since half of them calibrate"),
        (dict(prompts=[0, 1]), "there is only one"),
        (dict(prompts=[]), "prompts: there is none; give at least two"),
        (dict(prompts=None), "prompts: there is none"),
        (dict(prompts=7), "prompt=7: must be text"),
        (dict(drafter=7), "drafter is a int"),
        (dict(drafter=None), "drafter=None: there is nothing to profile"),
        (dict(target="gpt2"), "target is a str"),
        (dict(sampling=0.5), "sampling=0.5: must be a SamplingParams"),
        (dict(seed=-1), "seed=-1"),
    ],
)
def test_profile_refuses(clocked_pair, changes, says):
    arguments = dict(target=clocked_pair[0], drafter=clocked_pair[1], prompts=[[0], [1]], max_new_tokens=20)
    with pytest.raises(ValueError, match=says):
        profile(**arguments | dict(progress=False) | changes)


def test_profile_draws_a_progress_bar_and_takes_its_sampling(clocked_pair, capfd):
    settings = dict(gammas=(1,), max_new_tokens=4, runs=1, sampling=SamplingParams(temperature=0.5))
    found = profile(*clocked_pair, [[0], [1]], progress=True, **settings)
    assert "profiling" in capfd.readouterr().err
    assert found.sampling["temperature"] == 0.5


def test_an_interrupted_profile_is_none(clocked_pair, monkeypatch):
    def interrupted(*arguments, **settings):
        return speculate(*arguments, on_round=lambda round: True, **settings)

    monkeypatch.setattr(measure, "speculate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        profile(*clocked_pair, [[0], [1]], gammas=(1,), max_new_tokens=8, progress=False)


def test_the_bundled_pair_can_be_measured():
    target, draft = load_pair("tales", device="cpu")
    found = profile(target, draft, ["Once upon", "The king"], gammas=(2,), max_new_tokens=8, runs=1, progress=False)
    assert found.c > 0 and found.verify_cost[3] > 0 and 0 < found.operations_ratio < 0.5
    assert found.machine == machine("cpu") and found.target == "tales-target"


# --- intervals ----------------------------------------------------------------------------------


class Counted:
    def __init__(self, accepted, tested):
        self.accepted, self.tested = accepted, tested


def coins(by_prompt):
    """Rounds of one draft: by_prompt [(accepted, tested)]."""
    return [(i, Counted(int(k < hits), 1)) for i, (hits, n) in enumerate(by_prompt) for k in range(n)]


def test_prompts_that_agree_give_wilsons_interval_widened_for_their_number():
    rates, ((low, high),) = acceptance(coins([(70, 100)] * 6))
    assert rates == [(0.7, 600)]
    effective = 600 * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 5)) ** 2
    assert low < 0.7 < high
    # Wilson's ends are where the rate is exactly so many standard errors away
    for end in (low, high):
        assert abs(0.7 - end) / (end * (1 - end) / effective) ** 0.5 == pytest.approx(stats.norm.ppf(0.975))


def test_prompts_that_differ_widen_it_and_one_prompt_says_nothing():
    _, ((low, high),) = acceptance(coins([(70, 100)] * 6))
    _, ((lower, higher),) = acceptance(coins([(50, 100), (90, 100)] * 3))
    assert lower < low and higher > high
    assert acceptance(coins([(70, 100)])) == ([(0.7, 100)], [(0.0, 1.0)])
    assert acceptance([]) == ([], [])


def test_the_intervals_cover_what_they_should():
    """Prompts with rates of their own: about 95 % of the intervals hold the mean rate (a plain Wilson: some 70 %)."""
    generator, held = np.random.default_rng(0), 0
    for _ in range(400):
        own = generator.beta(7, 3, 8)
        held += (lambda i: i[0] <= 0.7 <= i[1])(measure._interval(generator.binomial(60, own), np.full(8, 60)))
    assert 0.91 < held / 400 < 0.99


# --- rounds of a text ---------------------------------------------------------------------------


def enumerated(alphas, lengths, max_new_tokens, late=False):
    """{(sorted drafts of the rounds, how many catch up): probability}, every course of a text written out."""
    if max_new_tokens == 0:
        return {((), 0): 1.0}
    courses = {}
    for length, share in lengths.items():
        drafts = min(length, len(alphas), max_new_tokens - 1)
        for accepted in range(drafts + 1):
            weight = share * np.prod(alphas[:accepted]) * (1 if accepted == drafts else 1 - alphas[accepted])
            ahead = enumerated(alphas, lengths, max_new_tokens - accepted - 1, 0 < accepted == drafts)
            for (rounds, catching), rest in ahead.items():
                course = tuple(sorted((drafts, *rounds))), catching + (late and drafts > 0)
                courses[course] = courses.get(course, 0.0) + weight * rest
    return courses


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("alphas", "lengths"),
    [
        ([0.7], {1: 1.0}),
        ([0.8, 0.5, 0.9], {3: 1.0}),
        ([0.8, 0.5, 0.9], {0: 0.5, 1: 0.2, 3: 0.3}),
        ([1.0, 0.0], {2: 1.0}),
    ],
)
def test_expected_rounds_is_the_mean_over_all_courses(alphas, lengths, max_new_tokens):
    counts, catching_up = expected_rounds(alphas, lengths, max_new_tokens)
    courses = enumerated(alphas, lengths, max_new_tokens)
    assert sum(courses.values()) == pytest.approx(1)
    expected = [sum(w * rounds.count(n) for (rounds, _), w in courses.items()) for n in range(len(alphas) + 1)]
    assert counts == pytest.approx(expected)
    assert catching_up == pytest.approx(sum(w * catching for (_, catching), w in courses.items()))


def test_expected_rounds_is_what_the_decoder_does():
    p, q = [0.4, 0.3, 0.2, 0.1], [0.1, 0.3, 0.2, 0.4]  # overlap 0.7 at every position
    pair = [TableModel(np.log(probs).tolist(), symbols="abcd") for probs in (p, q)]
    traces = speculate(*pair, ["a"] * 3000, gamma=3, max_new_tokens=10, seed=0, record="none", eos=())
    drafts = np.array([np.bincount([len(r.draft_tokens) for r in t.rounds], minlength=4) for t in traces])
    counts, catching_up = expected_rounds([0.7] * 3, {3: 1.0}, 10)
    error = drafts.std(0) / len(traces) ** 0.5
    assert np.all(np.abs(drafts.mean(0) - counts) < 4 * error)
    pairs = [[(a, b) for a, b in zip(t.rounds, t.rounds[1:])] for t in traces]
    late = np.array([sum(a.outcome == "bonus" and len(b.draft_tokens) > 0 for a, b in each) for each in pairs])
    assert abs(late.mean() - catching_up) < 4 * late.std() / len(traces) ** 0.5


rate = st.floats(0, 1)


@given(st.lists(rate, min_size=1, max_size=8), st.integers(1, 30))
def test_a_round_brings_between_one_token_and_all(alphas, max_new_tokens):
    counts, catching_up = expected_rounds(alphas, {len(alphas): 1.0}, max_new_tokens)
    assert max_new_tokens / (len(alphas) + 1) - 1e-9 <= counts.sum() <= max_new_tokens + 1e-9
    assert (counts >= -1e-12).all() and -1e-12 <= catching_up <= counts[1:].sum() + 1e-9


@given(st.lists(rate, min_size=1, max_size=6))
def test_in_an_endless_text_a_round_brings_e_n(alphas):
    """The short rounds at the end weigh ever less: beyond them each token more takes 1/E[N] of a round more."""
    (short, _), (long, _) = (expected_rounds(alphas, {len(alphas): 1.0}, n) for n in (200, 410))
    assert 210 / (long.sum() - short.sum()) == pytest.approx(expected_tokens_by_position(alphas), rel=0.04)


@given(st.floats(0, 0.95), st.integers(1, 6), st.floats(0, 0.5), st.floats(0, 0.3))
def test_long_texts_of_the_papers_world_have_the_papers_speedup(alpha, gamma, c, slope):
    made_up = straight(alpha, gamma, c, slope, max_new_tokens=400)
    theorem = speedup(alpha, gamma, c, linear_cost(slope))
    assert made_up.iid(gamma) == pytest.approx(theorem)
    assert made_up.predicted(gamma) == pytest.approx(theorem)
    assert made_up.predicted(gamma, overhead=True) == pytest.approx(theorem, rel=0.03)


# --- predictions --------------------------------------------------------------------------------


def test_predicted_uses_each_position_and_each_cost():
    made_up = small()
    assert made_up.predicted(1) == pytest.approx(1.8 / (0.1 + 1.1))
    assert made_up.predicted(2) == pytest.approx((1 + 0.8 + 0.4) / (0.2 + 1.15))  # V(3) lies half way
    assert made_up.predicted(3) == pytest.approx((1 + 0.8 + 0.4 + 0.2) / (0.3 + 1.2))  # the last rate again
    assert made_up.predicted([[1, 2], [3, 1]]).shape == (2, 2)
    assert made_up.predicted(np.arange(4))[[0, 2]] == pytest.approx([1, float(made_up.predicted(2))])


def test_the_whole_prediction_counts_everything():
    """Two tokens at γ = 1: a round with one draft; if it is rejected (0.2), a second round, clamped to none."""
    made_up = small(max_new_tokens=2)
    first = 0.1 + 1.1 + 0.1 + 0.1  # draft, V(2), 0.001 s for drawing, 0.001 s for the coins
    own = 0.2 + first + 0.2 * (1 + 0.1)  # 0.002 s for the draft's prompt
    assert made_up.predicted(1, overhead=True) == pytest.approx(2 * (1 + 0.1) / own)
    # Three tokens: accepted twice over, so the second round catches up; or rejected, then two tokens as above.
    after_rejection = first + 0.2 * 1.1
    after_both = 1 + 0.1  # one token is left: no draft
    own = 0.2 + first + 0.8 * after_both + 0.2 * after_rejection
    assert small(max_new_tokens=3).predicted(1, overhead=True) == pytest.approx(3 * 1.1 / own)
    after_both = first + 0.05 + 0.2 * 1.1
    own = 0.2 + first + 0.8 * after_both + 0.2 * (first + 0.8 * 1.1 + 0.2 * after_rejection)
    assert small(max_new_tokens=4).predicted(1, overhead=True) == pytest.approx(4 * 1.1 / own)


def test_shorter_proposals_enter_the_prediction():
    made_up = straight(0.5, 4, 0.1, 0.0, draft_lengths={0: 0.5, 2: 0.25, 4: 0.25})
    assert made_up.predicted(1) == pytest.approx((0.5 * 1 + 0.5 * 1.5) / (0.5 * 1 + 0.5 * 1.1))
    rounds = 0.5 * 1 + 0.25 * 1.2 + 0.25 * 1.4
    tokens = 0.5 + 0.25 * expected_tokens(0.5, 2) + 0.25 * expected_tokens(0.5, 4)
    assert made_up.predicted(4) == pytest.approx(tokens / rounds)
    assert made_up.parts(4)["draft forwards"] == pytest.approx(0.25 * 0.2 + 0.25 * 0.4)
    assert made_up.parts(6)["draft forwards"] == pytest.approx(0.25 * 0.2 + 0.25 * 0.6)  # who filled 4 may fill 6


def test_where_the_time_goes():
    parts = small().parts(3)
    assert parts == pytest.approx(
        {"draft forwards": 0.3, "target forward": 1.2, "draft": 0.3, "target": 0, "verify": 0.1, "commit": 0}
    )
    assert small().parts(0)["target forward"] == 1 and sum(small().parts(0).values()) == pytest.approx(1.1)
    assert small().overhead([0, 1, 3]) == pytest.approx([0.1, 0.2, 0.4])
    assert small().overhead(5) == pytest.approx(0.6)  # going on rising as before


def test_costs_beyond_the_largest_size_go_on_rising():
    assert small().verify([1, 2, 3, 4, 6]) == pytest.approx([1, 1.1, 1.15, 1.2, 1.3])
    assert small(verify_cost={1: 1.0, 2: 1.4, 3: 1.2}).verify(9) == pytest.approx(1.2)  # never falling
    assert small(verify_cost={1: 1.0}).verify(9) == 1 and small(verify_cost={1: 1.0}).verify_slope == 0
    assert straight(0.7, 4, 0.1, 0.05).verify_slope == pytest.approx(0.05)


# --- JSON ---------------------------------------------------------------------------------------


def test_json_round_trip():
    text = small().to_json()
    assert Profile.from_json(text) == small()
    assert Profile.from_json(text).to_json() == text
    assert json.loads(text)["version"] == 2


def data(**changes):
    return json.dumps(json.loads(small().to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "not the JSON of a profile"),
        ("[]", "not the JSON of a profile"),
        (data(version=1), "profile version 1: this specviz reads version 2; measure anew"),
        (data(version="2"), "version '2'"),
        (data(colour="red"), "'colour'"),
        (data(c=-0.1), "c=-0.1: must be a time >= 0"),
        (data(c="fast"), "not the JSON of a profile"),
        (small().to_json().replace('"c": 0.1', '"c": 1e999'), "c=inf: must be a time >= 0"),
        (data(max_new_tokens=64.5), "max_new_tokens=64.5: must be a whole number"),
        ("[" * 100_000, "not the JSON of a profile"),
        (data(catch_up=-1), "catch_up=-1: must be a time >= 0"),
        (data(draft_prompt_seconds=-1), "draft_prompt_seconds"),
        (data(max_new_tokens=0), "max_new_tokens"),
        (data(alpha_by_position=[[1.2, 3]]), "alpha_by_position=.*rate in \\[0, 1\\]"),
        (data(alpha_by_position=[[0.5, 0]]), "at least one test"),
        (data(alpha_by_position=[]), "alpha_intervals=.*of each position"),
        (data(alpha_intervals=[[0.9, 1.0], [0.3, 0.7]]), "alpha_intervals=.*around the rate"),
        (data(draft_lengths={"3": 0.5}), "draft_lengths=.*summing to 1"),
        (data(verify_cost={"2": 1.1}), "V\\(1\\) = 1"),
        (data(verify_cost={"1": 1.0, "2": 0.0}), "all above 0"),
        (data(verify_cost={"one": 1.0}), "not the JSON of a profile"),
        (data(target_seconds=0), "target_seconds"),
        (data(plain_seconds={}), "plain_seconds=.*each of draft, target, verify, commit"),
        (data(outside_seconds={"draft": [0, 1]}), "outside_seconds"),
        (data(outside_seconds=nothing(3) | {"draft": [0, -1, 0, 0]}), "outside_seconds"),
        (data(speedups={}), "speedups"),
        (data(speedups={"1": {"median": 2, "low": 3, "high": 4, "runs": 1}}), "low <= median <= high"),
        (data(tokens_per_round={"1": 2}), "tokens_per_round"),
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
    bundled = Profile.bundled()
    assert bundled == Profile.bundled("tales")
    assert (bundled.target, bundled.drafter, bundled.device) == ("tales-target", "tales-draft", "cpu")
    assert list(bundled.speedups) == list(range(1, 9)) and bundled.prompts >= 10
    assert 0.6 < bundled.alpha < 0.85 and 0.02 < bundled.c < 0.3
    assert sum(tested for _, tested in bundled.alpha_by_position) > 1000
    text = BUNDLED["tales"].read_text(encoding="utf-8")
    assert text == bundled.to_json() + "\n" and "/" not in bundled.machine


def test_an_unknown_bundled_profile():
    with pytest.raises(ValueError, match="profile 'gpt2' is unknown: the bundled ones are \\['tales'\\]"):
        Profile.bundled("gpt2")
