"""What only a GPU can show: half precision, CUDA graphs, a pair on two devices, a target spread over several.

All else that a GPU should do is in the other files: pytest --device cuda (benchmarks/gpu_checks.sh).
"""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specviz import CausalLM, SamplingParams, autoregress, load_pair, speculate
from specviz.drafters.layer_skip import LayerSkip
from specviz.equivalence.greedy import first_difference

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ROOT = Path(__file__).parent.parent
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
    kept = [p.probs for trace in fast for round in trace.rounds for p in round.p]
    assert max(abs(sum(probs) - 1) for probs in kept) < 1e-5  # float32, whatever the weights are


@pytest.mark.parametrize("places", [("cuda", "cpu"), ("cpu", "cuda")])
def test_target_and_draft_may_be_on_different_devices(places):
    pairs = [load_pair("tales", device=place, dtype=torch.float64) for place in places]
    settings = dict(gamma=4, max_new_tokens=32, seed=0)
    there = speculate(pairs[0][0], pairs[1][1], PROMPTS, **settings)
    expected = speculate(*pairs[0], PROMPTS, **settings)
    assert [trace.tokens for trace in there] == [trace.tokens for trace in expected]
    alone = speculate(pairs[0][0], pairs[1][1], PROMPTS[0], record="none", **settings)
    assert alone.tokens == expected[0].tokens


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


# --- steps as graphs (specviz/backends/graphs.py; tests/test_graphs.py is the rest of it) -------------


def fed(model, sizes=(40, 1, 5, 5, 2, 1, 5), rows=2):
    """Logits [B, …, V] of one text, fed in parts of these sizes."""
    text = torch.randint(0, model.vocab_size, (rows, sum(sizes)), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache([[0]] * rows, sum(sizes) + 5)
    return torch.cat([cache.feed(part) for part in text.split(sizes, dim=1)], dim=1), cache


def graphed_pair(dtype):
    with pytest.warns(RuntimeWarning, match="have not been tried"):
        pair = load_pair("tales", device="cuda", dtype=dtype)
        return [CausalLM(m.model, m.tokenizer.hub, name=m.name, backend="cuda-graphs") for m in pair]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_graphs_give_the_logits_of_the_general_path(dtype):
    for model in graphed_pair(dtype):
        logits, cache = fed(model)
        assert cache.graphs.work and sorted(cache.slot.recordings) == [1, 2, 5]
        expected, _ = fed(CausalLM(model.model, backend="transformers"))
        spread, rounding = expected.double().std().item(), {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 0.1)
        assert (logits.double() - expected.double()).abs().max().item() < rounding * spread


def test_graphs_leave_the_memory_of_the_device_as_it_was_from_one_decoding_to_the_next():
    pair = graphed_pair(torch.float16)

    def decode(seed):
        speculate(*pair, PROMPTS, gamma=3, max_new_tokens=24, seed=seed, eos=(), record="none")
        gc.collect()
        return torch.cuda.memory_allocated()

    first = [decode(seed) for seed in range(8)][-1]
    assert max(decode(seed) for seed in range(8, 12)) < first + 2**20


FAILING_CAPTURE = """
import contextlib, warnings, torch
from specviz import CausalLM, load_pair, speculate
from specviz.backends import graphs

warnings.filterwarnings("ignore", message=".*have not been tried")
graphs._waiting_is_an_error = contextlib.nullcontext  # so that only the capture itself finds it
settings = dict(gamma=3, max_new_tokens=16, seed=0)
plain, draft = load_pair("tales", device="cuda", dtype=torch.float64)
target = CausalLM(plain.model, backend="cuda-graphs")
expected = speculate(plain, draft, [[5, 6, 7]], **settings)[0]
head = target.model.get_output_embeddings()
head.register_forward_hook(lambda module, inputs, logits: logits * (2 if logits.amax().item() > 1e9 else 1))
stream = torch.cuda.current_stream()
with warnings.catch_warnings(record=True) as warned:
    target.refresh()  # it has a hook now
    found = speculate(target, draft, [[5, 6, 7]], **settings)[0]
assert any("decodes without CUDA graphs from now on" in str(w.message) for w in warned), warned
assert found.tokens == expected.tokens
assert torch.cuda.current_stream() == stream and not torch.cuda.is_current_stream_capturing()
another, _ = load_pair("tales", device="cuda", dtype=torch.float64)
another = CausalLM(another.model, backend="cuda-graphs")
assert speculate(another, draft, [[5, 6, 7]], **settings)[0].tokens == expected.tokens
assert another.backend == "cuda-graphs" and another.new_cache([[0]], 9).graphs.work
"""


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="torch itself forgets to end a failed capture")
def test_a_capture_that_fails_leaves_the_device_usable():
    """In a process of its own, should it not. (A model that waits for the device is normally found before.)"""
    done = subprocess.run([sys.executable, "-c", FAILING_CAPTURE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
