"""Uniforms: published vectors, independence, replay; draws and flips from them."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specviz import Exhaustive, Scripted, Seeded, TableModel, speculate
from specviz.randomness import inverse_cdf, last_success, leading_successes, splitmix64


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


def borders(mass):
    """[V+1] uniforms: token x is drawn for border[x] <= u < border[x+1]. Found by halving, through Scripted's draws."""

    def beyond(x, u):
        """[n] bool: whether the token drawn with u is above x."""
        script = Scripted({(row, 0, "next", 0): u_row for row, u_row in enumerate(u)})
        return script.draw(mass.expand(len(u), -1), "next").token.numpy() > x

    x = np.arange(len(mass) - 1)
    low, high = np.zeros(len(x)), np.full(len(x), math.nextafter(1, 0))
    ever = beyond(x, high)  # not where all the mass is up to x
    at_once = beyond(x, low)  # where none is
    while (np.nextafter(low, 1) < high).any():
        # Half of the numbers between, not of the distance: borders near 0 take no longer, and none is stepped over.
        middle = ((low.view(np.int64) + high.view(np.int64)) // 2).view(np.float64)
        above = beyond(x, middle)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return [0.0, *np.where(at_once, 0.0, np.where(ever, high, 1.0)).tolist(), 1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@settings(max_examples=15)
@given(st.lists(st.sampled_from([0, 0, 1e-12, 0.1, 0.3, 1, 7]), min_size=2, max_size=6).filter(any))
def test_a_token_is_drawn_by_as_much_of_u_as_it_has_probability(dtype, mass):
    """The integral over u is exact: a draw is constant between two borders, and these are found to the last bit."""
    mass = torch.tensor(mass, dtype=dtype)
    u, exact = borders(mass), [float(m) for m in mass]
    for x, m in enumerate(exact):
        assert u[x + 1] - u[x] == pytest.approx(m / math.fsum(exact), abs=1e-12)
        inside = [] if u[x] == u[x + 1] else [u[x], (u[x] + u[x + 1]) / 2, math.nextafter(u[x + 1], 0)]
        assert bool(inside) == (m > 0)  # what has no probability has not a single u
        for one in inside:
            assert Scripted({(0, 0, "draft", 0): one}).draw(mass[None], "draft").token.tolist() == [x]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@given(st.floats(0, 1), st.integers(0, 3))
def test_a_coin_succeeds_exactly_below_its_probability(dtype, a, slot):
    prob = torch.ones(1, 4, dtype=dtype)
    prob[0, slot] = a
    a = prob[0, slot].item()
    for u, success in ((a, False), (math.nextafter(a, 0), a > 0), (math.nextafter(a, 1), False)):
        if u < 1:
            coins = dict.fromkeys([(0, 0, "coin", i) for i in range(4)], 0.0) | {(0, 0, "coin", slot): u}
            assert Scripted(coins).flip(prob).accepted.tolist() == [4 if success else slot]


def test_seeded_draws_and_flips_by_its_own_uniforms():
    probs, prob = (torch.from_numpy(np.random.default_rng(n).random((7, n))) for n in (5, 3))
    source = Seeded(6)
    source.begin_round(2)
    for stream, slot in (("draft", 0), ("draft", 3), ("next", 0)):
        token, u = (answer.numpy() for answer in source.draw(probs, stream, slot))
        assert u.tolist() == uniforms(6, 7, 2, stream, slot + 1)[:, slot].tolist()
        assert token.tolist() == inverse_cdf(probs, u).tolist()
    for last, count in ((False, leading_successes), (True, last_success)):
        accepted, u = (answer.numpy() for answer in source.flip(prob, last=last))
        assert u.tolist() == uniforms(6, 7, 2, "coin", 3).tolist()
        assert accepted.tolist() == count(u < prob.numpy()).tolist()


def test_what_was_answered_stays_as_it_was_whatever_becomes_of_it():
    """A uniform that is written over is the caller's own: the same question in the same round has the same answer."""
    for source in (Seeded(5), Scripted({}, base=Seeded(5))):
        before = source.flip(torch.full((1, 2), 0.5)).u
        source.flip(torch.full((1, 2), 0.5)).u[:] = 0.999
        source.draw(torch.ones(1, 3), "draft").u[:] = 0.999
        assert source.flip(torch.full((1, 2), 0.5)).u.tolist() == before.tolist()
        assert source.draw(torch.ones(1, 3), "draft").u.tolist() == Seeded(5).draw(torch.ones(1, 3), "draft").u.tolist()


@given(st.lists(st.booleans(), max_size=8))
def test_the_last_success(flags):
    expected = max((i + 1 for i, flag in enumerate(flags) if flag), default=0)
    assert last_success(np.array([flags], dtype=bool).reshape(1, -1)).tolist() == [expected]


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
        assert u.isnan().tolist() == [False, True]
        _, u = source.flip(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), active=active)
        assert u.isnan().tolist() == [[False, False], [True, True]]


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


def test_scripted_asks_for_what_could_have_been_the_last_success():
    script = Scripted({(0, 0, "coin", 1): 0.2})
    assert script.flip(torch.tensor([[0.5, 0.5, 0.0]]), last=True).accepted.tolist() == [2]  # the first does not matter
    for missing, prob in ((2, [0.5, 0.5, 0.5]), (0, [0.5, 0.1, 0.0])):
        with pytest.raises(LookupError, match=rf"\(0, 0, 'coin', {missing}\)"):
            script.flip(torch.tensor([prob]), last=True)


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


# --- a decoding inside a decoding ---------------------------------------------------------------


def test_a_child_has_uniforms_of_its_own_for_the_same_rows():
    def drawn(source, round=3):
        source.begin_round(round)
        return source.flip(torch.full((2, 4), 0.5)).u.tolist()

    parent = Seeded(8, rows=[4, 9])
    sources = [parent, *map(parent.child, ("draft", "verifier", "")), Seeded(9, rows=[4, 9]).child("draft")]
    assert len({str(drawn(source)) for source in sources}) == 5
    assert drawn(parent.child("draft")) == drawn(Seeded(8, rows=[4, 9]).child("draft"))
    assert parent.child("draft").rows == [4, 9] and Seeded(8).child("draft").rows is None
    assert drawn(parent.child("draft").child("draft")) not in (drawn(parent.child("draft")), drawn(parent))


def test_a_scripts_child_is_that_of_its_base():
    script = Scripted({(0, 0, "coin", 0): 0.5}, base=Seeded(8))
    assert script.child("x").flip(torch.ones(1, 2)).u.tolist() == Seeded(8).child("x").flip(torch.ones(1, 2)).u.tolist()
    with pytest.raises(LookupError, match="0, 0, 'next', 0"):
        Scripted({(0, 0, "next", 0): 0.5}).child("x").draw(torch.ones(1, 2), "next")


def test_a_branchs_child_goes_along_its_path():
    law = {}
    for branch in Exhaustive(rows=3):
        branch.begin(branch.rows)
        outer = branch.draw(torch.tensor([[0.25, 0.75]]).expand(branch.rows, -1)).token
        inner = branch.child("draft").draw(torch.tensor([[0.5, 0.5]]).expand(branch.rows, -1)).token
        law |= {pair: w for pair, w in zip(zip(outer.tolist(), inner.tolist()), branch.weight.tolist())}
    assert law == {(0, 0): 0.125, (0, 1): 0.125, (1, 0): 0.375, (1, 1): 0.375}


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


@pytest.mark.parametrize("last", [False, True])
@settings(max_examples=15)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), max_size=4))
def test_exhaustive_flips_by_the_law_of_all_coins(last, probs):
    """By enumeration of every coin's outcome: how much of it has so many leading successes, or its last one there."""
    expected, count = np.zeros(len(probs) + 1), last_success if last else leading_successes
    for coins in product((False, True), repeat=len(probs)):
        weight = math.prod(a if coin else 1 - a for a, coin in zip(probs, coins))
        expected[count(np.array([coins], dtype=bool).reshape(1, -1))[0]] += weight
    law = np.zeros(len(probs) + 1)
    for branch in Exhaustive(rows=2):
        branch.begin(branch.rows)
        coins = torch.tensor(probs, dtype=torch.float64).expand(branch.rows, -1)
        accepted = branch.flip(coins, last=last).accepted.numpy()
        np.add.at(law, accepted, branch.weight)
    assert law == pytest.approx(expected, abs=1e-15) and law.sum() == pytest.approx(1, abs=1e-15)


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
    target = TableModel.random(3, 1)
    with pytest.raises(RuntimeError, match="a branch was not decoded; pass it as randomness="):
        for branch in Exhaustive():
            speculate(target, target, [[0]] * branch.rows, gamma=1, max_new_tokens=2, seed=0)  # branch forgotten
    with pytest.raises(ValueError, match="rows=0"):
        Exhaustive(rows=0)
    with pytest.raises(RuntimeError, match="was not decoded"):
        for number, branch in enumerate(Exhaustive()):
            if number == 0:
                branch.begin(1)
                branch.draw(torch.ones(1, 3, dtype=torch.float64))
    branch = next(iter(Exhaustive()))
    speculate(target, target, [0], gamma=1, max_new_tokens=2, randomness=branch)
    with pytest.raises(ValueError, match="a branch that was decoded before"):
        speculate(target, target, [0], gamma=1, max_new_tokens=2, randomness=branch)


def test_distributions_that_carry_a_gradient_are_drawn_from():
    probs = torch.full((2, 4), 0.25, requires_grad=True)
    assert inverse_cdf(probs[:1], torch.tensor([0.6])).tolist() == [2]
    assert inverse_cdf(probs, torch.tensor([0.6, 0.1])).tolist() == [2, 0]


def test_bfloat16_is_drawn_from_too():
    probs = torch.tensor([[0.25, 0.75], [0.25, 0.75]], dtype=torch.bfloat16)
    assert inverse_cdf(probs[:1], torch.tensor([0.5])).tolist() == [1]
    assert Seeded(0).draw(probs[:1]).token.tolist() == Seeded(0).draw(probs).token[:1].tolist()
