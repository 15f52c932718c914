"""Every family of Hugging Face decoders: the exact distribution, the cache invariant, ragged batches, refusals."""

import functools

import pytest
import torch
from tiny import (
    FULL_ATTENTION,
    SLIDING_WINDOW,
    WINDOW,
    decoder,
    decoder_pair,
    random_overlap,
    rows_that_differ,
    worst_ragged_logits,
    worst_recorded,
)

from specviz import CausalLM, SamplingParams, autoregress, speculate
from specviz.backends import transformers as caches
from specviz.backends.precision import FLOAT32, MOST, distance
from specviz.backends.transformers import TransformersCache
from specviz.equivalence.exact import prove
from specviz.models import causal

FAMILIES = {
    **FULL_ATTENTION,
    **{f"{name}, window": settings for name, settings in SLIDING_WINDOW.items()},
}
EVERY = pytest.mark.parametrize("family", FAMILIES)
pytestmark = pytest.mark.slow
PROMPTS = [[1, 2, 0, 2, 1], [2], [0, 1]]  # the first is longer than the window


@functools.cache
def pair(family, vocab_size=3):
    return decoder_pair(family.split(",")[0], vocab_size, **FAMILIES[family])


def tolerance(family):
    """1e-9, but 1e-6 where transformers computes in float32 whatever the model's dtype."""
    softmax = pair(family)[0].model.config._attn_implementation == "eager"
    router = family == "deepseek_v3"
    return 1e-6 if softmax or router else 1e-9


@EVERY
@pytest.mark.parametrize(("gamma", "vocab_size", "n"), [(1, 3, 4), (2, 2, 4)])
def test_the_distribution_is_exact(family, gamma, vocab_size, n):
    target, drafter = pair(family, vocab_size)
    assert 0.3 < random_overlap(target, drafter) < 0.8
    prompt = [token % vocab_size for token in PROMPTS[0]]
    settings = dict(gamma=gamma, max_new_tokens=n, progress=False)
    report = prove(target, drafter, prompt, tolerance=tolerance(family), **settings)
    assert report.exact, report


@EVERY
def test_ragged_feeding_and_rewinding_equal_fresh_forwards(family):
    for model in pair(family):
        assert worst_ragged_logits(model) < 10 * tolerance(family)  # logits, not probabilities


@EVERY
def test_every_recorded_p_and_q_equals_a_fresh_forward(family):
    assert worst_recorded(*pair(family), PROMPTS, gamma=3, max_new_tokens=30, seed=0) < tolerance(family)


@EVERY
def test_a_row_of_a_batch_equals_the_same_row_alone(family):
    assert rows_that_differ(*pair(family), PROMPTS, gamma=3, max_new_tokens=20) == []


# --- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SLIDING_WINDOW)
def test_windowed_layers_have_a_mask_of_their_own(name):
    target, _ = pair(f"{name}, window")
    assert target.window is None and target.attention["sliding_attention"] == WINDOW
    assert target.model.config.sliding_window == WINDOW  # put back after the check
    wide = CausalLM(decoder(name, 1, **{**SLIDING_WINDOW[name], "sliding_window": 60}))
    wide.model.load_state_dict(target.model.state_dict())
    text = torch.tensor([[1, 2, 0, 2, 1, 1, 2]])
    narrow, wide = (model.new_cache([[1]], 8).feed(text)[0, -1] for model in (target, wide))
    assert (narrow - wide).abs().max() > 1e-6  # so the window is seen in the results


def test_a_window_of_another_kind_is_accepted_while_the_text_fits():
    """GPT-Neo's local layers know their window from a mask of their own, which depends on the capacity of the cache."""
    settings = dict(hidden_size=16, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]])
    target = CausalLM(decoder("gpt_neo", vocab_size=12, window_size=16, num_hidden_layers=2, **settings))
    target.model.get_output_embeddings().weight.data.mul_(20)
    assert target.window == 16
    prompts = [[1, 2, 3], [4]]
    assert worst_recorded(target, target, prompts, gamma=3, max_new_tokens=9, seed=0) < 1e-6
    with pytest.raises(ValueError, match="sliding window of 16 tokens.*may grow to 17"):
        speculate(target, target, prompts, gamma=3, max_new_tokens=10, seed=0)
    with pytest.raises(ValueError, match="gpt_neo.*differ from a fresh forward's"):
        CausalLM(decoder("gpt_neo", vocab_size=12, window_size=2, num_hidden_layers=2, **settings))


# --- refusals -------------------------------------------------------------------------------------

RECURRENT = {
    "mamba": (dict(state_size=4), "mamba"),
    "rwkv": (dict(context_length=64, attention_hidden_size=16), "rwkv"),
    "recurrent_gemma": (dict(lru_width=16, head_dim=8), "recurrent_gemma"),
    "jamba": (dict(num_experts=2, mamba_d_state=4, attn_layer_offset=1, attn_layer_period=2, pad_token_id=0), ""),
    "qwen3_next": (dict(head_dim=8), "linear_attention"),
    "lfm2": (dict(layer_types=["conv", "full_attention"]), "conv"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_models_with_a_running_state_are_refused(name):
    settings, kind = RECURRENT[name]
    model = decoder(name, dtype=torch.float32, **settings)
    with pytest.raises(ValueError, match=rf"{name}.*running state \(.*{kind}.*cannot be rewound"):
        CausalLM(model, context=64)


def test_layers_of_unknown_kinds_are_refused():
    model = decoder("llama")
    model.config.layer_types = ["full_attention", "indexed_attention"]
    with pytest.raises(ValueError, match="layers of kind indexed_attention.*known kinds are full_attention"):
        CausalLM(model)


class WantsNarrowMasks:
    def forward(self, *args, attention_mask=None, **kwargs):
        if attention_mask is not None and attention_mask.ndim > 2:
            raise RuntimeError("too many dimensions")
        return super().forward(*args, attention_mask=attention_mask, **kwargs)


def test_models_that_break_on_positions_or_masks_of_ones_own_are_refused():
    model = decoder("llama")
    stack = model.get_decoder()
    stack.__class__ = type("Narrow", (WantsNarrowMasks, type(stack)), {})
    with pytest.raises(ValueError, match="llama: its KV cache does not work with rewinding .*too many dimensions"):
        CausalLM(model)


class IgnoresMask:
    def forward(self, *args, attention_mask=None, **kwargs):
        everything = None if attention_mask is None else torch.ones_like(attention_mask)
        return super().forward(*args, attention_mask=everything, **kwargs)


class IgnoresPositions:
    def forward(self, *args, position_ids=None, **kwargs):
        return super().forward(*args, **kwargs)


class ReadsTheBatch:
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state.roll(1, dims=0) + output.last_hidden_state
        return output


class Unmasked(TransformersCache):
    def _mask(self, positions, width):
        return super()._mask(positions + self.capacity, None)


class SeesOneAhead(TransformersCache):
    def _mask(self, positions, width):
        return super()._mask(positions + 1, width)


class KeepsARejectedToken(TransformersCache):
    def rewind(self, length):
        super().rewind(length + 1)


class NoWindow(TransformersCache):
    def _mask(self, positions, width):
        return super()._mask(positions, None)


DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)


def sharpened(family, dtype):
    """A decoder with weights so large that its layers say something: as they are made, attention hardly counts."""
    model = decoder(family.split(",")[0], dtype=dtype, **(FAMILIES[family] | dict(vocab_size=12)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 if parameter.ndim < 2 else 10)
    return model


@DTYPES
@EVERY
def test_the_check_at_load_tells_faults_from_rounding(family, dtype, monkeypatch):
    """Each fault by itself, on every family and in every precision; without one, the model passes."""
    readings = []
    monkeypatch.setattr(causal, "distance", lambda *pair: readings.append(distance(*pair)) or readings[-1])
    sound = CausalLM(sharpened(family, dtype))
    measured, difference = readings[:2]
    assert sound.window is None
    if dtype in (torch.float64, torch.float32):
        assert difference < FLOAT32 / 4  # room to spare
    else:
        assert difference <= 2 * measured or difference < torch.finfo(dtype).eps
    if "deepseek" not in family and "mixtral" not in family and "moe" not in family:  # an expert is chosen or it is not
        assert difference < MOST / 4
    faults = [Unmasked, SeesOneAhead, KeepsARejectedToken] + [NoWindow] * ("window" in family)
    for fault in faults:
        readings.clear()
        monkeypatch.setattr(caches, "TransformersCache", fault)
        with pytest.raises(ValueError, match="differ from a fresh forward's"):
            CausalLM(sharpened(family, dtype))
    monkeypatch.undo()
    for fault in (IgnoresMask, ReadsTheBatch):
        model = sharpened(family, dtype)
        stack = model.get_decoder()
        stack.__class__ = type(fault.__name__, (fault, type(stack)), {})
        with pytest.raises(ValueError, match="differ from a fresh forward's|does not work with rewinding"):
            CausalLM(model)


@DTYPES
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_a_model_that_ignores_positions_is_refused(family, dtype):
    model = sharpened(family, dtype)
    stack = model.get_decoder()
    stack.__class__ = type("Ignores", (IgnoresPositions, type(stack)), {})
    with pytest.raises(ValueError, match="differ from a fresh forward's|does not work with rewinding"):
        CausalLM(model)


# --- precision, devices, configuration --------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_give_probabilities_in_float32(dtype):
    target, drafter = (CausalLM(decoder("llama", seed, dtype=dtype, vocab_size=12)) for seed in (1, 2))
    from specviz.steps import begin, draft, target_forward

    state = begin(target, drafter, [[1, 2, 3], [4]], gamma=3, max_new_tokens=10, seed=0)
    proposal = draft(state)
    p = target_forward(state, proposal)
    assert target.dtype == dtype and p.dtype == proposal.q.dtype == torch.float32
    assert (p.sum(-1) - 1).abs().max() < 1e-6
    greedy = dict(max_new_tokens=10, sampling=SamplingParams(temperature=0), seed=0)
    assert len(speculate(target, drafter, [1, 2, 3], gamma=3, **greedy).tokens) == 10


def test_a_model_dispatched_by_accelerate_decodes_the_same():
    accelerate = pytest.importorskip("accelerate")
    settings = dict(gamma=3, max_new_tokens=12, seed=0)
    plain = decoder("llama", 1, vocab_size=12)
    expected = speculate(CausalLM(plain), CausalLM(plain), [[1, 2, 3], [4]], **settings)
    layers = {f"model.layers.{i}": "cpu" for i in range(2)}
    device_map = {
        "model.embed_tokens": "cpu",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
        **layers,
    }
    on_several = accelerate.dispatch_model(decoder("llama", 1, vocab_size=12), device_map=device_map, force_hooks=True)
    offloaded = accelerate.cpu_offload(decoder("llama", 1, vocab_size=12), execution_device=torch.device("cpu"))
    assert hasattr(on_several, "hf_device_map")
    for model in (on_several, offloaded):
        model = CausalLM(model)
        assert model.device == torch.device("cpu")
        traces = speculate(model, model, [[1, 2, 3], [4]], **settings)
        assert [trace.tokens for trace in traces] == [trace.tokens for trace in expected]


def test_eos_ids_come_from_the_generation_config_and_can_be_overridden():
    model = decoder("llama", vocab_size=12)
    model.config.eos_token_id = 1
    assert CausalLM(model).eos == {1} or model.generation_config.eos_token_id is not None
    model.generation_config.eos_token_id = [3, 5, 99]  # made for a larger vocabulary
    target = CausalLM(model)
    assert target.eos == {3, 5}
    assert CausalLM(model, eos=[7]).eos == {7} and CausalLM(model, eos=()).eos == set()
    settings = dict(max_new_tokens=60, seed=0)
    trace = autoregress(target, [1, 2], **settings)
    assert trace.finish_reason == "eos" and trace.tokens[-1] in (3, 5) and not {3, 5} & set(trace.tokens[:-1])
    trace = autoregress(target, [1, 2], eos=(), **settings)
    assert trace.finish_reason == "length" and {3, 5} & set(trace.tokens)
