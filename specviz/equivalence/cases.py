"""The pairs of tables on which decoders are tried: small enough for every branch to be visited."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.equivalence.exact import target_law
from specviz.models.table import TableModel
from specviz.sampling import SamplingParams


@dataclass(frozen=True)
class Case:
    """A pair of tables, a prompt and the settings of speculate()."""

    name: str
    target: TableModel
    drafter: TableModel
    prompt: tuple[int, ...]
    settings: dict

    def target_law(self):
        asked = {k: v for k, v in self.settings.items() if k in ("max_new_tokens", "sampling", "eos")}
        return target_law(self.target, list(self.prompt), **asked)


def _opposites() -> tuple[TableModel, TableModel]:
    """A narrow vocabulary, and a draft that prefers exactly the tokens that the target avoids."""
    target = TableModel.random(16, 0, seed=5, name="16 symbols")
    return target, TableModel(-target.logits, name="its opposite")


def _pair(size, order, likeness=0.0) -> tuple[TableModel, TableModel]:
    """Two random tables; with a likeness up to 1 the draft's logits lean towards the target's."""
    target = TableModel.random(size, order, seed=11, name="target")
    other = TableModel.random(size, order, seed=12)
    return target, TableModel(likeness * target.logits + (1 - likeness) * other.logits, name="draft")


_NEVER_0 = TableModel.from_probabilities([0.0, 0.6, 0.4], name="never says 0")
_LOVES_0 = TableModel.from_probabilities([0.8, 0.1, 0.1], name="loves 0")
_COOL = SamplingParams(temperature=0.7, top_k=3)
CASES = {
    case.name: case
    for case in (
        Case("adversarial", *_opposites(), (0,), dict(gamma=1, max_new_tokens=2)),
        Case("context", *_pair(3, 2), (0, 1), dict(gamma=2, max_new_tokens=4)),
        Case("top-k", *_pair(5, 1, 0.6), (0,), dict(gamma=2, max_new_tokens=3, sampling=_COOL)),
        Case("eos", *_pair(3, 1), (0,), dict(gamma=2, max_new_tokens=4, eos=[1])),
        Case("long", *_pair(2, 3, 0.8), (0, 1), dict(gamma=2, max_new_tokens=7)),
        Case("zeros", _NEVER_0, _LOVES_0, (1,), dict(gamma=2, max_new_tokens=3)),
    )
}
