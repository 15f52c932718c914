"""The round on tensors, as on a GPU: the same code, where distributions stay torch's from beginning to end."""

import sys

import pytest
import torch

from specviz import SamplingParams, TableModel, arrays, speculate
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.equivalence.exact import prove


@pytest.fixture
def on_tensors(monkeypatch):
    """as_array() leaves tensors as they are, as it does with a GPU's."""
    for name, module in list(sys.modules.items()):
        if name.startswith("specviz") and getattr(module, "as_array", None) is arrays.as_array:
            monkeypatch.setattr(module, "as_array", lambda x: x)


SETTINGS = [{}, dict(temperature=0), dict(temperature=0.7, top_k=2)]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("record", ["none", "full"])
def test_its_law_is_the_targets(sampling, rows, record, on_tensors):
    target = TableModel.random(3, 1, seed=31, eos=(2,))
    for drafter in (TableModel.random(3, 1, seed=36), PromptLookup(1, 1)):
        proof = prove(
            target, drafter, [0, 1, 0], gamma=2, max_new_tokens=3, sampling=SamplingParams(**sampling), rows=rows,
            record=record, progress=False,
        )  # fmt: skip
        assert proof.exact, proof


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_it_decodes_the_same_tokens_as_on_arrays(sampling, monkeypatch, request):
    target, drafter = (TableModel.random(7, 2, seed=seed, eos=(6,), dtype=torch.float32) for seed in (1, 2))
    asked = dict(gamma=3, max_new_tokens=12, seed=5, sampling=SamplingParams(**sampling))
    prompts = [[0, 1], [2], [3, 4, 5]]
    here = [speculate(target, drafter, given, **asked) for given in (prompts[0], prompts)]
    request.getfixturevalue("on_tensors")
    there = [speculate(target, drafter, given, **asked) for given in (prompts[0], prompts)]
    assert here[0].tokens == there[0].tokens
    assert [trace.tokens for trace in here[1]] == [trace.tokens for trace in there[1]]


def test_a_drafter_of_another_dtype_than_the_targets(on_tensors):
    target = TableModel.random(5, 1, seed=1)
    for drafter in (TableModel.random(5, 1, seed=2, dtype=torch.float32), PromptLookup(1, 1)):
        assert len(speculate(target, drafter, [[0, 1, 0], [2, 2], [3]], gamma=2, max_new_tokens=20, seed=3)) == 3
