"""onnxruntime's forward gives the logits of transformers' own, and belongs to the model that it was made from."""

import copy
import warnings
from collections import Counter
from itertools import zip_longest

import numpy as np
import pytest
import torch
from tiny import language_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specviz import Exhaustive, SamplingParams, autoregress, load_pair, rounds, speculate
from specviz.backends import llama_graph, onnxruntime
from specviz.backends.precision import rounding
from specviz.backends.transformers import TransformersCache
from specviz.drafters.layer_skip import LayerSkip
from specviz.equivalence import compare, target_law
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
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=4)),
    "grouped keys, tied": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True)),
    "one key": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=1)),
    "wide heads": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, head_dim=16)),
    "biases": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    "odd width": (LlamaForCausalLM, LlamaConfig(**SHAPE | ODD)),
    "llama3's rope": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=LLAMA3)),
    "mistral": (MistralForCausalLM, MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SHAPE, num_key_value_heads=2)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=8)),
}


def made(kind, dtype=torch.float32):
    cls, config = KINDS[kind]
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_logits_are_transformers_own(kind, rows):
    model = made(kind)
    fast, usual = CausalLM(model), CausalLM(model, backend="transformers")
    assert (fast.backend, usual.backend) == ("onnxruntime", "transformers")
    assert differences(fast, usual, rows) < 1e-5


@pytest.mark.parametrize("rows", [1, 3])
def test_long_prompts_are_fed_in_pieces(monkeypatch, rows):
    monkeypatch.setattr(onnxruntime, "PIECE", 6)
    model = made("grouped keys, tied")
    assert differences(CausalLM(model), CausalLM(model, backend="transformers"), rows) < 1e-5
    cache = CausalLM(model).new_cache([[0]], 20)
    with pytest.raises(ValueError, match="feed: 21 tokens do not fit, the rows' lengths are .0. of capacity 20"):
        cache.feed(torch.zeros(1, 21, dtype=torch.long))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_rewind_of_every_length(n):
    """After any number of rejected tokens, others at the same places give the logits of a text without them."""
    fast, usual = (CausalLM(made("wide heads"), backend=backend) for backend in ("onnxruntime", "transformers"))
    for length in range(1, 9):
        cache = fast.new_cache([[0]], 20)
        cache.feed(torch.arange(8)[None])
        cache.rewind(length)
        tokens = torch.arange(30, 30 + n)[None]
        text = torch.cat([torch.arange(length)[None], tokens], 1)
        expected = usual.new_cache([[0]], 20).feed(text)[:, length:]
        torch.testing.assert_close(cache.feed(tokens), expected, atol=1e-5, rtol=1e-5)


def test_what_a_user_is_given_is_not_written_over():
    cache = CausalLM(made("llama")).new_cache([[0]], 20)
    first = cache.feed(torch.tensor([[1, 2]]))
    hidden, kept = cache.hidden_states, [first.clone(), cache.hidden_states.clone()]
    cache.feed(torch.tensor([[3, 4]]))
    assert torch.equal(first, kept[0]) and torch.equal(hidden, kept[1])


@pytest.mark.parametrize("rows", [1, 2])
def test_hidden_states_are_what_the_head_reads(rows):
    model = CausalLM(made("biases"))
    cache = model.new_cache([[0]] * rows, 20, frozenset({"hidden_states"}))
    logits = cache.feed(torch.tensor([[1, 2, 3]] * rows))
    torch.testing.assert_close(model.model.lm_head(cache.hidden_states), logits, atol=1e-5, rtol=1e-5)


def test_two_decodings_at_once_from_one_model():
    pair = load_pair("tales")
    settings = dict(max_new_tokens=12, sampling=SamplingParams(temperature=0))
    alone = [autoregress(pair[0], prompt, **settings).tokens for prompt in ("Once", "The king")]
    both = [rounds(*pair, prompt, gamma=3, **settings) for prompt in ("Once", "The king")]
    tokens = [[], []]
    for of_both in zip_longest(*both):
        for i, done in enumerate(of_both):
            tokens[i] += done.tokens if done else []
    assert tokens == alone


def test_threads_follow_torch():
    before = torch.get_num_threads()
    model = load_pair("tales")[0]
    program = model._backends.choose(frozenset())
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            model.new_cache([[0]], 8).feed(torch.tensor([[1]]))
            assert program.session().session.get_session_options().intra_op_num_threads == threads
    finally:
        torch.set_num_threads(before)


def test_without_its_packages_transformers_decodes_and_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(onnxruntime, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="pip install onnxruntime onnx makes decoding"):
        assert CausalLM(made("llama")).backend == "transformers"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CausalLM(made("llama", torch.float64))  # which they would not serve


def test_a_session_that_cannot_be_made_is_passed_over(monkeypatch):
    def fails(*_):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(onnxruntime, "Session", fails)
    assert CausalLM(made("llama")).backend == "transformers"
    with pytest.raises(RuntimeError, match="no such operator"):
        CausalLM(made("llama"), backend="onnxruntime")


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
    target = CausalLM(made("grouped keys, tied"), backend=backend)
    ids = torch.randint(0, target.vocab_size, (2, 300), generator=torch.Generator().manual_seed(0))
    fed, filled, more = target.new_cache([[0]] * 2, 400), target.new_cache([[0]] * 2, 400), torch.tensor([[1, 2]] * 2)
    count = torch.tensor([300, 270])
    fed.feed(ids, count)
    assert filled.prefill(ids, count) is None
    assert filled.length.tolist() == fed.length.tolist() == [300, 270]
    torch.testing.assert_close(filled.feed(more), fed.feed(more), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        filled.prefill(ids)


def test_a_prompt_is_read_without_logits(monkeypatch):
    read = []
    for cache in (onnxruntime.OnnxCache, TransformersCache):
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
    model, text = made("grouped keys, tied"), torch.tensor([[1, 2, 3], [4, 5, 6]])
    logits = []
    for backend in ("onnxruntime", "transformers"):
        cache = CausalLM(model, backend=backend).new_cache([[0]] * 2, 20, frozenset({"first_layers"}))
        cache.feed(text, torch.tensor([3, 2]))
        logits.append(torch.cat([cache.first_layers(2).feed(text), cache.feed(text)], 1))
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)
    assert speculate(CausalLM(model), LayerSkip(2), [1, 2, 3], gamma=3, max_new_tokens=20).backend == "onnxruntime"


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
    assert not first.is_inference() and not third.is_inference()
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
    others = {
        "windowed": window,
        "dynamic": LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=dynamic)),
        "gelu": LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, hidden_act="gelu")),
        "double": made("llama", torch.float64),
        "half": made("llama").bfloat16(),
    }
    for why, model in others.items():
        assert CausalLM(model).backend == "transformers", why


def test_a_graph_that_differs_is_not_used(monkeypatch):
    linear = llama_graph.LlamaGraph._linear

    def scaled(self, out, x, module):
        linear(self, out, x, module)
        self.weights[f"{out}_weight"] = self.weights[f"{out}_weight"] * np.float32(1.001 if out == "q_1" else 1)

    monkeypatch.setattr(llama_graph.LlamaGraph, "_linear", scaled)
    model = CausalLM(made("llama"))
    assert model.backend == "transformers"
    with pytest.raises(ValueError, match="backend='onnxruntime' gives other logits"):
        CausalLM(model.model, backend="onnxruntime")


@pytest.mark.parametrize("greedy", [False, True])
def test_the_law_is_exact_with_this_backend(greedy):
    """All branches of three tokens, one row each. Float32: a logit off by δ moves P(x) by at most 2·δ a token."""
    target, draft = (language_model("llama", seed, dtype=torch.float32) for seed in (1, 2))
    settings = dict(max_new_tokens=3, sampling=SamplingParams(temperature=0 if greedy else 1), eos=(0,))
    law = Counter()
    for branch in Exhaustive(rows=1):
        trace = speculate(target, draft, [1], gamma=2, randomness=branch, **settings)
        assert trace.backend == "onnxruntime"
        law[tuple(trace.tokens)] += branch.weight[0]
    off = rounding(target.new_cache([[0]], 8).feed(torch.tensor([[1, 2, 1]])))
    assert compare(law, target_law(target, [1], **settings), tolerance=0 if greedy else 3 * 2 * off).exact
