"""The choice of a backend, its abilities, and models that are changed after wrapping."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_onnxruntime import made
from tiny import decoder, language_model, t5

from specviz import CausalLM, SamplingParams, TableModel, autoregress, load_pair, speculate
from specviz.backends.changes import Fingerprint
from specviz.backends.protocol import NEEDS
from specviz.drafters.layer_skip import LayerSkip
from specviz.models.ngram import NgramModel

IDS = torch.tensor([[1, 2, 3, 4]])


def logits(model, needs=frozenset()):
    return model.new_cache([[0]], 10, needs).feed(IDS)


def assert_reads_the_model_as_it_is(model):
    with torch.no_grad():
        expected = model.model(IDS).logits
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)
    greedy = dict(sampling=SamplingParams(temperature=0), max_new_tokens=6, eos=())
    text = model.model.generate(IDS, do_sample=False, max_new_tokens=6, eos_token_id=None, pad_token_id=0)
    assert autoregress(model, IDS[0].tolist(), **greedy).tokens == text[0, 4:].tolist()


# --- the choice -----------------------------------------------------------------------------------


def test_the_fastest_that_can_do_all_that_is_needed():
    llama = CausalLM(made("llama"), name="llama")
    assert "torch.float32, on cpu, backend onnxruntime>" in repr(llama)
    assert llama.new_cache([[0]], 9).backend == "onnxruntime"
    assert llama.new_cache([[0]], 9, frozenset({"first_layers"})).backend == "onnxruntime"
    assert llama.new_cache([[0]], 9, frozenset({"inspect"})).backend == "transformers"
    assert llama.new_cache([[0]], 9, frozenset({"inspect", "first_layers"})).backend == "transformers"
    assert CausalLM(decoder("gpt2")).new_cache([[0]], 9).backend == "transformers"
    assert CausalLM(made("llama").bfloat16()).new_cache([[0]], 9).backend == "transformers"
    for backend in ("onnxruntime", "transformers"):
        named = CausalLM(llama.model, backend=backend)
        assert named.backend == named.new_cache([[0]], 9).backend == backend
        torch.testing.assert_close(logits(named), logits(llama), atol=1e-5, rtol=1e-5)


def test_a_backend_that_cannot_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="backend='fast': must be one of auto, onnxruntime, transformers, cuda-graphs"):
        CausalLM(made("llama"), backend="fast")
    with pytest.raises(
        ValueError, match="backend='onnxruntime' cannot serve 'gpt2': it serves Llama, Mistral, Qwen2 and Qwen3"
    ):
        CausalLM(decoder("gpt2"), name="gpt2", backend="onnxruntime")
    with pytest.raises(ValueError, match="backend='onnxruntime' cannot serve .* float32 on a CPU"):
        CausalLM(made("llama").bfloat16(), backend="onnxruntime")
    with pytest.raises(ValueError, match="backend='cuda-graphs' cannot serve .* one CUDA device"):
        CausalLM(made("llama"), backend="cuda-graphs")
    fast = CausalLM(made("llama"), backend="onnxruntime", name="x")
    with pytest.raises(ValueError, match="'x' with backend='onnxruntime' cannot do what this decoding needs: inspect"):
        fast.new_cache([[0]], 9, frozenset({"inspect"}))


@pytest.mark.parametrize(
    "model",
    [
        lambda: language_model("llama", 1),
        lambda: TableModel.random(3),
        lambda: NgramModel.learn([[0, 1, 2]], 2, TableModel.random(3)),
        lambda: t5("t5", 1),
    ],
    ids=["causal", "table", "n-gram", "seq2seq"],
)
def test_needs_that_a_model_lacks_are_refused(model):
    model = model()
    for need in NEEDS - {"first_layers", "inspect"}:
        with pytest.raises(ValueError, match=f"cannot do what this decoding needs: {need}"):
            model.new_cache([[0]], 9, frozenset({need}))
    with pytest.raises(ValueError, match=r"needs=\['speed'\]: unknown; there are first_layers, hidden_states, inspect"):
        model.new_cache([[0]], 9, frozenset({"speed"}))
    if not isinstance(model, CausalLM):
        with pytest.raises(ValueError, match="cannot do what this decoding needs: first_layers"):
            model.new_cache([[0]], 9, frozenset({"first_layers"}))
        with pytest.raises(ValueError, match="LayerSkip cannot draft for"):
            speculate(model, LayerSkip(1), [1], max_new_tokens=2)
    assert isinstance(model.new_cache([[0]], 9).backend, str)


@pytest.mark.parametrize("backend", ["onnxruntime", "transformers"])
def test_the_first_layers_share_lengths_and_entries_with_the_whole(backend):
    model = CausalLM(made("grouped keys, tied"), backend=backend)
    shorter = made("grouped keys, tied")
    shorter.model.layers = shorter.model.layers[:2]
    cache = model.new_cache([[0]], 10, frozenset({"first_layers"}))
    view = cache.first_layers(2)
    cache.feed(IDS)
    drafted = view.feed(torch.tensor([[5, 6]]))
    assert cache.length.tolist() == view.length.tolist() == [6]
    view.rewind(4)
    assert cache.length.tolist() == [4]
    text = torch.cat([IDS, torch.tensor([[5, 6]])], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(drafted, shorter(text, use_cache=False).logits[:, 4:], atol=1e-5, rtol=1e-5)
        expected = model.model(text).logits[:, 4:]
    torch.testing.assert_close(cache.feed(torch.tensor([[5, 6]])), expected, atol=1e-5, rtol=1e-5)


def test_inspected_keys_masks_and_values_are_transformers_own():
    cache = language_model("llama", 1).new_cache([[0]], 8, frozenset({"inspect"}))
    before = cache.feed(torch.tensor([[1, 2, 1]]))[0, -1]
    assert cache.cache.layers[0].keys.shape == cache.layers[0].values.shape == (1, 1, 8, 8)
    cache.rewind(0)
    cache.keys = torch.zeros_like(cache.keys)  # now every entry is seen
    assert (cache.feed(torch.tensor([[1, 2, 1]]))[0, -1] - before).abs().max() > 1e-3


# --- changes after wrapping -----------------------------------------------------------------------


class Adapter(torch.nn.Linear):
    """A linear layer with something on top that can be switched off and merged, as adapters are."""

    def __init__(self, layer):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        self.weight, self.bias = layer.weight, layer.bias
        torch.manual_seed(3)
        self.delta = torch.nn.Parameter(0.3 * torch.randn_like(layer.weight))
        self.disable_adapters, self.active_adapter, self.merged, self.scaling = False, ["a"], [], {"a": 1.0}

    def forward(self, x):
        on = not self.disable_adapters and not self.merged and "a" in self.active_adapter
        return super().forward(x) + (x @ self.delta.T * self.scaling["a"] if on else 0)


def with_adapter():
    model = made("llama")
    layer = model.model.layers[1].mlp
    layer.down_proj = Adapter(layer.down_proj)
    return model


def down(model):
    return model.model.layers[1].mlp.down_proj


CHANGES = {
    "switched off": lambda model: setattr(down(model), "disable_adapters", True),
    "another adapter": lambda model: down(model).active_adapter.clear(),
    "scaled": lambda model: down(model).scaling.update(a=0.5),
    "called merged": lambda model: down(model).merged.append("a"),
    "merged": lambda model: down(model).weight.data.add_(down(model).delta.data),
    "slightly merged": lambda model: down(model).weight.data.add_(1e-3 * down(model).delta.data),
    "trained": lambda model: down(model).weight.detach().mul_(2),
    "a single value": lambda model: down(model).weight.detach()[3, 5].add_(4),
    "another weight": lambda model: setattr(down(model), "weight", torch.nn.Parameter(2 * down(model).weight.detach())),
    "another tensor": lambda model: setattr(down(model).weight, "data", 2 * down(model).weight.data),
    "another view": lambda model: setattr(model.lm_head.weight, "data", model.lm_head.weight.data.roll(1, 0)),
    "another head": lambda model: model.set_output_embeddings(torch.nn.Linear(32, 61, bias=False)),
    "another layer": lambda model: setattr(model.model.layers[0], "mlp", model.model.layers[2].mlp),
    "reordered": lambda model: model.model.layers.insert(0, model.model.layers.pop(2)),
    "a hook": lambda model: model.model.norm.register_forward_hook(lambda module, inputs, x: 2 * x),
    "a hook before": lambda model: model.lm_head.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],)),
    "another forward": lambda model: setattr(down(model), "forward", lambda x: x[..., :32]),
    "another class": lambda model: setattr(down(model), "__class__", torch.nn.Linear),
    "a buffer": lambda model: model.model.rotary_emb.inv_freq.mul_(0.5),
    "epsilon": lambda model: setattr(model.model.norm, "variance_epsilon", 0.5),
    "loaded": lambda model: model.load_state_dict({k: v * 1.1 for k, v in model.state_dict().items()}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backend", ["auto", "transformers"])
def test_a_model_that_was_changed_is_read_as_it_is_until_refresh(change, backend):
    model = CausalLM(with_adapter(), backend=backend)
    before = logits(model)
    with torch.no_grad():
        CHANGES[change](model.model)
    assert_reads_the_model_as_it_is(model)
    assert model.backend == "transformers" == model.new_cache([[0]], 9).backend
    if change not in ("slightly merged", "reordered"):
        assert (logits(model) - before).abs().max() > 1e-3
    model.refresh()
    if backend != "auto":
        assert model.backend == backend
    assert_reads_the_model_as_it_is(model)


def test_layers_that_are_moved_or_converted():
    model = CausalLM(made("llama"))
    model.model.double()
    assert logits(model).dtype == torch.float64 and model.backend == "transformers"
    assert_reads_the_model_as_it_is(model)
    model.model.float()
    model.refresh()
    assert model.backend == "onnxruntime" and logits(model).dtype == torch.float32
    model.model.set_attn_implementation("eager")
    assert_reads_the_model_as_it_is(model)
    assert model.backend == "transformers"


def test_a_resized_vocabulary_asks_for_refresh():
    model = CausalLM(made("llama"), name="m")
    for size in (64, 50):
        had = model.vocab_size
        model.model.resize_token_embeddings(size)
        with pytest.raises(ValueError, match=rf"m had {had} ids when it was wrapped and has {size} now: call refresh"):
            autoregress(model, [1, 2], max_new_tokens=2)
        model.refresh()
        assert (model.vocab_size, model.name) == (size, "m")
        assert_reads_the_model_as_it_is(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", ["all", "a layer"])
def test_dropout_never_takes_part(dtype, part):
    torch.manual_seed(0)
    net = decoder("gpt2", dtype=dtype, vocab_size=61, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    for model in (CausalLM(net), CausalLM(net, backend="transformers")):
        before, backend, running = logits(model), model.backend, model.new_cache([[0]], 9)
        (model.model if part == "all" else model.model.transformer.h[1]).train()
        with pytest.raises(ValueError, match=r"in training mode, and dropout.*call model.eval\(\)"):
            autoregress(model, [1, 2], max_new_tokens=2)
        if part == "all" and backend == "transformers":  # copies stay in evaluation mode
            with pytest.raises(ValueError, match=r"in training mode, and dropout.*call model.eval\(\)"):
                running.feed(IDS)
        model.model.eval()
        assert torch.equal(logits(model), before) and model.backend == backend  # and nothing was lost
    encoder_decoder = t5("t5", 1)
    encoder_decoder.model.train()
    with pytest.raises(ValueError, match="in training mode"):
        encoder_decoder.new_cache([[0]], 9)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_a_copy_belongs_to_the_copied_model(kind, copied):
    model = t5("t5", 1, 12) if kind == "t5" else language_model("gpt2", 1, vocab_size=12)
    twin = copied(model)
    before = logits(model)
    assert (twin.name, twin.backend) == (model.name, model.backend) and torch.equal(logits(twin), before)
    with torch.no_grad():
        for weight in twin.model.parameters():
            weight.mul_(1.5)
    assert torch.equal(logits(model), before) and not torch.equal(logits(twin), before)


def test_an_encoder_decoder_notices_changes():
    model = t5("v1.1", 1, 12)
    before = logits(model)
    with torch.no_grad():
        model.model.lm_head.weight.mul_(2)
        expected = model.model(input_ids=torch.tensor([[0]]), decoder_input_ids=IDS).logits
    assert (expected - before).abs().max() > 1
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)
    model.model.resize_token_embeddings(16)
    with pytest.raises(ValueError, match="v1.1-1 had 12 ids when it was wrapped and has 16 now: call refresh"):
        autoregress(model, [1, 2], max_new_tokens=2)
    model.refresh()
    assert model.vocab_size == 16 == logits(model).shape[-1]
    model.model.encoder.block[0].train()
    with pytest.raises(ValueError, match="v1.1-1 is in training mode"):
        autoregress(model, [1, 2], max_new_tokens=2)


def test_refresh_keeps_name_context_eos_and_backend():
    model = CausalLM(made("llama"), name="kept", context=32, eos=[5], backend="transformers")
    model.refresh()
    assert (model.name, model.context, model.eos, model.backend) == ("kept", 32, {5}, "transformers")


# --- what others set ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["onnxruntime", "transformers", "t5"])
def test_autocast_and_default_dtypes_change_nothing(kind):
    def wrapped():
        return t5("t5", 1, 12) if kind == "t5" else CausalLM(made("llama"), backend=kind)

    model, settings = wrapped(), dict(max_new_tokens=8, seed=0, eos=())
    expected = autoregress(model, [1, 2, 3], **settings).tokens
    with torch.autocast("cpu"):
        assert autoregress(model, [1, 2, 3], **settings).tokens == expected
        assert autoregress(wrapped(), [1, 2, 3], **settings).tokens == expected
        assert torch.is_autocast_enabled("cpu")
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            assert autoregress(model, [1, 2, 3], **settings).tokens == expected
            assert torch.get_default_dtype() == dtype
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["onnxruntime", "transformers", "t5"])
def test_threads_that_share_a_model_decode_what_each_would_alone(kind):
    model = t5("t5", 1, 12) if kind == "t5" else CausalLM(made("llama"), backend=kind)

    def decode(seed):
        return autoregress(model, [1, 2, 3 + seed], max_new_tokens=12, seed=seed, eos=()).tokens

    alone = [decode(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(decode, range(4))) == alone


# --- the fingerprint ------------------------------------------------------------------------------


def test_nothing_changed_is_no_change():
    for model in (load_pair("tales")[0].model, with_adapter().eval(), decoder("gpt2"), made("llama").bfloat16()):
        fingerprint = Fingerprint(model)
        with torch.no_grad():
            model(torch.tensor([[1, 2]]))
            model.train().eval()
        assert fingerprint.matches() and fingerprint.matches()


def test_not_a_number_is_equal_to_itself():
    model = made("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    assert Fingerprint(model).matches()


def test_additions_through_data_are_seen_in_every_dtype_and_layout():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        model = made("llama", dtype)
        layer = model.model.layers[0].mlp.up_proj
        layer.weight = torch.nn.Parameter(layer.weight.detach().t().contiguous().t())  # stored by columns
        for name, weight in model.named_parameters():
            fingerprint = Fingerprint(model)
            weight.data += 0.01 * weight.data.abs().amax()
            assert not fingerprint.matches(), (dtype, name)


def test_samples_lie_in_many_rows_and_columns():
    weight = torch.arange(256 * 512).view(256, 512)
    model = torch.nn.Module()
    model.register_buffer("weight", weight)
    (views,) = Fingerprint(model).samples
    places = views[0]
    assert len(set((places // 512).tolist())) >= 30 and len(set((places % 512).tolist())) >= 30
