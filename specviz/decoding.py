"""Speculative decoding: draft, verify, accept, resample, until every row has ended.

A round is draft() -> target_forward() -> verify() -> commit(); rounds(), speculate() and autoregress()
only compose these four (Leviathan et al. 2023, Algorithm 1). decode_row() is the same round in numbers.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field

import numpy as np
import torch

from specviz.arguments import as_ids, as_prompts, as_stops, check_randomness, check_target, integer
from specviz.drafters.model import ModelSession, as_drafter
from specviz.drafters.protocol import Proposal
from specviz.randomness import Branch, Scripted, Seeded
from specviz.recording import build_trace, record_round
from specviz.sampling import SamplingParams
from specviz.timing import Stopwatch
from specviz.trace import PHASES, Round, Trace
from specviz.verification import verify, verify_row


@dataclass
class State:
    """A decoding under way: B rows of committed text, and the memories that lag behind by one token."""

    target: object
    drafter: object | None
    gamma: int
    max_new_tokens: int
    sampling: SamplingParams
    randomness: object
    eos: frozenset[int]
    stop: list[bytes]
    record: str
    decode_round: object  # what decodes one round; decode_round() unless a lesson or a test says otherwise
    single: bool  # one prompt, given as such: results come as themselves instead of in lists
    prompts: list[list[int]]
    committed: torch.Tensor  # [B, T] int64 on the CPU, right-padded
    length: torch.Tensor  # [B] int64 on the CPU
    heads: torch.Tensor  # [B]: length - 1, where both memories stand between rounds
    prompt_length: torch.Tensor  # [B]
    limit: torch.Tensor  # [B] on the CPU: the length at which each text ends, if nothing ends it before
    finish: list[str | None]  # why each row ended; None while it is active
    active: torch.Tensor  # [B] bool on the CPU: the rows that have not ended
    device: torch.device  # the target's
    memory: object = None
    session: object = None
    round: int = 0
    history: list[list[Round | None]] = field(default_factory=list)
    stopwatch: Stopwatch = None
    prefill_seconds: float = 0.0


# --- the loop -----------------------------------------------------------------------------------


def rounds(target, drafter, prompt, **settings):
    """Decode round by round: yields a Round, or for a list of prompts a list of them (None for ended rows).

    Takes the settings of start(), which are checked at once.
    """
    return _rounds(start(target, drafter, prompt, **settings))


def _rounds(state):
    while state.active.any():
        done = _next_round(state)
        yield done[0] if state.single else done


def speculate(target, drafter, prompt, *, on_round=None, **settings) -> Trace | list[Trace]:
    """Speculative decoding of one prompt (-> Trace) or a list of prompts (-> list of Traces).

    The emitted text follows the target's distribution exactly, whatever the drafter (appendix A.1); with
    temperature 0 it is the target's greedy text. on_round is called with each round's Round (or list of
    Rounds); when it returns True, or on KeyboardInterrupt, decoding ends as "interrupted" and keeps what was
    committed. The other settings are those of start(), and so are the errors.
    """
    if drafter is None:
        raise ValueError("drafter=None: speculate needs a drafter; autoregress decodes without one.")
    return _decode(target, drafter, prompt, on_round, settings)


def autoregress(target, prompt, *, on_round=None, **settings) -> Trace | list[Trace]:
    """Plain decoding, one token a round: the same loop with nothing drafted. See speculate()."""
    return _decode(target, None, prompt, on_round, settings)


def _decode(target, drafter, prompt, on_round, settings):
    if on_round is not None and not callable(on_round):
        raise ValueError(f"on_round={on_round!r}: must be a function of a round.")
    state = start(target, drafter, prompt, **settings)
    try:
        while state.active.any():
            done = _next_round(state)
            if on_round is not None and on_round(done[0] if state.single else done):
                break
    except KeyboardInterrupt:
        pass
    traces = [build_trace(state, row) for row in range(len(state.prompts))]
    return traces[0] if state.single else traces


def _next_round(state):
    if state.decode_round is decode_round:
        with torch.inference_mode():  # without autograd's bookkeeping a call costs a fifth less
            return decode_row(state) if _can_be_numbers(state) else decode_round(state)
    done = state.decode_round(state)  # outside: what you keep of a round of your own is yours
    if not isinstance(done, list):
        raise ValueError(f"decode_round returned {done!r}: must return what commit() returns, a Round for each row.")
    return done


def decode_round(state) -> list[Round | None]:
    """One round: the four steps below, in order. What commit() returns."""
    proposal = draft(state)
    p = target_forward(state, proposal)
    verdict = verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active)
    return commit(state, proposal, p, verdict)


def decode_row(state) -> list[Round]:
    """decode_round() for a single row on the CPU of which nothing is recorded: the same four steps, in numbers.

    The steps below are for batches, and for devices that must not be waited for. To a single row on the CPU they are a
    hundred calls of torch that take longer than what they do, and a fifth of a round.
    """
    end = state.length.item()
    gamma = _clamped(state.gamma, end, state.limit.item())
    if state.session is None or _proposes_in_numbers(state.session):
        state.stopwatch.start()
        state.randomness.begin_round(state.round)
        drafts, q = [], []
        if gamma:
            state.session.rewind(state.heads)  # nothing to do, unless this round was begun before; likewise below
            drafts, q = state.session.propose_row(state.committed, end, gamma, state.sampling, state.randomness)
        forwards = len(drafts)
        state.stopwatch.mark("draft")
    else:
        proposal = draft(state)
        drafts, q = _in_numbers(state, proposal)
        forwards = min(proposal.forwards, len(drafts))

    state.memory.rewind(state.heads)
    tokens = _of_rows([[state.committed[0, end - 1].item(), *drafts]])
    p = state.sampling.probabilities_array(state.memory.feed(tokens)[0])  # [n+1, V]
    state.stopwatch.mark("target")
    _check_row(state, drafts, q, p)
    accepted, next_token = verify_row(drafts, q, p, state.randomness)
    state.stopwatch.mark("verify")
    return _close(state, [(drafts, accepted, next_token, gamma, forwards, {})])


def _can_be_numbers(state) -> bool:
    """Whether decode_row() may stand in for decode_round()."""
    alone = len(state.prompts) == 1 and state.device.type == "cpu"
    # Subclasses may draw, or process logits, in their own way.
    ours = type(state.randomness) in (Seeded, Scripted, Branch) and type(state.sampling) is SamplingParams
    return alone and ours and state.record == "none" and not state.sampling.processors


def _proposes_in_numbers(session) -> bool:
    """Whether there is a propose_row() that stands for the session's own propose(), on the CPU."""
    if not isinstance(session, ModelSession) or session.device.type != "cpu" or "propose" in vars(session):
        return False
    return "propose_row" in vars(next(cls for cls in type(session).__mro__ if "propose" in vars(cls)))


def _in_numbers(state, proposal):
    """Somebody else's proposal for the only row: the drafts, and the q [V] of each."""
    n, q = proposal.lengths.item(), proposal.q.detach().cpu()
    drafts = proposal.tokens[0, :n].tolist()
    q = (q.float() if q.dtype == torch.bfloat16 else q)[0, :n].numpy()  # numpy has no bfloat16
    vocab_size = state.target.vocab_size
    if q.shape[-1] != vocab_size or not all(0 <= x < vocab_size for x in drafts):
        raise ValueError(
            f"drafter {state.drafter.name!r} proposed {drafts} with a q over {q.shape[-1]} ids: both must be over the "
            f"target's ids, 0 .. {vocab_size - 1}."
        )
    if np.isnan(q.sum(-1)).any():
        _refuse_rows(state, [0], [], [])
    return drafts, list(q)


# --- the four steps of a round ------------------------------------------------------------------


def start(
    target, drafter, prompt, *, gamma=4, max_new_tokens=64, sampling=None, seed=None, randomness=None, eos=None,
    stop=None, record="top", decode_round=decode_round,
) -> State:  # fmt: skip
    """Check everything, feed the prompts (but their last tokens) to the target, and open a draft session.

    prompt          text, token ids, chat messages ([{"role": …, "content": …}, …]), or a list of any for a batch;
                    an encoder-decoder reads it as its source
    gamma           drafts a round, at least 1
    max_new_tokens  exact, unless EOS, a stop string or the target's context ends the text before
    sampling        SamplingParams, by default temperature 1
    seed            an integer; None draws a fresh one, which the Trace records
    randomness      in place of seed: Seeded, Scripted, or a branch of Exhaustive
    eos             id or ids that end a text, in place of the target's
    stop            strings that end a text
    record          "top": keep the 8 largest probabilities of each distribution; "full": all; "none": no
                    distributions and no uniforms (fastest)
    decode_round    decodes one round of a State, in place of decode_round(): your own sequence of draft(),
                    target_forward(), verify() and commit(), to be judged by specviz.equivalence

    Raises ValueError, before any forward pass, naming the argument, its value and the remedy.
    """
    check_target(target)
    drafter = as_drafter(drafter)
    prompts, single = as_prompts(target, prompt)
    if drafter is None:
        gamma = 0
    else:
        gamma = integer(gamma, "gamma", 1, " (autoregress decodes without drafts)")
        drafter.fit(target)
    max_new_tokens = integer(max_new_tokens, "max_new_tokens", 0)
    sampling = SamplingParams() if sampling is None else sampling
    if not isinstance(sampling, SamplingParams):
        raise ValueError(f"sampling={sampling!r}: must be a SamplingParams, such as SamplingParams(temperature=0.7).")
    if seed is not None and randomness is not None:
        raise ValueError(f"seed={seed!r} and randomness={randomness!r}: give one of the two.")
    if randomness is None:  # 53 bits survive a JSON reader that knows only doubles
        randomness = Seeded(secrets.randbits(53) if seed is None else seed)
    check_randomness(randomness, len(prompts))
    if record not in ("top", "full", "none"):
        raise ValueError(f"record={record!r}: must be 'top', 'full' or 'none'.")
    if not callable(decode_round):
        raise ValueError(f"decode_round={decode_round!r}: must be a function of a State, such as decode_round itself.")
    eos = target.eos if eos is None else as_ids(eos if hasattr(eos, "__len__") else [eos], target, "eos")

    begin = getattr(target, "start_tokens", None)  # an encoder-decoder's texts; others begin with the prompt
    texts = prompts if begin is None else [begin] * len(prompts)
    length = torch.tensor([len(ids) for ids in texts])
    limit = (length + min(max_new_tokens, target.context)).clamp(max=target.context)
    longest = int(limit.max())
    state = State(
        target, drafter, gamma, max_new_tokens, sampling, randomness, frozenset(eos), as_stops(stop, target), record,
        decode_round, single, prompts, _right_padded(texts, longest), length, length - 1, length.clone(), limit,
        [None] * len(prompts), torch.ones(len(prompts), dtype=torch.bool), target.device,
        stopwatch=Stopwatch(target.device),
    )  # fmt: skip
    _finish(state, state.finish)
    if state.active.any():
        capacity = longest + min(gamma, longest) + 1
        state.memory = target.start(prompts, capacity, needs=getattr(drafter, "needs", frozenset()))
        if drafter is not None:
            state.session = drafter.start(target, prompts, capacity, state.eos, state.memory)
        if int(length.max()) > 1:
            fill = getattr(state.memory, "fill", state.memory.feed)  # nobody looks at the prompt's logits
            fill(state.committed[:, : int(length.max()) - 1], state.heads)
        state.stopwatch.mark("prefill")
        state.prefill_seconds = state.stopwatch.seconds()["prefill"]
    return state


def draft(state) -> Proposal:
    """Let the drafter propose up to gamma tokens a row, no more than can still be used."""
    state.stopwatch.start()
    state.randomness.begin_round(state.round)
    rows = zip(state.limit.tolist(), state.length.tolist(), state.active.tolist(), strict=True)
    asked = [_clamped(state.gamma, length, limit) if active else 0 for limit, length, active in rows]
    gamma = _of_rows(asked)
    if state.session is None:
        proposal = _nothing_drafted(state)
    else:
        state.session.rewind(state.heads)  # nothing to do, unless this round was begun before
        proposal = state.session.propose(state.committed, state.length, gamma, state.sampling, state.randomness)
        drafted = proposal.lengths.tolist()
        if any(n > most for n, most in zip(drafted, asked, strict=True)):
            raise ValueError(
                f"drafter {state.drafter.name!r} proposed {drafted} tokens (row by row), more than the {asked} that "
                "were asked for."
            )
    state.stopwatch.mark("draft")
    proposal.gamma, proposal.round = gamma, state.round
    return proposal


def target_forward(state, proposal) -> torch.Tensor:
    """One causal forward over the last committed token and the drafts -> p [B, gamma+1, V], processed.

    p[:, i] is the target's distribution after the committed text and the first i drafts.
    """
    _check_round(state, proposal)
    state.memory.rewind(state.heads)  # nothing to do, unless this round was begun before
    last = state.committed.gather(1, state.heads.unsqueeze(1)).to(proposal.tokens.device)  # [B, 1]
    tokens = torch.cat([last, proposal.tokens], dim=1)  # [B, gamma+1]
    logits = state.memory.feed(tokens.to(state.device))  # commit() takes back what is padding or rejected
    p = state.sampling.probabilities(logits, _texts_before(state, proposal))
    proposal.tokens, proposal.q = proposal.tokens.to(p.device), proposal.q.to(p.device)
    state.stopwatch.mark("target")
    return p


def commit(state, proposal, p, verdict) -> list[Round | None]:
    """Append what was accepted and the next token, end rows, rewind both memories to one token before the end.

    Returns a Round for each row, None for those that had ended before. Raises FloatingPointError for NaN or
    infinite logits and ValueError for a draft with q(x) = 0; then the round is not committed.
    """
    _check_round(state, proposal)
    state.stopwatch.mark("verify")
    drafts, accepted, next_token = _checked_transfer(state, proposal, p, verdict)
    recorded = record_round(state.record, proposal, p, verdict, state.active)
    lengths = proposal.lengths.tolist()
    drafts = [of_row[:n] for of_row, n in zip(drafts, lengths, strict=True)]
    forwards = [min(proposal.forwards, n) for n in lengths]
    decided = zip(drafts, accepted, next_token, proposal.gamma.tolist(), forwards, recorded, strict=True)
    return _close(state, decided)


def _close(state, decided) -> list[Round | None]:
    """commit() from numbers: (drafts, accepted, next_token, gamma, forwards, recorded) of each row."""
    reasons, done = list(state.finish), []
    for row, (drafts, accepted, next_token, gamma, forwards, recorded) in enumerate(decided):
        if state.finish[row] is not None:
            done.append(None)
            continue
        kept, reasons[row] = _cut(state, row, [*drafts[:accepted], next_token])
        done.append(
            Round(
                **_outcome(drafts, accepted, next_token, kept),
                gamma_asked=state.gamma,
                gamma_used=gamma,
                draft_forwards=forwards,
                seconds=dict.fromkeys(PHASES, 0.0),
                **recorded,
            )
        )
    _append(state, done, reasons)
    state.memory.rewind(state.heads)
    if state.session is not None:
        state.session.rewind(state.heads)
    state.stopwatch.mark("commit")
    seconds = state.stopwatch.seconds()
    for round in filter(None, done):
        round.seconds = seconds
    return done


def _check_round(state, proposal):
    if proposal.round != state.round:
        raise ValueError(
            f"this proposal is of round {proposal.round}, and the next is round {state.round}: call draft(state)."
        )


# --- their details ------------------------------------------------------------------------------


def _clamped(gamma, length, limit) -> int:
    """What a text of that length can still use of gamma drafts: the next token comes behind them."""
    return max(0, min(gamma, limit - length - 1))


def _texts_before(state, proposal):
    """For logits processors: the ids before each of the gamma + 1 positions of each row, None for padding."""
    if not state.sampling.processors:
        return None
    texts = []
    for row, drafts in enumerate(proposal.tokens.tolist()):
        text = state.committed[row, : state.length[row]].tolist()
        drafted = int(proposal.lengths[row]) if state.finish[row] is None else -1
        texts += [text + drafts[:i] if i <= drafted else None for i in range(len(drafts) + 1)]
    return texts


def _nothing_drafted(state) -> Proposal:
    rows, device = len(state.prompts), state.device
    return Proposal(
        tokens=torch.zeros(rows, 0, dtype=torch.long, device=device),
        q=torch.zeros(rows, 0, state.target.vocab_size, device=device),
        lengths=torch.zeros(rows, dtype=torch.long),
        u=torch.zeros(rows, 0, dtype=torch.float64),
    )


def _checked_transfer(state, proposal, p, verdict):
    """The round's one transfer: drafts, accepted and next_token as lists, once p and q are known to be sound."""
    gamma = proposal.tokens.shape[1]
    of_drafts = proposal.q.gather(-1, proposal.tokens[..., None])[..., 0]  # [B, gamma]
    transfer = torch.cat(
        [proposal.tokens, verdict.accepted[:, None], verdict.next_token[:, None]]
        + [p[..., 0].isnan(), proposal.q.sum(-1).isnan(), of_drafts == 0],  # p is NaN throughout, or nowhere
        dim=1,
    ).cpu()
    rows = transfer.tolist()
    if any(map(any, (row[gamma + 2 :] for row in rows))):
        _check_soundness(state, proposal, *transfer[:, gamma + 2 :].bool().split([gamma + 1, gamma, gamma], dim=1))
    return [row[:gamma] for row in rows], [row[gamma] for row in rows], [row[gamma + 1] for row in rows]


def _check_soundness(state, proposal, bad_p, bad_q, zero_q):
    """Raise if something is wrong (bool, [B, gamma + 1] and twice [B, gamma]) at a position that was reached."""
    drafted = torch.arange(bad_q.shape[1]) < proposal.lengths[:, None]
    reached = torch.cat([torch.ones(len(drafted), 1, dtype=torch.bool), drafted], dim=1) & state.active[:, None]
    bad = (bad_q & drafted, bad_p & reached, zero_q & drafted)
    _refuse_rows(state, *(of_rows.any(1).nonzero().flatten().tolist() for of_rows in bad))


def _check_row(state, drafts, q, p):
    """_check_soundness() for the only row. q, p: arrays [V] and [n + 1, V]."""
    nan_p = any(map(math.isnan, p[:, 0].tolist()))  # throughout, or nowhere
    of_drafts = [q_i.item(x) for q_i, x in zip(q, drafts, strict=True)]
    nan_q = any(map(math.isnan, of_drafts))
    if nan_q or nan_p or 0 in of_drafts:
        _refuse_rows(state, [0] * nan_q, [0] * nan_p, [0] * (0 in of_drafts))


def _refuse_rows(state, nan_q, nan_p, zero_q):
    """Raise for the first of the rows given, in which something is wrong."""
    drafter = getattr(state.drafter, "name", None)
    # The draft comes first: a target's NaN may only be the answer to a token drawn from a NaN.
    for role, name, rows in (("drafter", drafter, nan_q), ("target", state.target.name, nan_p)):
        if rows:
            raise FloatingPointError(
                f"{role} {name!r} returned NaN or infinite logits (or -inf for every token) in row {rows[0]}, "
                f"round {state.round}; the round was not committed."
            )
    if zero_q:
        raise ValueError(
            f"drafter {drafter!r} proposed a token with q(x) = 0 in row {zero_q[0]}, round {state.round}: q must be "
            "the distribution that the token was drawn from."
        )


def _cut(state, row, emitted) -> tuple[int, str | None]:
    """How many of the emitted tokens stay, and "eos" or "stop" where one of them ends the text."""
    text = _continuation_bytes(state, row) if state.stop else b""
    for i, token in enumerate(emitted):
        if token in state.eos:
            return i + 1, "eos"
        if state.stop:
            before = len(text)
            text += state.target.tokenizer.piece(token)
            if any(text.find(stop, max(0, before - len(stop) + 1)) >= 0 for stop in state.stop):
                return i + 1, "stop"
    return len(emitted), None


def _continuation_bytes(state, row) -> bytes:
    ids = state.committed[row, state.prompt_length[row] : state.length[row]].tolist()
    return b"".join(state.target.tokenizer.piece(token) for token in ids)


def _outcome(drafts, accepted, next_token, kept) -> dict:
    """The Round's account of one row, after the cut to the kept first tokens."""
    if kept <= accepted:  # the text ended inside the drafts: the next token was drawn in vain
        return dict(draft_tokens=drafts, accepted=kept, tested=kept, next_token=None, outcome="ended")
    outcome = "plain" if not drafts else "bonus" if accepted == len(drafts) else "resampled"
    tested = min(accepted + 1, len(drafts))
    return dict(draft_tokens=drafts, accepted=accepted, tested=tested, next_token=next_token, outcome=outcome)


def _append(state, done, reasons):
    committed, lengths = state.committed.numpy(), state.length.tolist()  # numpy writes a list in one go
    for row, round in enumerate(done):
        if round is not None:
            tokens = round.tokens
            committed[row, lengths[row] : lengths[row] + len(tokens)] = tokens
            lengths[row] += len(tokens)
    state.length = _of_rows(lengths)
    state.heads = state.length - 1
    state.round += 1
    state.history.append(done)
    _finish(state, reasons)


def _finish(state, reasons):
    """Note why rows ended: the first that holds of eos, stop, length, context."""
    lengths = zip(state.prompt_length.tolist(), state.length.tolist(), state.limit.tolist(), strict=True)
    for row, (prompt_length, length, limit) in enumerate(lengths):
        full = "length" if length - prompt_length >= state.max_new_tokens else "context"
        state.finish[row] = reasons[row] or (full if length >= limit else None)
    state.active = _of_rows([reason is None for reason in state.finish])


def _of_rows(values) -> torch.Tensor:
    """torch.tensor(values), by way of numpy: between two forwards that takes a third of the time."""
    return torch.from_numpy(np.array(values))


def _right_padded(prompts, width) -> torch.Tensor:
    return torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in prompts])
