"""The law of the shipped decoder's texts, compared with the target's own.

No samples: every branch of speculate() is visited with its probability. The expected law is computed in
tiny.py by plain numpy products over fresh, uncached rows.
"""

import json
import re
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from tiny import language_model, largest_difference, mean_overlap, plain_law

from specviz import Exhaustive, SamplingParams, Seeded, TableModel, speculate
from specviz.equivalence import branches, compare, exact_law, prove, target_law, with_step
from specviz.equivalence.exact import estimate_branches
from specviz.steps import decode_round
from specviz.verification import residual, verify

# The events that must carry mass for each γ: test_speculative_law_is_the_targets asks for all three at γ = 1,
# test_speculative_law_over_three_rounds_and_more at γ = 2, test_live_caches_through_… at γ = 3.
EACH, BONUS, AGAIN = "rejection at each position", "bonus", "full round after full acceptance"
ALL = {EACH, BONUS, AGAIN}


def random_pair(vocab_size, order=1):
    target = TableModel.random(vocab_size, order, seed=10 * vocab_size + order)
    return target, TableModel.random(vocab_size, order, seed=10 * vocab_size + order + 5)


def zeros(which):
    """Tables with zeros in p, in q, or with disjoint supports (3 symbols, context of one token)."""
    p = np.array([[0.5, 0.5, 0], [0, 0.3, 0.7], [0.2, 0.3, 0.5], [0.4, 0.2, 0.4]])
    q = np.array([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [0.3, 0.3, 0.4], [0.2, 0.5, 0.3]])
    if which == "q":
        p, q = q, p
    if which == "both":
        q = np.array([[0.9, 0.1, 0], [0.3, 0.7, 0], [0, 0.5, 0.5], [0.2, 0.5, 0.3]])
    if which == "disjoint":
        p, q = np.array([[1, 0, 0], [0.3, 0.7, 0]] * 2), np.array([[0, 0, 1], [0, 0, 1]] * 2)
    return TableModel.from_probabilities(p), TableModel.from_probabilities(q)


# name: (pair, sampling settings, eos, the events that these permit)
SETTINGS = {
    "plain": (random_pair(3), {}, (), ALL),
    "cool": (random_pair(3), dict(temperature=0.4), (), ALL),
    "hot": (random_pair(3), dict(temperature=3.0), (), ALL),
    "greedy": (random_pair(3), dict(temperature=0), (), set()),  # these two disagree at once, everywhere
    "top-k": (random_pair(3, 2), dict(top_k=2), (), ALL),
    "top-p": (random_pair(3), dict(top_p=0.7), (), ALL),
    "all together": (random_pair(3), dict(temperature=1.5, top_k=2, top_p=0.8), (), ALL),
    "zeros in p": (zeros("p"), {}, (), ALL),
    "zeros in q": (zeros("q"), {}, (), ALL),
    "zeros in both": (zeros("both"), {}, (), ALL),
    "disjoint": (zeros("disjoint"), {}, (), set()),  # nothing is ever accepted
    "p = q": ((random_pair(3)[0],) * 2, {}, (), {BONUS, AGAIN}),  # nothing is ever rejected
    "eos": (random_pair(3, 2), {}, (1,), ALL),
    "eos, cool": (random_pair(3), dict(temperature=0.6), (0, 2), ALL),
    "context-free": (random_pair(3, 0), {}, (), ALL),
}
CASES = [(name, gamma, 4) for name in SETTINGS for gamma in (1, 2, 3)]
PAIRS_OF_TWO = {"plain": {}, "cool": dict(temperature=0.5), "eos": {}}
CASES_OF_TWO = [(name, 2, n) for name in PAIRS_OF_TWO for n in (6, 7)]


def walk(target, drafter, prompt, gamma, max_new_tokens, sampling, eos):
    """The law, and the events that carry mass in it, by full replay of every branch."""
    law, events = defaultdict(float), defaultdict(float)
    for branch in Exhaustive(rows=256):
        traces = speculate(
            target, drafter, [prompt] * branch.rows, gamma=gamma, max_new_tokens=max_new_tokens,
            sampling=SamplingParams(**sampling), eos=eos, randomness=branch, record="none",
        )  # fmt: skip
        for trace, weight in zip(traces, branch.weight, strict=True):
            law[tuple(trace.tokens)] += weight
            for event in seen_in(trace.rounds, gamma):
                events[event] += weight
    found = {event for event, weight in events.items() if weight > 1e-9}
    rejections = {("rejection", i) for i in range(gamma)}
    return law, (found - rejections) | ({EACH} if rejections <= found else set())


def seen_in(rounds, gamma):
    for i, round in enumerate(rounds):
        if round.outcome == "resampled":
            yield ("rejection", round.accepted)
        if round.outcome == "bonus":
            yield BONUS
            if round.accepted == gamma and i + 1 < len(rounds) and rounds[i + 1].gamma_used == gamma:
                yield AGAIN


@pytest.mark.parametrize(("name", "gamma", "max_new_tokens"), CASES)
def test_speculative_law_is_the_targets(name, gamma, max_new_tokens):
    (target, drafter), sampling, eos, events = SETTINGS[name]
    law, found = walk(target, drafter, [0, 2], gamma, max_new_tokens, sampling, eos)
    assert largest_difference(law, plain_law(target, [0, 2], max_new_tokens, eos, **sampling)) < 1e-12
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    fits = events if max_new_tokens >= 2 * gamma + 2 else events - {AGAIN}
    assert found - {EACH} == fits - {EACH} and fits <= found


@pytest.mark.parametrize(("name", "gamma", "max_new_tokens"), CASES_OF_TWO)
def test_speculative_law_over_three_rounds_and_more(name, gamma, max_new_tokens):
    target, drafter = random_pair(2, 2 if name == "eos" else 1)
    eos = (1,) if name == "eos" else ()
    sampling = PAIRS_OF_TWO[name]
    law, found = walk(target, drafter, [0], gamma, max_new_tokens, sampling, eos)
    assert largest_difference(law, plain_law(target, [0], max_new_tokens, eos, **sampling)) < 1e-12
    assert found >= ALL


def test_speculative_law_of_eight_tokens_by_merging():
    target, drafter = random_pair(2)
    law = exact_law(target, drafter, [0], merge=True, gamma=3, max_new_tokens=8)
    assert largest_difference(law, plain_law(target, [0], 8)) < 1e-12


def test_live_caches_through_a_full_acceptance_and_a_full_round_after_it():
    """γ = 3 and 8 tokens by full replay: after a 1 both models are certain, which keeps the branches few."""
    p = np.array([[0.5, 0.5], [1.0, 0.0], [0.3, 0.7]])
    q = np.array([[0.7, 0.3], [1.0, 0.0], [0.6, 0.4]])
    target, drafter = TableModel.from_probabilities(p), TableModel.from_probabilities(q)
    law, found = walk(target, drafter, [0], 3, 8, {}, ())
    assert largest_difference(law, plain_law(target, [0], 8)) < 1e-12
    assert found == ALL


def test_merging_gives_the_same_law_as_full_replay():
    target, drafter = random_pair(3, 2)
    for eos in ((), (1,)):
        settings = dict(gamma=2, max_new_tokens=4, eos=eos)
        merged = exact_law(target, drafter, [0, 1], merge=True, **settings)
        assert largest_difference(merged, exact_law(target, drafter, [0, 1], **settings)) < 1e-14


def test_merging_refuses_what_it_would_get_wrong():
    target, drafter = TableModel.random(2, 1, symbols="ab"), TableModel.random(2, 1, symbols="ab")
    with pytest.raises(ValueError, match="no stop= and no on_round="):
        exact_law(target, drafter, "a", merge=True, stop="ab", gamma=1, max_new_tokens=4)
    for setting in (dict(seed=0), dict(randomness=Seeded(0))):
        with pytest.raises(ValueError, match="the search visits every outcome and sets this itself"):
            exact_law(target, drafter, "a", **setting)
    by_text, by_ids = (exact_law(target, drafter, p, merge=True, gamma=1, max_new_tokens=3) for p in ("ab", [0, 1]))
    assert by_text == by_ids


def test_merging_does_more_than_replay_could():
    """10 tokens, γ = 4: tens of millions of branches by replay, some ten thousand when equal texts are merged."""
    target, drafter = random_pair(2, 2)
    settings = dict(gamma=4, max_new_tokens=10)
    assert prove(target, drafter, [0, 1], merge=True, rows=2048, **settings).exact
    with pytest.raises(ValueError, match=r"max_new_tokens=10 makes about .* merge=True visits about .*\."):
        exact_law(target, drafter, [0, 1], **settings)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_proof_is_that_of_the_independent_products(name):
    """prove() against the numpy products of tiny.py, which know no decoder, no cache and no SamplingParams."""
    (target, drafter), sampling, eos, _ = SETTINGS[name]
    settings = dict(max_new_tokens=3, sampling=SamplingParams(**sampling), eos=eos)
    expected = plain_law(target, [0, 2], 3, eos, **sampling)
    assert largest_difference(target_law(target, [0, 2], **settings), expected) < 1e-14
    for merge in (False, True):
        proof = prove(target, drafter, [0, 2], gamma=2, merge=merge, **settings)
        assert proof.exact and largest_difference(proof.law, expected) < 1e-12
    assert prove(target, None, [0, 2], **settings).exact


def test_the_targets_law_ends_where_the_decoder_does():
    target = TableModel.random(3, 1, seed=1, context=4)
    assert {len(text) for text in target_law(target, [0, 1], max_new_tokens=9)} == {2}
    assert target_law(target, [0, 1, 2, 0], max_new_tokens=9) == {(): 1.0}
    assert target_law(target, [0], max_new_tokens=0) == {(): 1.0}
    with pytest.raises(ValueError, match="max_new_tokens=3: more than 8 texts are possible"):
        target_law(target, [0], max_new_tokens=3, max_sequences=8)


def test_a_comparison_says_what_is_off():
    p, wrong = {(0,): 0.5, (1, 1): 0.5}, {(0,): 0.35, (1, 1): 0.55, (2,): 0.1}
    comparison = compare(wrong, p)
    assert not comparison.exact and comparison.worst == (0,)
    assert comparison.largest_difference == pytest.approx(0.15) and comparison.total_variation == pytest.approx(0.15)
    assert comparison.difference([2]) == pytest.approx(0.1)
    assert "NOT EXACT: 3 sequences" in str(comparison) and "at [0]: P = 0.35, p = 0.5" in str(comparison)
    assert repr(comparison) == "<Comparison of 3 sequences: not exact, off by 1.5e-01 at most>"
    assert str(compare(p, p)).startswith("EXACT: 2 sequences") and compare(wrong, p, tolerance=0.2).exact
    found = comparison.to_dict()
    assert found == json.loads(json.dumps(found)) and found["worst"] == [0] and found["exact"] is False
    with pytest.raises(ValueError, match="expected sums to 0.5"):
        compare(p, {(0,): 0.5})
    for bad in ({}, {(0,): 0.5, (1,): float("nan")}, {(0,): 1.5, (1,): -0.5}):
        with pytest.raises(ValueError, match="law sums to .*: must be probabilities of sequences"):
            compare(bad, p)


def test_a_rule_whose_coin_exceeds_one_is_not_called_exact():
    """p/q without min(1, ·): the coin cannot show it, but resampling from a negative residual is refused."""
    target, drafter = random_pair(3)
    settings = dict(gamma=2, max_new_tokens=3)
    for left in (lambda p, q: p, residual):
        unclamped = with_step(verify=partial(verify, accept=lambda p, q: p / q, resample_from=left))
        proof = prove(target, drafter, [0], decode_round=unclamped, **settings)
        assert proof.exact == (left is residual)
    negative = with_step(verify=partial(verify, resample_from=lambda p, q: p - q))
    with pytest.raises(ValueError, match="the 'next' draw is from negative probabilities"):
        prove(target, drafter, [0], decode_round=negative, **settings)


def test_a_proof_refuses_what_the_targets_law_does_not_know():
    target, drafter = TableModel.random(3, 1, symbols="abc"), TableModel.random(3, 1, seed=5, symbols="abc")
    for setting in (dict(stop="aa"), dict(on_round=print)):
        with pytest.raises(ValueError, match="the target's own distribution does not include it"):
            prove(target, drafter, "ab", gamma=1, max_new_tokens=3, **setting)
    broken = TableModel([[0.0, np.nan], [0.0, 1.0], [0.0, 1.0]])
    with pytest.raises(FloatingPointError, match="'table' returned NaN or infinite logits after"):
        target_law(broken, [0], max_new_tokens=2)


def test_float32_tables_keep_float32s_promise():
    p, q = (TableModel.random(3, 1, seed=s, dtype=torch.float32) for s in (1, 2))
    assert sum(target_law(p, [0], max_new_tokens=4).values()) == pytest.approx(1, abs=1e-12)
    assert prove(p, q, [0], gamma=2, max_new_tokens=4, tolerance=1e-6).exact


@pytest.mark.parametrize("merge", [False, True])
def test_a_search_is_bounded_by_the_context_and_checks_first(merge):
    short, drafter = TableModel.random(3, 1, seed=1, context=4), TableModel.random(3, 1, seed=2)
    law = exact_law(short, drafter, [0, 1], gamma=2, max_new_tokens=10**9, merge=merge)
    assert largest_difference(law, plain_law(short, [0, 1], 2)) < 1e-12
    for wrong, message in ((dict(gamma=-1), "gamma=-1"), (dict(gamma="a"), "gamma='a'"), (dict(eos=9), "ids .9. are")):
        with pytest.raises(ValueError, match=message):
            exact_law(short, drafter, [0], merge=merge, **{"gamma": 1, "max_new_tokens": 2, **wrong})
    with pytest.raises(ValueError, match="probes=0"):
        estimate_branches(short, drafter, [0], merge=merge, probes=0, gamma=1, max_new_tokens=2)


def test_texts_that_have_ended_are_not_counted_in_an_estimate():
    target, drafter = random_pair(3)
    free = estimate_branches(target, drafter, [0], merge=True, gamma=1, max_new_tokens=6).branches
    ended = estimate_branches(target, drafter, [0], merge=True, gamma=1, max_new_tokens=6, eos=[1, 2]).branches
    assert ended < free / 5


def test_means_over_all_branches():
    """Expected tokens a round with one draft before a bonus: 1 + β at the first position."""
    target, drafter = random_pair(3, 0)
    overlap = mean_overlap(target, drafter, [0], length=1)
    ways = list(branches(target, drafter, [0], gamma=1, max_new_tokens=2))
    assert sum(weight for _, weight in ways) == pytest.approx(1)
    assert sum(weight * len(trace.rounds[0].tokens) for trace, weight in ways) == pytest.approx(1 + overlap)


@pytest.mark.parametrize(("gamma", "tokens", "merge"), [(1, 4, False), (2, 4, False), (3, 4, False), (2, 5, True)])
def test_the_size_of_a_search_is_estimated_well_enough_to_refuse(gamma, tokens, merge):
    """Within a factor of three of the branches visited."""
    target, drafter = random_pair(3)
    settings = dict(gamma=gamma, max_new_tokens=tokens)
    guess = estimate_branches(target, drafter, [0], merge=merge, **settings)
    if merge:
        decoded = []
        exact_law(target, drafter, [0], merge=True, decode_round=counting(decoded), **settings)
        visited = sum(decoded) - (gamma + 1) * 512  # the guard's own probes
    else:
        visited = sum(1 for _ in branches(target, drafter, [0], **settings))
    assert visited / 3 < guess.branches < 3 * visited and guess.seconds > 0


def counting(decoded):
    """decode_round that notes the rows it was given; a merged search decodes one round a branch."""

    def decode(state):
        decoded.append(len(state.prompts))
        return decode_round(state)

    return decode


def test_a_search_that_would_not_finish_is_refused_before_it_begins():
    target, drafter = random_pair(3)
    for search in (exact_law, branches):
        with pytest.raises(ValueError, match=r"max_new_tokens=30 makes about \d\.\de\+\d+ branches, which would take"):
            search(target, drafter, [0], gamma=3, max_new_tokens=30)
    with pytest.raises(ValueError, match="the limit is max_branches=100"):
        exact_law(target, drafter, [0], gamma=2, max_new_tokens=4, max_branches=100)
    with pytest.raises(ValueError, match="max_branches=0"):
        exact_law(target, drafter, [0], gamma=2, max_new_tokens=4, max_branches=0)
    with pytest.raises(ValueError, match="give a single prompt"):
        exact_law(target, drafter, [[0], [1]], gamma=2, max_new_tokens=4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(tolerance="x"), "tolerance='x': must be a number >= 0, such as 1e-12"),
        (dict(tolerance=float("nan")), "tolerance=nan: must be a number >= 0"),
        (dict(rows="x"), "rows='x': must be an integer >= 1 .branches decoded at once."),
        (dict(max_branches="x"), "max_branches='x': must be an integer >= 1"),
        (dict(max_new_tokens="x"), "max_new_tokens='x'"),
        (dict(gamma="x"), "gamma='x'"),
    ],
)
def test_a_proof_refuses_wrong_arguments_before_any_work(wrong, message, monkeypatch):
    target, drafter = random_pair(3)
    monkeypatch.setattr(TableModel, "new_cache", None)  # the first forward pass would fail
    with pytest.raises(ValueError, match=message):
        prove(target, drafter, [0], **{"gamma": 1, "max_new_tokens": 2, **wrong})
    if "tolerance" not in wrong:
        with pytest.raises(ValueError, match=message):  # at the call, before anything is asked of the iterator
            branches(target, drafter, [0], **{"gamma": 1, "max_new_tokens": 2, **wrong})


def test_a_progress_bar_counts_the_branches(capsys):
    target, drafter = random_pair(3)
    exact_law(target, drafter, [0], gamma=1, max_new_tokens=4, rows=50, progress=True)
    assert re.search(r"exact law: .* \d+/\S+ branches \[", capsys.readouterr().err)
    exact_law(target, drafter, [0], gamma=1, max_new_tokens=4)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("sampling", [{}, dict(temperature=0.5, top_k=2), dict(temperature=0)], ids=str)
def test_autoregressive_law_is_the_targets(sampling):
    target, _ = random_pair(3, 2)
    law = exact_law(target, None, [1], max_new_tokens=5, eos=(2,), sampling=SamplingParams(**sampling))
    assert largest_difference(law, plain_law(target, [1], 5, eos=(2,), **sampling)) < 1e-12


@pytest.mark.parametrize("short", ["target", "drafter"])
def test_law_at_a_context_limit(short):
    target, drafter = TableModel.random(3, 1, seed=1), TableModel.random(3, 1, seed=2)
    (target if short == "target" else drafter).context = 4
    law = exact_law(target, drafter, [0, 1], gamma=2, max_new_tokens=4)
    assert largest_difference(law, plain_law(target, [0, 1], 2 if short == "target" else 4)) < 1e-12


def test_the_number_of_branches_is_the_one_derived_by_hand():
    for vocab_size, gamma, tokens, leaves in ((3, 1, 4, 249), (3, 2, 4, 981), (3, 3, 4, 2835), (2, 2, 6, 840)):
        target, drafter = random_pair(vocab_size)
        count = 0
        for branch in Exhaustive(rows=256):
            speculate(
                target,
                drafter,
                [[0]] * branch.rows,
                gamma=gamma,
                max_new_tokens=tokens,
                randomness=branch,
                record="none",
            )
            count += branch.rows
        assert count == leaves


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
@pytest.mark.parametrize(
    ("gamma", "sampling", "eos"), [(1, {}, ()), (2, {}, ()), (2, dict(temperature=0.7, top_k=2), (1,))]
)
def test_hugging_face_law_is_the_targets(family, gamma, sampling, eos):
    target, drafter = language_model(family, 1), language_model(family, 2)
    assert 0.3 <= mean_overlap(target, drafter, [0, 1, 2]) <= 0.8
    law, found = walk(target, drafter, [0, 1, 2], gamma, 4, sampling, eos)
    assert largest_difference(law, plain_law(target, [0, 1, 2], 4, eos, **sampling)) < 1e-9
    if not sampling:
        assert found == (ALL if gamma == 1 else {EACH, BONUS})
