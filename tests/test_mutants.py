"""Wrong decoders, run through the real loop: each lossy one is convicted twice, each slower one only wastes.

The suite can fail: these are the faults that it must find, and they are found by the exact law, by samples, or, where
the law stays right, by the invariant that the draft's q is a fresh forward's.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import fresh_logits, largest_difference, plain_law

from specviz import Scripted, Seeded, speculate
from specviz.equivalence import (
    CASES,
    MUTANTS,
    RIGHT,
    branches,
    exact_law,
    fit_sequences,
    line_up,
    line_up_table,
    mutants,
    prove,
    sample_sequences,
    with_step,
)
from specviz.randomness import Exhaustive
from specviz.steps import decode_round
from specviz.verification import verify

pytestmark = pytest.mark.slow
LOSSY = [mutant for mutant in MUTANTS if mutant.lossy]
SLOWER = [mutant for mutant in MUTANTS if not mutant.lossy]
named = pytest.mark.parametrize
by_name = {mutant.name: mutant for mutant in MUTANTS}


def law_of(mutant):
    case = mutant.case
    return exact_law(case.target, case.drafter, list(case.prompt), decode_round=mutant.decode_round, **case.settings)


@pytest.fixture(scope="module")
def trials():
    return {(t.mutant.name, t.mutant.case.name): t for t in line_up(max_samples=40_000)}


def test_the_line_up_is_large_and_has_the_cases_that_hide_least():
    assert len(LOSSY) >= 14 and len(SLOWER) >= 5
    assert len(by_name) == len(MUTANTS)
    adversarial = CASES["adversarial"]
    assert adversarial.target.vocab_size == 16
    assert torch.equal(adversarial.drafter.logits, -adversarial.target.logits)
    assert CASES["context"].target.order == 2
    cool = CASES["top-k"].settings["sampling"]
    assert cool.top_k and cool.temperature != 1
    assert CASES["eos"].settings["eos"]
    assert {mutant.case.name for mutant in MUTANTS} == set(CASES)


@named("case", CASES.values(), ids=lambda case: case.name)
def test_the_expected_law_is_a_plain_product(case):
    """target_law against the numpy products of tiny.py, which know neither caches nor SamplingParams."""
    sampling = case.settings.get("sampling")
    processing = {} if sampling is None else dict(temperature=sampling.temperature, top_k=sampling.top_k)
    eos = case.settings.get("eos", ())
    expected = plain_law(case.target, list(case.prompt), case.settings["max_new_tokens"], eos, **processing)
    assert largest_difference(case.target_law(), expected) < 1e-14


@named("case", CASES.values(), ids=lambda case: case.name)
def test_with_no_step_exchanged_it_is_the_shipped_decoder(case):
    given = dict(seed=3, **(case.settings | dict(max_new_tokens=40)))
    prompts = [list(case.prompt)] * 5
    here = speculate(case.target, case.drafter, prompts, decode_round=with_step(), **given)
    there = speculate(case.target, case.drafter, prompts, **given)
    assert [trace.tokens for trace in here] == [trace.tokens for trace in there]


@named("mutant", RIGHT, ids=lambda mutant: mutant.case.name)
def test_the_right_decoder_is_acquitted(mutant, trials):
    trial = trials["right", mutant.case.name]
    assert trial.exact.exact and trial.report.acquitted and trial.as_expected
    assert trial.report.false_alarm <= 0.01


@named("mutant", LOSSY, ids=lambda mutant: mutant.name)
def test_a_lossy_mutant_is_convicted_exactly_and_by_samples(mutant, trials):
    trial = trials[mutant.name, mutant.case.name]
    assert trial.exact.largest_difference > 1e-3
    assert trial.report.convicted and trial.report.false_alarm <= 1e-6
    assert trial.samples_needed <= 40_000 and trial.as_expected


@named("mutant", SLOWER, ids=lambda mutant: mutant.name)
def test_a_slower_mutant_is_exact_and_loses_tokens(mutant, trials):
    trial = trials[mutant.name, mutant.case.name]
    assert trial.exact.exact and trial.report.acquitted and trial.as_expected
    assert trial.tokens_per_pass < 0.99 * trial.right_tokens_per_pass


@named("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_emits_has_the_law_that_the_branches_say(mutant):
    """So the exact error is that of the code which is sampled: also for shared noise and coarse coins.

    False alarm: 1e-4 for each.
    """
    case = mutant.case
    tokens = sample_sequences(
        case.target, case.drafter, list(case.prompt), 20_000, seed=1, decode_round=mutant.decode_round, **case.settings
    )
    assert fit_sequences(tokens, law_of(mutant), false_alarm=1e-4).acquitted


def test_a_mutant_does_not_poison_the_next_decoding():
    for mutant in MUTANTS:
        law_of(mutant)
    case = CASES["context"]
    assert prove(case.target, case.drafter, list(case.prompt), **case.settings).exact


# --- single faults, looked at more closely ------------------------------------------------------


def test_coarse_coins_are_rounded_uniforms_compared_with_at_most():
    """u <= p/q with u rounded down to multiples of 1/256, and the formula, agree coin by coin."""
    u = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rounded = torch.floor(u * 256) / 256
    for ratio in (0.0, 1 / 256, 0.3, 0.5, 127.5 / 256, 255 / 256, 0.999, 1.0, 3.0):
        p, q = torch.tensor([ratio], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        assert torch.equal(u < mutants.compare_coarse_coins(p, q), rounded <= ratio)


def test_a_coin_of_exactly_zero_does_not_let_in_what_p_never_says():
    case = CASES["zeros"]
    script = {(0, 0, "draft", 0): 0.0, (0, 0, "draft", 1): 0.0, (0, 0, "coin", 0): 0.0, (0, 0, "coin", 1): 0.0}
    script = Scripted(script | {(0, 0, "next", 0): 0.5}, base=Seeded(0))
    settings = dict(case.settings, randomness=script)
    right = speculate(case.target, case.drafter, list(case.prompt), **settings)
    assert right.rounds[0].draft_tokens[0] == 0 and right.rounds[0].accepted == 0 and 0 not in right.tokens
    wrong = by_name["coarse coins"].decode_round
    assert 0 in speculate(case.target, case.drafter, list(case.prompt), decode_round=wrong, **settings).tokens


def test_shared_noise_leaves_no_freedom_once_the_draft_is_drawn():
    """One position, q uniform over two tokens: u < 1/2 drafts 0, and the same u is then compared with A(0)."""
    p, q = torch.tensor([[0.3, 0.7]]).double(), torch.tensor([[0.5, 0.5]]).double()
    law = np.zeros(2)
    for branch in Exhaustive():
        noise = mutants._OneStreamExactly(branch, positions=1)
        branch.begin(1)
        x = noise.draw(q, "draft", 0).token
        verdict = verify(x[:, None], q[:, None], p[:, None].expand(1, 2, 2), noise)
        law[x if verdict.accepted else verdict.next_token] += branch.weight[0]
    # u < 1/2 is also below A(0) = 0.6: token 0 is never rejected, and comes out with 0.5 in place of 0.3.
    assert law == pytest.approx([0.5, 0.5])


def test_shared_noise_after_a_rejection_knows_that_the_coin_was_high():
    """q = (.6, .2, .2), p = (.24, .4, .36): u < .4 accepts 0, and .4 <= u < .6 resamples with the same u."""
    p, q = (torch.tensor([law]).double() for law in ([0.24, 0.4, 0.36], [0.6, 0.2, 0.2]))
    law = np.zeros(3)
    for branch in Exhaustive():
        noise = mutants._OneStreamExactly(branch, positions=1)
        branch.begin(1)
        x = noise.draw(q, "draft", 0).token
        verdict = verify(x[:, None], q[:, None], p[:, None].expand(1, 2, 3), noise)
        law[x if verdict.accepted else verdict.next_token] += branch.weight[0]
    border = 0.2 / 0.36  # of the residual (0, .2, .16)
    assert law == pytest.approx([0.4, border - 0.4 + 0.2, 0.6 - border + 0.2])


def test_a_bonus_that_overwrites_drops_the_last_accepted_draft():
    case, wrong = CASES["context"], by_name["bonus overwrites"].decode_round
    trace = speculate(case.target, case.target, [0, 1], gamma=2, max_new_tokens=9, seed=0, decode_round=wrong)
    assert all(len(round.tokens) <= 2 for round in trace.rounds)


def draft_errors(decode_round):
    """Largest difference between a recorded q and a fresh forward of the drafter."""
    case, worst = CASES["long"], 0.0
    for seed in range(3):
        text = list(case.prompt)
        trace = speculate(
            case.target, case.drafter, text, gamma=2, max_new_tokens=40, seed=seed, record="full",
            decode_round=decode_round,
        )  # fmt: skip
        for round in trace.rounds:
            for i, q in enumerate(round.q):
                fresh = fresh_logits(case.drafter, text + round.draft_tokens[:i])[-1].softmax(-1)
                worst = max(worst, (torch.tensor(q.probs, dtype=torch.float64) - fresh).abs().max().item())
            text = text + round.tokens
    return worst


@named("name", ["draft hole", "draft not rewound"])
def test_a_wrong_draft_cache_is_convicted_by_the_invariant(name):
    assert draft_errors(decode_round) < 1e-9
    assert draft_errors(by_name[name].decode_round) > 1e-3


def test_sample_and_match_accepts_the_product_of_the_laws():
    """Σ p q in place of Σ min(p, q), at every position."""
    case = CASES["adversarial"]
    p, q = (model.logits.softmax(-1) for model in (case.target, case.drafter))
    for change, expected in ((None, torch.minimum(p, q).sum()), (mutants.sample_and_match, (p * q).sum())):
        decode = decode_round if change is None else with_step(verify=change)
        ways = branches(case.target, case.drafter, [0], gamma=1, max_new_tokens=2, decode_round=decode)
        assert sum(w * t.rounds[0].accepted for t, w in ways) == pytest.approx(expected.item())


def test_the_trial_of_an_innocent_called_lossy_is_not_as_expected():
    slander = replace(RIGHT[1], lossy=True)
    (trial,) = line_up([slander], max_samples=4000)
    assert not trial.as_expected and trial.samples_needed is None and "acquitted" in str(trial)


@pytest.mark.parametrize("wrong", ["shared noise", None, decode_round])
def test_a_line_up_is_of_mutants(wrong):
    with pytest.raises(ValueError, match=r"mutants\[1\]=.*: must be a Mutant, such as those of the lists MUTANTS"):
        line_up([RIGHT[0], wrong])


def test_one_noise_for_everything_has_to_come_from_somewhere():
    case, shared = CASES["context"], by_name["shared noise"].decode_round
    settings = dict(gamma=2, max_new_tokens=4, decode_round=shared)
    assert speculate(case.target, case.drafter, [0, 1], seed=0, **settings).tokens
    with pytest.raises(ValueError, match="randomness is a Scripted: the mutant 'shared noise' takes its one"):
        speculate(case.target, case.drafter, [0, 1], randomness=Scripted({}, base=Seeded(0)), **settings)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(false_alarm="x"), "false_alarm='x': must be a probability between 0 and 1"),
        (dict(max_samples=0), "max_samples=0: must be an integer >= 4"),
        (dict(seed=-1), "seed=-1"),
    ],
)
def test_a_line_up_refuses_wrong_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        line_up([RIGHT[0]], **wrong)


def test_the_table_tells_every_story_and_which_verdict_is_not_as_expected():
    chosen = [*RIGHT, by_name["resample from p"], by_name["no bonus"]]
    found = line_up(chosen, max_samples=4000)
    printed = line_up_table(found)
    assert printed.endswith("every verdict as expected")
    for mutant in chosen:
        assert mutant.name in printed and mutant.story in printed and mutant.case.name in printed
    numbers = [trial.to_dict() for trial in found]
    assert numbers == json.loads(json.dumps(numbers))
    assert [trial["convicted"] for trial in numbers[-2:]] == [True, False]
    slander = [replace(trial, mutant=replace(trial.mutant, lossy=True)) for trial in found[-1:]]
    assert line_up_table(slander).endswith("not as expected: no bonus")
