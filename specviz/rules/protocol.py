"""A rule of acceptance: what it must bring, and the paper's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specviz.verification import Verdict, verify


@dataclass(frozen=True)
class Rule:
    """A way to verify drafts, and the facts that a Round needs about it.

    verify  a function like specviz.verification.verify() -> Verdict, whose `judged` holds further numbers for a replay
    tested  (accepted, drafted) -> how many of a row's drafts were judged: the denominator of alpha
    needs   abilities of the target's backend
    """

    name: str
    verify: Callable[..., Verdict]
    tested: Callable[[int, int], int]
    needs: frozenset[str] = frozenset()

    def __post_init__(self):
        for name in ("verify", "tested"):
            if not callable(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a function; see specviz.rules.STANDARD.")

    def __repr__(self):
        return f"<Rule {self.name!r}>"


def up_to_the_first_rejection(accepted: int, drafted: int) -> int:
    return min(accepted + 1, drafted)


STANDARD = Rule("standard", verify, up_to_the_first_rejection)
