"""Making Rounds and Traces: the distributions of a round, the tokens that other coins would have given, the text."""

from __future__ import annotations

from itertools import accumulate

import torch

from specviz.randomness import Seeded, inverse_cdf
from specviz.text import Continuation, cut, parts
from specviz.trace import TopProbs, Trace
from specviz.verification import residual_mass

TOP = 8


def record_round(record, proposal, p, verdict, active) -> list[dict]:
    """For each row the fields of a Round that record="none" leaves out ({} then, and for ended rows)."""
    rows, gamma = proposal.tokens.shape
    if record == "none":
        return [{}] * rows
    q, before = proposal.q, p[:, :gamma]
    unnormalised = residual_mass(before, q)  # [B, gamma, V]
    residuals = unnormalised / unnormalised.sum(-1, keepdim=True)
    overlap = torch.minimum(before, q).sum(-1).tolist()
    u = verdict.u_next[:, None].expand(rows, gamma).flatten()
    if_rejected = inverse_cdf(unnormalised.flatten(0, 1), u).view(rows, gamma).tolist()
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
                q=_top_probs(q_row, ids),
                p=_top_probs(p_row, ids),
                residual=_top_probs(residuals[row, :length], ids),
                u_draft=proposal.u[row, :length].tolist(),
                coins=verdict.coins[row, :length].tolist(),
                u_next=float(verdict.u_next[row]),
                accept_probability=verdict.accept_probability[row, :length].tolist(),
                overlap=overlap[row][:length],
                next_if_rejected=if_rejected[row][:length] if replayable else None,
                next_if_all_accepted=if_all_accepted[row] if replayable else None,
                judged={name: values[row, :length].tolist() for name, values in verdict.judged.items()},
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


def _top_probs(distributions, ids) -> list[TopProbs]:
    abridged = []
    for distribution, total, kept in zip(distributions, distributions.sum(-1), ids, strict=False):
        probs = distribution[kept]
        rest = 0.0 if len(kept) == len(distribution) else max(0.0, float(total - probs.sum()))
        abridged.append(TopProbs(kept, probs.tolist(), rest))
    return abridged


def build_trace(state, row) -> Trace:
    """The Trace of one row of a decoding (a specviz.steps.State), ended or interrupted."""
    rounds = [done[row] for done in state.history if done[row] is not None]
    tokens = [token for round in rounds for token in round.tokens]
    prompt, tokenizer, randomness = state.prompts[row], state.target.tokenizer, state.randomness
    said = {} if tokenizer is None else _text_fields(state, row, tokens)
    seeded = isinstance(randomness, Seeded)
    occurring = {*prompt, *tokens, *state.settings.eos}.union(*(round.ids for round in rounds))
    return Trace(
        prompt_tokens=prompt,
        tokens=tokens,
        finish_reason=state.finish[row] or "interrupted",
        rounds=rounds,
        target=str(state.target.name),
        drafter=None if state.drafter is None else str(state.drafter.name),
        gamma=state.gamma,
        max_new_tokens=state.settings.max_new_tokens,
        sampling=state.sampling.to_dict(),
        eos=sorted(state.settings.eos),
        seed=randomness.seed if seeded else None,
        row=randomness.rows[row] if seeded and randomness.rows else row,
        device=str(state.target.device),
        dtype=str(state.target.dtype).removeprefix("torch."),
        prefill_seconds=state.prefill_seconds,
        pieces={} if tokenizer is None else {i: tokenizer.piece(i) for i in sorted(occurring)},
        stop=state.settings.stop,
        record=state.settings.record,
        rule=state.settings.rule.name,
        custom=state.settings.custom,
        backend=getattr(state.cache, "backend", None),
        **said,
    )


def _text_fields(state, row, tokens) -> dict:
    """prompt, text and parts of a Trace, for a target with a tokenizer."""
    tokenizer, said, before = state.target.tokenizer, written(state, row), _before(state, row)
    tokens, ended = tokens[: said.count], len(tokens) - said.count  # EOS is no text
    whole = tokenizer.decode([*before, *tokens])
    prompt = whole[: len(whole) - len(said.text)] if before else tokenizer.decode(state.prompts[row])
    text = cut(said.text, state.settings.stop)
    fields = dict(prompt=prompt, text=text)
    if state.settings.record != "none":
        added = parts(tokenizer, before, tokens) + [""] * ended
        starts = accumulate(map(len, added), initial=0)
        fields["parts"] = [part[: max(0, len(text) - start)] for part, start in zip(added, starts, strict=False)]
    return fields


def written(state, row) -> Continuation:
    """The committed text of a row: without EOS, and with the text behind a stop string."""
    if row not in state.texts:
        state.texts[row] = Continuation(state.target.tokenizer, _before(state, row))
    said = state.texts[row]
    tokens = state.committed[row, state.prompt_lengths[row] + said.count : state.lengths[row]].tolist()
    said.extend(tokens[:-1] if tokens and tokens[-1] in state.settings.eos else tokens)
    return said


def _before(state, row) -> list[int]:
    """The ids before a row's continuation; none for an encoder-decoder, whose text does not continue its source."""
    return [] if getattr(state.target, "start_tokens", None) else state.prompts[row]


def text_so_far(state, row) -> str:
    """A row's continuation as text: without EOS, and up to a stop string."""
    return cut(written(state, row).text, state.settings.stop)
