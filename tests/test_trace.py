"""Trace and Round: what is kept, what is measured, and the way to JSON and back."""

import json
import math

import numpy as np
import pytest
import torch
from tiny import hub_model, language_model

from specviz import CausalLM, Exhaustive, SamplingParams, Scripted, Seeded, TableModel, Trace, autoregress, speculate
from specviz.rules import STANDARD, Rule
from specviz.steps import decode_round, verify


def traces():
    target, drafter = TableModel.random(30, 1, seed=1), TableModel.random(30, 1, seed=2)
    for record in ("top", "full", "none"):
        for sampling in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(0.7, 5, 0.9)):
            yield speculate(
                target, drafter, [1, 2], gamma=3, max_new_tokens=25, sampling=sampling, seed=3, record=record
            )
    yield autoregress(target, [1, 2], max_new_tokens=10, seed=3)
    yield speculate(target, drafter, [1], gamma=3, max_new_tokens=0, seed=3)


@pytest.mark.parametrize("trace", list(traces()), ids=lambda t: f"{t.sampling}"[:60])
def test_json_round_trip_is_the_identity(trace):
    text = trace.to_json()
    assert Trace.from_json(text).to_json() == text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_pieces_survive_as_bytes():
    target = TableModel.random(4, 1, seed=1, symbols="ab☃<")
    trace = speculate(target, target, "a", max_new_tokens=20, seed=0)
    back = Trace.from_json(trace.to_json())
    assert back.pieces == trace.pieces and "☃".encode() in back.pieces.values()
    assert b"".join(back.pieces[i] for i in back.tokens).decode() == back.text == trace.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 1.0}', "trace version 1.0"),
        ('{"version": true}', "trace version True"),
        (None, "not the JSON of a trace"),
        ('{"version": 0}', "trace version 0: this specviz reads version 2"),
        ("{}", "trace version None"),
        ("[1, 2]", "trace version None"),
        ("not json", "not the JSON of a trace"),
        ('{"version": 1, "rounds": []}', "trace version 1: this specviz reads version 2; decode anew"),
        ('{"version": 2, "rounds": []}', "not the JSON of a complete trace"),
        ('{"version": 2, "rounds": [{}], "pieces": {}}', "not the JSON of a complete trace"),
    ],
)
def test_other_json_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Trace.from_json(text)


def test_measured_rates_by_hand():
    target, drafter = TableModel.random(30, 1, seed=1), TableModel.random(30, 1, seed=2)
    trace = speculate(target, drafter, [1, 2], gamma=3, max_new_tokens=60, seed=0)
    accepted = sum(r.accepted for r in trace.rounds)
    tested = sum(min(r.accepted + 1, len(r.draft_tokens)) for r in trace.rounds)
    assert trace.alpha == accepted / tested
    assert trace.wasted_drafts == sum(len(r.draft_tokens) for r in trace.rounds) - accepted
    assert trace.tokens_per_round == len(trace.tokens) / len(trace.rounds)
    reached_second = [r for r in trace.rounds if len(r.draft_tokens) > 1 and r.accepted >= 1]
    rate, count = trace.alpha_by_position[1]
    assert count == len(reached_second) and rate == sum(r.accepted > 1 for r in reached_second) / count
    assert trace.forwards["target"] == len(trace.rounds)
    assert trace.forwards["draft"] == sum(len(r.draft_tokens) for r in trace.rounds)
    assert set(trace.seconds) == {"prefill", "draft", "target", "verify", "commit"}
    assert all(seconds >= 0 for seconds in trace.seconds.values())


def test_alpha_and_alpha_overlap_estimate_the_same_rate():
    """Over 3,000 rounds: the difference has a standard error of about 0.007, so 0.03 is beyond four of them."""
    target, drafter = TableModel.random(30, 1, seed=1), TableModel.random(30, 1, seed=2)
    many = speculate(target, drafter, [[i % 30] for i in range(60)], gamma=3, max_new_tokens=100, seed=0)
    accepted = sum(r.accepted for t in many for r in t.rounds)
    tested = sum(r.tested for t in many for r in t.rounds)
    overlaps = [beta for t in many for r in t.rounds for beta in r.overlap[: r.tested]]
    assert abs(accepted / tested - sum(overlaps) / len(overlaps)) < 0.03


def test_probabilities_keep_the_top_and_all_ids_that_matter():
    target, drafter = TableModel.random(30, 1, seed=1), TableModel.random(30, 1, seed=2)
    for round in speculate(target, drafter, [1], gamma=3, max_new_tokens=40, seed=0).rounds:
        assert len(round.p) == len(round.draft_tokens) + 1
        for top in [*round.p, *round.q, *round.residual]:
            assert sum(top.probs) + top.rest == pytest.approx(1, abs=1e-12)
            assert {*round.draft_tokens, *round.tokens} <= set(top.ids) and len(top.ids) >= 8
        for i, (p, q) in enumerate(zip(round.p, round.q, strict=False)):
            token = round.draft_tokens[i]
            assert p.ids == q.ids
            assert round.accept_probability[i] == pytest.approx(min(1, p[token] / q[token]), abs=1e-12)
            with pytest.raises(KeyError, match="was not kept"):
                p[999]


def test_full_keeps_everything_and_none_keeps_nothing():
    target, drafter = TableModel.random(30, 1, seed=1), TableModel.random(30, 1, seed=2)
    settings = dict(gamma=3, max_new_tokens=20, seed=0)
    full = speculate(target, drafter, [1], record="full", **settings)
    assert all(len(m.ids) == 30 and m.rest == 0 for r in full.rounds for m in [*r.p, *r.q, *r.residual])
    none = speculate(target, drafter, [1], record="none", **settings)
    assert none.tokens == full.tokens and none.alpha == full.alpha
    assert none.alpha_overlap is None and none.rounds[0].p is None and none.rounds[0].coins is None
    with pytest.raises(ValueError, match="record='none'"):
        Scripted.from_trace(none)


def test_uniforms_that_nobody_drew_are_null():
    target = TableModel.random(3, 1, seed=1)
    for branch in Exhaustive():
        trace = speculate(target, target, [0], gamma=2, max_new_tokens=3, randomness=branch)
        break
    round = trace.rounds[0]
    assert trace.seed is None and math.isnan(round.u_next) and round.next_if_rejected is None
    assert json.loads(trace.to_json())["rounds"][0]["u_next"] is None
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()


def test_they_show_themselves_in_a_line():
    target, drafter = TableModel.random(30, 1, seed=1), TableModel.random(30, 1, seed=2)
    trace = speculate(target, drafter, [1], max_new_tokens=60, seed=0)
    for thing in (trace, trace.rounds[0], trace.rounds[0].p[0], target):
        assert len(repr(thing)) < 200 and type(thing).__name__ in repr(thing)


def test_names_device_and_dtype_are_recorded():
    target, drafter = (language_model("llama", s, vocab_size=12) for s in (1, 2))
    trace = speculate(target, drafter, [[1], [2]], max_new_tokens=4, seed=7)[1]
    assert (trace.target, trace.drafter, trace.device, trace.dtype) == ("llama-1", "llama-2", "cpu", "float64")
    assert (trace.seed, trace.row, trace.gamma, trace.max_new_tokens) == (7, 1, 4, 4)


# --- what a replay needs ------------------------------------------------------------------------


def replayed(trace, target, drafter):
    """The same text once more, from what the trace's JSON records alone."""
    trace = Trace.from_json(trace.to_json())
    randomness = Scripted.from_trace(trace)
    if drafter is None:
        return autoregress(target, trace.prompt_tokens, randomness=randomness, **trace.settings)
    return speculate(target, drafter, trace.prompt_tokens, randomness=randomness, **trace.settings)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        dict(max_new_tokens=40, stop=["ca", "bbd"]),
        dict(max_new_tokens=40, eos=[3]),
        dict(max_new_tokens=9, sampling=SamplingParams(0.7, 3, 0.9), record="full"),
        dict(max_new_tokens=99, eos=[]),
    ],
    ids=["stop", "eos", "length", "context"],
)
def test_a_trace_alone_is_enough_to_decode_it_again(settings, plain, seed):
    target, drafter = (TableModel.random(4, 2, seed=s, symbols="abcd", eos=3) for s in (1, 2))
    settings = dict(eos=[]) | settings
    if plain:
        trace, drafter = autoregress(target, "ab", seed=seed, **settings), None
    else:
        trace = speculate(target, drafter, "ab", gamma=3, seed=seed, **settings)
    again = replayed(trace, target, drafter)
    for name in ("tokens", "text", "parts", "finish_reason", "gamma", "sampling", "eos", "stop", "record", "rule"):
        assert getattr(again, name) == getattr(trace, name), name
    assert [r.draft_tokens for r in again.rounds] == [r.draft_tokens for r in trace.rounds]


def test_what_ended_the_text_is_recorded():
    target, drafter = (TableModel.random(4, 2, seed=s, symbols="abcd") for s in (1, 2))
    trace = speculate(target, drafter, "ab", max_new_tokens=40, stop="ca", seed=0)
    assert trace.finish_reason == "stop" and trace.stop == ["ca"] and "ca" not in trace.text
    assert "".join(trace.parts) == trace.text and len(trace.parts) == len(trace.tokens) > len(trace.text)
    assert (trace.record, trace.rule, trace.backend, trace.version) == ("top", "standard", "table", 2)
    bare = speculate(target, drafter, "ab", max_new_tokens=40, stop="ca", seed=0, record="none")
    assert bare.text == trace.text and bare.parts is None and bare.record == "none"
    mute = speculate(TableModel.random(4), drafter, [0], max_new_tokens=4, seed=0)
    assert mute.prompt is mute.text is mute.parts is None and mute.pieces == {}


def test_functions_of_the_caller_cannot_be_rebuilt_from_a_trace():
    target = TableModel.random(4, 1, seed=1)
    own = Rule("own", verify, STANDARD.tested)
    for name, function in {"rule": own, "decode_round": lambda state: decode_round(state)}.items():
        trace = speculate(target, target, [0], max_new_tokens=4, seed=0, **{name: function})
        assert Trace.from_json(trace.to_json()).custom == trace.custom == [name]
        with pytest.raises(ValueError, match=f"made with the caller's own {name}"):
            speculate(target, target, [0], seed=0, **trace.settings)


def test_processors_cannot_be_rebuilt_from_their_names():
    target = TableModel.random(4, 1, seed=1)
    sampling = SamplingParams(processors=[lambda ids, scores: scores])
    trace = speculate(target, target, [0], max_new_tokens=4, seed=0, sampling=sampling)
    with pytest.raises(ValueError, match="made with processors .*give settings with these of your own"):
        speculate(target, target, [0], seed=0, **trace.settings)


@pytest.mark.parametrize("number", [np.int64, np.uint8, torch.tensor], ids=["int64", "uint8", "tensor"])
def test_settings_of_any_integer_type_end_in_the_same_json(number):
    target, drafter = (TableModel.random(5, 1, seed=seed, eos=number(4)) for seed in (1, 2))

    def written(number):
        settings = dict(gamma=number(2), max_new_tokens=number(7), sampling=SamplingParams(top_k=number(3)))
        prompts = [[number(0), number(1)], [number(2)]]
        decoded = speculate(target, drafter, prompts, randomness=Seeded(number(3), [number(6), number(5)]), **settings)
        for eos in (number(3), [number(3)], {int(number(3))}):
            decoded.append(autoregress(target, prompts[0], eos=eos, max_new_tokens=number(9), seed=number(1)))
        return [replaced(trace) for trace in decoded]

    def replaced(trace):
        data = json.loads(trace.to_json())
        del data["prefill_seconds"]
        for round in data["rounds"]:
            del round["seconds"]
        return data

    assert written(number) == written(int)


def test_several_ids_as_an_array_or_a_tensor_end_a_text():
    target = TableModel.random(5, 1, seed=1)
    for eos in (np.array([2, 3]), torch.tensor([2, 3]), (i for i in (2, 3))):
        assert autoregress(target, [0], eos=eos, max_new_tokens=9, seed=1).eos == [2, 3]
    for eos in ("ab", 1.5, np.array([1.5]), [None], True):
        with pytest.raises(ValueError, match="eos=.*must be token ids"):
            autoregress(target, [0], eos=eos)
    with pytest.raises(ValueError, match="eos=.*must be token ids"):
        TableModel.random(5, eos=1.5)


def test_a_configuration_that_says_minus_one_means_no_end():
    model = hub_model("gpt2", 0, vocab_size=12)
    model.config.eos_token_id = model.generation_config.eos_token_id = [-1, 3, 99]
    target = CausalLM(model, name=np.str_("named"))
    assert target.eos == {3}
    trace = autoregress(target, [0], max_new_tokens=3, seed=0)
    assert Trace.from_json(trace.to_json()).eos == [3]
