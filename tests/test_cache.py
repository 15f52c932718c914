"""KV caches: they rewind, and after each commit they hold the committed text and nothing else."""

import functools

import pytest
import torch
from tiny import fresh_logits, hub_model, language_model, processed
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    PhiConfig,
    Qwen3Config,
    T5Config,
    T5ForConditionalGeneration,
)

from specviz import CausalLM, SamplingParams, TableModel, autoregress, rounds, speculate
from specviz.drafters.model import ModelDrafter
from specviz.steps import begin, commit, draft, target_forward
from specviz.verification import verify

FAMILIES = ["llama", "gpt2", "qwen2"]


def table(seed):
    return TableModel.random(12, 2, seed=seed)


def pair(kind, dtype=torch.float64):
    if kind == "table":
        return table(1), table(2)
    return tuple(language_model(kind, seed, vocab_size=12, dtype=dtype) for seed in (1, 2))


# --- feeding and rewinding -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", *FAMILIES])
def test_ragged_feeding_and_rewinding_equal_fresh_forwards(kind):
    model = pair(kind)[0]
    generator = torch.Generator().manual_seed(0)
    texts = [[3], [5, 1, 7], [2, 2]]  # the text of each row
    cache = model.new_cache(texts, capacity=40)
    width = max(map(len, texts))
    cache.feed(torch.tensor([t + [0] * (width - len(t)) for t in texts]), count=torch.tensor([len(t) for t in texts]))
    for _ in range(12):
        keep = [int(torch.randint(max(1, len(t) - 2), len(t) + 1, (1,), generator=generator)) for t in texts]
        cache.rewind(torch.tensor(keep))
        texts = [t[:k] for t, k in zip(texts, keep, strict=True)]
        assert cache.length.tolist() == [len(t) for t in texts]
        n = int(torch.randint(1, 4, (1,), generator=generator))
        new = torch.randint(0, 12, (3, n), generator=generator)
        count = torch.randint(0, n + 1, (3,), generator=generator)
        logits = cache.feed(new, count)
        for row in range(3):
            kept = int(count[row])
            texts[row] = texts[row] + new[row, :kept].tolist()
            if kept:
                expected = fresh_logits(model, texts[row])[-kept:]
                torch.testing.assert_close(logits[row, :kept], expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", ["table", "llama"])
def test_rewind_never_moves_forward_and_capacity_is_checked(kind):
    cache = pair(kind)[0].new_cache([[1]], capacity=4)
    cache.feed(torch.tensor([[1, 2]]))
    cache.rewind(torch.tensor([9]))
    assert cache.length.tolist() == [2]
    with pytest.raises(ValueError, match="3 tokens do not fit.*capacity 4"):
        cache.feed(torch.tensor([[1, 2, 3]]))


# --- the invariant ------------------------------------------------------------------------------


def fresh(model, ids, sampling):
    return torch.tensor(processed(fresh_logits(model, ids)[-1].double(), sampling.temperature, sampling.top_k))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [("table", None, 1e-9), *[(family, torch.float64, 1e-9) for family in FAMILIES], ("llama", torch.float32, 1e-4)],
)
def test_every_recorded_p_and_q_equals_a_fresh_forward(kind, dtype, tolerance):
    """Over 200 rounds with ragged rows: a stale or missing cache entry would show in p or q."""
    target, drafter = pair(kind, dtype)
    prompts, checked = [[1, 2, 3], [4], [5, 6]], 0
    for seed, sampling in ((0, SamplingParams()), (1, SamplingParams(0.8, top_k=5)), (2, SamplingParams(1.3))):
        settings = dict(gamma=3, max_new_tokens=50, sampling=sampling, seed=seed, record="full")
        for trace in speculate(target, drafter, prompts, **settings):
            text = list(trace.prompt_tokens)
            for round in trace.rounds:
                for i in range(len(round.draft_tokens) + 1):
                    prefix = text + round.draft_tokens[:i]
                    recorded = torch.tensor(round.p[i].probs, dtype=torch.float64)
                    torch.testing.assert_close(recorded, fresh(target, prefix, sampling), atol=tolerance, rtol=0)
                    if i < len(round.draft_tokens):
                        recorded = torch.tensor(round.q[i].probs, dtype=torch.float64)
                        torch.testing.assert_close(recorded, fresh(drafter, prefix, sampling), atol=tolerance, rtol=0)
                text += round.tokens
                checked += 1
    assert checked >= 200


class Spied(ModelDrafter):
    """Keeps the proposals of its sessions: (committed, length, Proposal) of each round."""

    def new_session(self, *given):
        session, self.proposed = super().new_session(*given), []
        propose = session.propose

        def kept(committed, length, *others):
            proposal = propose(committed, length, *others)
            self.proposed.append((committed.clone(), list(length), proposal))
            return proposal

        session.propose = kept
        return session


@pytest.mark.parametrize("record", ["none", "full"])
@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11]]], ids=["one", "four"])
@pytest.mark.parametrize(
    "ending",
    [dict(eos=[7]), dict(max_new_tokens=5), dict(context=14), dict(itself=True)],
    ids=lambda given: [*given][0],
)
@pytest.mark.parametrize("kind", ["table", "llama"])
def test_every_q_that_is_proposed_is_a_fresh_forwards(kind, ending, prompts, record):
    """Whether or not it is recorded. Faults of the draft's cache leave the text's distribution exact."""
    target, draft = pair(kind)
    target.context, itself = ending.get("context", 64), ending.get("itself", False)
    drafter = Spied(target if itself else draft)
    asked = dict(gamma=3, max_new_tokens=30, seed=1, record=record)
    asked |= {name: value for name, value in ending.items() if name in ("eos", "max_new_tokens")}
    traces, checked = speculate(target, drafter, prompts, **asked), 0
    for committed, length, proposal in drafter.proposed:
        for row, n in enumerate(proposal.lengths.tolist()):
            text, drafts = committed[row, : length[row]].tolist(), proposal.tokens[row].tolist()
            for i in range(n):
                expected = fresh(drafter.model, text + drafts[:i], SamplingParams())
                torch.testing.assert_close(proposal.q[row, i].cpu(), expected, atol=1e-9, rtol=0)
                checked += 1
    assert checked == sum(len(round.draft_tokens) for trace in traces for round in trace.rounds) > len(prompts)
    if itself:
        assert all(round.accepted == len(round.draft_tokens) for trace in traces for round in trace.rounds)


@pytest.mark.parametrize("kind", ["table", *FAMILIES])
def test_after_commit_the_caches_lag_by_one_token_or_two(kind):
    target, drafter = pair(kind)
    state = begin(target, drafter, [[1, 2, 3], [4]], gamma=3, max_new_tokens=30, seed=1)
    seen = set()
    while state.active.any():
        proposal = draft(state)
        p = target_forward(state, proposal)
        verdict = verify(proposal.tokens, proposal.q, p, state.randomness, proposal.lengths, state.active)
        done = commit(state, proposal, p, verdict)
        for row, round in enumerate(done):
            if round is None:
                continue
            assert state.cache.length[row] == state.length[row] - 1
            lag = int(state.length[row] - state.session.cache.length[row])
            if round.outcome == "bonus":
                assert lag == 2  # the last draft was never fed to the draft model
            if round.outcome == "resampled":
                assert lag == 1
            seen.add(round.outcome)
    assert {"bonus", "resampled"} <= seen


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "llama", "gpt2"])
def test_a_row_of_a_batch_equals_the_same_row_alone(kind):
    from specviz import Seeded

    target, drafter = pair(kind)
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8], [1]]
    settings = dict(gamma=3, max_new_tokens=25, eos=(9,))
    batch = speculate(target, drafter, prompts, seed=3, **settings)
    plain = autoregress(target, prompts, seed=3, max_new_tokens=25, eos=(9,))
    for row, prompt in enumerate(prompts):
        alone = speculate(target, drafter, prompt, randomness=Seeded(3, rows=[row]), **settings)
        assert alone.tokens == batch[row].tokens
        assert [r.draft_tokens for r in alone.rounds] == [r.draft_tokens for r in batch[row].rounds]
        alone = autoregress(target, prompt, randomness=Seeded(3, rows=[row]), max_new_tokens=25, eos=(9,))
        assert alone.tokens == plain[row].tokens


@pytest.mark.parametrize("kind", ["table", "llama"])
def test_other_mates_change_nothing(kind):
    target, drafter = pair(kind)
    settings = dict(gamma=2, max_new_tokens=20, seed=5)
    with_short = speculate(target, drafter, [[1, 2], [3]], **settings)
    with_long = speculate(target, drafter, [[1, 2], [5, 6, 7, 8, 9, 10]], **settings)
    assert with_short[0].tokens == with_long[0].tokens


@pytest.mark.parametrize("kind", ["table", *FAMILIES])
@pytest.mark.parametrize("gamma", range(1, 9))
def test_greedy_speculative_equals_greedy_plain(kind, gamma):
    target, drafter = pair(kind)
    greedy = dict(max_new_tokens=24, sampling=SamplingParams(temperature=0), seed=0)
    prompts = [[i, (5 * i) % 12] for i in range(5)]
    plain = autoregress(target, prompts, **greedy)
    for a, b in zip(speculate(target, drafter, prompts, gamma=gamma, **greedy), plain, strict=True):
        assert a.tokens == b.tokens


@pytest.mark.parametrize("kind", ["table", *FAMILIES])
def test_a_target_that_drafts_for_itself_is_never_rejected(kind):
    target, _ = pair(kind)
    for gamma in (1, 3, 4):
        for round in rounds(target, target, [1, 2], gamma=gamma, max_new_tokens=20, seed=gamma):
            if round.gamma_used == gamma:
                assert len(round.tokens) == gamma + 1 and round.outcome == "bonus"


# --- models that cannot be rewound --------------------------------------------------------------

SHAPE = dict(
    vocab_size=12, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip


def test_recurrent_models_are_refused():
    config = MambaConfig(vocab_size=12, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ValueError, match="running state.*cannot be rewound"):
        CausalLM(MambaForCausalLM(config), context=64)


def test_texts_grow_beyond_a_sliding_window():
    target = loaded(MistralConfig(**SHAPE, sliding_window=4))
    assert target.window is None and target.attention == {"sliding_attention": 4}
    assert worst_recorded_p(target) < 1e-9


def test_a_window_that_the_model_itself_reads_elsewhere_limits_the_text():
    """The mask of its own is proven at load with a narrower window; where that has no effect, the window is a limit."""

    class Deaf(MistralConfig):  # its narrow window is never seen by the model
        def __setattr__(self, name, value):
            super().__setattr__(name, 16 if name == "sliding_window" else value)

    model = MistralForCausalLM(Deaf(**SHAPE, sliding_window=16)).double()
    model.get_output_embeddings().weight.data.mul_(20)
    target = CausalLM(model, name="windowed")
    assert target.window == 16
    assert len(speculate(target, target, [1, 2], gamma=2, max_new_tokens=10, seed=0).tokens) == 10
    with pytest.raises(ValueError, match="sliding window of 16 tokens.*may grow to 25"):
        speculate(target, target, [1, 2], gamma=2, max_new_tokens=20, seed=0)


def test_a_model_whose_rows_depend_on_each_other_is_refused():
    """The tolerance of the check grows with the rounding that batch mates cause, but not without end."""
    model = hub_model("llama", 1, vocab_size=12)

    class Mixed(type(model.model)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.last_hidden_state = output.last_hidden_state + output.last_hidden_state.roll(1, dims=0)
            return output

    model.model.__class__ = Mixed
    model.get_output_embeddings().weight.data.mul_(20)
    with pytest.raises(ValueError, match="differ from a fresh forward's by"):
        CausalLM(model)


# --- conversations ------------------------------------------------------------------------------


class Chatty:
    """Stands in for a transformers tokenizer with a chat template: one id for each role, one for each letter."""

    chat_template = "…"

    def apply_chat_template(self, messages, add_generation_prompt, return_dict):
        assert add_generation_prompt and return_dict
        if messages[0]["role"] == "narrator":
            raise RuntimeError("unknown role narrator")
        ids = []
        for message in messages:
            ids += [
                {"user": 0, "assistant": 1}[message["role"]],
                *("abcdefgh".index(c) + 2 for c in message["content"]),
            ]
        return {"input_ids": [*ids, 1], "attention_mask": None}

    def encode(self, text, **_):
        return ["abcdefghij".index(c) + 2 for c in text]

    def convert_tokens_to_ids(self, entries):
        return [None] * len(entries)

    def convert_ids_to_tokens(self, token):
        return "uaabcdefghij"[token]

    def decode(self, ids, **_):
        return "".join(self.convert_ids_to_tokens(i) for i in ids)


def test_prompts_may_be_conversations():
    target = CausalLM(hub_model("llama", 1, vocab_size=12), Chatty())
    hello = [{"role": "user", "content": "abc"}]
    longer = [*hello, {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]
    settings = dict(gamma=2, max_new_tokens=4, seed=0)
    one = speculate(target, target, hello, **settings)
    assert one.prompt_tokens == [0, 2, 3, 4, 1]
    several = speculate(target, target, [hello, longer, [5]], **settings)
    assert [trace.prompt_tokens for trace in several] == [[0, 2, 3, 4, 1], [0, 2, 3, 4, 1, 5, 0, 6, 1], [5]]
    assert several[0].tokens == one.tokens


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([{"role": "user"}], r"prompt\[0\]=\{'role': 'user'\}: a message is"),
        ([[{"role": "user", "content": "a"}, "b"]], r"prompt\[0\]\[1\]='b': a message is"),
        ([{"role": "user", "content": "\ud800"}], r"prompt\[0\]=.*half a character"),
        ([{"role": "narrator", "content": "a"}], "chat template refuses it: unknown role narrator"),
        ({"role": "user", "content": "a"}, "must be text, token ids, or a list of either"),
    ],
)
def test_conversations_that_cannot_be_read_are_refused(prompt, message):
    target = CausalLM(hub_model("llama", 1, vocab_size=12), Chatty())
    with pytest.raises(ValueError, match=message):
        autoregress(target, prompt, max_new_tokens=1)


def test_models_without_a_chat_template_refuse_conversations():
    hello = [{"role": "user", "content": "abc"}]
    plain = Chatty()
    plain.chat_template = None
    for target, message in (
        (CausalLM(hub_model("llama", 1, vocab_size=12)), "has no tokenizer with a chat template"),
        (TableModel.random(3, symbols="abc"), "has no tokenizer with a chat template"),
        (CausalLM(hub_model("llama", 1, vocab_size=12), plain), "this tokenizer has no chat template"),
    ):
        with pytest.raises(ValueError, match=message):
            autoregress(target, hello, max_new_tokens=1)


# --- more kinds of models -----------------------------------------------------------------------


def test_a_model_whose_cache_ignores_positions_is_refused():
    model = hub_model("llama", 1, vocab_size=12)

    class Forgetful(type(model.model)):
        def forward(self, *args, position_ids=None, **kwargs):
            return super().forward(*args, **kwargs)

    model.model.__class__ = Forgetful
    model.get_output_embeddings().weight.data.mul_(20)
    with pytest.raises(ValueError, match="differ from a fresh forward's by"):
        CausalLM(model)


def test_logits_that_are_treated_after_the_head_are_treated_here_too():
    model = hub_model("llama", 1, vocab_size=12)

    plain = type(model).forward

    class Capped(type(model)):
        @functools.wraps(plain)
        def forward(self, *args, **kwargs):
            output = plain(self, *args, **kwargs)
            output.logits = output.logits.tanh()
            return output

    model.__class__ = Capped
    model.get_output_embeddings().weight.data.mul_(20)
    cache = CausalLM(model).new_cache([[1]], 8, frozenset({"first_layers"}))
    for fed in (cache, cache.first_layers(1)):
        assert fed.feed(torch.tensor([[1, 2, 3]])).abs().max() <= 1


def loaded(config, dtype=torch.float64, **settings):
    """A tiny random model of a configuration as a CausalLM, its head scaled so that mistakes show."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, **settings).to(dtype)
    model.get_output_embeddings().weight.data.mul_(20)
    return CausalLM(model)


def worst_recorded_p(target):
    """Largest difference between a recorded p and a fresh forward's, over ragged rows."""
    worst = 0.0
    for trace in speculate(target, target, [[1, 2, 3], [4]], gamma=3, max_new_tokens=14, seed=0, record="full"):
        text = list(trace.prompt_tokens)
        for round in trace.rounds:
            for i, p in enumerate(round.p):
                expected = fresh(target, text + round.draft_tokens[:i], SamplingParams())
                worst = max(worst, (torch.tensor(p.probs, dtype=torch.float64) - expected).abs().max().item())
            text += round.tokens
    return worst


@pytest.mark.parametrize(
    "config",
    [
        GemmaConfig(**SHAPE, head_dim=8),
        MistralConfig(**SHAPE, sliding_window=None),
        Qwen3Config(**SHAPE, head_dim=8),
        PhiConfig(**{**SHAPE, "num_key_value_heads": 2}),
        GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}),
        OPTConfig(vocab_size=12, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
                  word_embed_proj_dim=16, max_position_embeddings=64, bos_token_id=None, eos_token_id=None),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_more_families_equal_fresh_forwards(config):
    assert worst_recorded_p(loaded(config)) < 1e-9


def test_attention_that_adds_its_mask_is_given_numbers():
    """Eager attention would take a boolean mask for +1 and 0. (Its softmax is always float32.)"""
    eager = loaded(LlamaConfig(**SHAPE), attn_implementation="eager")
    assert worst_recorded_p(eager) < 1e-6
    capped = loaded(Gemma2Config(**SHAPE, head_dim=8, sliding_window=64), attn_implementation="eager")
    assert worst_recorded_p(capped) < 1e-6


def test_rotary_angles_that_depend_on_the_longest_position_limit_the_context():
    rope = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 4, long_factor=[4.0] * 4,
                original_max_position_embeddings=16, factor=4.0)  # fmt: skip
    target = loaded(LlamaConfig(**SHAPE, rope_parameters=rope))
    assert target.context == 16
    assert worst_recorded_p(target) < 1e-9


def test_other_kinds_of_models_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="encoder-decoder"):
        CausalLM(
            T5ForConditionalGeneration(T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
        )
    with pytest.raises(ValueError, match="no language-modelling head"):
        CausalLM(LlamaModel(LlamaConfig(**SHAPE)))
    for config, build in (
        (BloomConfig(vocab_size=12, hidden_size=16, n_layer=1, n_head=2), BloomForCausalLM),
        (FalconConfig(vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, alibi=True),
         FalconForCausalLM),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"adds position biases \(ALiBi\)"):
            CausalLM(build(config))
    model = hub_model("gpt2", 0, vocab_size=12)
    with pytest.raises(ValueError, match="model is a DataParallel: must be a transformers model.*as .module"):
        CausalLM(torch.nn.DataParallel(model))
    with pytest.raises(ValueError, match="tokenizer='gpt2': give the tokenizer itself"):
        CausalLM(model, "gpt2")
    flex = hub_model("llama", 0, vocab_size=12)
    flex.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match=r"attn_implementation='flex_attention', which takes no mask like ours"):
        CausalLM(flex)
    with pytest.raises(ValueError, match="context=100: this gpt2 is the same model up to 64 positions"):
        CausalLM(model, context=100)
    with pytest.raises(ValueError, match="context=-5: must be an integer"):
        CausalLM(model, context=-5)
    with pytest.raises(ValueError, match=r"eos: ids \[99\] are outside .* \(0 .. 11\)"):
        CausalLM(model, eos=[99])
    assert CausalLM(model, eos=3).eos == {3}


@pytest.mark.parametrize("kind", ["table", "llama"])
def test_a_draft_with_a_shorter_context_drafts_less_and_stays_exact(kind):
    target, drafter = pair(kind)
    drafter.context = 12
    greedy = dict(max_new_tokens=20, sampling=SamplingParams(temperature=0), seed=0)
    trace = speculate(target, drafter, [1, 2, 3], gamma=3, **greedy)
    assert trace.tokens == autoregress(target, [1, 2, 3], **greedy).tokens
    assert trace.rounds[-1].outcome == "plain" and trace.rounds[-1].draft_tokens == []


def test_texts_reach_the_context_and_stop_there():
    target, drafter = pair("llama")
    target.context = drafter.context = 16
    trace = speculate(target, drafter, [1, 2, 3], gamma=4, max_new_tokens=50, seed=0)
    assert len(trace.tokens) == 13 and trace.finish_reason == "context"
    assert speculate(target, drafter, [1] * 16, gamma=4, max_new_tokens=50, seed=0).tokens == []
