"""Every kind of drafter leaves the law exact; each has its own ways to be wrong, looked at one by one."""

from itertools import product

import numpy as np
import pytest
import torch
from tiny import fresh_logits, hub_model, language_model, rows_that_differ

from specviz import CausalLM, SamplingParams, TableModel, autoregress, speculate
from specviz.drafters.layer_skip import LayerSkip
from specviz.drafters.model import ModelDrafter
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.equivalence.exact import branches, prove
from specviz.models.ngram import NgramModel
from specviz.models.tokenizers import SymbolTokenizer
from specviz.steps import begin, draft

TARGET = TableModel.random(3, 2, seed=1, symbols="abc")
SETTINGS = [
    dict(gamma=1, max_new_tokens=4),
    dict(gamma=2, max_new_tokens=4),
    dict(gamma=3, max_new_tokens=4, eos=[1]),
    dict(gamma=2, max_new_tokens=4, sampling=SamplingParams(temperature=0.7, top_k=2)),
    dict(gamma=2, max_new_tokens=4, sampling=SamplingParams(temperature=0)),
]


def ngram(order):
    return NgramModel.learn(["abcabcab", "bca"], order, TARGET)


KINDS = {
    "unigram": ngram(1),
    "bigram": ngram(2),
    "trigram": ngram(3),
    "prompt lookup": PromptLookup(),
    "prompt lookup, two tokens": PromptLookup(longest=2, shortest=2),
}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_is_exact(kind, settings):
    assert prove(TARGET, KINDS[kind], "abcab", **settings).exact


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_layer_skip_is_exact(family, settings):
    assert prove(language_model(family, 1), LayerSkip(1), [0, 1, 2], tolerance=1e-9, **settings).exact


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_layer_skip_leaves_the_targets_memory_as_it_was(family):
    """Ragged rows: every recorded p is a fresh forward's, although drafts were written into the same memory."""
    target, prompts = language_model(family, 1, vocab_size=7), [[0, 1, 2], [3], [4, 5, 6, 0, 1]]
    traces = speculate(target, LayerSkip(1), prompts, gamma=3, max_new_tokens=20, seed=0, record="full")
    assert sum(round.accepted for trace in traces for round in trace.rounds) > 5
    for prompt, trace in zip(prompts, traces):
        text = prompt
        for round in trace.rounds:
            for i, p in enumerate(round.p):
                fresh = fresh_logits(target, text + round.draft_tokens[:i])[-1].softmax(-1).cpu()
                assert torch.allclose(torch.tensor(p.probs, dtype=torch.float64), fresh, atol=1e-9)
            text = text + round.tokens


@pytest.mark.parametrize("drafter", [LayerSkip(1), PromptLookup(), PromptLookup(10**6)], ids=repr)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_row_of_a_batch_equals_the_same_row_alone(family, drafter):
    target = language_model(family, 1, vocab_size=7)
    prompts = [[0, 1, 2, 0, 1], [3], [4, 5, 6, 0, 1], [2, 2]]
    for settings in (dict(gamma=3), dict(gamma=50, eos=[4]), dict(gamma=1, sampling=SamplingParams(temperature=0))):
        assert rows_that_differ(target, drafter, prompts, max_new_tokens=20, **settings) == []


def test_layer_skip_puts_the_targets_head_back():
    state = begin(language_model("llama", 1), LayerSkip(1), [0, 1, 2], gamma=3, max_new_tokens=9, seed=0)
    proposal = draft(state)
    assert proposal.lengths.tolist() == [3] and state.cache.length.tolist() == [2]


def test_layer_skip_drafts_what_a_model_of_the_first_layers_says():
    target = language_model("llama", 1, vocab_size=7)
    cut = hub_model("llama", 1, vocab_size=7)
    cut.load_state_dict(target.model.state_dict())
    cut.model.layers = cut.model.layers[:1]
    cut.config.num_hidden_layers = 1
    trace = speculate(target, LayerSkip(1), [0, 1, 2], gamma=3, max_new_tokens=20, seed=0, record="full")
    text = [0, 1, 2]
    for round in trace.rounds:
        for i, q in enumerate(round.q):
            with torch.no_grad():
                fresh = cut(torch.tensor([text + round.draft_tokens[:i]])).logits[0, -1].softmax(-1)
            assert torch.allclose(torch.tensor(q.probs, dtype=torch.float64), fresh, atol=1e-9)
        text = text + round.tokens
    assert len(target.model.model.layers) == target.model.config.num_hidden_layers == 2  # nothing was changed


# --- n-grams ------------------------------------------------------------------------------------


def test_witten_bell_by_hand():
    """ "abab": after a always b (2 of 2, one follower): (2 + 1 · P(b)) / 3, P(b) = (2 + 1) / (4 + 3)."""
    model = NgramModel.learn("abab", 2, TARGET)
    after = model.look_up(torch.tensor([[0], [2], [3]])).exp()  # a, c, and the beginning of a text
    unigram = torch.tensor([3, 3, 1]).double() / 7
    assert torch.allclose(after[0], (torch.tensor([0, 2, 0]) + unigram) / 3)
    assert torch.allclose(after[1], unigram) and torch.allclose(after[2], unigram)  # these were never seen


def test_witten_bell_where_a_context_had_two_followers():
    """In "aabacb" a was followed by a, b, c once each: (1 + 3 P(x)) / 6; and ba by c alone: (… + 1 P(x | a)) / 2."""
    model = NgramModel.learn("aabacb", 3, TARGET)
    unigram = (torch.tensor([3, 2, 1]).double() + 1) / 9
    after_a = (1 + 3 * unigram) / 6
    after_ba = (torch.tensor([0.0, 0.0, 1.0]).double() + after_a) / 2
    found = model.look_up(torch.tensor([[2, 0], [1, 0]])).exp()  # ca was never seen
    assert torch.allclose(found[0], after_a) and torch.allclose(found[1], after_ba)


def test_a_book_may_be_longer_than_the_targets_context():
    short = TableModel.random(3, 1, seed=1, context=8, symbols="abc")
    assert NgramModel.learn("abc" * 50, 2, short).look_up(torch.tensor([[0]])).exp()[0, 1] > 0.9


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_an_ngram_is_a_distribution_without_zeros_for_every_context(order):
    model = NgramModel.learn([np.random.default_rng(0).integers(0, 3, 50).tolist()], order, TARGET)
    contexts = torch.tensor(list(product(range(4), repeat=order - 1)), dtype=torch.long)
    p = model.look_up(contexts).exp()
    assert torch.allclose(p.sum(-1), torch.ones(len(p)).double()) and (p > 0).all()
    assert NgramModel.learn("ab", order, like(torch.float16)).look_up(contexts[:1]).dtype == torch.float32


def like(dtype):
    return TableModel.random(3, 1, symbols="abc", dtype=dtype)


def test_a_bigram_learned_from_the_targets_own_text_beats_a_unigram():
    target = TableModel.random(8, 1, seed=0, scale=2.0, context=4096)
    texts = [trace.tokens for trace in autoregress(target, [[0]] * 20, max_new_tokens=200, seed=1)]
    alpha = {
        order: speculate(
            target, NgramModel.learn(texts, order, target), [0], gamma=2, max_new_tokens=2000, seed=2, record="none"
        ).alpha
        for order in (1, 2)
    }
    assert alpha[2] > alpha[1] + 0.2 and alpha[2] > 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NgramModel.learn("ab", 0, TARGET), "order=0"),
        (lambda: NgramModel.learn([], 2, TARGET), "texts: there is not a single token"),
        (lambda: NgramModel.learn([[0, 7]], 2, TARGET), "texts: ids .7. are outside"),
        (lambda: NgramModel.learn([[0.5]], 2, TARGET), "texts=.0.5.: must be token ids"),
        (lambda: NgramModel.learn("ab", 2, TableModel.random(3, 1)), "has no tokenizer: give lists of ids"),
        (lambda: NgramModel.learn("abz", 2, TARGET), "contains"),
        (lambda: PromptLookup(longest=1, shortest=2), "longest=1: must be an integer >= 2"),
        (lambda: PromptLookup(shortest=0), "shortest=0"),
        (lambda: LayerSkip(0), "layers=0"),
        (lambda: speculate(TARGET, LayerSkip(1), "a"), "LayerSkip cannot draft for 'table'"),
        (lambda: speculate(language_model("llama", 1), LayerSkip(2), [0]), "layers=2: 'llama-1' has 2 layers"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- prompt lookup ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "longest", "shortest", "found"),
    [
        ([1, 2, 3, 9, 1, 2], 3, 1, [3, 9, 1, 2]),
        ([1, 2, 3, 1, 2, 4, 1, 2], 3, 1, [4, 1, 2]),  # the latest occurrence
        ([5, 1, 2, 3, 7, 2, 4, 1, 2], 3, 1, [3, 7, 2, 4, 1, 2]),  # the longer ending wins over the later one
        ([5, 1, 2, 3, 7, 2, 4, 1, 2], 1, 1, [4, 1, 2]),
        ([1, 2, 3], 3, 1, []),
        ([7, 7], 3, 1, [7]),
        ([1, 2, 3, 9, 5, 2], 3, 2, []),
        ([4], 3, 1, []),
    ],
)
def test_what_followed_the_ending(text, longest, shortest, found):
    assert PromptLookup(longest, shortest).continuation(text) == found


def test_prompt_lookup_drafts_nothing_where_nothing_repeats_and_stops_at_eos():
    target = TableModel.random(6, 1, seed=0)
    trace = speculate(target, PromptLookup(), [0, 1, 2], gamma=3, max_new_tokens=1, seed=0)
    assert trace.rounds[0].outcome == "plain"
    trace = speculate(target, PromptLookup(), [0, 1, 2, 0], gamma=3, max_new_tokens=9, seed=0, eos=[2])
    assert trace.rounds[0].draft_tokens == [1, 2] and trace.rounds[0].gamma_used == 3
    batch = speculate(target, PromptLookup(), [[0, 1, 2, 0], [3], [4, 4]], gamma=3, max_new_tokens=9, seed=0)
    assert [len(trace.rounds[0].draft_tokens) for trace in batch] == [3, 0, 1]


def test_prompt_lookup_copies_at_a_stretch():
    """A target that repeats its prompt is drafted perfectly: γ + 1 tokens a round."""
    ring = TableModel.from_probabilities(np.vstack([np.roll(np.eye(6), 1, axis=1), np.full(6, 1 / 6)]), context=200)
    trace = speculate(ring, PromptLookup(), [0, 1, 2, 3, 4, 5, 0], gamma=4, max_new_tokens=50, seed=0)
    assert trace.alpha == 1 and trace.tokens_per_round == 5 and trace.tokens[:7] == [1, 2, 3, 4, 5, 0, 1]
    assert trace.forwards["draft"] == 0


def test_prompt_lookup_at_the_end_of_the_context():
    """Whatever it finds, no row grows beyond the context, and one that fills it gets nothing."""
    target = TableModel.random(3, 1, seed=1, context=6)
    traces = speculate(target, PromptLookup(), [[0, 1, 0], [0] * 6, [0] * 5], gamma=10, max_new_tokens=50, seed=0)
    assert [len(trace.tokens) for trace in traces] == [3, 0, 1]
    assert {trace.finish_reason for trace in traces} == {"context"}
    assert prove(target, PromptLookup(), [0, 1, 0, 1], gamma=9, max_new_tokens=9).exact


# --- padded vocabularies ------------------------------------------------------------------------


def padded(symbols, size, seed, **settings):
    """A table over size ids, of which the tokenizer knows the first few."""
    model = TableModel.random(size, 1, seed=seed, **settings)
    model.tokenizer = SymbolTokenizer(symbols)
    return model


@pytest.mark.parametrize(("of_target", "of_draft"), [(4, 3), (3, 4), (3, 5), (3, 3)])
def test_vocabularies_padded_to_different_sizes(of_target, of_draft):
    """The law stays exact; ids that only one model has are never drafted, and may still be emitted."""
    target, drafter = padded("abc", of_target, 1), padded("abc", of_draft, 2)
    assert prove(target, drafter, "ab", gamma=2, max_new_tokens=3).exact
    common = min(of_target, of_draft)
    for trace, _ in branches(target, drafter, "ab", gamma=2, max_new_tokens=3):
        assert all(token < common for round in trace.rounds for token in round.draft_tokens)


def test_different_sizes_without_a_tokenizer_are_refused():
    with pytest.raises(ValueError, match="has 4 ids, target .* has 3: .* give both models their tokenizer"):
        speculate(TableModel.random(3, 1), TableModel.random(4, 1), [0])
    with pytest.raises(ValueError, match="different tokenizers"):
        speculate(padded("abc", 3, 1), padded("abcd", 4, 1), "a")


def test_a_hub_pair_of_padded_vocabularies():
    target = CausalLM(hub_model("qwen2", 1, vocab_size=7), name="target")
    drafter = CausalLM(hub_model("qwen2", 2, vocab_size=9), name="draft")
    target.tokenizer = drafter.tokenizer = SymbolTokenizer("abcdefg")
    trace = speculate(target, drafter, "abc", gamma=3, max_new_tokens=30, seed=0, record="full")
    assert all(len(q.ids) == 7 for round in trace.rounds for q in round.q)
    greedy = dict(max_new_tokens=30, sampling=SamplingParams(temperature=0))
    assert speculate(target, drafter, "abc", **greedy).tokens == autoregress(target, "abc", **greedy).tokens


def test_a_model_drafter_can_be_shared():
    shared = ModelDrafter(ngram(2))
    traces = [speculate(TARGET, shared, "ab", gamma=2, max_new_tokens=10, seed=3) for _ in range(2)]
    assert traces[0].tokens == traces[1].tokens
