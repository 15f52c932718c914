"""What a Round remembers of its distributions, and what would have followed with other coins."""

from __future__ import annotations

import torch

from specviz.randomness import inverse_cdf
from specviz.trace import Masses
from specviz.verification import residual

TOP = 8


def record_round(record, proposal, p, verdict, active) -> list[dict]:
    """For each row the fields of a Round that record="none" leaves out ({} then, and for ended rows)."""
    rows, gamma = proposal.tokens.shape
    if record == "none":
        return [{}] * rows
    q, before = proposal.q, p[:, :gamma]
    left = residual(before, q)  # [B, gamma, V]
    overlap = torch.minimum(before, q).sum(-1).tolist()
    u = verdict.u_next[:, None].expand(rows, gamma + 1)
    if_rejected = inverse_cdf(left.flatten(0, 1), u[:, :gamma].flatten()).view(rows, gamma).tolist()
    after_all = p[torch.arange(rows), proposal.lengths.to(p.device)]
    if_all_accepted = inverse_cdf(after_all, verdict.u_next).tolist()

    fields = []
    for row, length in enumerate(proposal.lengths.tolist()):
        if not active[row]:
            fields.append({})
            continue
        replayable = not verdict.u_next[row].isnan()  # an exhaustive branch has no uniforms
        following = [*if_rejected[row][:length], if_all_accepted[row]] if replayable else []
        always = {*proposal.tokens[row, :length].tolist(), int(verdict.next_token[row]), *following}
        q_row, p_row = q[row, :length], p[row, : length + 1]
        ids = _kept_ids(record, p_row, q_row, always)
        fields.append(
            dict(
                q=_masses(q_row, ids),
                p=_masses(p_row, ids),
                residual=_masses(left[row, :length], ids),
                u_draft=proposal.u[row, :length].tolist(),
                coins=verdict.coins[row, :length].tolist(),
                u_next=float(verdict.u_next[row]),
                accept_probability=verdict.accept_probability[row, :length].tolist(),
                overlap=overlap[row][:length],
                next_if_rejected=if_rejected[row][:length] if replayable else None,
                next_if_all_accepted=if_all_accepted[row] if replayable else None,
            )
        )
    return fields


def _kept_ids(record, p, q, always) -> list[list[int]]:
    """For each position the ids to keep, ascending: the same for p, q and residual, so that they compare."""
    vocabulary = p.shape[-1]
    if record == "full" or vocabulary <= TOP:
        return [list(range(vocabulary))] * len(p)
    top_p, top_q = p.topk(TOP).indices.tolist(), q.topk(TOP).indices.tolist()
    return [sorted(always.union(p_ids, q_ids)) for p_ids, q_ids in zip(top_p, [*top_q, []], strict=True)]


def _masses(distributions, ids) -> list[Masses]:
    total = distributions.sum(-1)
    masses = []
    for distribution, whole, kept in zip(distributions, total, ids, strict=False):
        mass = distribution[kept]
        rest = 0.0 if len(kept) == len(distribution) else max(0.0, float(whole - mass.sum()))
        masses.append(Masses(kept, mass.tolist(), rest))
    return masses
