"""The settings of a decoding: one object, checked once, for decoding, proof, audit and profile."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from specviz.arguments import as_eos, as_stops, integer
from specviz.randomness import Randomness, Seeded
from specviz.rules import RULES, Rule, as_rule
from specviz.sampling import SamplingParams, as_sampling

RECORDS = ("top", "full", "none")


@dataclass(frozen=True)
class Settings:
    """How to decode: the arguments that speculate() describes, with their defaults.

    Raises ValueError naming the argument, its value and the remedy.
    """

    gamma: int = 4
    max_new_tokens: int = 64
    sampling: SamplingParams | None = None
    seed: int | None = None
    randomness: Randomness | None = None
    eos: int | Iterable[int] | None = None
    stop: str | Sequence[str] | None = None
    record: Literal["top", "full", "none"] = "top"
    rule: str | Rule = "standard"
    decode_round: Callable | None = None

    def __post_init__(self):
        set_ = object.__setattr__  # frozen, but still under construction
        set_(self, "gamma", integer(self.gamma, "gamma", 1, " (autoregress decodes without drafts)"))
        set_(self, "max_new_tokens", integer(self.max_new_tokens, "max_new_tokens", 0))
        set_(self, "sampling", as_sampling(self.sampling))
        set_(self, "rule", as_rule(self.rule))
        if self.seed is not None and self.randomness is not None:
            raise ValueError(f"seed={self.seed!r} and randomness={self.randomness!r}: give one of the two.")
        if self.seed is not None:
            set_(self, "seed", Seeded(self.seed).seed)
        methods = ("begin", "begin_round", "draw", "flip")
        lacking = isinstance(self.randomness, type) or not all(hasattr(self.randomness, name) for name in methods)
        if self.randomness is not None and lacking:
            raise ValueError(
                f"randomness={self.randomness!r}: must be Seeded(…), Scripted(…), or a branch of Exhaustive (for "
                "branch in Exhaustive(): … randomness=branch)."
            )
        if self.record not in RECORDS:
            raise ValueError(f"record={self.record!r}: must be 'top', 'full' or 'none'.")
        if self.decode_round is not None and not callable(self.decode_round):
            raise ValueError(
                f"decode_round={self.decode_round!r}: must be a function of a State, such as decode_round itself."
            )

    @property
    def custom(self) -> list[str]:
        """The names of the settings that are functions of the caller, which a trace cannot hold."""
        rule = [] if self.rule is RULES.get(self.rule.name) else ["rule"]
        return rule + ([] if self.decode_round is None else ["decode_round"])

    def for_target(self, target) -> Settings:
        """These settings for one target: eos as a frozenset, stop as a list, and a randomness with a seed."""
        eos = frozenset(target.eos) if self.eos is None else as_eos(self.eos, target)
        randomness = self.randomness
        if randomness is None:  # 53 bits survive a JSON reader that knows only doubles
            randomness = Seeded(secrets.randbits(53) if self.seed is None else self.seed)
        return replace(self, eos=eos, stop=as_stops(self.stop, target), randomness=randomness, seed=None)


NAMES = tuple(field.name for field in fields(Settings))
_BELONG_TO_SAMPLING = ("temperature", "top_k", "top_p", "processors")


def known(function: str, given: dict) -> dict:
    """given, unless it holds a name that is no setting: then TypeError in the name of the function that was called."""
    for name in given:
        if name not in NAMES:
            hint = f"; give sampling=SamplingParams({name}=…)" if name in _BELONG_TO_SAMPLING else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}.")
    return given

