"""Algorithm 1 of Leviathan et al. (2023): accept a prefix of the draft, then sample one more token.

Written once for numpy's arrays and torch's tensors, one row or many: the decoder and prove() run these lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import lt

import numpy as np
import torch

from specviz.arrays import as_array, as_tensor, at_positions, beside, host, namespace, of_ids


@dataclass
class Verdict:
    """The outcome of one verification, for B rows with up to gamma drafts each."""

    accepted: torch.Tensor  # [B] int64: how many leading drafts were accepted
    next_token: torch.Tensor  # [B] int64: resampled after a rejection, otherwise the bonus token
    accept_probability: torch.Tensor  # [B, gamma]: A(x_i) of each draft; 0 beyond a row's draft length
    coins: torch.Tensor  # [B, gamma] float64: the uniforms compared with A(x_i)
    u_next: torch.Tensor  # [B] float64: the uniform that drew next_token
    judged: dict[str, torch.Tensor] = field(default_factory=dict)  # [B, gamma] each: further numbers of other rules


def accept_probability(p, q):
    """A(x) = min(1, p(x) / q(x)) = p(x) / max(p(x), q(x)), elementwise; 0 wherever p(x) = 0."""
    larger = namespace(p).maximum(p, q)
    return p / (larger + (larger == 0))


def residual(p, q):
    """p'(x) = max(0, p(x) - q(x)) / Z over the last dimension, Z = sum of max(0, p - q) = 1 - overlap.

    [..., V], [..., V] -> [..., V]. Where p equals q nothing is rejected but by rounding; the residual is p then.
    """
    unnormalised = residual_mass(p, q)
    return unnormalised / unnormalised.sum(-1, keepdims=True)


def residual_mass(p, q):
    """residual() before the division by Z, which a draw does not need."""
    xp = namespace(p)
    more = xp.maximum(p, q) - q
    return xp.where(more.sum(-1, keepdims=True) == 0, p, more)


def verify(
    draft_tokens, q, p, randomness, draft_lengths=None, active=None, *,
    accept=accept_probability, resample_from=residual_mass,
) -> Verdict:
    """Accept drafts left to right with probability A(x_i); draw one token where the acceptance stops.

    draft_tokens  [B, gamma]       x_1 .. x_gamma
    q             [B, gamma, V]    the distributions that the drafts were drawn from
    p             [B, gamma+1, V]  the target's, before each draft and after the last
    draft_lengths [B]              drafts in each row (default gamma): those beyond are never tested
    active        [B] bool         rows that take part (default all): the others draw nothing
    accept, resample_from          the two halves of the rule; others can be tried in their place (lesson 05).
                                   resample_from also gives the bonus, from p and q = 0, and need not be normalised

    A draft is accepted when its coin u < p(x)/q(x), strictly. The next token comes from the residual at the
    first rejection or, when all drafts were accepted, from p after the last (the bonus token). Either way
    the emitted tokens follow p exactly (appendix A.1). No drafts at all is one plain step of the target.
    """
    x, q, p = as_array(draft_tokens), as_array(q), as_array(p)
    rows, gamma = x.shape
    drafted = [gamma] * rows if draft_lengths is None else torch.as_tensor(draft_lengths).tolist()
    if active is not None and all(active.tolist()):
        active = None  # nothing has to be masked
    # The few numbers that decide, on the host.
    a = _half(accept, *host(of_ids(p, x), of_ids(q, x)))  # A(x_i) [B, gamma]
    if min(drafted) < gamma:
        a = np.where(np.arange(gamma) < np.array(drafted)[:, None], a, 0)
    accepted, coins = map(as_array, randomness.flip(a, active))

    # Of each row the distribution where the acceptance stops; minus q, if a draft was rejected there. Behind the last
    # draft nothing is subtracted: the residual against nothing is p itself, the bonus.
    next_mass, next_q = at_positions(p, accepted), None  # [B, V]
    rejected = list(map(lt, accepted.tolist(), drafted))
    if all(rejected):
        next_q = at_positions(q, accepted)
    elif any(rejected):
        reached = at_positions(q, np.minimum(accepted, gamma - 1))
        next_q = namespace(p).where(beside(np.array(rejected), p)[:, None], reached, 0)
    elif resample_from is not residual_mass:
        next_q = namespace(p).zeros_like(next_mass)
    if next_q is not None:
        next_mass = _half(resample_from, next_mass, next_q)
    next_token, u_next = randomness.draw(next_mass, "next", active=active)
    return Verdict(*map(as_tensor, (accepted, next_token, a, coins, u_next)))


def _half(half, p, q):
    """One half of the rule. Those of this module take arrays of either library, others are given torch's."""
    if half is accept_probability or half is residual_mass:
        return half(p, q)
    return as_array(half(as_tensor(p), as_tensor(q)))
