"""Uniforms: published vectors, independence, replay; draws and flips from them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specviz import Exhaustive, Scripted, Seeded
from specviz.randomness import inverse_cdf, leading_successes, splitmix64


def test_splitmix64_gives_the_published_outputs():
    # The sequence for seed 1234567 that Vigna's splitmix64.c prints.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, np.arange(5)).tolist() == expected


def uniforms(seed, batch, round, stream, slots, rows=None):
    source = Seeded(seed, rows)
    source.begin_round(round)
    return torch.from_numpy(source._uniforms(stream, slots, batch)[:, :slots])


def test_every_row_round_stream_and_slot_has_its_own_uniform():
    all_of_them = torch.stack(
        [uniforms(5, 20, round, stream, 8) for round in range(10) for stream in ("draft", "coin", "next")]
    )
    assert len(all_of_them.unique()) == all_of_them.numel()


def test_the_highest_seeds_lose_no_bits():
    # uint64 + int64 would silently become float64, where these seeds coincide.
    high = [uniforms(2**64 - 1 - i, 1, 0, "coin", 1).item() for i in range(4)]
    assert len(set(high)) == 4


def test_uniforms_are_uniform_and_uncorrelated():
    # Three tests on fixed seeds; each would fail a right generator with probability 1e-3.
    u = uniforms(1, 20_000, 3, "coin", 2).numpy()
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    counts = np.histogram2d(u[:, 0], u[:, 1], bins=10, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3
    other = uniforms(1, 20_000, 3, "draft", 1).numpy()[:, 0]
    counts = np.histogram2d(u[:, 0], other, bins=10, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-3


def test_a_row_does_not_depend_on_its_mates():
    batch = uniforms(9, 5, 2, "next", 1)
    for row in range(5):
        assert uniforms(9, 1, 2, "next", 1, rows=[row]) == batch[row]
    assert torch.equal(uniforms(9, 3, 2, "next", 1), batch[:3])


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "7", None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed=.*must be an integer >= 0 and < 2\*\*64"):
        Seeded(seed)


def test_bad_row_numbers_are_refused():
    for rows in ([-1], [1.7], 5):
        with pytest.raises(ValueError, match="rows"):
            Seeded(0, rows=rows)


# --- drawing ------------------------------------------------------------------------------------


def test_zero_probability_never_comes_out_at_either_end():
    probs = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64)
    for u, token in ((0.0, 1), (0.2999, 1), (0.3001, 3), (math.nextafter(1, 0), 3)):
        assert inverse_cdf(probs, torch.tensor([u], dtype=torch.float64)).item() == token


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([1, 1e-30, 3.7]),
)
def test_inverse_cdf_draws_only_possible_tokens_in_order(probs, u, scale):
    probs = torch.tensor(probs, dtype=torch.float64) * scale
    if probs.sum() == 0:
        return
    drawn = inverse_cdf(probs[None], torch.tensor([u], dtype=torch.float64)).item()
    assert probs[drawn] > 0
    cumulative = probs.cumsum(0) / probs.sum()
    assert cumulative[drawn] >= u - 1e-9 and (drawn == 0 or cumulative[drawn - 1] <= u + 1e-9)


def test_frequencies_follow_the_probabilities():
    probs = torch.tensor([0.05, 0.0, 0.5, 0.15, 0.3], dtype=torch.float64)
    u = uniforms(3, 100_000, 0, "next", 1)[:, 0]
    counts = inverse_cdf(probs.expand(100_000, 5), u).bincount(minlength=5)
    keep = probs > 0
    assert counts[1] == 0
    assert stats.chisquare(counts[keep], (probs[keep] * 100_000)).pvalue > 1e-3  # fixed seed; 1e-3 false alarms


def test_nan_probabilities_do_not_crash_a_draw():
    assert 0 <= inverse_cdf(torch.full((1, 4), torch.nan), torch.tensor([0.5], dtype=torch.float64)).item() < 4


@given(st.lists(st.booleans(), max_size=8))
def test_leading_successes(flags):
    expected = next((i for i, flag in enumerate(flags) if not flag), len(flags))
    assert leading_successes(torch.tensor([flags], dtype=torch.bool).reshape(1, -1)).item() == expected


def test_a_coin_of_exactly_zero_loses_against_probability_zero():
    coins = Scripted({(0, 0, "coin", 0): 0.0})
    assert coins.flip(torch.tensor([[0.0]])).accepted.item() == 0
    assert coins.flip(torch.tensor([[1e-300]], dtype=torch.float64)).accepted.item() == 1


def test_inactive_rows_consume_nothing():
    active = torch.tensor([True, False])
    for source in (Seeded(0), Scripted({(0, 0, "next", 0): 0.1, (0, 0, "coin", 0): 0.1, (0, 0, "coin", 1): 0.9})):
        token, u = source.draw(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), "next", active=active)
        assert np.isnan(u).tolist() == [False, True]
        _, u = source.flip(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), active=active)
        assert np.isnan(u).tolist() == [[False, False], [True, True]]


# --- Scripted -----------------------------------------------------------------------------------


def test_scripted_prefers_its_own_and_asks_its_base_for_the_rest():
    base = Seeded(4)
    script = Scripted({(0, 1, "coin", 0): 0.25}, base=base)
    script.begin_round(1)
    expected = uniforms(4, 1, 1, "coin", 2)
    assert script._uniforms("coin", 2, 1)[:, :2].tolist() == [[0.25, expected[0, 1].item()]]


def test_scripted_without_base_names_what_is_missing():
    script = Scripted({(0, 0, "coin", 0): 0.9})
    script.flip(torch.tensor([[0.5, 0.5]]))  # the first coin fails, so the second is never needed
    with pytest.raises(LookupError, match=r"\(0, 0, 'coin', 1\)"):
        script.flip(torch.tensor([[0.95, 0.5]]))
    with pytest.raises(LookupError, match=r"\(0, 0, 'next', 0\)"):
        script.draw(torch.tensor([[0.5, 0.5]]), "next")


@pytest.mark.parametrize(
    "uniforms",
    [
        {(0, 0, "coin"): 0.5},
        {(0, 0, "dice", 0): 0.5},
        {(0, -1, "coin", 0): 0.5},
        {(0, 0, "next", 3): 0.5},
        {(0, 0, "coin", 0): 1.0},
        {(0, 0, "coin", 0): "x"},
    ],
)
def test_malformed_scripts_are_refused(uniforms):
    with pytest.raises(ValueError, match="uniforms"):
        Scripted(uniforms)


# --- Exhaustive ---------------------------------------------------------------------------------


def test_exhaustive_visits_each_outcome_once_with_its_probability():
    probs = torch.tensor([0.5, 0.0, 0.2, 0.3], dtype=torch.float64)
    a = torch.tensor([0.25, 0.5], dtype=torch.float64)
    for rows in (1, 2, 5):
        seen = {}
        for branch in Exhaustive(rows):
            branch.begin(branch.rows)
            token = branch.draw(probs.expand(branch.rows, 4), "draft").token
            accepted = branch.flip(a.expand(branch.rows, 2)).accepted
            for row in range(branch.rows):
                seen[token[row].item(), accepted[row].item()] = branch.weight[row]
        law = {0: 0.75, 1: 0.25 * 0.5, 2: 0.25 * 0.5}
        expected = {(t, k): probs[t].item() * w for t in (0, 2, 3) for k, w in law.items()}
        assert seen == pytest.approx(expected, abs=1e-15)


def test_exhaustive_does_not_branch_on_certain_stops_or_inactive_rows():
    branches = 0
    for branch in Exhaustive(rows=2):
        branch.begin(branch.rows)
        branches += branch.rows
        active = torch.zeros(branch.rows, dtype=torch.bool)
        branch.draw(torch.full((branch.rows, 3), 1 / 3, dtype=torch.float64), active=active)
        branch.flip(torch.zeros(branch.rows, 3, dtype=torch.float64))
        branch.flip(torch.ones(branch.rows, 3, dtype=torch.float64))
    assert branches == 1


def test_exhaustive_refuses_misuse():
    with pytest.raises(ValueError, match="rows=0"):
        Exhaustive(rows=0)
    with pytest.raises(RuntimeError, match="was not decoded"):
        for number, branch in enumerate(Exhaustive()):
            if number == 0:
                branch.begin(1)
                branch.draw(torch.ones(1, 3, dtype=torch.float64))


def test_distributions_that_carry_a_gradient_are_drawn_from():
    probs = torch.full((2, 4), 0.25, requires_grad=True)
    assert inverse_cdf(probs[:1], torch.tensor([0.6])).tolist() == [2]
    assert inverse_cdf(probs, torch.tensor([0.6, 0.1])).tolist() == [2, 0]


def test_bfloat16_is_drawn_from_too():
    probs = torch.tensor([[0.25, 0.75], [0.25, 0.75]], dtype=torch.bfloat16)
    assert inverse_cdf(probs[:1], torch.tensor([0.5])).tolist() == [1]
    assert Seeded(0).draw(probs[:1]).token.tolist() == Seeded(0).draw(probs).token[:1].tolist()
