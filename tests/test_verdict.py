"""Verdicts and advice on profiles of made-up numbers; the report holds them, and the table."""

import dataclasses
import re
from pathlib import Path

import pytest
from test_profile import nothing, small, straight

from specviz.speedup import MeasuredSpeedup, Profile
from specviz.speedup.verdict import ADVICE


def measured(profile, gammas, spread=0.02, **factors):
    """The profile as if measured where it predicts (times factors {"g3": 0.8}), within ± spread."""
    speeds = {}
    for gamma in gammas:
        middle = float(profile.predicted(gamma, overhead=True)) * factors.get(f"g{gamma}", 1.0)
        speeds[gamma] = MeasuredSpeedup(middle, middle * (1 - spread), middle * (1 + spread), 5)
    tokens = {gamma: profile.predicted_tokens_per_round(gamma) for gamma in gammas}
    return dataclasses.replace(profile, speedups=speeds, tokens_per_round=tokens)


def steady(*arguments, **changes):
    return straight(*arguments, **dict(max_new_tokens=64) | changes)


def test_it_pays_and_says_why_not_more():
    pair = measured(steady(0.75, 8, 0.15, 0.05), range(1, 9), 0.002)
    best = pair.best_gamma
    assert 1 < best < 8
    assert pair.verdict.startswith(f"Speculate: γ = {best}, {pair.speedups[best].median:.2f}x (")
    assert f"One draft more than {best} would bring" in pair.verdict
    assert "most of it the draft's own forward" in pair.verdict and "far from predicted" not in pair.verdict
    assert pair.advice == [ADVICE["draft"]]


def test_a_fast_draft_whose_acceptance_falls():
    rates, near = [(0.9, 900), (0.85, 800), (0.3, 700), (0.3, 200)], 0.03
    intervals = [(alpha - near, alpha + near) for alpha, _ in rates]
    pair = steady(0.9, 4, 0.05, 0.2, alpha_by_position=rates, alpha_intervals=intervals)
    pair = measured(pair, range(1, 5), 0.002)
    assert pair.verdict.startswith("Speculate: γ = 2")
    assert "most of it verification; the draft is fast enough. Acceptance falls after position 2." in pair.verdict
    assert pair.advice == [ADVICE["verify"], ADVICE["falls"]]
    wide = dataclasses.replace(pair, alpha_intervals=[(0.1, 0.95)] * 4)  # too wide to know whether it falls
    assert "Acceptance falls" not in wide.verdict and wide.advice == [ADVICE["verify"]]


def test_time_outside_may_be_what_a_further_draft_costs():
    outside = nothing(8) | {"draft": [0.002 * drafts for drafts in range(9)]}
    pair = measured(steady(0.75, 8, 0.05, 0.02, outside_seconds=outside), range(1, 9), 0.002)
    assert pair.verdict.startswith("Speculate") and "most of it time outside the models" in pair.verdict
    assert pair.advice == [ADVICE["outside"]]


def test_windows_within_the_spread_are_ties():
    pair = measured(steady(0.75, 8, 0.15, 0.05), range(1, 9), 0.02)
    best = pair.best_gamma
    ties = [g for g, speed in pair.speedups.items() if g != best and speed.high >= pair.speedups[best].low]
    assert len(ties) > 1 and f"γ = {', '.join(map(str, ties))} are ties with it, within the spread." in pair.verdict
    assert f"One draft more than {max(best, *ties)} " in pair.verdict


def test_the_longest_window_tried_may_not_be_the_best():
    pair = measured(steady(0.95, 3, 0.02, 0.0), (1, 2, 3), 0.002)
    assert pair.verdict.startswith("Speculate: γ = 3") and "a longer one may be better still" in pair.verdict
    assert pair.advice == [ADVICE["longer"]]
    pair = measured(steady(0.6, 3, 0.05, 0.11), (1, 2, 3), 0.2)
    assert "γ = 3 is the longest window tried; the prediction sees nothing in a longer one." in pair.verdict
    assert pair.advice == [] and "What to do" not in pair.report()


@pytest.mark.parametrize(
    ("pair", "cause", "says"),
    [
        (steady(0.7, 4, 0.05, 0.75), "verify", "verification of 2 tokens costs 1.8 steps; if it cost one step, "),
        (steady(0.75, 4, 0.9, 0.0), "draft", "the draft is dear: a draft step costs 0.90 target steps and α is 0.75"),
        (
            steady(0.7, 4, 0.02, 0.0, draft_prompt_seconds=0.06, target_seconds=0.001, max_new_tokens=16),
            "draft_prompt",
            "reading the prompt takes the draft 60.0 target steps, and texts have 16 tokens only; in longer texts",
        ),
        (steady(0.05, 4, 0.1, 0.0), "alpha", "acceptance is low: α is 0.05; at α = 0.8, "),
        (
            steady(0.7, 4, 0.05, 0.0, outside_seconds=nothing(4) | {"commit": [0.01] * 5}),
            "outside",
            "a round spends 1.00 steps outside the models, and a plain step only 0.00",
        ),
    ],
)
def test_where_it_does_not_pay_the_greatest_loss_is_named(pair, cause, says):
    pair = measured(pair, (1, 2, 4), 0.001)
    pair = dataclasses.replace(pair, speedups={g: MeasuredSpeedup(0.9 / g, 0.89 / g, 0.91 / g, 5) for g in (1, 2, 4)})
    assert pair.best_gamma == 0 and pair.fastest == 1
    assert pair.verdict.startswith("Do not speculate here: even the best window, γ = 1, decodes at 0.90x (0.89–0.91 in")
    assert says in pair.verdict and pair.advice[0] == ADVICE[cause]


def test_a_gain_within_the_spread_or_too_small_is_none():
    pair = steady(0.7, 2, 0.2, 0.3)
    for speed in (MeasuredSpeedup(1.1, 0.9, 1.2, 5), MeasuredSpeedup(1.02, 1.01, 1.03, 5)):
        says = dataclasses.replace(pair, speedups={1: speed}, tokens_per_round={1: 1.7}).verdict
        assert says.startswith("Speculation brings no clear gain here: the best window, γ = 1") and "most: " in says


def test_a_single_run_has_no_spread():
    pair = dataclasses.replace(
        steady(0.7, 2, 0.1, 0.0), speedups={2: MeasuredSpeedup(1.5, 1.5, 1.5, 1)}, tokens_per_round={2: 2}
    )
    assert "1.50x (1.50–1.50 in 1 run)." in pair.verdict and "So few runs say little about the spread" in pair.verdict
    assert ADVICE["runs"] in pair.advice
    pair = dataclasses.replace(pair, speedups={2: MeasuredSpeedup(1.5, 1.4, 1.6, 3)})
    assert "So few runs" not in pair.verdict


def test_a_drafter_that_finds_nothing():
    pair = steady(0.5, 4, 0.0, 0.0, draft_lengths={0: 0.8, 4: 0.2})
    pair = dataclasses.replace(pair, speedups={4: MeasuredSpeedup(0.9, 0.8, 0.95, 3)}, tokens_per_round={4: 1.1})
    assert "The drafter finds nothing to propose in 80% of the rounds." in pair.verdict
    assert pair.advice[0] == ADVICE["nothing"]


def test_a_prediction_that_failed_is_said():
    pair = measured(steady(0.75, 6, 0.1, 0.05), range(1, 7), 0.01, g3=0.8, g4=0.82, g5=0.85)
    assert "far from predicted at γ = 3, 4, 5 (0.80 of it at γ = 3): a round took 1.25 times as long" in pair.verdict
    assert pair.advice[-1] == ADVICE["noise"]
    fewer = pair.tokens_per_round | {3: 0.8 * pair.tokens_per_round[3]}
    pair_of_others = dataclasses.replace(pair, tokens_per_round=fewer)
    assert "a round yielded 0.80 times the tokens that the calibration prompts promised" in pair_of_others.verdict
    assert pair_of_others.advice[-1] == ADVICE["prompts"]
    assert "far" not in measured(pair, range(1, 7), 0.3, g3=0.8).verdict  # within the spread of the runs


def test_the_report_holds_everything():
    text = small().report()
    for part in ("T with D, M (cpu", "temperature 1.0", "c = 0.100", "4: 1.20", "1: 0.800 (0.60–0.90), 10 tested"):
        assert part in text
    row = next(line for line in text.splitlines() if line.startswith("  3 "))
    ratio = 1.2 / small().predicted(3, overhead=True)
    assert f"{small().iid(3):.2f}x" in row and "1.20x (1.10–1.30)" in row and f"{ratio:.2f}" in row
    assert text.endswith(small().verdict)  # which has no advice
    pair = steady(0.5, 4, 0.0, 0.0, draft_lengths={0: 0.8, 4: 0.2})
    advice = "\n".join(f"- {problem}: {remedy}. See {lesson}." for problem, remedy, lesson in pair.advice)
    assert advice and pair.report().endswith(f"{pair.verdict}\n\nWhat to do:\n{advice}")


def test_each_advice_names_a_lesson_that_is_there():
    for advice in ADVICE.values():
        number, idea = re.fullmatch(r"lesson (\d\d), (idea \d)", advice.lesson).groups()
        (lesson,) = (Path(__file__).parent.parent / "notebooks").glob(f"{number}-*.ipynb")
        assert f"## {idea.capitalize()}:" in lesson.read_text(encoding="utf-8")


def test_the_bundled_profile_has_a_verdict():
    assert Profile.bundled().verdict and Profile.bundled().report()
