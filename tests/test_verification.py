"""Algorithm 1 by itself: the identities behind it, and verify() on written-down cases."""

import math
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz import Exhaustive, Scripted, Seeded
from specviz.verification import accept_probability, residual, verify


@st.composite
def distributions(draw, count=2, max_size=6):
    size = draw(st.integers(1, max_size))
    rows = st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)
    tables = [torch.tensor(draw(rows), dtype=torch.float64) for _ in range(count)]
    return [t / t.sum() for t in tables]


@given(distributions())
def test_both_paths_together_give_p(pq):
    """Appendix A.1: q(x) A(x) + Z p'(x) = p(x), with Z = 1 - sum min(p, q)."""
    p, q = pq
    accepted = q * accept_probability(p, q)
    torch.testing.assert_close(accepted, torch.minimum(p, q))
    z = 1 - accepted.sum()
    torch.testing.assert_close(accepted + z * residual(p, q), p, atol=1e-12, rtol=0)


@given(distributions())
def test_overlap_is_one_minus_the_papers_distance(pq):
    p, q = pq
    d_lk = (p - (p + q) / 2).abs().sum()  # Definition 3.2
    torch.testing.assert_close(torch.minimum(p, q).sum(), 1 - d_lk)


@given(distributions())
def test_residual_is_a_distribution_that_avoids_where_q_is_larger(pq):
    p, q = pq
    rest = residual(p, q)
    torch.testing.assert_close(rest.sum(), torch.tensor(1.0, dtype=torch.float64))
    if not torch.equal(p, q):
        assert (rest[p <= q] == 0).all()


def test_residual_of_equal_distributions_is_p():
    p = torch.tensor([0.1, 0.2, 0.7])
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(p, p.nextafter(torch.ones(3))), p)  # q above p by a rounding


def test_nothing_impossible_is_accepted():
    zero, half = torch.tensor(0.0), torch.tensor(0.5)
    assert accept_probability(zero, half) == 0
    assert accept_probability(zero, zero) == 0
    assert accept_probability(half, zero) == 1  # never drafted; A is an upper bound there


@given(distributions(count=5, max_size=4), st.data())
def test_the_law_of_the_first_token_is_p_for_any_draft_length(tables, data):
    """One whole round, enumerated: the first emitted token follows p_1 and nothing else."""
    p1, q1, p2, q2, p3 = tables
    length = data.draw(st.integers(0, 2))
    vocabulary = len(p1)
    law = torch.zeros(vocabulary, dtype=torch.float64)
    for branch in Exhaustive():
        branch.begin(1)
        q, tokens = torch.stack([q1, q2])[None], torch.zeros(1, 2, dtype=torch.long)
        for i in range(length):
            tokens[0, i] = int(branch.draw(q[:, i], "draft", i).token[0])
        verdict = verify(tokens, q, torch.stack([p1, p2, p3])[None], branch, torch.tensor([length]))
        first = tokens[0, 0] if verdict.accepted[0] > 0 else verdict.next_token[0]
        law[first] += branch.weight[0]
    torch.testing.assert_close(law, p1, atol=1e-12, rtol=0)


def cells(*laws):
    """The intervals of u within which no draw from any of the laws changes: (their middles, their widths)."""
    edges = [0.0, 1.0] + [edge for law in laws for edge in (law.cumsum(0) / law.sum()).tolist()]
    edges = sorted({min(edge, 1.0) for edge in edges})
    return [((low + high) / 2, high - low) for low, high in pairwise(edges)]


@settings(max_examples=10)
@given(distributions(count=5, max_size=3))
def test_the_integral_over_all_uniforms_is_p(tables):
    """With Scripted: text and uniforms are those of a user, who sees neither branches nor weights.

    Between the borders of the draws, and on either side of A(x), nothing changes: the integral is a finite sum. The
    first token must follow p_1; the second, where the first draft was accepted, p_2 whatever the first one was.
    """
    p1, q1, p2, q2, p3 = tables
    first, second = (torch.stack([a, 1 - a], 1) for a in (accept_probability(p1, q1), accept_probability(p2, q2)))
    axes = {  # of each uniform, all that anything changes at
        ("draft", 0): cells(q1),
        ("draft", 1): cells(q2),
        ("coin", 0): cells(*first),
        ("coin", 1): cells(*second),
        ("next", 0): cells(residual(p1, q1), residual(p2, q2), p3),
    }
    script, weights = {}, []
    for row, point in enumerate(product(*axes.values())):
        script |= {(row, 0, *place): u for place, (u, _) in zip(axes, point)}
        weights.append(math.prod(width for _, width in point))
    rows, randomness = len(weights), Scripted(script)
    q, p = torch.stack([q1, q2]).expand(rows, -1, -1), torch.stack([p1, p2, p3]).expand(rows, -1, -1)
    drafts = torch.stack([randomness.draw(q[:, i], "draft", i).token for i in range(2)], 1)
    verdict = verify(drafts, q, p, randomness)

    law, joint = torch.zeros(len(p1)).double(), torch.zeros(len(p1), len(p1)).double()
    for (x, y), n, following, weight in zip(drafts, verdict.accepted, verdict.next_token, weights):
        law[following if n == 0 else x] += weight
        if n > 0:
            joint[x, following if n == 1 else y] += weight
    torch.testing.assert_close(law, p1, atol=1e-12, rtol=0)
    torch.testing.assert_close(joint, torch.minimum(p1, q1)[:, None] * p2, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rows", [1, 3])
def test_arrays_of_numpy_are_judged_as_tensors_are(rows):
    p, q = (x.expand(rows, -1, -1) for x in (P, Q))
    for ours in (accept_probability, residual):
        assert ours(p[:, :2].numpy(), q.numpy()).tolist() == ours(p[:, :2], q).tolist()
    drafts, lengths, active = torch.tensor([[1, 2]] * rows), torch.tensor([2, 1, 0][:rows]), torch.arange(rows) < 2
    tensors = verify(drafts, q, p, Seeded(3), lengths, active)
    arrays = verify(*(x.numpy() for x in (drafts, q, p)), Seeded(3), lengths.numpy(), active.numpy())
    for name, values in vars(tensors).items():
        assert name == "judged" or torch.equal(values[active], getattr(arrays, name)[active]), name


P = torch.tensor([[[0.5, 0.5, 0.0], [0.2, 0.0, 0.8], [0.1, 0.9, 0.0]]], dtype=torch.float64)
Q = torch.tensor([[[0.25, 0.75, 0.0], [0.2, 0.3, 0.5]]], dtype=torch.float64)


def coins(*us, u_next=0.5):
    return Scripted({(0, 0, "coin", i): u for i, u in enumerate(us)} | {(0, 0, "next", 0): u_next})


def test_a_written_down_round():
    verdict = verify(torch.tensor([[1, 2]]), Q, P, coins(0.6, 0.1))
    assert verdict.accept_probability[0].tolist() == pytest.approx([2 / 3, 1.0])
    assert verdict.accepted.item() == 2 and verdict.next_token.item() == 1  # bonus from (0.1, 0.9, 0) at u = 0.5
    rejected = verify(torch.tensor([[1, 2]]), Q, P, coins(0.7, 0.1))
    assert rejected.accepted.item() == 0 and rejected.next_token.item() == 0  # residual is all on id 0


def test_acceptance_is_strict_at_the_border_and_at_zero():
    a = (P[0, 0, 1] / Q[0, 0, 1]).item()
    assert verify(torch.tensor([[1, 2]]), Q, P, coins(a, 0.1)).accepted.item() == 0
    assert verify(torch.tensor([[1, 2]]), Q, P, coins(math.nextafter(a, 0), 0.1)).accepted.item() == 2
    # p(x) = 0: even a coin of exactly 0 rejects
    assert verify(torch.tensor([[0, 1]]), Q, P, coins(0.5, 0.0)).accepted.item() == 1


def test_a_verdict_that_is_written_over_changes_no_later_one():
    randomness = Seeded(8)
    first, again = (verify(torch.tensor([[1, 2]]), Q, P, randomness) for _ in range(2))
    kept = {name: values.clone() for name, values in vars(again).items() if name != "judged"}
    for values in (first.coins, first.u_next, first.accept_probability):
        values[:] = 0.999
    third = verify(torch.tensor([[1, 2]]), Q, P, randomness)
    assert all(torch.equal(values, getattr(third, name)) for name, values in kept.items())


def test_nothing_behind_the_first_rejection_counts():
    late_success = verify(torch.tensor([[1, 2]]), Q, P, coins(0.99, 0.0))
    assert late_success.accepted.item() == 0


def test_short_drafts_are_not_tested_beyond_their_length():
    verdict = verify(torch.tensor([[1, 2]]), Q, P, coins(0.6, 0.0, u_next=0.3), torch.tensor([1]))
    assert verdict.accepted.item() == 1
    assert verdict.next_token.item() == 2  # bonus from p[1] = (0.2, 0, 0.8)
    assert verdict.accept_probability[0, 1] == 0
    plain = verify(torch.tensor([[1, 2]]), Q, P, coins(u_next=0.75), torch.tensor([0]))
    assert plain.accepted.item() == 0 and plain.next_token.item() == 1  # one step from p[0]


def test_padding_beyond_the_draft_may_hold_anything():
    garbage = Q.clone()
    garbage[0, 1] = torch.nan
    verdict = verify(torch.tensor([[1, 0]]), garbage, P, coins(0.6, u_next=0.3), torch.tensor([1]))
    assert verdict.accepted.item() == 1 and verdict.next_token.item() == 2


def test_no_drafts_at_all():
    verdict = verify(torch.zeros(1, 0, dtype=torch.long), Q[:, :0], P[:, :1], coins(u_next=0.6))
    assert verdict.accepted.item() == 0 and verdict.next_token.item() == 1


def test_greedy_is_the_longest_matching_prefix():
    eye = torch.eye(4)
    target, drafted = torch.tensor([2, 1, 3, 0]), torch.tensor([[2, 1, 0]])
    for seed in range(20):
        verdict = verify(drafted, eye[drafted], eye[target][None], Seeded(seed))
        assert verdict.accepted.item() == 2 and verdict.next_token.item() == 3


def test_another_rule_can_be_tried():
    """Both halves are asked for: accept at the drafted tokens, left where the acceptance stopped."""
    p, q = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]), torch.tensor([[[0.9, 0.1]]])
    script = {(0, 0, "coin", 0): 0.5, (0, 0, "next", 0): 0.0}
    never = dict(accept=lambda p, q: torch.zeros_like(p), resample_from=lambda p, q: 1 - q)
    verdict = verify(torch.tensor([[1]]), q, p, Scripted(script), **never)
    assert verdict.accepted.tolist() == [0] and verdict.next_token.tolist() == [0]
    assert verdict.accept_probability.tolist() == [[0.0]]
    assert verify(torch.tensor([[1]]), q, p, Scripted(script)).accepted.tolist() == [1]


def test_rows_are_independent_and_ended_rows_draw_nothing():
    p, q = P.expand(3, -1, -1), Q.expand(3, -1, -1)
    tokens = torch.tensor([[1, 2]] * 3)
    batch = verify(tokens, q, p, Seeded(8), torch.tensor([2, 0, 1]), torch.tensor([True, True, False]))
    for row, length in ((0, 2), (1, 0)):
        alone = verify(tokens[:1], Q, P, Seeded(8, rows=[row]), torch.tensor([length]))
        assert alone.accepted.item() == batch.accepted[row].item()
        assert alone.next_token.item() == batch.next_token[row].item()
    assert batch.u_next[2].isnan() and batch.coins[2].isnan().all()
