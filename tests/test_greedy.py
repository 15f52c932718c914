"""Where two greedy texts part: near ties, made on purpose, and real differences."""

from dataclasses import replace

import pytest
import torch
from tiny import fresh_logits, hub_model, language_model, t5

from specviz import CausalLM, SamplingParams, TableModel, autoregress, speculate
from specviz.equivalence.greedy import first_difference

GREEDY = dict(sampling=SamplingParams(temperature=0), seed=0, max_new_tokens=12)


def tied(first, second, gap, dtype=torch.float32):
    """A Llama whose output layer has the same row for two ids, the second's smaller by that share."""
    model = hub_model("llama", 1, vocab_size=12, dtype=dtype)
    head = model.get_output_embeddings().weight.data
    head.mul_(8)
    head[second] = head[first] * (1 - gap)
    return CausalLM(model, name="tied")


def commonest(trace):
    return max(set(trace.tokens), key=trace.tokens.count)


@pytest.mark.parametrize(
    ("dtype", "gap", "near_tie"),
    [
        (torch.float32, 1e-6, True),
        (torch.float32, 0.2, False),
        (torch.bfloat16, 0.004, True),
        (torch.float64, 1e-6, True),  # transformers' norms are float32 all the same
        (torch.float64, 0.01, False),
    ],
)
def test_a_near_tie_is_told_from_a_difference(dtype, gap, near_tie):
    """The same text decoded by a twin that rounds the other way, or is another model."""
    first = commonest(autoregress(tied(0, 0, 0, dtype), [1, 2, 3], **GREEDY))
    second = (first + 1) % 12
    target = tied(first, second, gap, dtype)
    twin = tied(first, second, -gap, dtype)
    plain, other = (autoregress(model, [1, 2, 3], **GREEDY) for model in (target, twin))
    parting = first_difference(target, plain, other)
    at = parting.position - 1
    assert plain.tokens[:at] == other.tokens[:at] and parting.tokens == (plain.tokens[at], other.tokens[at])
    assert set(parting.tokens) == {first, second} and parting.near_tie == near_tie
    logits = fresh_logits(target, [1, 2, 3, *plain.tokens[:at]])[-1].double()
    assert parting.gap == pytest.approx((logits[first] - logits[second]).abs().item(), abs=1e-5)
    assert ("a near tie, within rounding" in str(parting)) == near_tie


def test_equal_texts_have_no_difference():
    target, drafter = language_model("llama", 1, vocab_size=12), language_model("llama", 2, vocab_size=12)
    plain = autoregress(target, [1, 2], **GREEDY)
    assert first_difference(target, plain, speculate(target, drafter, [1, 2], gamma=3, **GREEDY)) is None


def test_a_gap_is_counted_from_the_largest_logit_even_if_neither_has_it():
    target = TableModel([2.0, 1.5, 1.4999999])
    plain = autoregress(target, [0], **GREEDY)
    one, other = (replace(plain, tokens=[token]) for token in (1, 2))
    parting = first_difference(target, one, other)
    assert parting.gap == pytest.approx(0.5, abs=1e-6) and not parting.near_tie


@pytest.mark.parametrize("target", [TableModel.random(12, 2, seed=1), t5("t5", 1, 12)], ids=["table", "t5"])
def test_any_model_will_do(target):
    plain = autoregress(target, [1, 2], **GREEDY)
    other = replace(plain, tokens=[*plain.tokens[:4], (plain.tokens[4] + 1) % 12, *plain.tokens[5:]])
    assert first_difference(target, plain, other).position == 5


def test_what_cannot_be_compared_is_refused():
    target = TableModel.random(12, 2, seed=1)
    plain = autoregress(target, [1, 2], **GREEDY)
    for other, message in (
        (autoregress(target, [1, 2], seed=0), "give traces of temperature 0"),
        (autoregress(target, [1], **GREEDY), "different prompts"),
        (replace(plain, tokens=plain.tokens[:5]), "have 12 and 5 tokens: decode both with the same settings"),
    ):
        with pytest.raises(ValueError, match=message):
            first_difference(target, plain, other)


def test_the_benchmark_says_so_in_its_table():
    from benchmarks.drafters import greedy_difference

    target = TableModel([2.0, 1.9999, 1.0], dtype=torch.float32)
    plain = autoregress(target, [0], **GREEDY)
    near, far = (replace(plain, tokens=[0, 0, token]) for token in (1, 2))
    assert greedy_difference(target, [(plain, plain)]) == "equal to plain"
    assert greedy_difference(target, [(plain, near), (plain, plain)]).startswith("1 of 2 differ")
    assert "1.0e-04, a near tie" in greedy_difference(target, [(plain, near)])
    assert "1.0e+00, more than rounding explains" in greedy_difference(target, [(plain, near), (plain, far)])
