"""A single row on the CPU is decoded in numbers when nothing is recorded: as the four steps of a round would."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_decoding import poisoned
from tiny import decoder_pair, language_model, largest_difference, plain_law

from specviz import Exhaustive, SamplingParams, Scripted, Seeded, TableModel, autoregress, decoding, rounds, speculate
from specviz.decoding import decode_round, start
from specviz.drafters.layer_skip import LayerSkip
from specviz.drafters.model import ModelDrafter, ModelSession
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.protocol import Proposal
from specviz.verification import verify, verify_row


@pytest.fixture
def in_numbers(monkeypatch):
    """The rounds that decode_row() decoded."""
    seen, decode_row = [], decoding.decode_row

    def counting(state):
        seen.append(state.round)
        return decode_row(state)

    monkeypatch.setattr(decoding, "decode_row", counting)
    return seen


def four_steps(state):
    return decode_round(state)


def told(trace):
    """All that a Trace tells, but for the time it took."""
    whole = [{k: v for k, v in vars(round).items() if k != "seconds"} for round in trace.rounds]
    return trace.tokens, trace.finish_reason, whole


def both(target, drafter, prompt, **given):
    given = dict(record="none", max_new_tokens=14) | given
    if drafter is None:
        given.pop("gamma", None)
        return autoregress(target, prompt, **given), autoregress(target, prompt, decode_round=four_steps, **given)
    return (
        speculate(target, drafter, prompt, **given),
        speculate(target, drafter, prompt, decode_round=four_steps, **given),
    )


SAMPLING = [
    {},
    dict(temperature=0),
    dict(temperature=0.5),
    dict(top_k=2),
    dict(temperature=1.7, top_p=0.8),
]


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize("kind", ["model", "lookup", "itself", None])
def test_it_decodes_as_the_four_steps_do(kind, sampling, in_numbers):
    target = TableModel.random(5, 2, seed=1, eos=(4,))
    drafters = {"model": TableModel.random(5, 1, seed=2), "lookup": PromptLookup(2, 1), "itself": target, None: None}
    for seed in range(12):
        for gamma in (1, 3, 6):
            here, there = both(
                target, drafters[kind], [0, 1, 2, 0, 1], gamma=gamma, seed=seed, sampling=SamplingParams(**sampling),
                max_new_tokens=gamma + seed,
            )  # fmt: skip
            assert told(here) == told(there)
    assert in_numbers


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_it_decodes_hub_models_as_the_four_steps_do(family, in_numbers):
    target, drafter = (language_model(family, seed, vocab_size=20) for seed in (1, 2))
    for seed, temperature in enumerate([1.0, 0, 0.7] * 2):
        given = dict(seed=seed, sampling=SamplingParams(temperature), gamma=3)
        for other in (drafter, target, LayerSkip(1), None):
            here, there = both(target, other, [1, 2, 3], **given)
            assert told(here) == told(there)
    assert in_numbers


def test_a_drafter_with_a_shorter_context(in_numbers):
    target = TableModel.random(5, 1, seed=1, context=40)
    drafter = TableModel.random(5, 1, seed=2, context=9)
    here, there = both(target, drafter, [0, 1], gamma=4, seed=3, max_new_tokens=30)
    assert told(here) == told(there) and here.rounds[-1].draft_tokens == []
    assert in_numbers


@given(st.integers(0, 2**32), st.integers(0, 4), st.integers(2, 6), st.booleans())
@settings(max_examples=200, deadline=None)
def test_it_verifies_as_verify_does(seed, gamma, vocab_size, zeros):
    generator = np.random.default_rng(seed)
    p, q = (generator.dirichlet([0.5] * vocab_size, n) for n in (gamma + 1, gamma))
    if zeros:
        p, q = (np.where(law < 0.2, 0, law) / np.where(law < 0.2, 0, law).sum(-1, keepdims=True) for law in (p, q))
        p, q = (np.nan_to_num(law, nan=1 / vocab_size) for law in (p, q))
    drafts = [int(generator.choice(vocab_size, p=law / law.sum())) for law in q]
    batch = (torch.tensor([drafts], dtype=torch.long), torch.from_numpy(q)[None], torch.from_numpy(p)[None])
    verdict = verify(*batch, Seeded(seed))
    assert verify_row(drafts, list(q), p, Seeded(seed)) == (verdict.accepted.item(), verdict.next_token.item())


def test_a_residual_that_vanishes_by_rounding_is_p():
    p, q = np.array([[0.25, 0.75], [0.5, 0.5]]), [np.array([0.25, 0.75])]
    script = {(0, 0, "coin", 0): 0.5, (0, 0, "next", 0): 0.5}

    class Tails(Scripted):
        def flip_row(self, prob):
            return 0

    assert verify_row([1], q, p, Tails(script)) == (0, 1)


@pytest.mark.parametrize("mass, accepted", [(0.0, 0), (0.5, 1)])
def test_a_token_that_the_target_never_emits_is_never_accepted(mass, accepted):
    p, q = np.array([[mass, 1 - mass], [0.5, 0.5]]), [np.array([1.0, 0.0])]
    script = Scripted({(0, 0, "coin", 0): 0.0, (0, 0, "next", 0): 0.9})  # the luckiest coin there is
    assert verify_row([0], q, p, script) == (accepted, 1)


# --- the exact law ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "lookup", None])
@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_its_law_is_the_targets(kind, sampling, in_numbers):
    """Every branch, with its probability: nothing is sampled."""
    target = TableModel.random(3, 1, seed=31, eos=(2,))
    drafters = {"model": TableModel.random(3, 1, seed=36), "lookup": PromptLookup(1, 1)}
    decode = {"max_new_tokens": 4, "sampling": SamplingParams(**sampling), "record": "none"}
    law = {}
    for branch in Exhaustive(rows=1):
        if kind is None:
            trace = autoregress(target, [0, 1, 0], randomness=branch, **decode)
        else:
            trace = speculate(target, drafters[kind], [0, 1, 0], gamma=2, randomness=branch, **decode)
        law[tuple(trace.tokens)] = law.get(tuple(trace.tokens), 0) + branch.weight[0]
    expected = plain_law(target, [0, 1, 0], 4, eos=(2,), **sampling)
    assert largest_difference(law, expected) < 1e-12
    assert in_numbers


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_its_law_is_the_targets_with_a_kv_cache(family, in_numbers):
    target, drafter = decoder_pair(family)
    law = {}
    for branch in Exhaustive(rows=1):
        trace = speculate(target, drafter, [1, 2], gamma=2, max_new_tokens=3, randomness=branch, record="none", eos=())
        law[tuple(trace.tokens)] = law.get(tuple(trace.tokens), 0) + branch.weight[0]
    assert largest_difference(law, plain_law(target, [1, 2], 3)) < 1e-9
    assert in_numbers


# --- what it must refuse, and when it must not be used ------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_bad_logits_are_named_before_the_round_is_committed(value, temperature, in_numbers):
    good, bad = TableModel.random(4, 1, seed=3), poisoned(value, after=2)
    given = dict(gamma=2, max_new_tokens=6, sampling=SamplingParams(temperature), seed=0, record="none")
    for target, drafter, name in ((bad, good, "target"), (good, bad, "drafter")):
        with pytest.raises(FloatingPointError, match=f"{name} 'poisoned' returned NaN.* row 0, round 0; the round was"):
            speculate(target, drafter, [2], **given)
    assert len(in_numbers) == 2


def test_a_bad_target_is_found_beyond_the_first_rejection(in_numbers):
    probs = np.full((5, 4), 0.25)
    target = poisoned(np.nan, after=2)
    target.logits[:2] = torch.tensor([0.0, -50, -50, -50])  # rejects a draft of 1 or 2 with certainty, nearly
    drafter = TableModel.from_probabilities([[0, 0, 1, 0]] * len(probs))
    with pytest.raises(FloatingPointError, match="target 'poisoned'.* row 0, round 0"):
        speculate(target, drafter, [0], gamma=2, max_new_tokens=6, seed=0, record="none")
    assert in_numbers


class Proposing:
    """A drafter that proposes what it is told."""

    name = "liar"

    def __init__(self, tokens, q):
        self.tokens, self.q = tokens, q

    def fit(self, target):
        pass

    def start(self, target, prompts, capacity, eos, target_memory):
        return self

    def propose(self, committed, length, gamma, sampling, randomness):
        n = len(self.tokens)
        return Proposal(torch.tensor([self.tokens]), torch.tensor([self.q]), torch.tensor([n]), torch.zeros(1, n))

    def rewind(self, length):
        pass


def test_other_peoples_proposals_are_checked(in_numbers):
    target = TableModel.random(3, 1)
    given = dict(gamma=1, max_new_tokens=5, seed=0, record="none")
    with pytest.raises(ValueError, match=r"drafter 'liar' proposed a token with q\(x\) = 0 in row 0, round 0"):
        speculate(target, Proposing([2], [[1.0, 0.0, 0.0]]), [0], **given)
    with pytest.raises(FloatingPointError, match="drafter 'liar' returned NaN.* row 0, round 0"):
        speculate(target, Proposing([0], [[1.0, float("nan"), 0.0]]), [0], **given)
    with pytest.raises(ValueError, match="'liar' proposed .*2.* more than the"):
        speculate(target, Proposing([0, 0], [[1.0, 0.0, 0.0]] * 2), [0], **given)
    for token, q in ((-1, [0.0, 0.0, 1.0]), (3, [0.0, 0.0, 1.0]), (0, [1.0, 0.0])):
        with pytest.raises(ValueError, match=rf"'liar' proposed \[{token}\] with a q over {len(q)} ids: both must be"):
            speculate(target, Proposing([token], [q]), [0], **given)
    assert in_numbers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_peoples_proposals_may_be_in_any_precision(dtype, in_numbers):
    class Halved(Proposing):
        def propose(self, *settings):
            proposal = super().propose(*settings)
            proposal.q, proposal.forwards = proposal.q.to(dtype), 5
            return proposal

    target, drafter = TableModel.random(3, 1, seed=4), Halved([1], [[0.25, 0.5, 0.25]])
    here, there = both(target, drafter, [0], gamma=3, seed=1, on_round=lambda round: True)
    assert told(here) == told(there) and here.rounds[0].draft_forwards == 1
    assert in_numbers


class Shorter(ModelSession):
    def propose(self, committed, length, gamma, sampling, randomness):
        return super().propose(committed, length, gamma.clamp(max=1), sampling, randomness)


class ShorterByHand(ModelDrafter):
    def start(self, *settings):
        session = super().start(*settings)
        propose = session.propose
        session.propose = lambda committed, length, gamma, *rest: propose(committed, length, gamma.clamp(max=1), *rest)
        return session


class ShorterByClass(ModelDrafter):
    def start(self, *settings):
        session = super().start(*settings)
        session.__class__ = Shorter
        return session


@pytest.mark.parametrize("drafter", [ShorterByClass, ShorterByHand])
def test_a_propose_of_ones_own_is_asked(drafter, in_numbers):
    target, draft = TableModel.random(3, 1, seed=1), TableModel.random(3, 1, seed=2)
    trace = speculate(target, drafter(draft), [0], gamma=4, max_new_tokens=12, seed=0, record="none")
    assert {len(r.draft_tokens) for r in trace.rounds[:-1]} == {1}
    assert in_numbers


def interrupted(feed, countdown):
    """feed, whose result nobody gets to see once countdown, which several may share, is at its end."""

    def interrupted_feed(*arguments):
        logits = feed(*arguments)
        countdown[0] -= 1
        if countdown[0] == 0:
            raise KeyboardInterrupt
        return logits

    return interrupted_feed


@pytest.mark.parametrize("drafted", [True, False])
def test_a_round_that_was_interrupted_can_be_begun_again(drafted):
    """At any forward: both memories go back to where they were."""
    target, draft = TableModel.random(4, 2, seed=1), TableModel.random(4, 2, seed=2) if drafted else None
    given = dict(gamma=3, max_new_tokens=9, seed=3, record="none")
    whole = [r.tokens for r in rounds(target, draft, [0, 1], **given)]
    for forward in range(1, 5 if drafted else 2):
        state = start(target, draft, [0, 1], **given)
        decoding.decode_row(state)
        countdown = [forward]
        for owner in (state, state.session) if drafted else (state,):
            owner.memory.feed = interrupted(owner.memory.feed, countdown)
        try:
            decoding.decode_row(state)
        except KeyboardInterrupt:
            countdown[0] = -1
        while state.active.any():
            decoding.decode_row(state)
        assert [done[0].tokens for done in state.history] == whole


def test_a_script_names_the_uniform_that_it_lacks(in_numbers):
    target, drafter = TableModel.random(3, 1, seed=1), TableModel.random(3, 1, seed=2)
    full = speculate(target, drafter, [0], gamma=2, max_new_tokens=6, seed=4)
    script = Scripted.from_trace(full).uniforms
    given = dict(gamma=2, max_new_tokens=6, record="none")
    assert speculate(target, drafter, [0], randomness=Scripted(script), **given).tokens == full.tokens
    for key in script:
        without = Scripted({k: u for k, u in script.items() if k != key})
        messages = []
        for decode in ({}, dict(decode_round=four_steps)):
            try:
                speculate(target, drafter, [0], randomness=without, **given, **decode)
                messages.append(None)
            except LookupError as error:
                messages.append(str(error))
        assert messages[0] == messages[1]
    assert messages[0] is not None and in_numbers


@pytest.mark.parametrize(
    "given",
    [
        dict(record="top"),
        dict(decode_round=four_steps),
        dict(sampling=SamplingParams(processors=[lambda ids, scores: scores])),
        dict(randomness=type("Own", (Seeded,), {})(0)),
        dict(sampling=type("Own", (SamplingParams,), {})()),
    ],
    ids=["recorded", "own round", "processors", "own randomness", "own sampling"],
)
def test_whoever_looks_inside_gets_the_four_steps(given, in_numbers):
    target, drafter = TableModel.random(3, 1, seed=1), TableModel.random(3, 1, seed=2)
    speculate(target, drafter, [0], gamma=2, max_new_tokens=6, **dict(record="none") | given)
    speculate(target, drafter, [[0], [1]], gamma=2, max_new_tokens=6, record="none")
    assert not in_numbers


def test_a_round_at_a_time(in_numbers):
    target, drafter = TableModel.random(3, 1, seed=1), TableModel.random(3, 1, seed=2)
    given = dict(gamma=2, max_new_tokens=9, seed=4, record="none")
    whole = speculate(target, drafter, [0], **given)
    assert [r.tokens for r in rounds(target, drafter, [0], **given)] == [r.tokens for r in whole.rounds]
    assert all(set(r.seconds) == {"draft", "target", "verify", "commit"} for r in whole.rounds)
    assert speculate(target, drafter, [[0]], **given)[0].tokens == whole.tokens
    assert in_numbers


@pytest.mark.parametrize("kind", ["model", "layer skip"])
def test_both_memories_are_rewound_by_the_end_of_a_round(kind, monkeypatch):
    if kind == "model":
        target, drafter = TableModel.random(4, 1, seed=1), TableModel.random(4, 1, seed=4)
    else:
        target, drafter = language_model("llama", 1, vocab_size=12), LayerSkip(1)
    state = start(target, drafter, [1, 2, 3], gamma=3, max_new_tokens=20, seed=0, record="none")
    propose_row = type(state.session).propose_row

    def checked(session, committed, end, *settings):
        proposed = propose_row(session, committed, end, *settings)
        assert state.memory.length.item() == end - 1  # also where the drafter fed it
        return proposed

    monkeypatch.setattr(type(state.session), "propose_row", checked)
    while state.active.any():
        decoding.decode_row(state)
        assert state.memory.length.item() == state.length.item() - 1
        assert state.session.memory.length.item() <= state.length.item() - 1
    if kind == "model":  # there was something to take back
        assert (0, 3) in {(done[0].accepted, done[0].gamma_used) for done in state.history}
