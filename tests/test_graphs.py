"""Decoding through recorded steps: on CUDA as graphs (--device cuda), here by a recorder that is as forgetful.

A graph knows addresses and numbers, no Python. So does the recorder: it keeps the calls that reach torch's dispatcher,
with the tensors and the numbers they had, and makes the same calls again on the same tensors.
"""

import gc
import warnings

import pytest
import torch
from tiny import (
    FULL_ATTENTION,
    SLIDING_WINDOW,
    decoder,
    decoder_pair,
    fresh_logits,
    language_model,
    rows_that_differ,
    worst_ragged_logits,
    worst_recorded,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specviz import CausalLM, SamplingParams, Scripted, Seeded, autoregress, load_pair, speculate
from specviz.backends import choice, graphs
from specviz.backends.transformers import TransformersCache
from specviz.drafters.layer_skip import LayerSkip
from specviz.equivalence.exact import prove

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")  # that a model falls back
PROMPTS = [[1, 2, 0, 2, 1], [2], [0, 1]]


class Calls(TorchDispatchMode):
    """The calls that are made meanwhile; those for which a host would wait for its GPU are refused."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        by_mask = name.startswith("index") and any(x.dtype == torch.bool for x in args[1] if torch.is_tensor(x))
        if by_mask or name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2"):
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        output = function(*args, **(kwargs or {}))
        self.made.append((function, args, kwargs or {}, output))
        return output


class Recorder:
    """graphs.Recording without a GPU."""

    def __init__(self, run, device, beside=None):
        for _ in range(graphs.WARM_UPS):
            run()
        with Calls() as calls:
            self.output = run()
        self.calls = calls.made
        self.sharing = [self] if beside is None else beside.sharing
        self.sharing.append(self)

    def replay(self):
        for other in self.sharing:
            other.output.fill_(torch.nan)  # graphs that share memory overwrite each other's results
        for function, args, kwargs, output in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(output), tree_leaves(again), strict=True):
                if torch.is_tensor(old) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)  # results keep their places; views, and tensors written in place, do so anyway
        return self.output


@pytest.fixture(autouse=True)
def made(monkeypatch, request):
    """The recordings that a test makes."""
    made = []
    on_cpu = request.config.getoption("device") == "cpu"

    class Counted(Recorder if on_cpu else graphs.Recording):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(graphs, "Recording", Counted)
    if on_cpu:
        monkeypatch.setattr(graphs, "is_supported", lambda model: not hasattr(model, "_hf_hook"))
    monkeypatch.setattr(choice, "BY_ITSELF", (graphs.CudaGraphs, *choice.BY_ITSELF))
    return made


def slots(model):
    """The slots that a CausalLM keeps from one decoding to the next."""
    return model._backends.made[graphs.CudaGraphs].graphs


def general(model):
    """The same model by the general path."""
    return CausalLM(model.model, name=model.name, backend="transformers")


def ids(rows, n, seed=0):
    return torch.randint(0, 3, (rows, n), generator=torch.Generator().manual_seed(seed))


def pair(**settings):
    return language_model("llama", 1, **settings), language_model("llama", 2, **settings)


# --- logits ---------------------------------------------------------------------------------------

FAMILIES = {**FULL_ATTENTION, **{f"{name}, window": settings for name, settings in SLIDING_WINDOW.items()}}
WAIT = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss")  # for numbers of tokens by expert, as these are set up here


def model_of(family):
    return CausalLM(decoder(family.split(",")[0], 1, **FAMILIES[family]))


@pytest.mark.parametrize("family", [name for name in FAMILIES if not name.startswith(WAIT)])
def test_ragged_feeds_and_rewinds_equal_fresh_forwards(family, made):
    model = model_of(family)
    eager = model.model.config._attn_implementation == "eager"  # whose softmax is float32 whatever the dtype
    assert worst_ragged_logits(model) < (1e-6 if eager else 1e-8)
    assert len(made) == 4  # for 1, 2, 3 and 4 tokens


@pytest.mark.parametrize("family", [name for name in FAMILIES if name.startswith(WAIT)])
def test_a_model_that_waits_for_its_numbers_goes_on_without(family, made):
    model = model_of(family)
    with pytest.warns(RuntimeWarning, match="decodes without CUDA graphs from now on.*backend='auto'") as warned:
        assert worst_ragged_logits(model) < 1e-5
    assert made == [] and len([w for w in warned if w.category is RuntimeWarning]) == 1
    assert type(model.new_cache([[0]], 9)) is TransformersCache


@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
def test_every_recorded_p_and_q_equals_a_fresh_forward(gamma, made):
    for family in ("llama", "gpt2", "qwen2, window"):
        target, drafter = decoder_pair(family.split(",")[0], **FAMILIES[family])
        assert worst_recorded(target, drafter, PROMPTS, gamma=gamma, max_new_tokens=20, seed=0) < 1e-9
    assert made


def test_logits_are_the_callers_to_keep():
    model = language_model("gpt2", 1)
    cache = model.new_cache([[0]] * 2, 40)
    text, kept = ids(2, 20), []
    cache.feed(text[:, :4])
    for end in range(5, 21, 2):
        cache.feed(text[:, end - 1 : end])
        kept.append((end + 1, cache.feed(text[:, end : end + 1])))
    for end, logits in kept[:-1]:
        expected = torch.stack([fresh_logits(model, row)[-1] for row in text[:, :end].tolist()])
        assert (logits[:, -1] - expected).abs().max() < 1e-9


def test_few_tokens_are_recorded_and_prompts_are_not(made, monkeypatch):
    cache = language_model("llama", 1).new_cache([[0]] * 2, 60)
    cache.feed(ids(2, 5))
    assert made == []
    for n in (2, 1, 2, 17, 1):  # 17: more than a step
        cache.feed(ids(2, n))
    assert len(made) == 2
    monkeypatch.setattr(graphs, "IN_ALL", 5)
    cache.feed(ids(2, 3))
    assert len(made) == 2


def test_a_full_cache_is_refused_at_the_capacity_that_was_asked_for(monkeypatch):
    monkeypatch.setattr(graphs, "STEP", 8)
    for capacity in (7, 8, 9, 16):
        cache = language_model("llama", 1).new_cache([[0]] * 2, capacity)
        cache.feed(ids(2, 5), torch.tensor([4, 5]))
        cache.feed(ids(2, capacity - 6))
        cache.feed(ids(2, 1))  # the last place, first recorded here for one of the rows
        with pytest.raises(ValueError, match=f"1 tokens do not fit, .* of capacity {capacity}; make the cache with"):
            cache.feed(ids(2, 1))
        cache.rewind(3)
        cache.feed(ids(2, 1))


# --- decoding -------------------------------------------------------------------------------------


def favour_the_second(ids, scores):
    return scores + torch.tensor([0, 1, 0], device=scores.device) * (ids.shape[1] % 3)


SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7, top_k=2, processors=(favour_the_second,)),
]


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1, 2, 3, 4])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["sampled", "greedy", "processed"])
def test_texts_are_those_of_the_general_path(gamma, sampling, made):
    fast = pair()
    slow = [general(model) for model in fast]
    settings = dict(gamma=gamma, max_new_tokens=20, sampling=sampling)
    for randomness in (lambda: Seeded(7), lambda: Scripted({}, base=Seeded(8))):
        for prompts in (PROMPTS, PROMPTS[0]):
            texts = [speculate(*models, prompts, randomness=randomness(), **settings) for models in (fast, slow)]
            texts = [text if isinstance(text, list) else [text] for text in texts]
            for one, other in zip(*texts, strict=True):
                assert one.tokens == other.tokens
                assert [round.draft_tokens for round in one.rounds] == [round.draft_tokens for round in other.rounds]
    assert len(made) >= 2


def test_plain_texts_are_those_of_the_general_path():
    target, _ = pair()
    for sampling in SAMPLINGS:
        texts = [
            autoregress(model, PROMPTS, max_new_tokens=12, sampling=sampling, seed=1)
            for model in (target, general(target))
        ]
        assert [trace.tokens for trace in texts[0]] == [trace.tokens for trace in texts[1]]


def test_the_distribution_is_exact(made):
    target, drafter = decoder_pair("llama")
    assert prove(target, drafter, PROMPTS[0], gamma=2, max_new_tokens=3, tolerance=1e-9, progress=False).exact
    assert made


def test_a_row_of_a_batch_equals_the_same_row_alone():
    assert rows_that_differ(*pair(), PROMPTS, gamma=3, max_new_tokens=15) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, made):
    target, drafter = pair(dtype=dtype)
    caches = [model.new_cache([[0]] * 2, 30) for model in (target, general(target))]
    for n in (5, 2, 1, 2):
        logits = [cache.feed(ids(2, n)) for cache in caches]
        torch.testing.assert_close(*logits, rtol=0.02, atol=0.02)
        assert logits[0].dtype == dtype
    trace = speculate(target, drafter, PROMPTS[0], gamma=3, max_new_tokens=10, seed=0)
    assert len(trace.tokens) == 10 and made


def test_the_bundled_pair():
    models = load_pair("tales", dtype=torch.float64)
    settings = dict(gamma=3, max_new_tokens=12, seed=0)
    slow = [CausalLM(model.model, model.tokenizer.hub, backend="transformers") for model in models]
    assert models[0].backend == "cuda-graphs"
    text, expected = (speculate(*some, "Once upon a time", **settings).text for some in (models, slow))
    assert text == expected


@pytest.mark.parametrize("gamma", [1, 3])
def test_layer_skip_shares_a_recorded_cache(gamma, made):
    target, _ = pair()
    settings = dict(gamma=gamma, max_new_tokens=20, seed=2)
    texts = [speculate(model, LayerSkip(1), PROMPTS, **settings) for model in (target, general(target))]
    for one, other in zip(*texts, strict=True):
        assert one.tokens == other.tokens
        assert [round.draft_tokens for round in one.rounds] == [round.draft_tokens for round in other.rounds]
    assert made  # the verification's


# --- slots ----------------------------------------------------------------------------------------


def feed_all(model, cache, text, n=2):
    """Fed n at a time; the largest difference from fresh forwards."""
    logits = torch.cat([cache.feed(part) for part in text.split(n, dim=1)], dim=1)
    return max((logits[row] - fresh_logits(model, text[row].tolist())).abs().max() for row in range(len(text)))


def test_caches_that_live_at_once_have_slots_of_their_own():
    model = language_model("llama", 1)
    one, other = (model.new_cache([[0]] * 2, 40) for _ in range(2))
    assert one.slot is not other.slot
    texts, logits = [ids(2, 12, seed) for seed in (0, 1)], ([], [])
    for at in range(0, 12, 2):
        for cache, text, found in zip((one, other), texts, logits, strict=True):
            found.append(cache.feed(text[:, at : at + 2]))
    for text, found in zip(texts, logits, strict=True):
        expected = torch.stack([fresh_logits(model, row) for row in text.tolist()])
        assert (torch.cat(found, dim=1) - expected).abs().max() < 1e-9


def test_a_slot_serves_the_next_cache_of_its_shape_as_if_it_were_new(made):
    model = language_model("llama", 1)
    cache = model.new_cache([[0]] * 2, 40)
    assert feed_all(model, cache, ids(2, 30)) < 1e-9
    slot, recorded = cache.slot, len(made)
    for layer in slot.cache.layers:
        layer.keys.fill_(torch.nan), layer.values.fill_(torch.inf)  # as after a model's overflow
    assert slots(model).free == []
    del cache
    gc.collect()
    assert slots(model).free == [slot]
    cache = model.new_cache([[0]] * 2, 25)  # another capacity, but the same when rounded
    assert cache.slot is slot and slots(model).free == [] and cache.capacity == 25
    assert feed_all(model, cache, ids(2, 20, seed=5)) < 1e-9
    assert len(made) == recorded == 1
    assert model.new_cache([[0]] * 3, 40).slot is not slot


def test_decoding_again_records_nothing_again(made):
    target, drafter = pair()
    for seed in range(3):
        speculate(target, drafter, PROMPTS, gamma=3, max_new_tokens=20, seed=seed)
    recorded = len(made)
    speculate(target, drafter, PROMPTS, gamma=3, max_new_tokens=20, seed=0)
    assert len(made) == recorded and len(slots(target).free) == len(slots(drafter).free) == 1


def test_slots_that_wait_are_few_and_small(monkeypatch):
    model = language_model("llama", 1)
    for rows in range(1, 9):
        model.new_cache([[0]] * rows, 30).feed(ids(rows, 2))
    assert [slot.shape[0] for slot in slots(model).free] == [5, 6, 7, 8]
    assert all(slot.nbytes > 0 for slot in slots(model).free)
    monkeypatch.setattr(graphs, "FREE_BYTES", 1)
    cache = model.new_cache([[0]] * 8, 30)  # the one that fits is used all the same, and no other is kept beside it
    assert slots(model).free == [] and cache.slot.recordings == {}
    del cache
    assert len(slots(model).free) == 1


@pytest.mark.parametrize("change", ["trained", "converted"])
def test_a_changed_model_is_recorded_again_after_refresh_alone(change, made):
    model = language_model("llama", 1)
    assert feed_all(model, model.new_cache([[0]] * 2, 40), ids(2, 8)) < 1e-9
    recorded = len(made)
    with torch.no_grad():
        for weight in model.model.parameters():
            weight.mul_(1.1)
    if change == "converted":
        model.model.float()
    tolerance = 1e-9 if change == "trained" else 1e-4
    assert feed_all(model, model.new_cache([[0]] * 2, 40), ids(2, 8)) < tolerance
    assert model.backend == "transformers" and len(made) == recorded
    model.refresh()
    assert feed_all(model, model.new_cache([[0]] * 2, 40), ids(2, 8)) < tolerance
    assert model.backend == "cuda-graphs" and len(made) > recorded


def test_graphs_are_taken_by_name_alone_and_say_that_they_are_untried(monkeypatch):
    monkeypatch.undo()
    model = language_model("llama", 1)
    assert model.backend != "cuda-graphs"
    monkeypatch.setattr(graphs, "is_supported", lambda model: True)
    with pytest.warns(RuntimeWarning, match="llama-1: CUDA graphs have not been tried on a GPU"):
        named = CausalLM(model.model, name=model.name, backend="cuda-graphs")
    assert "backend cuda-graphs>" in repr(named) and named.new_cache([[0]], 9).backend == "cuda-graphs"


def test_a_slot_made_in_inference_mode_serves_outside_of_it():
    model = language_model("llama", 1)
    with torch.inference_mode():
        cache = model.new_cache([[0]] * 2, 40)
        cache.feed(ids(2, 2))
        assert not cache.feed(ids(2, 2)).requires_grad
    slot = cache.slot
    del cache
    cache = model.new_cache([[0]] * 2, 40)
    assert cache.slot is slot
    assert feed_all(model, cache, ids(2, 8)) < 1e-9
    assert not cache.feed(ids(2, 2)).requires_grad


def test_a_model_that_depends_on_the_capacity_of_its_cache_has_no_slots():
    settings = dict(hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]])
    model = CausalLM(decoder("gpt_neo", vocab_size=12, window_size=16, num_hidden_layers=2, **settings))
    assert model.window == 16 and type(model.new_cache([[0]], 9)) is TransformersCache


def test_slots_are_rounded_up_but_not_beyond_the_context():
    model = language_model("llama", 1, context=600)
    shapes = {
        capacity: model.new_cache([[0]], capacity).slot.shape[1] for capacity in (9, 255, 256, 511, 512, 599, 600)
    }
    assert shapes == {9: 256, 255: 256, 256: 512, 511: 512, 512: 600, 599: 600, 600: 601}


def test_a_model_on_several_devices_or_not_to_be_fast_has_the_general_cache():
    model = language_model("llama", 1)
    assert type(general(model).new_cache([[0]], 9)) is TransformersCache
    model.model._hf_hook = object()  # accelerate's
    assert type(model.new_cache([[0]], 9)) is not graphs.GraphedCache


# --- faults that a graph could hide ---------------------------------------------------------------


def speculate_with_a_warning(target, drafter, match):
    with pytest.warns(RuntimeWarning, match=match) as warned:
        first = speculate(target, drafter, PROMPTS, gamma=3, max_new_tokens=20, seed=3)
    assert len([w for w in warned if w.category is RuntimeWarning]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = speculate(target, drafter, PROMPTS, gamma=3, max_new_tokens=20, seed=3)
    expected = speculate(general(target), general(drafter), PROMPTS, gamma=3, max_new_tokens=20, seed=3)
    for traces in (first, again):
        assert [trace.tokens for trace in traces] == [trace.tokens for trace in expected]
    assert type(target.new_cache([[0]], 9)) is TransformersCache


def disturbed(model, disturb):
    """The model as a CausalLM, with disturb(logits) behind its head."""
    head = model.model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, logits: disturb(logits))
    return CausalLM(model.model, name=model.name)


def test_a_model_that_waits_for_the_device(made):
    target, drafter = pair()
    target = disturbed(target, lambda logits: logits * 2 if logits.amax().item() > 1e9 else logits)
    speculate_with_a_warning(target, drafter, "llama-1: .*recording .* failed .RuntimeError.*")
    assert made  # the drafter's


def freeze_positions(self, forward, tokens, keep=0):
    length = torch.tensor(self.length.tolist(), device=tokens.device)  # by way of Python
    return self.cache.compute(forward, tokens, length + self.cache.keys[: tokens.shape[1]], keep)


def freeze_tokens(self, forward, tokens, keep=0):
    return compute(self, forward, torch.tensor(tokens.tolist(), device=tokens.device), keep)


compute = graphs.Slot.compute


@pytest.mark.parametrize("frozen", [freeze_positions, freeze_tokens])
def test_numbers_that_are_frozen_by_mistake_are_found(frozen, monkeypatch, made, request):
    monkeypatch.setattr(graphs.Slot, "compute", frozen)
    target, drafter = pair()
    speculate_with_a_warning(target, general(drafter), "llama-1: .*recording .* failed")
    if request.config.getoption("device") == "cpu":  # on a GPU, it could not be recorded
        monkeypatch.setattr(graphs, "distance", lambda logits, expected: 0.0)
        assert worst_ragged_logits(language_model("llama", 1)) > 0.01  # so the recorder is as forgetful as a graph
