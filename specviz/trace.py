"""A Round for each draft-verify-accept-resample cycle, and the Trace of a whole text."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import asdict, dataclass, field

VERSION = 2
PHASES = ("draft", "target", "verify", "commit")


@dataclass(repr=False)
class TopProbs:
    """A distribution over the vocabulary, abridged: the probabilities of some ids, and of all others together."""

    ids: list[int]
    probs: list[float]  # of these ids
    rest: float  # the sum over all other ids

    def __repr__(self):
        largest = sorted(zip(self.probs, self.ids, strict=True), reverse=True)[:3]
        shown = ", ".join(f"{token}: {prob:.3f}" for prob, token in largest)
        return f"<TopProbs of {len(self.ids)} ids: {shown}, …; rest {self.rest:.3f}>"

    def __getitem__(self, token: int) -> float:
        """The probability of a token that was kept. Raises KeyError for the others."""
        try:
            return self.probs[self.ids.index(token)]
        except ValueError:
            raise KeyError(f"id {token} was not kept (only {self.ids}); decode with record='full'.") from None


@dataclass(repr=False)
class Round:
    """One row's round. L is its draft length; fields that record="none" leaves out are None.

    outcome: "resampled" (a draft was rejected), "bonus" (all were accepted), "plain" (nothing was drafted), or
    "ended" (an accepted draft ended the text, so no next token followed).
    """

    draft_tokens: list[int]  # [L]
    accepted: int  # drafts committed
    tested: int  # drafts whose coin was compared: up to and including the first rejection
    next_token: int | None  # None if the text ended inside the drafts
    outcome: str
    gamma_asked: int
    gamma_used: int  # after the clamp to the rest of max_new_tokens and of the context
    seconds: dict[str, float]  # draft, target, verify, commit; of the whole batch
    draft_forwards: int = 0  # that this row needed
    q: list[TopProbs] | None = None  # [L]
    p: list[TopProbs] | None = None  # [L+1]
    residual: list[TopProbs] | None = None  # [L]
    u_draft: list[float] | None = None  # [L], NaN where nothing was drawn
    coins: list[float] | None = None  # [L]
    u_next: float | None = None
    accept_probability: list[float] | None = None  # [L]: min(1, p/q) of each draft
    overlap: list[float] | None = None  # [L]: sum of min(p, q), the acceptance probability before drafting
    next_if_rejected: list[int] | None = None  # [L]: the token that u_next draws from each residual
    next_if_all_accepted: int | None = None
    judged: dict[str, list[float]] | None = None  # [L] each: further numbers of other rules

    def __repr__(self):
        return f"<Round: drafts {self.draft_tokens}, {self.accepted} accepted, {self.outcome}, next {self.next_token}>"

    @property
    def tokens(self) -> list[int]:
        """The tokens that this round added to the text: 1 to gamma + 1."""
        return self.draft_tokens[: self.accepted] + ([] if self.next_token is None else [self.next_token])

    @property
    def ids(self) -> set[int]:
        """All ids of the round: drafts, the tokens that followed or would have, those with a recorded probability."""
        recorded = [] if self.p is None else [*self.p, *self.q, *self.residual]
        following = [self.next_token, *(self.next_if_rejected or []), self.next_if_all_accepted]
        return {*self.draft_tokens, *following}.union(*(top.ids for top in recorded)) - {None}


@dataclass(repr=False)
class Trace:
    """A decoded continuation, round by round. Rates follow section 3 of the paper."""

    prompt_tokens: list[int]
    tokens: list[int]  # the continuation, with the EOS or the token that completed a stop string
    finish_reason: str  # eos, stop, length, context or interrupted
    rounds: list[Round]
    target: str
    drafter: str | None  # None for plain decoding
    gamma: int
    max_new_tokens: int
    sampling: dict
    eos: list[int]
    seed: int | None  # None when another randomness decided
    row: int  # the row number that the seed was hashed with
    device: str
    dtype: str
    prefill_seconds: float
    stop: list[str]
    record: str
    backend: str | None  # how the target's forwards were computed, where it says so
    rule: str = "standard"  # of acceptance: the paper's
    custom: list[str] = field(default_factory=list)  # settings that are the caller's functions
    # Of a model without tokenizer there is no text: these are None, and pieces is empty.
    prompt: str | None = None  # with text: all ids decoded at once (a split character is the text's)
    text: str | None = None  # ends before EOS and before the stop string
    parts: list[str] | None = None  # the text that each token adds, "" behind the end; None for record="none"
    pieces: dict[int, bytes] = field(default_factory=dict)  # the bytes of every id that occurs
    version: int = VERSION

    def __repr__(self):
        says = self.tokens if self.text is None else self.text
        return f"<Trace: {len(self.tokens)} tokens in {len(self.rounds)} rounds, {self.finish_reason}: {says!r:.80}>"

    @property
    def alpha(self) -> float | None:
        """Measured acceptance rate: accepted / tested drafts; None if nothing was tested."""
        return _ratio(sum(r.accepted for r in self.rounds), sum(r.tested for r in self.rounds))

    @property
    def alpha_overlap(self) -> float | None:
        """Mean overlap sum min(p, q) at the tested positions (Corollary 3.6): steadier than alpha."""
        if any(r.overlap is None for r in self.rounds):
            return None
        overlaps = [beta for r in self.rounds for beta in r.overlap[: r.tested]]
        return _ratio(sum(overlaps), len(overlaps))

    @property
    def alpha_by_position(self) -> list[tuple[float, int]]:
        """For draft position 1, 2, …: (accepted / tested, tested)."""
        longest = max((r.tested for r in self.rounds), default=0)
        tested = [sum(r.tested > i for r in self.rounds) for i in range(longest)]
        accepted = [sum(r.accepted > i for r in self.rounds) for i in range(longest)]
        return [(a / n, n) for a, n in zip(accepted, tested, strict=True)]

    @property
    def wasted_drafts(self) -> int:
        """Drafted tokens that did not enter the text."""
        return sum(len(r.draft_tokens) - r.accepted for r in self.rounds)

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens for each pass of the target after the prompt; None without a round."""
        return _ratio(len(self.tokens), len(self.rounds))

    @property
    def forwards(self) -> dict[str, int]:
        """Forward passes of each model in the rounds, without the target's pass over the prompt."""
        return {"target": len(self.rounds), "draft": sum(r.draft_forwards for r in self.rounds)}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase: prefill (the target's pass over the prompt), draft, target, verify, commit."""
        phases = {phase: sum(r.seconds[phase] for r in self.rounds) for phase in PHASES}
        return {"prefill": self.prefill_seconds, **phases}

    @property
    def settings(self) -> dict:
        """The settings of speculate() (without gamma: of autoregress()) that gave this trace, all but its randomness.

        speculate(target, drafter, trace.prompt_tokens, randomness=Scripted.from_trace(trace), **trace.settings)
        decodes it again; where decoding was interrupted, it goes on. Raises ValueError for a trace made with functions
        of the caller (logits processors, a rule, decode_round): only their names are recorded.
        """
        from specviz.sampling import SamplingParams  # it needs torch, which a trace does not

        if names := self.sampling.get("processors"):
            raise ValueError(f"the trace was made with processors {names}: give settings with these of your own.")
        if self.custom:
            raise ValueError(f"the trace was made with the caller's own {' and '.join(self.custom)}: give it again.")
        settings = dict(
            max_new_tokens=self.max_new_tokens, sampling=SamplingParams(**self.sampling), eos=self.eos, stop=self.stop,
            record=self.record,
        )  # fmt: skip
        return settings if self.drafter is None else settings | dict(gamma=self.gamma, rule=self.rule)

    def to_json(self) -> str:
        """The whole trace as JSON; a uniform that was not drawn is null."""
        data = asdict(self)
        data["pieces"] = {str(i): base64.b64encode(piece).decode() for i, piece in self.pieces.items()}
        return json.dumps(_nan_to_none(data), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """The inverse of to_json. Raises ValueError for other JSON and for another version."""
        try:
            data = json.loads(text)
        except (TypeError, ValueError) as error:
            raise ValueError(f"this is not the JSON of a trace: {error}.") from error
        version = data.get("version") if isinstance(data, dict) else None
        if type(version) is not int or version != VERSION:
            raise ValueError(f"trace version {version!r}: this specviz reads version {VERSION}; decode anew.")
        try:
            data["rounds"] = [_round(fields) for fields in data["rounds"]]
            data["pieces"] = {int(i): base64.b64decode(piece) for i, piece in data["pieces"].items()}
            return cls(**data)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"this is not the JSON of a complete trace: {error!r}.") from error


def _round(fields: dict) -> Round:
    for name in ("q", "p", "residual"):
        if fields[name] is not None:
            fields[name] = [TopProbs(**top) for top in fields[name]]
    if fields["coins"] is not None:
        for name in ("u_draft", "coins"):
            fields[name] = [math.nan if u is None else u for u in fields[name]]
        fields["u_next"] = math.nan if fields["u_next"] is None else fields["u_next"]
    return Round(**fields)


def _nan_to_none(value):
    if isinstance(value, dict):
        return {key: _nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nan_to_none(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _ratio(part, whole) -> float | None:
    return part / whole if whole else None
