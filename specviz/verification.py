"""Algorithm 1 of Leviathan et al. (2023): accept a prefix of the draft, then sample one more token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad


@dataclass
class Verdict:
    """What one verification decided, for B rows with up to gamma drafts each."""

    accepted: torch.Tensor  # [B] int64: how many leading drafts were accepted
    next_token: torch.Tensor  # [B] int64: resampled after a rejection, otherwise the bonus token
    accept_probability: torch.Tensor  # [B, gamma]: A(x_i) of each draft; 0 beyond a row's draft length
    coins: torch.Tensor  # [B, gamma] float64: the uniforms compared with A(x_i)
    u_next: torch.Tensor  # [B] float64: the uniform that drew next_token


def accept_probability(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """A(x) = min(1, p(x) / q(x)), elementwise; 0 wherever p(x) = 0."""
    return (p / q).clamp(max=1).masked_fill(p == 0, 0)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """p'(x) = max(0, p(x) - q(x)) / Z over the last dimension, Z = sum of max(0, p - q) = 1 - overlap.

    [..., V], [..., V] -> [..., V]. Where p equals q there is nothing left and nothing is ever rejected;
    rounding may still ask, and then the answer is p.
    """
    left = (p - q).clamp(min=0)
    z = left.sum(-1, keepdim=True)
    return torch.where(z == 0, p, left / z)


def verify(
    draft_tokens, q, p, randomness, draft_lengths=None, active=None, *, accept=accept_probability, left=residual
) -> Verdict:
    """Accept drafts left to right with probability A(x_i); draw one token where the acceptance stops.

    draft_tokens  [B, gamma]       x_1 .. x_gamma
    q             [B, gamma, V]    the distributions that the drafts were drawn from
    p             [B, gamma+1, V]  the target's, before each draft and after the last
    draft_lengths [B]              drafts in each row (default gamma): those beyond are never tested
    active        [B] bool         rows that take part (default all): the others draw nothing
    accept, left                   the two halves of the rule; others can be tried in their place (lesson 05). left
                                   also gives the bonus, from p and q = 0

    A draft is accepted when its coin u < p(x)/q(x), strictly. The next token comes from the residual at the
    first rejection or, when all drafts were accepted, from p after the last (the bonus token). Either way
    the emitted tokens follow p exactly (appendix A.1). No drafts at all is one plain step of the target.
    """
    gamma = draft_tokens.shape[1]
    x = draft_tokens.unsqueeze(-1)
    a = accept(p[:, :gamma].gather(-1, x), q.gather(-1, x)).squeeze(-1)  # [B, gamma]
    if draft_lengths is not None and min(draft_lengths.tolist()) < gamma:
        drafted = torch.arange(gamma, device=p.device) < draft_lengths.to(p.device)[:, None]  # [B, gamma]
        a, q = a.masked_fill(~drafted, 0), q.masked_fill(~drafted[..., None], 0)
    accepted, coins = randomness.flip(a, active)

    # Beyond the draft q is 0, and the residual against nothing is p itself: the bonus needs no case.
    q_or_nothing = pad(q, (0, 0, 0, 1))  # [B, gamma+1, V]
    at = accepted[:, None, None].expand(-1, 1, p.shape[-1])
    next_p = left(p.gather(1, at)[:, 0], q_or_nothing.gather(1, at)[:, 0])  # [B, V]
    next_token, u_next = randomness.draw(next_p, "next", active=active)
    return Verdict(accepted, next_token, a, coins, u_next)


def verify_row(drafts: list[int], q, p, randomness) -> tuple[int, int]:
    """verify() for one row on the CPU, in numbers: how many drafts are accepted, and the next token.

    drafts x_1 .. x_n, and numpy's arrays: q [V] of each with q(x) > 0, p [n+1, V]. It decides as verify() does, but
    for rounding.
    """
    a = [min(1.0, p.item(i, x) / q[i].item(x)) for i, x in enumerate(drafts)]
    accepted = randomness.flip_row(a)
    next_p = p[accepted]
    if accepted < len(drafts):
        left = (next_p - q[accepted]).clip(min=0)  # a draw needs no division by Z
        next_p = left if left.any() else next_p
    return accepted, randomness.draw_row(next_p, "next")
