"""Logits processors of transformers, applied to p and q alike, each position by its own text."""

import pytest
import torch
from tiny import language_model
from transformers import (
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from specviz import SamplingParams, Seeded, TableModel, Trace, autoregress, speculate
from specviz.drafters.layer_skip import LayerSkip
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.equivalence.exact import prove, target_law

REPETITION = RepetitionPenaltyLogitsProcessor(1.8)
NO_PAIR_TWICE = NoRepeatNGramLogitsProcessor(2)
NO_TWO = NoBadWordsLogitsProcessor([[2], [0, 1]], eos_token_id=5)
TARGET, DRAFTER = TableModel.random(4, 1, seed=1), TableModel.random(4, 1, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "processors", [[REPETITION], [NO_PAIR_TWICE], [NO_TWO, REPETITION]], ids=["repetition", "n-gram", "both"]
)
@pytest.mark.parametrize("settings", [{}, dict(temperature=0.7, top_k=2), dict(temperature=0)], ids=str)
def test_the_law_is_exact(processors, settings):
    sampling = SamplingParams(**settings, processors=processors)
    # Processors are asked row by row: where nothing is cut off, all branches of γ = 3 would take a minute.
    gammas, tokens = ((1, 2, 3), 4) if settings else ((1, 2), 3)
    for gamma in gammas:
        assert prove(TARGET, DRAFTER, [0, 3], gamma=gamma, max_new_tokens=tokens, sampling=sampling).exact
    assert prove(TARGET, PromptLookup(), [0, 3, 0], gamma=2, max_new_tokens=4, sampling=sampling).exact


def test_the_expected_law_is_that_of_a_processor_written_by_hand():
    """A penalty on tokens that the text already holds: positive scores are divided, negative ones multiplied."""
    sampling = SamplingParams(processors=[REPETITION])
    law = target_law(TARGET, [0, 3], max_new_tokens=2, sampling=sampling)
    for (first, second), probability in law.items():
        expected = 1.0
        for text, token in (([0, 3], first), ([0, 3, first], second)):
            logits = TARGET.logits[text[-1]].clone()
            for seen in set(text):
                logits[seen] = logits[seen] / 1.8 if logits[seen] > 0 else logits[seen] * 1.8
            expected *= logits.softmax(-1)[token].item()
        assert probability == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("drafter", ["model", "layers", "lookup"])
def test_greedy_text_is_that_of_generate_with_the_same_processors(drafter):
    target = language_model("llama", 1, vocab_size=12)
    drafters = dict(model=language_model("llama", 2, vocab_size=12), layers=LayerSkip(1), lookup=PromptLookup())
    processors = LogitsProcessorList([REPETITION, NO_PAIR_TWICE])
    sampling = SamplingParams(temperature=0, processors=processors)
    prompts = [[0, 1, 2], [3], [4, 5, 6, 0, 1]]
    settings = dict(max_new_tokens=20, sampling=sampling)
    traces = speculate(target, drafters[drafter], prompts, gamma=3, **settings)
    plain = autoregress(target, prompts, **settings)
    assert [trace.tokens for trace in traces] == [trace.tokens for trace in plain]
    for prompt, trace in zip(prompts, traces):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            theirs = target.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
                logits_processor=processors, pad_token_id=0,
            )  # fmt: skip
        assert trace.tokens == theirs[0, len(prompt) :].tolist()


def test_a_batch_is_its_single_runs():
    sampling = SamplingParams(processors=[REPETITION, NO_PAIR_TWICE])
    prompts = [[0, 3, 1], [2], [1, 1]]
    batch = speculate(TARGET, DRAFTER, prompts, gamma=3, max_new_tokens=9, seed=4, eos=[3], sampling=sampling)
    for row, prompt in enumerate(prompts):
        alone = speculate(
            TARGET, DRAFTER, [prompt], gamma=3, max_new_tokens=9, randomness=Seeded(4, [row]), eos=[3],
            sampling=sampling,
        )  # fmt: skip
        assert alone[0].tokens == batch[row].tokens


def test_a_trace_names_them_and_goes_through_json():
    trace = speculate(TARGET, DRAFTER, [0], max_new_tokens=4, seed=0, sampling=SamplingParams(processors=[REPETITION]))
    assert trace.sampling["processors"] == ["RepetitionPenaltyLogitsProcessor"]
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()
    assert "processors" not in speculate(TARGET, DRAFTER, [0], max_new_tokens=4, seed=0).sampling


def test_what_forbids_everything_is_reported():
    def nothing(ids, scores):
        return torch.full_like(scores, -torch.inf)

    with pytest.raises(FloatingPointError, match="-inf for every token"):
        speculate(TARGET, DRAFTER, [0], max_new_tokens=4, seed=0, sampling=SamplingParams(processors=[nothing]))


def test_one_that_writes_into_what_it_is_given_spoils_nothing():
    def forbid_the_last(ids, scores):
        scores[:, ids[0, -1]] = -torch.inf
        return scores

    before = TARGET.logits.clone()
    sampling = SamplingParams(processors=[forbid_the_last])
    assert prove(TARGET, DRAFTER, [0, 3], gamma=2, max_new_tokens=4, sampling=sampling).exact
    assert torch.equal(TARGET.logits, before)


@pytest.mark.parametrize("result", [lambda scores: None, lambda scores: scores[:, :2]])
def test_one_that_returns_something_else_is_named(result):
    def odd(ids, scores):
        return result(scores)

    with pytest.raises(
        ValueError, match="processor .*odd.* returned .*: must return a floating-point tensor of scores"
    ):
        speculate(TARGET, DRAFTER, [0], max_new_tokens=4, seed=0, sampling=SamplingParams(processors=[odd]))


@pytest.mark.parametrize("processors", [REPETITION, "penalty", [1.8], [REPETITION, None]])
def test_bad_processors(processors):
    with pytest.raises(ValueError, match="processors=.*: must be a list of logits processors"):
        SamplingParams(processors=processors)


def test_probabilities_ask_for_the_text():
    with pytest.raises(ValueError, match="processors look at the text before each position"):
        SamplingParams(processors=[REPETITION]).probabilities(torch.zeros(1, 4))
