"""What only a GPU can show: half precision, a pair on two devices, a target spread over several.

All else that a GPU should do is in the other files: pytest --device cuda (benchmarks/gpu_checks.sh).
"""

import pytest
import torch

from specviz import SamplingParams, autoregress, load_pair, speculate
from specviz.drafters.layer_skip import LayerSkip
from specviz.equivalence.greedy import first_difference

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PROMPTS = ["Once upon a time", "The old king had three sons, and", "Far away"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("drafter", ["model", "layers"])
def test_greedy_text_differs_from_plain_by_near_ties_at_most(dtype, drafter):
    target, draft = load_pair("tales", device="cuda", dtype=dtype)
    settings = dict(max_new_tokens=48, sampling=SamplingParams(temperature=0), record="full")
    plain = autoregress(target, PROMPTS, **settings)
    fast = speculate(target, draft if drafter == "model" else LayerSkip(8), PROMPTS, gamma=4, **settings)
    for one, other in zip(plain, fast):
        parting = first_difference(target, one, other)
        assert parting is None or parting.near_tie, parting
    masses = [masses.mass for trace in fast for round in trace.rounds for masses in round.p]
    assert max(abs(sum(mass) - 1) for mass in masses) < 1e-5  # float32, whatever the weights are


@pytest.mark.parametrize("places", [("cuda", "cpu"), ("cpu", "cuda")])
def test_target_and_draft_may_be_on_different_devices(places):
    pairs = [load_pair("tales", device=place, dtype=torch.float64) for place in places]
    settings = dict(gamma=4, max_new_tokens=32, seed=0)
    there = speculate(pairs[0][0], pairs[1][1], PROMPTS, **settings)
    expected = speculate(*pairs[0], PROMPTS, **settings)
    assert [trace.tokens for trace in there] == [trace.tokens for trace in expected]


HALF = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": "cpu", "lm_head": 0}
HALF |= {f"model.layers.{i}": 0 if i < 6 else "cpu" for i in range(12)}


@pytest.mark.parametrize("device_map", ["auto", HALF], ids=["automatic", "half on the CPU"])
def test_a_spread_target_decodes_the_same(device_map):
    pytest.importorskip("accelerate")
    spread, draft = load_pair("tales", device_map=device_map, dtype=torch.float64)
    target, _ = load_pair("tales", device="cuda", dtype=torch.float64)
    assert spread.device.type == draft.device.type == "cuda"
    for drafter in (draft, LayerSkip(8)):
        settings = dict(gamma=3, max_new_tokens=24, seed=1)
        expected = speculate(target, drafter, PROMPTS, **settings)
        assert [trace.tokens for trace in speculate(spread, drafter, PROMPTS, **settings)] == [
            trace.tokens for trace in expected
        ]
