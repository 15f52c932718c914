"""T5 and T5 v1.1 through the same decoder: the prompt is the source, the text is the decoder's."""

import copy
import functools
import itertools

import pytest
import torch
from tiny import language_model, random_overlap, rows_that_differ, t5_pair, worst_ragged_logits, worst_recorded
from transformers import BartConfig, BartForConditionalGeneration, MT5Config, MT5ForConditionalGeneration

from specviz import CausalLM, SamplingParams, Trace, autoregress, load_pair, rounds, speculate
from specviz.drafters.layer_skip import LayerSkip
from specviz.equivalence.exact import exact_law, prove
from specviz.models.ngram import NgramModel
from specviz.models.seq2seq import Seq2SeqLM
from specviz.steps import begin

KINDS = pytest.mark.parametrize("kind", ["t5", "v1.1"])
SOURCES = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 1], [2, 2, 2], [5, 4, 3, 2], [11, 10], [6, 6, 6, 6, 6, 6, 6, 6, 6], [3]]
GREEDY = SamplingParams(temperature=0)


@functools.cache
def pair(kind, vocab_size=12):
    return t5_pair(kind, vocab_size)


def tolerance(target):
    """1e-9, but 1e-6 where T5's softmax is in float32 whatever the model's dtype."""
    return 1e-6 if target.model.config._attn_implementation == "eager" else 1e-9


@KINDS
@pytest.mark.parametrize(("gamma", "vocab_size", "n"), [(1, 3, 4), (2, 2, 4)])
def test_the_law_is_exact(kind, gamma, vocab_size, n):
    target, drafter = pair(kind, vocab_size)
    assert 0.3 < random_overlap(target, drafter) < 0.8
    source, settings = [1, 0, 1, 1], dict(max_new_tokens=n, tolerance=tolerance(target))
    report = prove(target, drafter, source, gamma=gamma, progress=False, **settings)
    assert report.exact, report


@KINDS
def test_the_source_matters(kind):
    target, _ = pair(kind)
    logits = target.new_cache(SOURCES, 2).feed(torch.zeros(len(SOURCES), 1, dtype=torch.long))[:, 0]
    for a, b in itertools.combinations(logits.softmax(-1), 2):
        assert (a - b).abs().max() > 1e-3


@KINDS
def test_ragged_feeding_and_rewinding_equal_fresh_forwards(kind):
    for model in pair(kind):
        assert worst_ragged_logits(model, SOURCES[:3], steps=20) < 10 * tolerance(model)


@KINDS
def test_every_recorded_p_and_q_equals_a_fresh_forward(kind):
    target, drafter = pair(kind)
    assert worst_recorded(target, drafter, SOURCES[:4], gamma=3, max_new_tokens=40, seed=0) < tolerance(target)


@pytest.mark.slow
@KINDS
def test_eight_ragged_sources_equal_eight_single_runs(kind):
    target, drafter = pair(kind)
    for sampling in (SamplingParams(), SamplingParams(0.7, top_k=4), GREEDY):
        assert rows_that_differ(target, drafter, SOURCES, gamma=3, max_new_tokens=20, sampling=sampling) == []


@KINDS
def test_greedy_equals_generate(kind):
    target, drafter = pair(kind)
    target = Seq2SeqLM(target.model, eos=1)
    settings = dict(max_new_tokens=16, sampling=GREEDY, seed=0)
    plain = autoregress(target, SOURCES, **settings)
    for source, trace in zip(SOURCES, plain):
        ids = target.model.generate(
            torch.tensor([source], device=target.device),
            do_sample=False,
            max_new_tokens=16,
            eos_token_id=1,
            pad_token_id=0,
        )
        assert ids[0].tolist() == [0, *trace.tokens]  # generate returns the start too
    for gamma in (1, 2, 5):
        traces = speculate(target, drafter, SOURCES, gamma=gamma, **settings)
        assert [trace.tokens for trace in traces] == [trace.tokens for trace in plain]


@KINDS
def test_a_target_that_drafts_for_itself_is_never_rejected(kind):
    target, _ = pair(kind)
    for round in rounds(target, target, SOURCES[0], gamma=3, max_new_tokens=20, seed=1):
        assert round.accepted == round.gamma_used and len(round.tokens) == round.gamma_used + 1


def test_the_text_begins_with_the_start_token_and_the_trace_keeps_the_source():
    target, drafter = pair("t5")
    state = begin(target, drafter, SOURCES[:2], max_new_tokens=5, seed=0)
    assert target.start_tokens == [0]
    assert state.committed[:, 0].tolist() == [0, 0] and state.length.tolist() == [1, 1]
    trace = speculate(target, drafter, SOURCES[0], max_new_tokens=5, seed=0)
    assert trace.prompt_tokens == SOURCES[0] and len(trace.tokens) == 5
    assert Trace.from_json(trace.to_json()).to_json() == trace.to_json()


def test_the_context_limits_source_and_text():
    model = pair("t5")[0].model
    assert Seq2SeqLM(model).context == 512
    target = Seq2SeqLM(model, context=8)
    trace = speculate(target, target, [1] * 8, gamma=3, max_new_tokens=50, seed=0)
    assert trace.finish_reason == "context" and len(trace.tokens) == 7  # and the start
    with pytest.raises(ValueError, match="prompt has 9 tokens, more than the context"):
        speculate(target, target, [1] * 9, max_new_tokens=5)
    with pytest.raises(ValueError, match="context=3: must be an integer >= 8"):
        Seq2SeqLM(model, context=3)


def test_nothing_stays_in_the_users_model():
    target, drafter = pair("v1.1")
    before = {name: dict(module.__dict__) for name, module in target.model.named_modules()}
    source, text = (torch.tensor([ids], device=target.device) for ids in (SOURCES[0], [0, 1, 2, 3]))
    inputs = dict(input_ids=source, decoder_input_ids=text)
    with torch.no_grad():
        logits = target.model(**inputs).logits
    state = begin(target, drafter, SOURCES, max_new_tokens=5, seed=0)
    with pytest.raises(IndexError):
        state.cache.feed(torch.full((8, 1), 99))  # no such id: an error inside the model
    for _ in rounds(target, drafter, SOURCES, max_new_tokens=5, seed=0):  # generators may be left at any point
        break
    after = {name: dict(module.__dict__) for name, module in target.model.named_modules()}
    assert {name: set(fields) for name, fields in after.items()} == {name: set(f) for name, f in before.items()}
    with torch.no_grad():
        assert torch.equal(target.model(**inputs).logits, logits)


def test_memories_of_one_model_do_not_mix():
    """A target that drafts for itself, and two decodings by turns, have positions and sources of their own."""
    target, drafter = pair("t5")
    settings = dict(gamma=2, max_new_tokens=12, seed=0)
    alone = [speculate(target, target, source, **settings).tokens for source in SOURCES[:2]]
    runs = [rounds(target, target, source, **settings) for source in SOURCES[:2]]
    texts = [[], []]
    while any(runs):
        for i, run in enumerate(runs):
            if run is not None and (round := next(run, None)) is not None:
                texts[i] += round.tokens
            else:
                runs[i] = None
    assert texts == alone


def test_mt5_is_of_the_same_kind():
    torch.manual_seed(0)
    config = MT5Config(
        vocab_size=12, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    target = Seq2SeqLM(MT5ForConditionalGeneration(config).double())
    assert worst_recorded(target, target, SOURCES[:3], gamma=3, max_new_tokens=12, seed=0) < tolerance(target)


def test_half_precision_gives_probabilities_in_float32():
    target, drafter = t5_pair("v1.1", 12, dtype=torch.bfloat16)
    trace = speculate(target, drafter, SOURCES[0], gamma=3, max_new_tokens=20, seed=0, record="full")
    assert len(trace.tokens) == 20
    assert all(abs(sum(p.probs) - 1) < 1e-6 for round in trace.rounds for p in round.p)


def test_text_in_and_text_out():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "</s>", "▁red", "▁green", "▁blue", "▁house", "▁tree", "s", "▁", "▁no", "▁yes", "▁or"]
    backend = Tokenizer(models.Unigram([(word, -float(i)) for i, word in enumerate(words)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")
    target, drafter = (Seq2SeqLM(model.model, tokenizer, eos=1) for model in pair("t5"))
    trace = speculate(target, drafter, "green trees or no house", gamma=3, max_new_tokens=20, seed=0)
    assert trace.prompt_tokens == [3, 6, 7, 11, 9, 5, 1]  # T5's sources end with EOS
    assert trace.tokens == speculate(target, drafter, trace.prompt_tokens, gamma=3, max_new_tokens=20, seed=0).tokens
    kept = trace.tokens[:-1] if trace.finish_reason == "eos" else trace.tokens
    assert trace.text == tokenizer.decode(kept) and "</s>" not in trace.text


def test_a_folder_is_loaded_as_what_it_is(tmp_path):
    """load_pair finds out that these are encoder-decoders, and a decoder cannot draft for one."""
    target, drafter = pair("v1.1")
    for name, model in (("target", target), ("draft", drafter)):
        model.model.save_pretrained(tmp_path / name)
        word_tokenizer(model.vocab_size).save_pretrained(tmp_path / name)
    loaded = load_pair(tmp_path / "target", tmp_path / "draft", device="cpu", dtype=torch.float64)
    assert [type(model) for model in loaded] == [Seq2SeqLM, Seq2SeqLM]
    settings = dict(gamma=3, max_new_tokens=12, seed=0)
    ours = [trace.tokens for trace in speculate(*loaded, SOURCES[:3], **settings)]
    assert ours == [trace.tokens for trace in speculate(target, drafter, SOURCES[:3], **settings)]
    decoder = language_model("llama", 1, vocab_size=target.vocab_size)
    for one, other in ((target, decoder), (decoder, target)):
        with pytest.raises(ValueError, match="read their prompts differently: one of them is an encoder-decoder"):
            speculate(one, other, SOURCES[0], **settings)
    with pytest.raises(ValueError, match="LayerSkip cannot draft for"):
        speculate(target, LayerSkip(1), SOURCES[0], **settings)
    counting = NgramModel.learn([[1, 2, 3]], 2, target)
    assert speculate(target, counting, SOURCES[0], **settings).tokens


def word_tokenizer(size):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{i}": i for i in range(size)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="w0")))


def test_a_model_dispatched_by_accelerate_decodes_the_same():
    accelerate = pytest.importorskip("accelerate")
    target, _ = pair("v1.1")
    settings = dict(gamma=3, max_new_tokens=12, seed=0)
    expected = [trace.tokens for trace in speculate(target, target, SOURCES[:3], **settings)]
    device_map = {"shared": "cpu", "encoder": "cpu", "lm_head": "cpu", "decoder.final_layer_norm": "cpu"}
    device_map |= {"decoder.embed_tokens": "cpu", "decoder.block": "cpu", "decoder.dropout": "cpu"}
    on_several = accelerate.dispatch_model(copy.deepcopy(target.model), device_map=device_map, force_hooks=True)
    offloaded = accelerate.cpu_offload(copy.deepcopy(target.model), execution_device=torch.device("cpu"))
    for model in map(Seq2SeqLM, (on_several, offloaded)):
        assert [trace.tokens for trace in speculate(model, model, SOURCES[:3], **settings)] == expected


# --- refusals -------------------------------------------------------------------------------------


def test_other_encoder_decoders_are_refused():
    config = BartConfig(
        vocab_size=12, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=0, eos_token_id=1,
        bos_token_id=0, decoder_start_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"\(bart\) is none of t5, mt5.*CausalLM for decoders"):
        Seq2SeqLM(BartForConditionalGeneration(config))
    with pytest.raises(ValueError, match="encoder-decoder: use specviz.models.seq2seq.Seq2SeqLM"):
        CausalLM(pair("t5")[0].model)


def test_a_decoder_is_refused():
    from tiny import decoder

    with pytest.raises(ValueError, match=r"\(llama\) is none of t5, mt5"):
        Seq2SeqLM(decoder("llama"))


def test_a_model_without_a_start_is_refused():
    model = copy.deepcopy(pair("t5")[0].model)
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id = config.pad_token_id = None
    with pytest.raises(ValueError, match="names no decoder_start_token_id"):
        Seq2SeqLM(model)


def test_the_check_at_load_finds_a_decoder_that_goes_wrong(monkeypatch):
    from contextlib import nullcontext

    from specviz.models import seq2seq

    model = pair("t5")[0].model
    monkeypatch.setattr(seq2seq, "_bias_at", lambda positions, layer: nullcontext())  # T5's own: one place for all rows
    with pytest.raises(ValueError, match=r"\(t5\): results from a rewound memory differ from a fresh forward's"):
        Seq2SeqLM(model)


def test_the_search_does_not_merge_texts_of_an_encoder_decoder():
    target, drafter = pair("t5", 3)
    with pytest.raises(ValueError, match="merge=True.*encoder-decoder"):
        exact_law(target, drafter, [1, 2], merge=True, gamma=1, max_new_tokens=2)
