"""What prove() must see: ten faults put in by hand, for one row and for four, whatever is recorded."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.functional import pad

from specviz import SamplingParams, TableModel
from specviz.arrays import as_tensor
from specviz.equivalence import mutants
from specviz.equivalence.exact import prove
from specviz.equivalence.mutants import with_step
from specviz.rules import STANDARD
from specviz.steps import decode_round, target_forward
from specviz.verification import Verdict, accept_probability, residual, verify


def judging(verify):
    """Settings with another rule in the shipped round."""
    return dict(rule=replace(STANDARD, verify=verify))


def stepping(**step):
    return dict(decode_round=with_step(**step))


def drawing(next_mass, tokens, q, p, randomness, lengths, active):
    """verify() in torch, with the next token from next_mass(p, q, accepted, lengths); q [B, gamma+1, V] ends in 0."""
    gamma, at = tokens.shape[1], tokens[..., None]
    a = accept_probability(p[:, :gamma].gather(-1, at), q.gather(-1, at))[..., 0]
    accepted, coins = map(as_tensor, randomness.flip(a * (torch.arange(gamma) < lengths[:, None]), active))
    mass = next_mass(p, pad(q, (0, 0, 0, 1)), accepted, lengths)
    next_token, u_next = map(as_tensor, randomness.draw(mass, "next", active=active))
    return Verdict(accepted, next_token, a, coins, u_next)


def at(rows, place):
    return rows[torch.arange(len(rows)), place]


def right_row(p, q, accepted, lengths):
    return residual(at(p, accepted), at(q, accepted.where(accepted < lengths, -1)))


def row_behind(p, q, accepted, lengths):
    """The row behind the one where the acceptance stopped."""
    return residual(at(p, (accepted + 1).minimum(lengths)), at(q, accepted.where(accepted < lengths, -1)))


def bonus_without_q(p, q, accepted, lengths):
    """The last draft's q subtracted from the bonus, too."""
    return residual(at(p, accepted), at(q, accepted.minimum(lengths - 1)))


def accept_what_p_never_says(p, q):
    """u <= p/q with u a multiple of 1/100: one coin in a hundred is 0."""
    return accept_probability(p, q).clamp(min=0.01)


def bonus_row_unprocessed(state, proposal):
    p, raw = target_forward(state, proposal), mutants.forget_to_process_p(state, proposal)
    every = torch.arange(len(p))
    p[every, proposal.lengths] = raw[every, proposal.lengths]
    return p


def one_token_too_many(state):
    if state.round == 0:
        state.limits = [limit + 1 for limit in state.limits]
        state.committed = pad(state.committed, (0, 1))
    return decode_round(state)


def pair(size, order):
    return TableModel.random(size, order, seed=1), TableModel.random(size, order, seed=2)


NEVER_0 = TableModel.from_probabilities([0.0, 1.0]), TableModel.from_probabilities([0.8, 0.2])
CASES = {  # as small as they may be: each is searched six times, with one branch at a time, too
    "context": (*pair(2, 2), {}),
    "zeros": (*NEVER_0, {}),
    "eos": (*pair(2, 1), dict(eos=[1])),
    "top-k": (*pair(3, 1), dict(sampling=SamplingParams(temperature=0.7, top_k=2))),
}
FAULTS = {
    "acceptance: p and q swapped": ("context", judging(partial(verify, accept=mutants.swap_p_and_q))),
    "acceptance: of tokens with p = 0": ("zeros", judging(partial(verify, accept=accept_what_p_never_says))),
    "residual: dropped": ("context", judging(partial(verify, resample_from=mutants.resample_from_p))),
    "bonus: q subtracted": ("context", judging(partial(drawing, bonus_without_q))),
    "next token: from the wrong row": ("context", judging(partial(drawing, row_behind))),
    "cut: EOS inside the drafts missed": ("eos", stepping(commit=mutants.look_for_eos_at_the_end_only)),
    "cut: one token too many": ("context", dict(decode_round=one_token_too_many)),
    "rewind: the target's skipped": ("context", stepping(target_forward=mutants.never_rewind_the_target)),
    "processing: p's missing": ("top-k", stepping(target_forward=mutants.forget_to_process_p)),
    "processing: the bonus row's missing": ("top-k", stepping(target_forward=bonus_row_unprocessed)),
}
SOUND = {case: (case, {}) for case in ("context", "zeros", "eos", "top-k")} | {
    "the rule as it is written here": ("context", judging(partial(drawing, right_row))),
}
each_record = pytest.mark.parametrize("record", ["none", "top", "full"])
each_number_of_rows = pytest.mark.parametrize("rows", [1, 4])


def proof(name, change, rows, record):
    target, drafter, settings = CASES[name]
    return prove(target, drafter, [0, 1], gamma=2, max_new_tokens=3, rows=rows, record=record, **settings, **change)


@each_record
@each_number_of_rows
@pytest.mark.parametrize("fault", FAULTS)
def test_a_proof_convicts(fault, rows, record):
    found = proof(*FAULTS[fault], rows, record)
    assert not found.exact and found.total_variation > 1e-3 and str(found).startswith("NOT EXACT")


@each_record
@each_number_of_rows
@pytest.mark.parametrize("sound", SOUND)
def test_a_proof_acquits(sound, rows, record):
    found = proof(*SOUND[sound], rows, record)
    assert found.exact and found.tolerance == 1e-12
