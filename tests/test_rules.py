"""A rule of one's own judges what is decoded and proved, and a Round records what it decided by."""

import math
from dataclasses import replace

import pytest
import torch

from specviz import TableModel, Trace, autoregress, rounds, speculate, stream
from specviz.equivalence.exact import prove
from specviz.equivalence.samples import sample_sequences
from specviz.rules import RULES, STANDARD, Rule
from specviz.verification import verify

TARGET, DRAFTER = (TableModel.random(3, 1, seed=seed, symbols="abc") for seed in (1, 2))
SETTINGS = dict(gamma=2, max_new_tokens=12, seed=3)


def with_surprise(tokens, q, p, *others):
    """The standard rule, which also says how unlikely the target found each draft."""
    verdict = verify(tokens, q, p, *others)
    drawn_from = p[:, : tokens.shape[1]].gather(-1, tokens[..., None])[..., 0]
    return replace(verdict, judged={"surprise": -drawn_from.log()})


def test_what_else_a_rule_decided_by_is_recorded_and_written_down():
    rule = Rule("surprised", with_surprise, tested=lambda accepted, drafted: drafted)
    trace = speculate(TARGET, DRAFTER, "ab", rule=rule, record="full", **SETTINGS)
    standard = speculate(TARGET, DRAFTER, "ab", **SETTINGS)
    assert (trace.rule, standard.rule) == ("surprised", "standard") and trace.tokens == standard.tokens
    for round, plain in zip(trace.rounds, standard.rounds, strict=True):
        surprise = [-math.log(p[x]) for p, x in zip(round.p, round.draft_tokens)]
        assert round.judged == {"surprise": pytest.approx(surprise)} and plain.judged == {}
        assert round.tested == len(round.draft_tokens) >= plain.tested
    again = Trace.from_json(trace.to_json())
    assert again.rule == "surprised" and [r.judged for r in again.rounds] == [r.judged for r in trace.rounds]
    unrecorded = speculate(TARGET, DRAFTER, "ab", rule=rule, record="none", **SETTINGS)
    assert unrecorded.rule == "surprised" and unrecorded.rounds[0].judged is None


def test_every_way_of_decoding_asks_the_rule():
    def never(tokens, q, p, *others):
        return verify(tokens, q, p, *others, accept=lambda p, q: torch.zeros_like(p), resample_from=lambda p, q: p)

    rule, given = replace(STANDARD, name="never", verify=never), (TARGET, DRAFTER, "ab")
    asked = dict(gamma=2, max_new_tokens=3, rule=rule)
    for record in ("none", "top"):
        assert speculate(*given, record=record, **asked).alpha == 0
    assert all(round.accepted == 0 for round in rounds(*given, **asked))
    streamed = stream(*given, seed=1, **asked)
    assert list(streamed) == list(streamed.trace.text) and streamed.trace.rule == "never"
    texts = sample_sequences(*given, 50, seed=3, **asked).tolist()
    assert texts == [trace.tokens for trace in speculate(TARGET, DRAFTER, ["ab"] * 50, seed=3, **asked)]
    assert prove(*given, **asked).exact  # nothing is accepted and p is drawn from: plain decoding


@pytest.mark.parametrize("rule", ["nonsense", None, verify, Rule])
def test_what_is_no_rule_is_refused(rule):
    for decode in (speculate, rounds, stream, prove):
        with pytest.raises(ValueError, match=f"rule=.*: must be one of {', '.join(map(repr, RULES))}, or a Rule of"):
            decode(TARGET, DRAFTER, "ab", rule=rule, max_new_tokens=3)
    with pytest.raises(TypeError, match=r"autoregress\(\) got an unexpected keyword argument 'rule'"):
        autoregress(TARGET, "ab", rule="standard")  # there is nothing to judge


def test_rules_have_names():
    assert RULES["standard"] is STANDARD and repr(STANDARD) == "<Rule 'standard'>"
    assert speculate(TARGET, DRAFTER, "ab", rule=STANDARD, **SETTINGS).rule == "standard"


IMPOSSIBLE = [dict(accepted=9), dict(accepted=-1), dict(next_token=9), dict(next_token=-1)]


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=str)
def test_a_verdict_that_cannot_be_is_refused_before_the_round_is_committed(change):
    def verify_wrongly(*asked):
        ((name, value),) = change.items()
        verdict = verify(*asked)
        return replace(verdict, **{name: torch.full_like(getattr(verdict, name), value)})

    target, drafter = (TableModel.random(3, 1, seed=seed) for seed in (1, 2))
    wrong = Rule("wrong", verify_wrongly, STANDARD.tested)
    with pytest.raises(ValueError, match="verification accepted .* in row 0, round 0: must be 0 .. 2"):
        speculate(target, drafter, [0], gamma=2, max_new_tokens=6, seed=1, rule=wrong)
    with pytest.raises(ValueError, match="tested=None: must be a function"):
        Rule("wrong", verify, None)
