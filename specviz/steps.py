"""One round of speculative decoding: draft(), target_forward(), verify(), commit().

Algorithm 1 of Leviathan et al. (2023). The same four steps serve one row and many, a CPU and a GPU, and prove() runs
these very steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import gt

import numpy as np
import torch

from specviz.arguments import as_prompts, check_model
from specviz.arrays import as_array, as_tensor, beside, host, namespace, of_ids
from specviz.drafters.model import as_drafter
from specviz.drafters.protocol import Drafter, DraftSession, Proposal, nothing_drafted
from specviz.models.protocol import KVCache, LanguageModel
from specviz.randomness import Randomness
from specviz.recording import record_round, written
from specviz.sampling import SamplingParams
from specviz.settings import Settings, known
from specviz.text import Continuation
from specviz.timing import Stopwatch
from specviz.trace import PHASES, Round
from specviz.verification import accept_probability, residual, verify

__all__ = [
    "State", "accept_probability", "begin", "commit", "decode_round", "draft", "residual", "target_forward", "verify",
]  # fmt: skip


def __dir__():
    return __all__


@dataclass
class State:
    """A decoding under way: B rows of committed text, and the caches, which hold all of it but the last token."""

    target: LanguageModel
    drafter: Drafter | None  # None: plain decoding
    settings: Settings  # resolved for the target
    single: bool  # one prompt, given as such: results come as themselves instead of in lists
    prompts: list[list[int]]
    committed: torch.Tensor  # [B, T] int64 on the CPU, right-padded
    lengths: list[int]  # [B]: tokens of text so far, the prompt's included
    prompt_lengths: list[int]  # [B]
    limits: list[int]  # [B]: the length at which each text ends, if nothing ends it before
    finish: list[str | None]  # [B]: why each row ended; None while it is active
    cache_lengths: list[int]  # [B]: lengths - 1, where both caches stand between rounds
    active: torch.Tensor  # [B] bool on the CPU: the rows that have not ended
    stopwatch: Stopwatch
    cache: KVCache | None = None  # None where no row has anything to decode
    session: DraftSession | None = None
    round: int = 0
    history: list[list[Round | None]] = field(default_factory=list)
    prefill_seconds: float = 0.0
    texts: dict[int, Continuation] = field(default_factory=dict)  # of the rows that were asked for theirs

    @property
    def length(self) -> torch.Tensor:
        """The length of each row's text, [B] int64 on the CPU."""
        return _of_rows(self.lengths)

    @property
    def gamma(self) -> int:
        """Drafts a round; 0 in plain decoding."""
        return self.settings.gamma if self.drafter is not None else 0

    @property
    def sampling(self) -> SamplingParams:
        """How logits become p and q."""
        return self.settings.sampling

    @property
    def randomness(self) -> Randomness:
        """Who answers the draws and coins."""
        return self.settings.randomness

    @property
    def device(self) -> torch.device:
        """The target's, asked for once."""
        return self.stopwatch.device


@dataclass(frozen=True)
class Request:
    """The arguments of a decoding, checked."""

    target: LanguageModel
    drafter: Drafter | None
    prompts: list[list[int]]
    single: bool
    settings: Settings

    @property
    def texts(self) -> list[list[int]]:
        """The beginning of each row's text: the prompt, or an encoder-decoder's start tokens."""
        begin = self.target.start_tokens
        return self.prompts if begin is None else [begin] * len(self.prompts)

    @property
    def limits(self) -> list[int]:
        most, context = self.settings.max_new_tokens, self.target.context
        return [min(len(text) + most, context) for text in self.texts]


def check(target, drafter, prompt, settings: Settings) -> Request:
    """ValueError, before any forward pass, naming the argument, its value and the remedy."""
    check_model(target)
    drafter = as_drafter(drafter)
    prompts, single = as_prompts(target, prompt)
    if drafter is not None:
        drafter.check_target(target)
    return Request(target, drafter, prompts, single, settings.for_target(target))


def begin(target, drafter, prompt, **settings) -> State:
    """Check everything, feed the prompts (but their last tokens) to the target, and open a draft session.

    The arguments, and the errors, are those of speculate(); drafter=None decodes plainly.
    """
    return prefill(check(target, drafter, prompt, Settings(**known("begin", settings))))


def prefill(request: Request) -> State:
    """Feed the prompts but their last tokens to the target, open a draft session: the State before round 0."""
    target, drafter, texts, limits = request.target, request.drafter, request.texts, request.limits
    request.settings.randomness.begin(len(texts))
    lengths = [len(text) for text in texts]
    state = State(
        target, drafter, request.settings, request.single, request.prompts, _right_padded(texts, max(limits)),
        lengths=lengths, prompt_lengths=list(lengths), limits=limits, finish=[None] * len(texts),
        cache_lengths=[length - 1 for length in lengths], active=torch.ones(len(texts), dtype=torch.bool),
        stopwatch=Stopwatch(target.device),
    )  # fmt: skip
    state.finish = _finish(state, lengths, state.finish)
    state.active = _of_rows([reason is None for reason in state.finish])
    if state.active.any():
        capacity = max(limits) + min(state.gamma, max(limits)) + 1
        needs = getattr(drafter, "needs", frozenset()) | request.settings.rule.needs
        state.cache = target.new_cache(request.prompts, capacity, needs=needs)
        if drafter is not None:
            state.session = drafter.new_session(target, request.prompts, capacity, state.settings.eos, state.cache)
        if max(lengths) > 1:
            state.cache.prefill(state.committed[:, : max(lengths) - 1], _of_rows(state.cache_lengths))
        state.stopwatch.mark("prefill")
        state.prefill_seconds = state.stopwatch.seconds()["prefill"]
    return state


def decode_round(state) -> list[Round | None]:
    """One round: the four steps, in order. Returns commit()'s Rounds."""
    proposal = draft(state)
    p = target_forward(state, proposal)
    verdict = state.settings.rule.verify(
        proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active
    )
    return commit(state, proposal, p, verdict)


def draft(state) -> Proposal:
    """Let the drafter propose up to gamma tokens a row, no more than can still be used."""
    state.stopwatch.restart()
    state.randomness.begin_round(state.round, state.lengths)
    rows = zip(state.limits, state.lengths, state.finish, strict=True)
    # The next token comes behind the drafts: of a text that has room for n more tokens, n - 1 can be drafts.
    gamma = [max(0, min(state.gamma, limit - length - 1)) if ended is None else 0 for limit, length, ended in rows]
    if state.session is None:
        proposal = nothing_drafted(len(state.lengths), state.target.vocab_size, state.device)
    else:
        # This does nothing, unless the round was begun before or a commit was interrupted.
        state.session.rewind(state.cache_lengths)
        proposal = state.session.propose(
            state.committed, state.lengths, gamma, state.sampling, state.randomness
        )
        _check_proposal(state, proposal, gamma)
    state.stopwatch.mark("draft")
    proposal.gamma, proposal.round = gamma, state.round
    return proposal


def target_forward(state, proposal) -> torch.Tensor:
    """One causal forward over the last committed token and the drafts -> p [B, gamma+1, V], processed.

    p[:, i] is the target's distribution after the committed text and the first i drafts.
    """
    _check_round(state, proposal)
    state.cache.rewind(state.cache_lengths)  # as in draft()
    if proposal.tokens.device != state.device:
        proposal.tokens, proposal.q = proposal.tokens.to(state.device), proposal.q.to(state.device)
    committed, drafts = state.committed.numpy(), as_array(proposal.tokens)
    last = np.array([[committed.item(row, end - 1)] for row, end in enumerate(state.lengths)])  # [B, 1]
    tokens = namespace(drafts).concatenate((beside(last, drafts), drafts), 1)  # [B, gamma+1]
    logits = state.cache.feed(as_tensor(tokens))  # commit() takes padding and rejected drafts back
    p = state.sampling.probabilities(logits, _texts_before(state, proposal))
    state.stopwatch.mark("target")
    proposal.forwarded = True
    return p


def commit(state, proposal, p, verdict) -> list[Round | None]:
    """Append the accepted drafts and the next token, end rows, rewind both caches to one token before the end.

    Returns a Round for each row, None for those that had ended before. Raises FloatingPointError for NaN or
    infinite logits and ValueError for a draft with q(x) = 0; then the round is not committed.
    """
    _check_round(state, proposal)
    if not proposal.forwarded:
        raise ValueError("commit: the target has not read this proposal; call target_forward(state, proposal) before.")
    state.stopwatch.mark("verify")
    drafts, accepted, next_token = _sound_numbers(state, proposal, p, verdict)
    recorded = record_round(state.settings.record, proposal, p, verdict, state.active)
    reasons, done = list(state.finish), []
    for row, n in enumerate(proposal.lengths.tolist()):
        if state.finish[row] is not None:
            done.append(None)
            continue
        if not 0 <= accepted[row] <= n or not 0 <= next_token[row] < state.target.vocab_size:
            raise ValueError(
                f"verification accepted {accepted[row]} of {n} drafts and drew token {next_token[row]} in row {row}, "
                f"round {state.round}: must be 0 .. {n}, and an id of the target's; the round was not committed."
            )
        kept, reasons[row] = _cut(state, row, [*drafts[row][: accepted[row]], next_token[row]])
        done.append(
            Round(
                **_outcome(state, drafts[row][:n], accepted[row], next_token[row], kept),
                gamma_asked=state.gamma,
                gamma_used=proposal.gamma[row],
                draft_forwards=min(proposal.forwards, n),
                seconds=dict.fromkeys(PHASES, 0.0),
                **recorded[row],
            )
        )
    _publish(state, done, reasons)
    state.cache.rewind(state.cache_lengths)
    if state.session is not None:
        state.session.rewind(state.cache_lengths)
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


# --- details of draft() and target_forward() ----------------------------------------------------


_FIELDS = (  # of a Proposal: name, axes, dtypes; a wrong one would end in an error that names no drafter
    ("tokens", ("B", "gamma"), (torch.int64,)),
    ("q", ("B", "gamma", "V"), (torch.float32, torch.float64, torch.float16, torch.bfloat16)),
    ("lengths", ("B",), (torch.int64,)),
    ("u", ("B", "gamma"), (torch.float64,)),
)


def _check_proposal(state, proposal, asked):
    """ValueError for a proposal of other types or shapes than drafters/protocol.py says, of more tokens than were
    asked for, or with a q that is not over the target's ids.
    """
    name, vocab_size = state.drafter.name, state.target.vocab_size
    if not isinstance(proposal, Proposal):
        raise ValueError(f"drafter {name!r} proposed a {type(proposal).__name__}: must be a specviz.drafters.Proposal.")
    for attribute, axes, dtypes in _FIELDS:
        value, rows = getattr(proposal, attribute), len(asked)
        is_tensor = isinstance(value, torch.Tensor)
        if not is_tensor or value.dtype not in dtypes or value.ndim != len(axes) or value.shape[0] != rows:
            found = f"{value.dtype} {list(value.shape)}" if is_tensor else f"a {type(value).__name__}"
            raise ValueError(
                f"drafter {name!r} proposed {attribute} as {found}: must be a tensor, {dtypes[0]} [{', '.join(axes)}], "
                f"of B = {rows} row(s)."
            )
    x, drafted = proposal.tokens, proposal.lengths.tolist()
    if any(map(gt, drafted, asked)):
        raise ValueError(
            f"drafter {name!r} proposed {drafted} tokens (row by row), more than the {asked} that were asked for."
        )
    # On a GPU ids are not looked at: it would have to be waited for, and an index out of range ends the program there.
    ids = list(chain.from_iterable(x.tolist())) if x.is_cpu else []
    outside = ids and not 0 <= min(ids) <= max(ids) < vocab_size
    if outside or proposal.q.shape != (*x.shape, vocab_size):
        raise ValueError(
            f"drafter {name!r} proposed {x.tolist()} with a q of shape {list(proposal.q.shape)}: must be ids of the "
            f"target, 0 .. {vocab_size - 1}, with a q over all of them."
        )


def _texts_before(state, proposal):
    """For logits processors: the ids before each of the gamma + 1 positions of each row, None for padding."""
    if not state.sampling.processors:
        return None
    texts = []
    for row, drafts in enumerate(proposal.tokens.tolist()):
        text = state.committed[row, : state.lengths[row]].tolist()
        drafted = int(proposal.lengths[row]) if state.finish[row] is None else -1
        texts += [text + drafts[:i] if i <= drafted else None for i in range(len(drafts) + 1)]
    return texts


# --- details of commit() ------------------------------------------------------------------------


def _sound_numbers(state, proposal, p, verdict):
    """The round's one transfer: drafts, accepted and next_token as lists, once p and q are known to be sound."""
    x, q, p = as_array(proposal.tokens), as_array(proposal.q), as_array(p)
    nan_p = namespace(p).isnan(p[..., 0])  # throughout, or nowhere
    nan_q = namespace(q).isnan(q.sum(-1))
    zero_q = of_ids(q, x) <= 0
    x, accepted, next_token, *bad = host(
        x, as_array(verdict.accepted), as_array(verdict.next_token), nan_p, nan_q, zero_q
    )
    if any(map(np.count_nonzero, bad)):
        _check_soundness(state, proposal.lengths.numpy()[:, None], *bad)
    return x.tolist(), accepted.tolist(), next_token.tolist()


def _check_soundness(state, lengths, nan_p, nan_q, zero_q):
    """Raise if something is wrong (bool, [B, gamma + 1] and twice [B, gamma]) at a position that was reached."""
    position = np.arange(nan_p.shape[1])
    drafted = position[:-1] < lengths
    reached = (position <= lengths) & state.active.numpy()[:, None]
    # The draft comes first: a target's NaN may only be the answer to a token drawn from a NaN.
    if (bad := nan_q & drafted).any():
        _refuse_nan(state, bad.any(1).argmax(), "drafter", state.drafter.name)
    if (bad := nan_p & reached).any():
        _refuse_nan(state, bad.any(1).argmax(), "target", state.target.name)
    if (bad := zero_q & drafted).any():
        raise ValueError(
            f"drafter {state.drafter.name!r} proposed a token with q(x) = 0 in row {bad.any(1).argmax()}, round "
            f"{state.round}: q must be the distribution that the token was drawn from."
        )


def _refuse_nan(state, row, role, name):
    raise FloatingPointError(
        f"{role} {name!r} returned NaN or infinite logits (or -inf for every token) in row {row}, round "
        f"{state.round}; the round was not committed."
    )


def _cut(state, row, emitted) -> tuple[int, str | None]:
    """How many of the emitted tokens stay, and "eos" or "stop" where one of them ends the text."""
    end = next((i for i, token in enumerate(emitted) if token in state.settings.eos), None)
    stops = state.settings.stop
    if stops and (kept := written(state, row).until_stop(emitted[:end], stops)):
        return kept, "stop"
    return (len(emitted), None) if end is None else (end + 1, "eos")


def _outcome(state, drafts, accepted, next_token, kept) -> dict:
    """The Round's account of one row, after the cut to the kept first tokens."""
    if kept <= accepted:  # the text ended inside the drafts: the next token was drawn in vain
        return dict(draft_tokens=drafts, accepted=kept, tested=kept, next_token=None, outcome="ended")
    outcome = "plain" if not drafts else "bonus" if accepted == len(drafts) else "resampled"
    tested = state.settings.rule.tested(accepted, len(drafts))
    return dict(draft_tokens=drafts, accepted=accepted, tested=tested, next_token=next_token, outcome=outcome)


def _publish(state, done, reasons):
    """Append the tokens of the rounds. An interruption finds the whole round in the state, or nothing of it."""
    committed = state.committed.numpy()  # numpy writes a list at once; beyond a length there is no text yet
    lengths = list(state.lengths)
    for row, round in enumerate(done):
        if round is not None:
            lengths[row] += len(round.tokens)
            committed[row, state.lengths[row] : lengths[row]] = round.tokens
    finish = _finish(state, lengths, reasons)
    active = state.active if finish == state.finish else _of_rows([reason is None for reason in finish])
    new = lengths, [length - 1 for length in lengths], finish, active, state.round + 1, [*state.history, done]
    state.lengths, state.cache_lengths, state.finish, state.active, state.round, state.history = new


def _finish(state, lengths, reasons) -> list[str | None]:
    """Why rows of these lengths end: the first that holds of eos, stop, length, context; None for those that do not."""
    finish = []
    for reason, begun, length, limit in zip(reasons, state.prompt_lengths, lengths, state.limits, strict=True):
        full = "length" if length - begun >= state.settings.max_new_tokens else "context"
        finish.append(reason or (full if length >= limit else None))
    return finish


def _of_rows(values) -> torch.Tensor:
    """torch.tensor(values), by way of numpy: between two forwards that takes a third of the time."""
    return torch.from_numpy(np.array(values))


def _right_padded(prompts, width) -> torch.Tensor:
    return torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in prompts])
