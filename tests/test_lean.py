"""The fast forwards on a CPU give the logits of transformers' own forward."""

import copy

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specviz import SamplingParams, Scripted, Seeded, load_pair, speculate
from specviz.backends import kernels, lean
from specviz.backends.transformers import TransformersCache
from specviz.drafters.layer_skip import LayerSkip
from specviz.models.causal import CausalLM
from specviz.steps import commit, draft, target_forward
from specviz.verification import verify

SHAPE = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, vocab_size=61,
    bos_token_id=None, eos_token_id=None, max_position_embeddings=64, initializer_range=0.15,
)  # fmt: skip
ODD = dict(hidden_size=15, num_attention_heads=3, num_key_value_heads=1, head_dim=6)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)  # fmt: skip
LEAN = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=4)),
    "grouped keys, tied": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True)),
    "one key": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=1)),
    "wide heads": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, head_dim=16)),
    "biases": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    "odd width": (LlamaForCausalLM, LlamaConfig(**SHAPE | ODD)),
    "llama3's rope": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=LLAMA3)),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, num_key_value_heads=2)),
}


def made(kind, dtype=torch.float32):
    cls, config = LEAN[kind]
    torch.manual_seed(0)
    model = cls(copy.deepcopy(config)).to(dtype).eval()
    with torch.no_grad():  # norms and biases that do something
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.3 * torch.randn_like(weight)
    return model


def differences(one, other, rows=3, capacity=60):
    """The largest difference of logits, in units of their spread, over feeds that are ragged, long, rewound, …"""
    a, b = one.new_cache([[0]] * rows, capacity), other.new_cache([[0]] * rows, capacity)
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    for n, count in ((20, (20, 13, 2)), (1, None), (5, (2, 5, 0)), (4, None), (1, (1, 0, 1)), (17, None)):
        tokens = torch.randint(0, one.vocab_size, (rows, n), generator=generator)
        count = torch.full((rows,), n) if count is None else torch.tensor(count[:rows])
        of_text = torch.arange(n) < count[:, None]
        logits = [cache.feed(tokens, count) for cache in (a, b)]
        worst = max(worst, ((logits[0] - logits[1])[of_text].abs().max() / logits[1][of_text].std()).item())
        for cache in (a, b):
            cache.rewind((cache.length - 2).clamp(min=0))
    assert torch.equal(a.length, b.length)
    return worst


@pytest.mark.parametrize("kind", LEAN)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_lean_forward_gives_transformers_logits(kind, rows):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        model = made(kind, dtype)
        fast, usual = CausalLM(model), CausalLM(model, backend="transformers")
        assert (fast.backend, usual.backend) == ("lean", "transformers")
        assert differences(fast, usual, rows) < tolerance


@pytest.mark.parametrize("kind", ["grouped keys, tied", "biases"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_large_vocabulary_has_no_table_of_first_keys(kind, rows, monkeypatch):
    model = made(kind, torch.float64)
    assert CausalLM(model).new_cache([[0]], 4).weights.by_token is not None
    monkeypatch.setattr(lean, "BY_TOKEN", 1000)
    fast = CausalLM(model)
    assert fast.new_cache([[0]], 4).weights.by_token is None
    assert differences(fast, CausalLM(model, backend="transformers"), rows) < 1e-12


@pytest.mark.parametrize("rows", [1, 3])
def test_long_prompts_are_fed_in_pieces(monkeypatch, rows):
    monkeypatch.setattr(lean, "PIECE", 6)
    model = made("grouped keys, tied", torch.float64)
    assert differences(CausalLM(model), CausalLM(model, backend="transformers"), rows) < 1e-12
    cache = CausalLM(model).new_cache([[0]], 20)
    with pytest.raises(ValueError, match="feed: 21 tokens do not fit, the rows' lengths are .0. of capacity 20"):
        cache.feed(torch.zeros(1, 21, dtype=torch.long))


def test_the_bundled_pair_decodes_the_same_tokens_leanly():
    """In float64, under the same uniforms: Scripted from one run replays it on the other path."""
    fast = load_pair("tales", device="cpu", dtype=torch.float64)
    usual = [CausalLM(m.model, m.tokenizer.hub, backend="transformers") for m in fast]
    assert (fast[0].backend, usual[0].backend) == ("lean", "transformers")
    for sampling in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(temperature=0.7, top_p=0.9)):
        settings = dict(gamma=3, max_new_tokens=40, sampling=sampling)
        first = speculate(*fast, "Once upon a time", randomness=Seeded(7), **settings)
        again = speculate(*usual, "Once upon a time", randomness=Scripted.from_trace(first), **settings)
        assert again.tokens == first.tokens
        assert [r.accepted for r in again.rounds] == [r.accepted for r in first.rounds]


def test_float32_logits_of_the_bundled_pair():
    for model in load_pair("tales", device="cpu"):
        usual = CausalLM(model.model, backend="transformers")
        a, b = model.new_cache([[0]], 120), usual.new_cache([[0]], 120)
        ids = torch.tensor([model.tokenizer.encode("The king had three sons, and the eldest of them said: ")])
        for tokens in (ids, ids[:, :1], ids[:, :5]):
            one, other = a.feed(tokens), b.feed(tokens)
            assert (one - other).abs().max() <= 1e-5 * other.abs().max()


@pytest.mark.parametrize("backend", ["auto", "transformers"])
def test_prefilling_is_feeding_without_logits(backend):
    target = CausalLM(made("grouped keys, tied", torch.float64), backend=backend)
    ids = torch.randint(0, target.vocab_size, (2, 300), generator=torch.Generator().manual_seed(0))
    fed, filled, more = target.new_cache([[0]] * 2, 400), target.new_cache([[0]] * 2, 400), torch.tensor([[1, 2]] * 2)
    count = torch.tensor([300, 270])
    fed.feed(ids, count)
    assert filled.prefill(ids, count) is None
    assert filled.length.tolist() == fed.length.tolist() == [300, 270]
    torch.testing.assert_close(filled.feed(more), fed.feed(more), atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match="do not fit"):
        filled.prefill(ids)


def test_a_prompt_is_read_without_logits(monkeypatch):
    read = []
    for cache in (lean.LeanCache, TransformersCache):
        feed = cache.feed
        monkeypatch.setattr(
            cache,
            "feed",
            lambda self, tokens, *args, feed=feed, **kw: (
                read.append((tokens.shape[1], kw)) or feed(self, tokens, *args, **kw)
            ),
        )
    for backend in ("auto", "transformers"):
        pair = [CausalLM(made("llama"), backend=backend) for _ in range(2)]
        speculate(*pair, [list(range(1, 30)), [1, 2, 3] * 9], gamma=3, max_new_tokens=8, eos=())
    assert {n: kw for n, kw in read if n > 4} == {28: {"keep": 1}}


@pytest.mark.parametrize("backend", ["auto", "transformers"])
def test_a_row_that_drafts_nothing_has_nothing_to_catch_up(backend):
    target = CausalLM(made("llama"), backend=backend)
    short_sighted = CausalLM(made("llama"), backend=backend, context=20)
    long, short = speculate(target, short_sighted, [[1] * 25, [2]], gamma=3, max_new_tokens=12, seed=0, eos=())
    assert sum(r.draft_forwards for r in long.rounds) == 0 < sum(r.draft_forwards for r in short.rounds)


def test_a_round_of_ones_own_keeps_ordinary_tensors():
    target, kept = CausalLM(made("llama")), []

    def distilling(state):
        proposal = draft(state)
        p = target_forward(state, proposal)
        kept.append(p)
        return commit(state, proposal, p, verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths))

    speculate(target, CausalLM(made("llama")), [1, 2, 3], max_new_tokens=6, decode_round=distilling, eos=())
    weight = torch.ones((), requires_grad=True)
    (kept[0] * weight).sum().backward()
    assert weight.grad is not None and not kept[0].is_inference()


def test_layer_skip_drafts_alike_on_both_paths():
    model = made("grouped keys, tied", torch.float64)
    settings = dict(gamma=3, max_new_tokens=20, seed=3)
    traces = [
        speculate(CausalLM(model, backend=backend), LayerSkip(2), [[1, 2, 3], [4, 5]], **settings)
        for backend in ("auto", "transformers")
    ]
    for one, other in zip(*traces, strict=True):
        assert [r.draft_tokens for r in one.rounds] == [r.draft_tokens for r in other.rounds]
        assert one.tokens == other.tokens


@pytest.mark.parametrize("backend", ["auto", "transformers"])
def test_decoding_without_autograd_leaves_no_trace(backend):
    model = made("llama")
    target = CausalLM(model, backend=backend)
    cache, ids = target.new_cache([[0]], 12), torch.tensor([[1, 2, 3]])
    first = cache.feed(ids)
    with torch.inference_mode():
        second = cache.feed(ids)
    third = cache.feed(ids)
    third += 1  # a tensor like any other
    assert second.is_inference() == (backend == "auto") and not first.is_inference() and not third.is_inference()
    torch.testing.assert_close(torch.cat([first, second, third - 1], 1), model(torch.cat([ids] * 3, 1)).logits)
    speculate(target, LayerSkip(1), [1, 2], max_new_tokens=5)
    model(ids).logits.sum().backward()  # and the model can be trained
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_full_cache_is_refused_and_padding_may_lie_beyond_the_context():
    fast = CausalLM(made("llama"), context=16)
    cache = fast.new_cache([[0]], 20)
    cache.feed(torch.zeros(1, 16, dtype=torch.long))
    cache.feed(torch.zeros(1, 4, dtype=torch.long), torch.tensor([0]))
    with pytest.raises(ValueError, match="feed: 5 tokens do not fit, the rows' lengths are .16. of capacity 20"):
        cache.feed(torch.zeros(1, 5, dtype=torch.long))
    batch = fast.new_cache([[0]] * 2, 20)
    batch.feed(torch.zeros(2, 19, dtype=torch.long))
    with pytest.raises(ValueError, match="do not fit"):
        batch.feed(torch.zeros(2, 2, dtype=torch.long))


def test_other_models_go_through_transformers():
    window = MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=8))
    dynamic = dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)
    others = [
        (window, "windowed"),
        (LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=dynamic)), "dynamic"),
        (LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, hidden_act="gelu")), "gelu"),
        (Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=8)), "norms of queries"),
    ]
    for model, why in others:
        assert not lean.is_supported(model), why
        assert CausalLM(model).backend == "tuned", why
    assert not kernels.is_supported(made("llama").bfloat16())


def test_a_lean_forward_that_differs_is_not_used(monkeypatch):
    normed = lean.LeanCache._normed
    monkeypatch.setattr(lean.LeanCache, "_normed", lambda self, b: normed(self, b) * 1.001)
    model = CausalLM(made("llama"))
    assert model.backend == "tuned"
    with pytest.raises(ValueError, match="backend='lean' gives other logits"):
        CausalLM(model.model, backend="lean")


# --- kernels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", kernels.LAYOUTS)
@pytest.mark.parametrize("bias", [False, True])
def test_every_layout_gives_the_product(layout, bias):
    generator = torch.Generator().manual_seed(0)
    weight, x, h = (torch.randn(n, m, generator=generator) for n, m in ((24, 16), (20, 16), (20, 24)))
    bias = torch.randn(24, generator=generator) if bias else None
    matrix = kernels.Matrix(weight, bias)
    matrix.layouts = [getattr(matrix, layout)] * len(matrix.layouts)
    for rows in (1, 3, 20):
        expected = torch.nn.functional.linear(x[:rows], weight, bias)
        torch.testing.assert_close(matrix.product(x[:rows]), expected)
        out = torch.empty(rows, 24)
        assert matrix.product(x[:rows], out=out) is out
        torch.testing.assert_close(out, expected)
        sums = h[:rows].clone()
        matrix.add_to(sums, x[:rows])
        torch.testing.assert_close(sums, h[:rows] + expected)


@pytest.mark.parametrize("winner", kernels.LAYOUTS)
def test_tuning_keeps_only_the_chosen_layouts(monkeypatch, winner):
    monkeypatch.setattr(kernels, "choose", lambda _: {rows: winner if rows < 9 else "stored" for rows in kernels.ROWS})
    weights = [torch.randn(8, 4) for _ in range(6)]
    matrices = [kernels.Matrix(weight) for weight in weights]
    kernels.tune(matrices)
    x = torch.randn(40, 4)
    for matrix, weight in zip(matrices, weights, strict=True):
        assert matrix.weight is None and not set(kernels.LAYOUTS) & set(vars(matrix))
        for rows in (1, 5, 6, 16, 17, 40):
            torch.testing.assert_close(matrix.product(x[:rows]), x[:rows] @ weight.T)
        kinds = [type(layout) is kernels.Packed for layout in matrix.layouts]
        assert all(kinds[1:6]) == (winner == "packed") and not any(kinds[6:])


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        # {layout: microseconds for each of ROWS}: one layout for all numbers of rows, unless another saves a fifth.
        ({"stored": [9, 9, 9, 9, 9, 9], "transposed": [8, 8, 8, 8, 8, 8]}, ["transposed"] * 6),
        ({"stored": [8, 9, 9, 9, 9, 9], "transposed": [9, 8, 8, 8, 8, 8]}, ["transposed"] * 6),
        ({"stored": [5, 9, 9, 9, 9, 9], "transposed": [9, 7, 7, 7, 7, 7]}, ["stored"] + ["transposed"] * 5),
        ({"stored": [8, 9, 9, 9, 9, 9], "packed": [20, 6, 6, 6, 6, 6]}, ["stored"] + ["packed"] * 5),
    ],
)
def test_one_layout_for_all_numbers_of_rows_if_possible(monkeypatch, times, chosen):
    by_rows = [dict(zip(times, row, strict=True)) for row in zip(*times.values(), strict=True)]
    measured = dict(zip(kernels.ROWS, by_rows, strict=True))
    monkeypatch.setattr(kernels, "time_layouts", lambda matrices, layouts, rows: measured[rows])
    monkeypatch.setattr(kernels, "LAYOUTS", tuple(times))
    assert list(kernels.choose([kernels.Matrix(torch.randn(8, 8))]).values()) == chosen


def test_layouts_are_timed():
    class Slow(kernels.Matrix):
        @property
        def transposed(self):
            import time

            time.sleep(0.002)
            return super().transposed

    times = kernels.time_layouts([Slow(torch.randn(8, 8))], ["transposed", "stored"], 1)
    assert times["transposed"] > times["stored"]


def test_tuned_linears_leave_the_model_as_it_was():
    torch.manual_seed(0)
    config = Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=8)
    model = Qwen3ForCausalLM(config).eval()
    before = {name: type(module) for name, module in model.named_modules()}
    fast, usual = CausalLM(model), CausalLM(model, backend="transformers")
    assert fast.backend == "tuned" and fast.new_cache([[0]], 4).forward is not usual.new_cache([[0]], 4).forward
    assert {name: type(module) for name, module in model.named_modules()} == before
    twin = kernels.tuned(model)
    linears = [module for module in twin.modules() if type(module) is kernels.TunedLinear]
    assert len(linears) == 3 * 7 + 1 and twin.lm_head.weight is model.lm_head.weight
    assert differences(fast, usual) < 1e-5


def test_models_without_linear_layers_are_left_alone():
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=61)).eval()
    assert differences(CausalLM(model), CausalLM(model, backend="transformers")) < 1e-5
