"""The suite can fail: small faults put into the decoder are found by the exact law or by the invariant."""

import pytest
import torch
from tiny import fresh_logits, largest_difference, plain_law
from torch.nn.functional import pad

import specviz.decoding as decoding
from specviz import TableModel, speculate
from specviz.drafters.model import ModelSession
from specviz.equivalence.exact import exact_law
from specviz.models.protocol import Tape
from specviz.verification import Verdict, accept_probability, residual


def faulty_verify(accept=accept_probability, left=residual, shift=0, spare_first=False):
    """verify() rebuilt with one step of it exchanged."""

    def verify(tokens, q, p, randomness, lengths=None, active=None):
        rows, gamma = tokens.shape
        drafted = torch.arange(gamma) < lengths[:, None]
        rows_of_p = p[:, shift : gamma + shift] if gamma else p[:, :0]
        x = tokens[..., None]
        a = accept(rows_of_p.gather(-1, x), q.gather(-1, x))[..., 0].masked_fill(~drafted, 0)
        if spare_first and gamma:
            a[:, 0] = drafted[:, 0].to(a.dtype)
        accepted, coins = randomness.flip(a, active)
        row = torch.arange(rows)
        q_or_nothing = pad(q.masked_fill(~drafted[..., None], 0), (0, 0, 0, 1))
        token, u = randomness.draw(left(p[row, accepted], q_or_nothing[row, accepted]), "next", active=active)
        return Verdict(accepted, token, a, coins, u)

    return verify


def law_error(gamma=2, tokens=4):
    target, drafter = TableModel.random(3, 2, seed=1), TableModel.random(3, 2, seed=2)
    law = exact_law(target, drafter, [0, 1], gamma=gamma, max_new_tokens=tokens)
    return largest_difference(law, plain_law(target, [0, 1], tokens))


def softmax_of_difference(p, q):
    return torch.where(q.sum(-1, keepdim=True) == 0, p, (p - q).clamp(min=0).softmax(-1))


FAULTS = {
    "p and q swapped": dict(accept=lambda p, q: accept_probability(q, p)),
    "resampled from p": dict(left=lambda p, q: p),
    "softmax in place of normalising": dict(left=softmax_of_difference),
    "off by one row": dict(shift=1),
    "first draft never tested": dict(spare_first=True),
    "everything accepted": dict(accept=lambda p, q: torch.ones_like(p)),
}


def test_the_rebuilt_verify_is_right_without_a_fault(monkeypatch):
    monkeypatch.setattr(decoding, "verify", faulty_verify())
    assert law_error() < 1e-14


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_verification_is_convicted_by_the_exact_law(fault, monkeypatch):
    monkeypatch.setattr(decoding, "verify", faulty_verify(**FAULTS[fault]))
    assert law_error() > 1e-3


def without_rewinding(of, monkeypatch):
    original = Tape.rewind

    def rewind(self, length):
        owner = "drafter" if self in drafting else "target"
        if owner != of:
            original(self, length)

    drafting, begin = [], ModelSession.__init__

    def note(self, *args):
        begin(self, *args)
        drafting.append(self.memory)

    monkeypatch.setattr(ModelSession, "__init__", note)
    monkeypatch.setattr(Tape, "rewind", rewind)


def test_a_target_memory_that_is_not_rewound_is_convicted_by_the_exact_law(monkeypatch):
    without_rewinding("target", monkeypatch)
    with pytest.raises((AssertionError, ValueError)):  # a wrong law, or a tape that runs over
        assert law_error(gamma=1) < 1e-12


def draft_errors():
    """Largest difference between a recorded q and a fresh forward of the drafter."""
    target, drafter = TableModel.random(6, 2, seed=1), TableModel.random(6, 2, seed=2)
    worst, text = 0.0, [0, 1]
    trace = speculate(target, drafter, text, gamma=2, max_new_tokens=40, seed=0, record="full")
    for round in trace.rounds:
        for i, q in enumerate(round.q):
            fresh = fresh_logits(drafter, text + round.draft_tokens[:i])[-1].softmax(-1)
            worst = max(worst, (torch.tensor(q.mass, dtype=torch.float64) - fresh).abs().max().item())
        text = text + round.tokens
    return worst


def test_a_hole_in_the_draft_memory_keeps_the_law_and_is_convicted_by_the_invariant(monkeypatch):
    """After a full acceptance the last draft was never fed; forgetting that only sinks acceptance."""
    assert draft_errors() < 1e-9
    catch_up = ModelSession._catch_up

    def forgetful(self, committed, length, drafting):
        self.memory.length = torch.where(length - self.memory.length == 2, length - 1, self.memory.length)
        return catch_up(self, committed, length, drafting)

    monkeypatch.setattr(ModelSession, "_catch_up", forgetful)
    assert law_error() < 1e-12
    assert draft_errors() > 1e-3


def test_a_draft_memory_that_is_not_rewound_keeps_the_law_and_is_convicted_by_the_invariant(monkeypatch):
    def stale(self, length):  # the head follows the text, but what was rejected stays on the tape
        self.memory.length = length.clone()

    monkeypatch.setattr(ModelSession, "rewind", stale)
    assert law_error() < 1e-12
    assert draft_errors() > 1e-3


def test_a_bonus_that_is_never_given_keeps_the_law_and_is_seen_in_the_counts(monkeypatch):
    append = decoding._append

    def stingy(state, done, reasons):
        for round in done:
            if round is not None and round.outcome == "bonus":
                round.next_token, round.outcome = None, "ended"
        append(state, done, reasons)

    monkeypatch.setattr(decoding, "_append", stingy)
    assert law_error() < 1e-12
    target = TableModel.random(3, 1, seed=1)
    trace = speculate(target, target, [0], gamma=3, max_new_tokens=30, seed=0)
    assert trace.tokens_per_round <= 3  # γ + 1 = 4 with the bonus
