"""The loop: stopping, clamping, prompts, stepping, interruption, and errors before any forward."""

import inspect
import random
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import hub_model, language_model

from specviz import (
    Exhaustive,
    SamplingParams,
    Scripted,
    Seeded,
    TableModel,
    Trace,
    autoregress,
    rounds,
    speculate,
    stream,
)
from specviz.drafters.layer_skip import LayerSkip
from specviz.drafters.model import ModelDrafter
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.protocol import Proposal
from specviz.equivalence.exact import exact_law, prove
from specviz.equivalence.samples import sample_sequences
from specviz.models.causal import CausalLM
from specviz.models.table import TokenCache
from specviz.settings import Settings
from specviz.steps import begin, commit, decode_round, draft, target_forward
from specviz.verification import verify

GREEDY = SamplingParams(temperature=0)


def pair(vocab_size=8, **settings):
    return TableModel.random(vocab_size, 1, seed=1, **settings), TableModel.random(vocab_size, 1, seed=2, **settings)


def cycle(period, **settings):
    """A table that counts 0, 1, … period-1, 0, … with certainty."""
    probs = np.zeros((period + 1, period))
    probs[np.arange(period), (np.arange(period) + 1) % period] = 1
    probs[period, 0] = 1
    return TableModel.from_probabilities(probs, **settings)


# --- lengths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("max_new_tokens", [0, 1, 2, 3, 17])
def test_max_new_tokens_is_exact(gamma, max_new_tokens):
    target, drafter = pair()
    for trace in speculate(target, drafter, [[0], [1, 2, 3]], gamma=gamma, max_new_tokens=max_new_tokens, seed=0):
        assert len(trace.tokens) == max_new_tokens
        assert trace.finish_reason == "length"
    assert len(autoregress(target, [0], max_new_tokens=max_new_tokens, seed=0).tokens) == max_new_tokens


def test_gamma_is_clamped_to_what_can_still_be_used_and_both_are_recorded():
    model = cycle(5)
    trace = speculate(model, model, [0], gamma=4, max_new_tokens=7, seed=0)
    assert [(r.gamma_asked, r.gamma_used, len(r.tokens)) for r in trace.rounds] == [(4, 4, 5), (4, 1, 2)]
    assert trace.wasted_drafts == 0
    trace = speculate(model, model, [0], gamma=4, max_new_tokens=6, seed=0)
    assert trace.rounds[-1].gamma_used == 0 and trace.rounds[-1].outcome == "plain"


def test_every_unclamped_round_adds_one_to_gamma_plus_one_tokens():
    target, drafter = pair()
    for round in rounds(target, drafter, [0], gamma=3, max_new_tokens=40, seed=2):
        assert 1 <= len(round.tokens) <= 4
        assert len(round.tokens) == round.accepted + 1


# --- ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("eos", range(5))
def test_eos_anywhere_in_a_round_ends_the_row_at_once(eos):
    model = cycle(5)
    trace = speculate(model, model, [0], gamma=4, max_new_tokens=30, eos=(eos,), seed=0)
    assert trace.tokens == ([*range(1, eos + 1)] if eos else [1, 2, 3, 4, 0])
    assert trace.finish_reason == "eos"
    round = trace.rounds[-1]
    if eos == 0:  # the fifth token: as the bonus
        assert round.outcome == "bonus" and round.next_token == 0
    else:  # drafted, so the draft stopped there and nothing follows
        assert round.outcome == "ended" and round.next_token is None
        assert round.accepted == round.tested == len(round.draft_tokens) == eos


def test_eos_accepted_and_text_behind_it_dropped_even_from_a_drafter_that_does_not_stop():
    model = cycle(5)

    class Careless(ModelDrafter):
        def new_session(self, target, prompts, capacity, eos, target_cache):
            return super().new_session(target, prompts, capacity, frozenset(), target_cache)

    trace = speculate(model, Careless(model), [0], gamma=4, max_new_tokens=30, eos=(2,), seed=0)
    assert trace.tokens == [1, 2] and trace.finish_reason == "eos"
    round = trace.rounds[0]
    assert (round.outcome, round.accepted, round.tested, round.next_token) == ("ended", 2, 2, None)
    assert trace.alpha == 1.0


def test_rows_end_each_at_their_own_time():
    model = cycle(5)
    traces = speculate(model, model, [[0], [3], [4]], gamma=2, max_new_tokens=4, eos=(4,), seed=0)
    assert [t.tokens for t in traces] == [[1, 2, 3, 4], [4], [0, 1, 2, 3]]
    assert [t.finish_reason for t in traces] == ["eos", "eos", "length"]
    listed = list(rounds(model, model, [[0], [3]], gamma=2, max_new_tokens=4, eos=(4,), seed=0))
    assert listed[0][1] is not None and listed[1][1] is None


def test_eos_of_the_model_can_be_overridden():
    model = cycle(5, eos=(2,))
    assert speculate(model, model, [0], max_new_tokens=9, seed=0).tokens == [1, 2]
    assert speculate(model, model, [0], max_new_tokens=9, eos=4, seed=0).tokens == [1, 2, 3, 4]
    assert len(speculate(model, model, [0], max_new_tokens=9, eos=(), seed=0).tokens) == 9


@pytest.mark.parametrize("stop", ["cd", ["xx", "cd"]])
def test_a_stop_string_ends_the_text_before_it(stop):
    model = cycle(6, symbols="abcdef")
    trace = speculate(model, model, "a", gamma=4, max_new_tokens=20, stop=stop, seed=0)
    assert trace.text == "b" and trace.tokens == [1, 2, 3] and trace.finish_reason == "stop"
    plain = autoregress(model, "a", max_new_tokens=20, stop=stop, seed=0)
    assert plain.text == "b" and plain.finish_reason == "stop"


def test_a_stop_string_across_rounds_is_found_and_one_in_the_prompt_is_not():
    model = cycle(6, symbols="abcdef")
    trace = speculate(model, model, "abc", gamma=1, max_new_tokens=20, stop="efab", seed=0)
    assert trace.text == "d" and trace.finish_reason == "stop"
    assert speculate(model, model, "abc", gamma=1, max_new_tokens=3, stop="cd", seed=0).finish_reason == "length"


def test_finish_reasons_in_their_order():
    model = cycle(5, context=6)
    assert speculate(model, model, [0], max_new_tokens=3, eos=(3,), seed=0).finish_reason == "eos"
    assert speculate(model, model, [0], max_new_tokens=5, seed=0).finish_reason == "length"
    assert speculate(model, model, [0], max_new_tokens=9, seed=0).finish_reason == "context"
    full = speculate(model, model, [0] * 6, max_new_tokens=9, seed=0)
    assert full.tokens == [] and full.finish_reason == "context" and full.alpha is None
    assert full.tokens_per_round is None and full.alpha_by_position == []


# --- prompts, seeds, stepping -------------------------------------------------------------------


def test_prompts_may_be_text_ids_or_lists_of_either():
    target, drafter = pair(symbols="abcdefgh")
    settings = dict(gamma=2, max_new_tokens=6, seed=4)
    expected = speculate(target, drafter, "abc", **settings)
    assert isinstance(expected, Trace) and expected.prompt == "abc"
    for prompt in ([0, 1, 2], (0, 1, 2), np.array([0, 1, 2]), torch.tensor([0, 1, 2])):
        assert speculate(target, drafter, prompt, **settings).tokens == expected.tokens
    for prompts in (["abc", "h"], [[0, 1, 2], [7]], ["abc", [7]]):
        batch = speculate(target, drafter, prompts, **settings)
        assert batch[0].tokens == expected.tokens and len(batch) == 2
    assert len(speculate(target, drafter, torch.tensor([[0, 1], [2, 3]]), **settings)) == 2


def test_a_fresh_seed_is_drawn_recorded_and_repeats_the_text():
    target, drafter = pair()
    first, second = (speculate(target, drafter, [0], max_new_tokens=30) for _ in range(2))
    assert first.seed != second.seed
    assert speculate(target, drafter, [0], max_new_tokens=30, seed=first.seed).tokens == first.tokens


def tiny_llamas():
    return tuple(language_model("llama", seed, vocab_size=8) for seed in (1, 2))


STEPPED = {
    "tables": pair(),
    "llamas": tiny_llamas(),
    "layer skip": (tiny_llamas()[0], LayerSkip(1)),
    "prompt lookup": (pair()[0], PromptLookup()),
    "plain": (pair()[0], None),
}


@pytest.mark.parametrize("record", ["full", "none"])
@pytest.mark.parametrize("prompts", [[[0, 1, 2, 0, 1]], [[0, 1], [2], [3, 4, 5, 3, 4]]], ids=["one row", "three"])
@pytest.mark.parametrize("kind", STEPPED)
def test_stepping_equals_rounds_equals_speculate(kind, prompts, record):
    target, drafter = STEPPED[kind]
    settings = dict(gamma=3, max_new_tokens=12, seed=6, eos=[7], record=record)
    state, stepped = begin(target, drafter, prompts, **settings), []
    while state.active.any():
        proposal = draft(state)
        p = target_forward(state, proposal)
        stepped.append(commit(state, proposal, p, verify(
            proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active)))  # fmt: skip
    listed = list(rounds(target, drafter, prompts, **settings))
    if drafter is None:
        del settings["gamma"]
    decoded = (
        autoregress(target, prompts, **settings) if drafter is None else speculate(target, drafter, prompts, **settings)
    )

    def without_times(round):
        return str({k: v for k, v in vars(round).items() if k != "seconds"})  # as text: NaN does not equal itself

    for row, trace in enumerate(decoded):
        a, b = ([without_times(done[row]) for done in way if done[row] is not None] for way in (stepped, listed))
        assert a == b == [without_times(round) for round in trace.rounds] != []


def test_a_step_can_be_taken_again_and_not_out_of_turn():
    """Cells of a notebook are run twice: the same draft and the same p come out, and nothing is committed twice."""
    for target, drafter in (pair(), [language_model("llama", seed, vocab_size=8) for seed in (1, 2)]):
        state = begin(target, drafter, [[0, 1], [2]], gamma=3, max_new_tokens=12, seed=6)
        first = draft(state)
        proposal = draft(state)
        assert torch.equal(first.tokens, proposal.tokens) and torch.allclose(first.q, proposal.q, atol=1e-12)
        p = target_forward(state, proposal)
        torch.testing.assert_close(target_forward(state, proposal), p, atol=1e-12, rtol=0)
        verdict = verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths)
        commit(state, proposal, p, verdict)
        with pytest.raises(ValueError, match="of round 0, and the next is round 1: call draft"):
            commit(state, proposal, p, verdict)
        with pytest.raises(ValueError, match="of round 0, and the next is round 1: call draft"):
            target_forward(state, proposal)


def test_a_round_of_ones_own_decodes_the_text():
    target, drafter = pair()
    seen = []

    def my_round(state):
        proposal = draft(state)
        p = target_forward(state, proposal)
        verdict = verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active)
        seen.append(verdict.accepted.tolist())
        return commit(state, proposal, p, verdict)

    settings = dict(gamma=3, max_new_tokens=20, seed=6)
    mine = speculate(target, drafter, [[0, 1], [2]], decode_round=my_round, **settings)
    assert [t.tokens for t in mine] == [t.tokens for t in speculate(target, drafter, [[0, 1], [2]], **settings)]
    assert len(seen) == max(len(trace.rounds) for trace in mine)
    assert [r.draft_tokens for r in rounds(target, drafter, [0], decode_round=my_round, **settings)]
    with pytest.raises(ValueError, match="decode_round='mine': must be a function of a State"):
        speculate(target, drafter, [0], decode_round="mine")


@pytest.mark.parametrize("decode", [speculate, stream, sample_sequences], ids=lambda decode: decode.__name__)
def test_a_round_of_ones_own_must_commit_one_round(decode):
    """Without one the loop would never end; of two, rounds() and on_round would see the last alone."""

    def twice(state):
        decode_round(state)
        return decode_round(state)

    target, drafter = pair(symbols="abcdefgh")
    given = [target, drafter, [0]] + [1] * (decode is sample_sequences)
    for wrong, returned in ((lambda _: None, "None after 0"), (lambda _: [], r"\[\] after 0"), (twice, ".* after 2")):
        with pytest.raises(ValueError, match=f"decode_round returned {returned} commits: must commit one round"):
            list(decode(*given, decode_round=wrong, seed=0))


def test_a_round_that_never_asks_the_target_is_refused():
    """p out of thin air leaves the target's cache without the committed tokens."""

    def blind(state):
        proposal = draft(state)
        p = torch.full((1, proposal.tokens.shape[1] + 1, 8), 1 / 8)
        return commit(state, proposal, p, verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths))

    with pytest.raises(ValueError, match="the target has not read this proposal; call target_forward"):
        speculate(*pair(symbols="abcdefgh"), [0], decode_round=blind, seed=0)


def test_the_shipped_round_runs_without_autograd_in_every_loop(monkeypatch):
    target, drafter = pair(symbols="abcdefgh")
    seen, feed = [], TokenCache.feed

    def spied(self, tokens, count=None):
        seen.append(torch.is_inference_mode_enabled())
        return feed(self, tokens, count)

    monkeypatch.setattr(TokenCache, "feed", spied)
    asked = dict(gamma=2, max_new_tokens=4, seed=0)
    for decode in (
        lambda: speculate(target, drafter, "a", **asked),
        lambda: autoregress(target, "a", max_new_tokens=4),
        lambda: list(rounds(target, drafter, "a", **asked)),
        lambda: list(stream(target, drafter, "a", **asked)),
        lambda: sample_sequences(target, drafter, "a", 3, **asked),
        lambda: exact_law(target, drafter, "a", gamma=1, max_new_tokens=1),
    ):
        seen.clear()
        decode()
        assert len(seen) > 0 and all(seen), decode


def test_a_changed_coin_forks_the_text_and_keeps_what_came_before():
    target, drafter = pair()
    trace = speculate(target, drafter, [0], gamma=3, max_new_tokens=30, seed=1)
    number = next(i for i, r in enumerate(trace.rounds) if r.accepted == 3 and r.accept_probability[1] < 0.99 and i > 0)
    script = Scripted({(0, number, "coin", 1): 0.999999}, base=Scripted.from_trace(trace))
    forked = speculate(target, drafter, [0], gamma=3, max_new_tokens=30, randomness=script)
    before = sum(len(r.tokens) for r in trace.rounds[:number])
    assert forked.tokens[: before + 1] == trace.tokens[: before + 1]
    assert forked.rounds[number].accepted == 1
    assert forked.rounds[number].next_token == trace.rounds[number].next_if_rejected[1]


def test_replaying_a_trace_gives_the_same_trace():
    target, drafter = pair()
    traces = speculate(target, drafter, [[0], [1, 2]], gamma=3, max_new_tokens=20, seed=3)
    for trace in traces:
        again = speculate(
            target, drafter, trace.prompt_tokens, gamma=3, max_new_tokens=20, randomness=Scripted.from_trace(trace)
        )
        assert again.tokens == trace.tokens
        assert [r.coins for r in again.rounds] == [r.coins for r in trace.rounds]


def test_what_would_have_followed_with_other_coins():
    target, drafter = pair()
    trace = speculate(target, drafter, [0], gamma=3, max_new_tokens=60, seed=1)
    for round in trace.rounds:
        expected = (
            round.next_if_all_accepted if round.outcome != "resampled" else round.next_if_rejected[round.accepted]
        )
        assert round.next_token == expected


# --- callbacks and interruption -----------------------------------------------------------------


def test_on_round_sees_each_round_and_may_end_the_decoding():
    target, drafter = pair()
    seen = []
    trace = speculate(target, drafter, [0], max_new_tokens=20, seed=0, on_round=seen.append)
    assert seen == trace.rounds
    for truthy in (1, "yes", [0]):
        given = dict(on_round=lambda round, answer=truthy: answer)
        unimpressed = speculate(target, drafter, [0], max_new_tokens=20, seed=0, **given)
        assert unimpressed.tokens == trace.tokens and unimpressed.finish_reason == "length"
    stopped = speculate(target, drafter, [0], max_new_tokens=20, seed=0, on_round=lambda round: True)
    assert stopped.finish_reason == "interrupted" and stopped.tokens == trace.rounds[0].tokens


def test_keyboard_interrupt_keeps_what_was_committed():
    target, drafter = pair()
    whole = speculate(target, drafter, [[0], [1]], max_new_tokens=30, seed=0)
    count = iter(range(100))

    def interrupt(done):
        if next(count) == 2:
            raise KeyboardInterrupt

    traces = speculate(target, drafter, [[0], [1]], max_new_tokens=30, seed=0, on_round=interrupt)
    for trace, complete in zip(traces, whole, strict=True):
        assert trace.finish_reason == "interrupted" and len(trace.rounds) == 3
        assert trace.tokens == complete.tokens[: len(trace.tokens)]


@pytest.mark.parametrize("call", range(1, 13))  # four rewinds a round, two of them in commit()
def test_an_interrupt_in_the_middle_of_a_round_leaves_a_whole_trace(monkeypatch, call):
    target, drafter = pair(symbols="abcdefgh")
    whole = speculate(target, drafter, [0], max_new_tokens=30, seed=0)
    rewind, calls = TokenCache.rewind, []

    def interrupted(self, length):
        calls.append(length)
        if len(calls) == call:
            raise KeyboardInterrupt
        rewind(self, length)

    monkeypatch.setattr(TokenCache, "rewind", interrupted)
    trace = speculate(target, drafter, [0], max_new_tokens=30, seed=0)
    assert trace.finish_reason == "interrupted" and len(trace.rounds) <= 3
    assert trace.tokens == whole.tokens[: len(trace.tokens)]
    assert trace.text == whole.text[: len(trace.tokens)]  # a symbol a token
    assert set(trace.seconds) == set(whole.seconds) and Trace.from_json(trace.to_json()).to_json() == trace.to_json()


# --- bad input: one clear error, before any forward ---------------------------------------------


class NoForward(TableModel):
    def new_cache(self, prompts, capacity, needs=frozenset()):
        raise AssertionError("a forward pass was prepared before the arguments were checked")


BAD = [
    (dict(gamma=0), r"gamma=0: must be an integer >= 1"),
    (dict(gamma=-3), r"gamma=-3"),
    (dict(gamma=2.0), r"gamma=2.0"),
    (dict(gamma=True), r"gamma=True"),
    (dict(max_new_tokens=-1), r"max_new_tokens=-1: must be an integer >= 0"),
    (dict(max_new_tokens=1.5), r"max_new_tokens=1.5"),
    (dict(prompt=[]), r"prompt=\[\] is empty"),
    (dict(prompt=""), r"prompt='' is empty"),
    (dict(prompt=["ab", ""]), r"prompt\[1\]='' is empty"),
    (dict(prompt=[0, 8]), r"prompt: ids \[8\] are outside the vocabulary"),
    (dict(prompt=[0, -1]), r"ids \[-1\] are outside"),
    (dict(prompt=[[0], ["a"]]), r"prompt\[1\]=\['a'\]: must be token ids"),
    (dict(prompt=[0, 1.7]), r"prompt=\[0, 1.7\]: must be token ids"),
    (dict(prompt=None), r"prompt=None: must be text, token ids, or a list of either"),
    (dict(prompt=3), r"prompt=3: must be text"),
    (dict(prompt="xyz"), r"contains \['x', 'y', 'z'\]"),
    (dict(prompt=[0] * 65), r"prompt has 65 tokens, more than the context .*\(64\)"),
    (dict(sampling=0.7), r"sampling=0.7: must be a SamplingParams"),
    (dict(seed=1, randomness=Seeded(1)), r"give one of the two"),
    (dict(seed=-1), r"seed=-1"),
    (dict(on_round=5), r"on_round=5: must be a function"),
    (dict(randomness=Scripted({(1, 0, "coin", 0): 0.5})), r"uniforms name \(1, 0, 'coin', 0\), but rows count from 0"),
    (dict(prompt=torch.tensor(3)), r"prompt=tensor\(3\): must be text"),
    (dict(prompt=[True, False]), r"must be token ids"),
    (dict(eos=True), r"eos=\[True\]: must be token ids"),
    (dict(randomness=42), r"randomness=42: must be Seeded"),
    (dict(randomness=Exhaustive()), r"for branch in Exhaustive\(\): … randomness=branch"),
    (dict(randomness=Seeded(0, rows=[0, 1])), r"randomness is for 2 rows, and prompt has 1"),
    (dict(prompt=b"abc"), r"prompt=b'abc': must be text"),
    (dict(prompt={"text": [0]}), r"or a list of either, a tokenizer's output, or chat messages"),
    (dict(prompt="\ud800"), r"holds half a character"),
    (dict(stop="\ud800"), r"stop=.* holds half a character"),
    (dict(stop=3), r"stop=3: must be"),
    (dict(eos=1.5), r"eos=\[1.5\]: must be token ids"),
    (dict(record="some"), r"record='some'"),
    (dict(eos=(9,)), r"eos: ids \[9\] are outside"),
    (dict(stop=""), r"stop='': must be"),
    (dict(stop=["a", 3]), r"stop=\['a', 3\]"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_bad_input_is_refused_before_any_forward(settings, message):
    model = NoForward.random(8, 1, symbols="abcdefgh")
    settings = {"prompt": [0], "max_new_tokens": 5, **settings}
    with pytest.raises(ValueError, match=message):
        speculate(model, model, **settings)
    if "on_round" not in settings:
        with pytest.raises(ValueError, match=message):
            rounds(model, model, **settings)  # at once, not at the first next()
    if "gamma" not in settings:
        with pytest.raises(ValueError, match=message):
            autoregress(model, **settings)


UNKNOWN = [
    (speculate, dict(temperature=0.7), r"speculate\(\) got an unexpected keyword argument 'temperature'"),
    (autoregress, dict(gamma=-3), r"autoregress\(\) got an unexpected keyword argument 'gamma'"),
    (rounds, dict(on_round=print), r"rounds\(\) got an unexpected keyword argument 'on_round'"),
    (stream, dict(on_round=print), r"stream\(\) got an unexpected keyword argument 'on_round'"),
    (begin, dict(top_k=3), r"begin\(\) got .* 'top_k'; give sampling=SamplingParams\(top_k=…\)"),
    (prove, dict(temperature=0.7), r"prove\(\) got .* 'temperature'; give sampling=SamplingParams\(temperature=…\)"),
    (exact_law, dict(top_p=0.7), r"exact_law\(\) got .* 'top_p'; give sampling=SamplingParams\(top_p=…\)"),
    (sample_sequences, dict(top_k=1), r"sample_sequences\(\) got .* 'top_k'; give sampling=SamplingParams\(top_k=…\)"),
]


@pytest.mark.parametrize(("function", "unknown", "message"), UNKNOWN, ids=lambda x: getattr(x, "__name__", ""))
def test_an_unknown_argument_is_answered_in_the_name_of_the_function_that_was_called(function, unknown, message):
    model = NoForward.random(8, 1, symbols="abcdefgh")
    given = [model, [0]] if function is autoregress else [model, model, [0]]
    given += [5] if function is sample_sequences else []
    with pytest.raises(TypeError, match=message):
        function(*given, max_new_tokens=5, **unknown)


def test_every_setting_is_an_argument_of_every_way_of_decoding_and_in_the_trace():
    settings = {field.name: field.default for field in fields(Settings)}
    without = {speculate: set(), rounds: set(), stream: set(), autoregress: {"gamma", "rule"}}
    for function, left_out in without.items():
        arguments = inspect.signature(function).parameters
        defaults = {name: arguments[name].default for name in settings.keys() - left_out}
        assert defaults == {name: settings[name] for name in defaults}, function.__name__
        assert not left_out & arguments.keys()
    assert all(f"\n    {name} " in speculate.__doc__ for name in settings)
    recorded = speculate(*pair(), [0], max_new_tokens=3).settings
    assert recorded.keys() == settings.keys() - {"seed", "randomness", "decode_round"}  # given anew, or not recorded


@pytest.mark.parametrize("drafter", ["tales", object(), 5])
def test_what_cannot_draft_is_refused(drafter):
    with pytest.raises(ValueError, match="drafter is a .* without name, .*must be a drafter or a language model"):
        speculate(NoForward.random(8, 1), drafter, [0])
    with pytest.raises(ValueError, match="target is a .*must be a language model"):
        autoregress(drafter, [0])


@pytest.mark.parametrize("prompt", [[0], [[0], [1]]], ids=["one row", "two"])
@pytest.mark.parametrize("record", ["none", "top"])
def test_a_drafter_that_proposes_too_many_tokens_is_an_error_that_names_it(prompt, record):
    class Eager(ModelDrafter):
        def new_session(self, *args):
            session = super().new_session(*args)
            propose = session.propose
            session.propose = lambda text, lengths, gamma, *rest: propose(text, lengths, [n + 1 for n in gamma], *rest)
            return session

    target, drafter = pair()
    drafter.name = "eager"
    with pytest.raises(ValueError, match=r"drafter 'eager' proposed \[5.*\] tokens .* more than the \[4"):
        speculate(target, Eager(drafter), prompt, gamma=4, max_new_tokens=20, record=record)


def test_as_long_as_the_context_allows():
    """Memory is taken for what the context admits, not for what was asked."""
    target, drafter = pair()
    trace = speculate(target, drafter, [0], gamma=10**12, max_new_tokens=10**20, seed=0)
    assert trace.finish_reason == "context" and len(trace.tokens) == 63
    assert speculate(target, drafter, [0], gamma=np.int64(2), max_new_tokens=np.int64(5), seed=0).tokens


def test_text_needs_a_tokenizer():
    target, drafter = pair()
    with pytest.raises(ValueError, match="has no tokenizer: give token ids"):
        speculate(target, drafter, "abc")
    with pytest.raises(ValueError, match="has no tokenizer, so it has no text to compare"):
        speculate(target, drafter, [0], stop="a")


def test_pairs_that_do_not_fit_are_refused():
    target = NoForward.random(8, 1, symbols="abcdefgh")
    with pytest.raises(ValueError, match="different tokenizers"):
        speculate(target, TableModel.random(8, 1, symbols="hgfedcba"), "abc")
    with pytest.raises(ValueError, match="has 5 ids, target .* has 8"):
        speculate(target, TableModel.random(5, 1), [0])
    with pytest.raises(ValueError, match="drafter=None"):
        speculate(target, None, [0])
    elsewhere = TableModel.random(8, 1)
    elsewhere.device = torch.device("meta")
    with pytest.raises(ValueError, match="on device meta.*cannot be moved"):
        speculate(target, elsewhere, [0])


# --- bad models: before the round is committed --------------------------------------------------


def poisoned(value, after):
    """A table whose logits turn bad once it is asked about token `after`."""
    logits = np.random.default_rng(0).standard_normal((5, 4))
    logits[after] = value
    return TableModel(logits, name="poisoned")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_bad_logits_name_model_row_and_round_and_commit_nothing(value, temperature):
    good = TableModel.random(4, 1, seed=3)
    bad = poisoned(value, after=2)
    sampling = SamplingParams(temperature)
    for target, drafter, name in ((bad, good, "target"), (good, bad, "drafter")):
        state = begin(target, drafter, [[1], [2]], gamma=1, max_new_tokens=1 if name == "target" else 5,
                      sampling=sampling, seed=0)  # fmt: skip
        before = state.committed.clone()
        proposal = draft(state)
        p = target_forward(state, proposal)
        verdict = verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active)
        with pytest.raises(FloatingPointError, match=f"{name} 'poisoned' returned NaN.* row 1, round 0"):
            commit(state, proposal, p, verdict)
        assert torch.equal(state.committed, before) and state.round == 0 and state.history == []
        assert state.length.tolist() == [1, 1]


def test_bad_logits_in_ended_rows_are_nobodys_business():
    target = poisoned(np.nan, after=3)  # and 3 ends a text, so it is never asked about in earnest
    drafter = TableModel.from_probabilities([[0.4, 0.3, 0.3, 0.0]] * 5)
    traces = speculate(target, drafter, [[0], [1], [2]] * 8, gamma=2, max_new_tokens=12, eos=(3,), seed=5)
    lengths = [len(trace.rounds) for trace in traces if trace.finish_reason == "eos"]
    assert lengths and min(lengths) < max(len(trace.rounds) for trace in traces)


def test_a_single_minus_infinity_is_a_legal_zero():
    logits = np.zeros((5, 4))
    logits[:, 1] = -np.inf
    trace = speculate(TableModel(logits), TableModel.random(4, 1), [0], max_new_tokens=50, seed=0)
    assert 1 not in trace.tokens and len(trace.tokens) == 50


class Foreign:
    """Somebody's drafter, which has one thing to say: a token and its q."""

    name = "foreign"

    def __init__(self, token, q):
        self.token, self.q = token, q

    def check_target(self, target):
        pass

    def new_session(self, target, prompts, capacity, eos, target_cache):
        return self

    def propose(self, committed, lengths, gamma, sampling, randomness):
        rows, lengths = len(gamma), torch.tensor([min(1, n) for n in gamma])
        tokens, q = torch.full((rows, 1), self.token), self.q.expand(rows, 1, -1)
        return Proposal(tokens, q, lengths, torch.full((rows, 1), torch.nan, dtype=torch.float64))

    def rewind(self, length):
        pass


each_path = pytest.mark.parametrize(("prompt", "record"), [([0], "none"), ([0], "full"), ([[0], [1]], "none")])


@each_path
def test_a_draft_with_q_zero_is_an_error_that_names_the_drafter(prompt, record):
    liar = Foreign(2, torch.tensor([1.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match=r"drafter 'foreign' proposed a token with q\(x\) = 0 in row 0, round 0"):
        speculate(TableModel.random(3, 1), liar, prompt, gamma=1, max_new_tokens=5, record=record)


@each_path
@pytest.mark.parametrize("token", [-1, 3, 10**9])
def test_drafted_ids_out_of_range_are_an_error_that_names_the_drafter(token, prompt, record):
    stray = Foreign(token, torch.tensor([0.5, 0.25, 0.25]))
    with pytest.raises(ValueError, match=rf"drafter 'foreign' proposed .*{token}.*must be ids of the target, 0 \.\. 2"):
        speculate(TableModel.random(3, 1), stray, prompt, gamma=1, max_new_tokens=5, record=record)


@each_path
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_q_that_is_not_over_the_targets_ids_is_an_error_that_names_the_drafter(size, prompt, record):
    narrow = Foreign(0, torch.full((size,), 1 / size))
    with pytest.raises(ValueError, match=rf"drafter 'foreign' .* a q of shape \[\d, 1, {size}\]: must be ids"):
        speculate(TableModel.random(3, 1), narrow, prompt, gamma=1, max_new_tokens=5, record=record)


WRONG_KINDS = [
    (lambda sound: sound.tokens, "a Tensor: must be a specviz.drafters.Proposal"),
    (lambda sound: replace(sound, tokens=sound.tokens.int()), r"tokens as torch.int32 \[1, 1\]: .*int64 \[B, gamma\]"),
    (lambda sound: replace(sound, tokens=torch.tensor([[]])), r"tokens as torch.float32 \[1, 0\]"),
    (lambda sound: replace(sound, tokens=sound.tokens[0]), r"tokens as torch.int64 \[1\]: .*\[B, gamma\]"),
    (lambda sound: replace(sound, lengths=[1]), r"lengths as a list: must be a tensor, torch.int64 \[B\]"),
    (lambda sound: replace(sound, lengths=torch.tensor([1, 1])), r"lengths as torch.int64 \[2\]: .*B = 1 row"),
    (lambda sound: replace(sound, q=sound.q.int()), r"q as torch.int32 \[1, 1, 3\]: .*float32 \[B, gamma, V\]"),
    (lambda sound: replace(sound, u=None), "u as a NoneType"),
]


@pytest.mark.parametrize(("spoil", "says"), WRONG_KINDS, ids=lambda x: getattr(x, "__name__", x))
def test_a_proposal_of_other_types_or_shapes_is_an_error_that_names_the_drafter(spoil, says):
    drafter = Foreign(0, torch.tensor([0.5, 0.25, 0.25]))
    propose = drafter.propose
    drafter.propose = lambda *asked: spoil(propose(*asked))
    with pytest.raises(ValueError, match=f"drafter 'foreign' proposed {says}"):
        speculate(TableModel.random(3, 1), drafter, [0], gamma=1, max_new_tokens=5)


def test_a_drafter_without_a_name_is_refused():
    nameless = SimpleNamespace(check_target=print, new_session=print)
    with pytest.raises(ValueError, match="drafter is a SimpleNamespace without name: must be a drafter"):
        speculate(TableModel.random(3, 1), nameless, [0])


@each_path
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "of autograd"])
def test_a_q_of_any_precision_or_with_a_gradient_is_judged(kind, prompt, record):
    """Eighths are themselves in any of these, so the text is that of a q in float64."""
    q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    given = q.clone().requires_grad_() if kind == "of autograd" else q.to(getattr(torch, kind))
    asked = dict(gamma=1, max_new_tokens=30, seed=1, record=record)
    target = TableModel.random(3, 1, seed=4)
    texts = []
    for one in (q, given):
        traces = speculate(target, Foreign(1, one), prompt, **asked)
        texts.append([trace.tokens for trace in (traces if isinstance(traces, list) else [traces])])
    assert texts[0] == texts[1]


# --- the decoder keeps its promises about itself ------------------------------------------------


def test_sessions_leave_nothing_behind_in_the_drafter():
    target, drafter = pair()
    shared = ModelDrafter(drafter)
    settings = dict(gamma=3, max_new_tokens=15, seed=2)
    first = rounds(target, shared, [0], **settings)
    begun = [next(first)]
    other = speculate(target, shared, [5, 6], **settings)  # in the middle of the first decoding
    resumed = begun + list(first)
    assert [r.tokens for r in resumed] == [r.tokens for r in speculate(target, shared, [0], **settings).rounds]
    assert other.tokens == speculate(target, drafter, [5, 6], **settings).tokens


def test_half_precision_models_are_sampled_in_float32():
    target, drafter = (language_model("llama", s, vocab_size=12, dtype=torch.bfloat16) for s in (1, 2))
    state = begin(target, drafter, [1, 2], gamma=2, max_new_tokens=10, seed=0)
    proposal = draft(state)
    assert proposal.q.dtype == torch.float32 and target_forward(state, proposal).dtype == torch.float32
    assert len(speculate(target, drafter, [1, 2], gamma=2, max_new_tokens=10, seed=0).tokens) == 10


def test_models_are_put_into_evaluation_mode():
    model = hub_model("llama", 0, vocab_size=12).train()
    CausalLM(model)
    assert not model.training


def test_no_generator_is_touched():
    """Randomness is an argument: nothing in the decoder may draw by itself."""
    target, drafter = (language_model("llama", seed, vocab_size=12) for seed in (1, 2))
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    speculate(target, drafter, [[1], [2]], gamma=2, max_new_tokens=20, seed=0)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
