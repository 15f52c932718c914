"""Wrong decoders: each is the shipped one with a single small fault, named.

A mutant is a decode_round() with one of its four steps exchanged, so it runs through the decoder itself. Each kind has
been seen in public implementations. The lossy ones change the distribution of the text; the others leave it exact and
only waste target passes. lineup.py tries them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from specviz.arrays import as_array, as_tensor
from specviz.equivalence.cases import CASES, Case
from specviz.randomness import Branch, Drawn, Seeded
from specviz.sampling import SamplingParams
from specviz.steps import commit, decode_round, draft, target_forward
from specviz.verification import Verdict, accept_probability, residual, verify


def with_step(*, draft=draft, target_forward=target_forward, verify=verify, commit=commit):
    """decode_round() with one of its steps exchanged (with no argument, it is decode_round itself, step for step)."""

    def decode_round(state):
        proposal = draft(state)
        p = target_forward(state, proposal)
        verdict = verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active)
        return commit(state, proposal, p, verdict)

    return decode_round


@dataclass(frozen=True)
class Mutant:
    """A decoder with one change, and the case on which it is tried."""

    name: str
    story: str
    decode_round: Callable = field(repr=False)
    case: Case = field(repr=False)
    lossy: bool = True


RIGHT = [Mutant("right", "The shipped decoder.", decode_round, case, lossy=False) for case in CASES.values()]
MUTANTS: list[Mutant] = []  # filled by the faults below


def _fault(name, case, part, lossy=True):
    """Lists the function below, with its first line as the story, as the Mutant that has it in place of part.

    part: a step, a half of the rule, or the whole decode_round.
    """

    def listed(function):
        if part == "decode_round":
            changed = function
        elif part in ("accept", "resample_from"):
            changed = with_step(verify=partial(verify, **{part: function}))
        else:
            changed = with_step(**{part: function})
        story = function.__doc__.splitlines()[0]
        MUTANTS.append(Mutant(name, story, changed, CASES[case], lossy))
        return function

    return listed


def _with(state, **settings):
    return replace(state, settings=replace(state.settings, **settings))


class _OtherDraws:
    """The given randomness, except that drafts are drawn by pick(randomness, probs, slot, active)."""

    def __init__(self, randomness, pick):
        self.randomness, self.pick = randomness, pick

    def __getattr__(self, name):
        return getattr(self.randomness, name)

    def draw(self, probs, stream="draft", slot=0, active=None):
        return self.pick(self.randomness, probs, slot, active)


# --- lossy --------------------------------------------------------------------------------------


@_fault("argmax draft", "adversarial", "draft")
def draft_the_argmax(state):
    """Drafts its likeliest token and tests it with the softmax's q, as if it had been drawn."""

    def argmax(randomness, probs, slot, active):
        return Drawn(as_array(probs.argmax(-1)), np.full(len(probs), np.nan))

    return draft(_with(state, randomness=_OtherDraws(state.randomness, argmax)))


@_fault("q unprocessed", "top-k", "draft")
def report_q_unprocessed(state):
    """Draws the draft after temperature and top-k, but tests it with q from before."""

    def processed(randomness, probs, slot, active):
        return randomness.draw(state.sampling.probabilities(torch.as_tensor(probs).log()), "draft", slot, active)

    plain = _OtherDraws(state.randomness, processed)
    return draft(_with(state, randomness=plain, sampling=SamplingParams()))


@_fault("p unprocessed", "top-k", "target_forward")
def forget_to_process_p(state, proposal):
    """Applies temperature and top-k to the draft, but not to the target."""
    return target_forward(_with(state, sampling=SamplingParams()), proposal)


@_fault("resample from p", "adversarial", "resample_from")
def resample_from_p(p, q):
    """Draws from p after a rejection, so tokens that q likes come too often."""
    return p


@_fault("softmax residual", "adversarial", "resample_from")
def softmax_the_residual(p, q):
    """Normalises max(p - q, 0) by a softmax, which gives every token something."""
    bonus = q.sum(-1, keepdim=True) == 0
    return torch.where(bonus, p, (p - q).clamp(min=0).softmax(-1))


@_fault("p and q swapped", "adversarial", "accept")
def swap_p_and_q(p, q):
    """Accepts with min(1, q/p): Chen et al. call the target q."""
    return accept_probability(q, p)


@_fault("rows off by one", "context", "target_forward")
def shift_the_rows(state, proposal):
    """Judges each draft by the target's distribution after it, not before it."""
    p = target_forward(state, proposal)
    following = (torch.arange(p.shape[1]) + 1).expand(len(p), -1).minimum(proposal.lengths[:, None])
    return p.gather(1, following[..., None].expand_as(p))


@_fault("first draft spared", "context", "accept")
def spare_the_first(p, q):
    """Never tests the first draft of a round."""
    a = accept_probability(p, q)
    a[:, :1] = 1
    return a


@_fault("nothing tested", "context", "accept")
def accept_everything(p, q):
    """Accepts every draft: fast, and the text is the draft model's."""
    return torch.ones_like(p)


@_fault("bonus overwrites", "context", "verify")
def overwrite_with_the_bonus(tokens, q, p, randomness, lengths, active):
    """Writes the bonus token over the last accepted draft."""
    verdict = verify(tokens, q, p, randomness, lengths, active)
    return replace(verdict, accepted=verdict.accepted - _all_accepted(verdict, lengths).long())


def _all_accepted(verdict, lengths):
    return (verdict.accepted == lengths) & (lengths > 0)


class _NeverRewound:
    """A cache whose owner believes that it was rewound: new tokens are written behind the rejected ones."""

    def __init__(self, model, state, fed):
        rounds = state.settings.max_new_tokens * (state.gamma + 1)
        self.cache = model.new_cache(state.prompts, state.committed.shape[1] + rounds + state.gamma + 1)
        self.length = torch.zeros_like(state.length)
        self.count = None  # where feed() is given no count: how many of its tokens are not padding
        if int(fed.max()) > 0:
            self.feed(state.committed[:, : int(fed.max())], fed)

    def feed(self, tokens, count=None):
        count = self.count if count is None else count
        self.length = self.length + (tokens.shape[1] if count is None else count)
        return self.cache.feed(tokens, count)

    def rewind(self, length):
        self.length = torch.minimum(self.length, torch.as_tensor(length))


@_fault("target not rewound", "context", "target_forward")
def never_rewind_the_target(state, proposal):
    """Leaves rejected drafts in the target's cache, so that later tokens see them."""
    if state.round == 0:
        state.cache = _NeverRewound(state.target, state, state.length - 1)
    state.cache.count = (proposal.lengths + 1) * state.active
    return target_forward(state, proposal)


@_fault("goes on", "context", "verify")
def go_on_after_a_rejection(tokens, q, p, randomness, lengths, active):
    """Replaces a rejected draft and keeps testing those behind it, which no longer follow.

    A rejected draft gives way to a token from the residual; the next one is tested against the same old rows.
    """
    rows, gamma = tokens.shape
    a = accept_probability(p[:, :gamma].gather(-1, tokens[..., None]), q.gather(-1, tokens[..., None]))[..., 0]
    for i in range(gamma):
        here = active & (lengths > i)
        sure_before = torch.cat([torch.ones(rows, i, dtype=a.dtype), a[:, i : i + 1]], dim=1)
        rejected = here & as_tensor(randomness.flip(sure_before, here).accepted == i)
        token = as_tensor(randomness.draw(residual(p[:, i], q[:, i]), "next", 1 + i, rejected).token)
        tokens[:, i] = token.where(rejected, tokens[:, i])
    next_token, u_next = map(as_tensor, randomness.draw(p[torch.arange(rows), lengths], "next", 0, active))
    return Verdict(lengths, next_token, a, torch.full_like(a, torch.nan), u_next)


@_fault("silently greedy", "context", "target_forward")
def verify_greedily(state, proposal):
    """Compares with the target's argmax although the temperature is 1."""
    return target_forward(_with(state, sampling=SamplingParams(temperature=0)), proposal)


@_fault("EOS missed", "eos", "commit")
def look_for_eos_at_the_end_only(state, proposal, p, verdict):
    """Looks for EOS at the end of a round only, so text goes on behind an accepted one."""
    settings, eos = state.settings, state.settings.eos
    state.settings = replace(settings, eos=frozenset())
    done = commit(state, proposal, p, verdict)
    state.settings = settings
    for row, round in enumerate(done):
        if round is not None and round.tokens[-1] in eos:
            state.finish[row] = "eos"
    return done


@_fault("coarse coins", "zeros", "accept")
def compare_coarse_coins(p, q):
    """Accepts if u <= p/q with u of 8 bits: one coin in 256 is 0, and lets in what p never says.

    u <= p/q with u rounded down to a multiple of 1/256: true for u below the next multiple after p/q.
    """
    return ((torch.floor(p / q * 256) + 1) / 256).clamp(max=1)


class _OneStream(Seeded):
    """Draft, coin and resample of one position read the same uniform."""

    def _uniforms(self, stream, slots, batch):
        return super()._uniforms("draft", slots, batch)


class _OneStreamExactly:
    """The same over all branches, for one round: each answer narrows the interval of the position's one uniform."""

    def __init__(self, branch: Branch, positions: int):
        self.branch = branch
        self.low, self.high = np.zeros((branch.rows, positions)), np.ones((branch.rows, positions))

    def __getattr__(self, name):
        return getattr(self.branch, name)

    def _narrow(self, at, low, high, where):
        self.low[where, at] = np.maximum(self.low[:, at], low)[where]
        self.high[where, at] = np.minimum(self.high[:, at], high)[where]

    def _where(self, active):
        return np.ones(self.branch.rows, bool) if active is None else np.asarray(active)

    def draw(self, probs, stream="draft", slot=0, active=None):
        upper = as_array(probs).cumsum(-1, dtype=np.float64)
        with np.errstate(invalid="ignore"):  # rows that are not active may be of nothing but zeros
            upper /= upper[:, -1:]
        lower = np.pad(upper, ((0, 0), (1, 0)))[:, :-1]
        share = np.minimum(upper, self.high[:, [slot]]) - np.maximum(lower, self.low[:, [slot]])
        drawn = self.branch.draw(np.where(share < 1e-15, 0, share), stream, slot, active)  # slivers are rounding
        every = np.arange(len(drawn.token))
        self._narrow(slot, lower[every, drawn.token], upper[every, drawn.token], self._where(active))
        return drawn

    def flip(self, prob, active=None):
        a = as_array(prob)
        low, high = self.low[:, : a.shape[1]], self.high[:, : a.shape[1]]
        flipped = self.branch.flip((a - low) / (high - low), active)
        for i in range(a.shape[1]):
            self._narrow(i, 0, a[:, i], self._where(active) & (flipped.accepted > i))
            self._narrow(i, a[:, i], 1, self._where(active) & (flipped.accepted == i))
        return flipped


@_fault("shared noise", "context", "decode_round")
def share_the_noise(state):
    """One uniform decides draft, coin and resample of a position."""
    if isinstance(state.randomness, Branch):
        shared = _OneStreamExactly(state.randomness, state.gamma + 1)
    elif isinstance(state.randomness, Seeded):
        shared = _OneStream(state.randomness.seed, state.randomness.rows)
    else:
        raise ValueError(
            f"randomness is a {type(state.randomness).__name__}: the mutant 'shared noise' takes its one uniform from "
            "Seeded(…) or a branch of Exhaustive; give one of these, or a seed."
        )
    proposal = draft(_with(state, randomness=shared))
    p = target_forward(state, proposal)
    verdict = verify(proposal.tokens, proposal.q, p, shared, proposal.lengths, state.active)
    return commit(state, proposal, p, verdict)


# --- exact, but slower --------------------------------------------------------------------------


@_fault("draft hole", "long", "draft", lossy=False)
def forget_the_last_draft(state):
    """After full acceptance the draft model is never shown its own last token.

    After full acceptance the draft's cache lacks two tokens; take it to lack one, so that x_γ is never fed.
    """
    cache = state.session.cache
    hole = (state.length - cache.length == 2) & (state.round > 0)
    cache.length = cache.length + hole.long()
    return draft(state)


@_fault("draft not rewound", "long", "draft", lossy=False)
def never_rewind_the_draft(state):
    """Leaves rejected drafts in the draft model's cache."""
    if state.round == 0:
        state.session.cache = _NeverRewound(state.session.model, state, torch.zeros_like(state.length))
    return draft(state)


@_fault("no bonus", "context", "verify", lossy=False)
def give_no_bonus(tokens, q, p, randomness, lengths, active):
    """Emits no further token when all drafts were accepted.

    The last accepted draft ends the round, in the place of the bonus token.
    """
    verdict = verify(tokens, q, p, randomness, lengths, active)
    full = _all_accepted(verdict, lengths)
    last = tokens.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0] if tokens.shape[1] else verdict.next_token
    return replace(verdict, accepted=verdict.accepted - full.long(), next_token=last.where(full, verdict.next_token))


@_fault("hotter draft", "top-k", "draft", lossy=False)
def draft_hotter(state):
    """Drafts at temperature 2 without top-k, and says so honestly in q."""
    return draft(_with(state, sampling=SamplingParams(temperature=2.0)))


@_fault("sample and match", "context", "verify", lossy=False)
def sample_and_match(tokens, q, p, randomness, lengths, active):
    """Draws from p and accepts the draft if it is the same token.

    The paper's rule with q forgotten (one-hot): a draft is accepted with probability p(x).
    """
    one_hot = torch.nn.functional.one_hot(tokens, p.shape[-1]).to(p.dtype)
    return verify(tokens, one_hot, p, randomness, lengths, active)
