"""Rules of acceptance: the paper's, and the place for those that came after it."""

from __future__ import annotations

from specviz.rules.protocol import STANDARD, Rule

__all__ = ["RULES", "STANDARD", "Rule"]


def __dir__():
    return __all__


RULES = {rule.name: rule for rule in (STANDARD,)}


def as_rule(rule) -> Rule:
    """A Rule, or one by name. ValueError for anything else."""
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(f"rule={rule!r}: must be one of {', '.join(map(repr, RULES))}, or a Rule of your own.")
    return RULES[rule]
