"""Text as it grows, for every kind of tokenizer: always what all ids read when they are decoded at once."""

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from specviz import Scripted, TableModel, autoregress, speculate, stream
from specviz.models.tokenizers import HubTokenizer, SymbolTokenizer
from specviz.text import LOOKBACK, WINDOW, Continuation, hold_back, parts

BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xFF)]
WORDS = ["▁", "▁▁", "a", "b", "▁a", "▁b", "▁ab", "é", "\n"]


def hub(tokenizer, added=(), **special):
    tokenizer.add_tokens(list(added))
    return HubTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special))


def byte_level():
    """GPT-2's kind: every id is some bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {"Ġa": 256, "ab": 257, "Ã©": 258, "aâ": 259}
    merges = [("Ġ", "a"), ("a", "b"), ("Ã", "©"), ("a", "â")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    bytes_of = HubTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer)).piece
    used = [i for i in range(260) if i >= 256 or bytes_of(i) in (b"a", b"b", b" ", b"\n", b"\x82", b"\xac", b"\xff")]
    return hub(tokenizer, ["<|end|>"]), [*used, 260]


def sentencepiece(strip=True, byte_fallback=True):
    """Llama 2's and Mistral's kind, whose decode() drops the first space; Gemma's does not, and has runs of spaces.

    One id more than there are entries, as in a padded vocabulary: it says nothing.
    """
    entries = ["<unk>", "<s>", *(BYTES if byte_fallback else []), *WORDS]
    vocabulary = {entry: i for i, entry in enumerate(entries)}
    merges = [("▁", "▁"), ("▁", "a"), ("▁", "b"), ("▁a", "b")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=byte_fallback))
    replaced = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replaced]) if strip else replaced
    steps = [decoders.Replace("▁", " "), *([decoders.ByteFallback()] if byte_fallback else []), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    added = [] if strip else [AddedToken(run, normalized=False) for run in ("▁▁▁", "\n\n")]
    return hub(tokenizer, added, unk_token="<unk>", bos_token="<s>"), range(len(entries) + len(added) + 1)


def unigram(byte_fallback=True):
    """T5's kind: Unigram behind Metaspace."""
    entries = ["<unk>", *(BYTES if byte_fallback else []), *WORDS]
    model = models.Unigram([(entry, -1.0) for entry in entries], unk_id=0, byte_fallback=byte_fallback)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.ByteFallback(), decoders.Metaspace()] if byte_fallback else [decoders.Metaspace()]
    tokenizer.decoder = decoders.Sequence(steps)
    return hub(tokenizer, unk_token="<unk>"), range(len(entries) + 1)


def wordpiece():
    """BERT's kind: ## continues a word."""
    entries = ["[UNK]", "a", "b", "##a", "##b", "##é", ".", "'", "s", "do", "not", "n't"]
    tokenizer = Tokenizer(models.WordPiece({entry: i for i, entry in enumerate(entries)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return hub(tokenizer, unk_token="[UNK]"), range(len(entries))


def suffixes():
    """GPT-1's kind: </w> ends a word, and the last word's space is not written."""
    entries = ["<unk>", "a", "b", "a</w>", "b</w>", "é</w>"]
    tokenizer = Tokenizer(models.BPE({entry: i for i, entry in enumerate(entries)}, [], end_of_word_suffix="</w>"))
    tokenizer.decoder = decoders.BPEDecoder()
    return hub(tokenizer, unk_token="<unk>"), range(len(entries))


def characters():
    return SymbolTokenizer("abé 😀\n"), range(7)  # one id more than symbols, as in a padded vocabulary


def single_bytes():
    tokenizer = HubTokenizer(ByT5Tokenizer())
    return tokenizer, [0, 1, *(3 + byte for byte in b"ab \n\xc3\xa9\xe2\x82\xac\xff")]


KINDS = {
    "byte-level": byte_level,
    "sentencepiece": sentencepiece,
    "sentencepiece without bytes": lambda: sentencepiece(byte_fallback=False),
    "sentencepiece that keeps its space": lambda: sentencepiece(strip=False),
    "unigram": unigram,
    "unigram without bytes": lambda: unigram(byte_fallback=False),
    "wordpiece": wordpiece,
    "suffixes": suffixes,
    "characters": characters,
    "single bytes": single_bytes,
}


@cache
def kind(name):
    tokenizer, ids = KINDS[name]()
    return tokenizer, list(ids)


def drawn(data):
    """A tokenizer, and two lists of its ids.

    Each says some ids over and over, so that the texts are long enough for the window to move on, at any place.
    """
    tokenizer, ids = kind(data.draw(st.sampled_from(sorted(KINDS))))
    some = st.lists(st.sampled_from(ids), max_size=9)
    before, tokens = (data.draw(some) * data.draw(st.integers(1, 20)) + data.draw(some) for _ in range(2))
    return tokenizer, before, tokens


def behind(tokenizer, before, tokens):
    """The text by its definition: what all ids say, behind what those before and all have in common."""
    lead, whole = tokenizer.decode(before), tokenizer.decode([*before, *tokens])
    return next(whole[n:] for n in range(len(lead), -1, -1) if whole.startswith(lead[:n]))


@settings(max_examples=400)
@given(st.data())
def test_the_text_is_what_all_ids_say_at_once(data):
    tokenizer, before, tokens = drawn(data)
    said, told = Continuation(tokenizer, before), ""
    for n, token in enumerate(tokens, 1):
        said.extend([token])
        assert said.count == n and said.text == behind(tokenizer, before, tokens[:n])
        assert said.settled.startswith(told)
        told = said.settled
        assert behind(tokenizer, before, tokens).startswith(told)
    at_once = Continuation(tokenizer, before)
    at_once.extend(tokens)
    assert at_once.text == behind(tokenizer, before, tokens)


SPLIT = {  # a character, in the order of its ids
    "byte-level": ["aâ", "Ĥ", "¬"],
    "sentencepiece": ["<0xE2>", "<0x82>", "<0xAC>"],
    "unigram": ["<0xE2>", "<0x82>", "<0xAC>"],
    "single bytes": ["â", "\x82", "¬"],
}


@pytest.mark.parametrize("name", SPLIT)
def test_the_window_moves_on_beside_characters_not_through_them(name):
    tokenizer, _ = kind(name)
    euro, filler = [tokenizer.vocabulary[entry] for entry in SPLIT[name]], [tokenizer.vocabulary["a"]]
    for phase in range(WINDOW + LOOKBACK):
        tokens, said = filler * phase + (euro + filler) * 6, Continuation(tokenizer, filler)
        for n, token in enumerate(tokens, 1):
            said.extend([token])
            assert said.text == behind(tokenizer, filler, tokens[:n])
    assert said.text.count("€") == 6


@pytest.mark.parametrize("name", ["sentencepiece", "unigram"])
def test_a_space_behind_ids_that_say_nothing_is_kept(name):
    tokenizer, ids = kind(name)
    said = Continuation(tokenizer, [tokenizer.vocabulary["a"], *[ids[-1]] * 2 * LOOKBACK])
    said.extend([tokenizer.vocabulary["▁b"]])
    assert said.text == " b"


@settings(max_examples=200)
@given(st.data())
def test_parts_add_up(data):
    tokenizer, before, tokens = drawn(data)
    added = parts(tokenizer, before, tokens)
    assert len(added) == len(tokens) and "".join(added) == behind(tokenizer, before, tokens)


# --- stop strings -------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.data())
def test_a_stop_string_ends_the_text_in_the_token_that_completes_it(data):
    """A part of a text, looked for in several goes: found at once where it is there."""
    tokenizer, before, tokens = drawn(data)
    texts = [behind(tokenizer, before, tokens[:n]) for n in range(len(tokens) + 1)]
    assume(texts[-1])
    at, length = data.draw(st.integers(0, len(texts[-1]) - 1)), data.draw(st.integers(1, 50))
    stops = [texts[-1][at : at + length], "not there"]
    first = next(n for n, text in enumerate(texts) if stops[0] in text)
    said, cuts = Continuation(tokenizer, before), sorted(data.draw(st.sets(st.integers(1, len(tokens)))))
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        found = said.until_stop(tokens[start:end], stops)
        if found is not None:
            assert start + found == first
            break
        assert end < first
        said.extend(tokens[start:end])
    else:
        pytest.fail("the stop string was not found")


def saying(tokenizer, tokens):
    """A target that says these tokens, all of them different, in this order; and a drafter that may guess wrong."""
    vocab_size = max(tokenizer.vocabulary.values()) + 1
    logits = np.zeros((vocab_size + 1, vocab_size))
    logits[tokens[:-1], tokens[1:]] = np.log(vocab_size)
    target, drafter = (TableModel(factor * logits, context=512) for factor in (100, 1))
    target.tokenizer = drafter.tokenizer = tokenizer
    return target, drafter


# the prompt's tokens, those that follow, a stop string, and the text in front of it
STOPPED = {
    "an added token in it": (
        "sentencepiece that keeps its space", ["▁a"], ["a", "\n\n", "▁▁▁", "b", "▁b"], "\n   b", "a\n"),
    "a space that is dropped when decoded alone": ("sentencepiece", ["<s>", "a"], ["▁b", "▁a"], " b", ""),
    "a character in bytes": ("sentencepiece", ["▁b"], ["a", "<0xC3>", "<0xA9>", "b"], "é", "a"),
    "a character of two ids": ("single bytes", ["b"], ["a", "Ã", "©", "c"], "é", "a"),
    "the end of one character and another": ("byte-level", ["b"], ["Ġa", "aâ", "Ĥ", "¬", "Ã©", "ab"], "€é", " aa"),
    "the space between two words": ("wordpiece", ["a"], ["##b", "##a", "b", "."], "a b", "b"),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.parametrize("gamma", [1, 3, None])
def test_reason_tokens_text_and_stream_agree(name, gamma):
    which, prompt, following, stop, text = STOPPED[name]
    tokenizer, _ = kind(which)
    prompt, following = ([tokenizer.vocabulary[entry] for entry in entries] for entries in (prompt, following))
    target, drafter = saying(tokenizer, prompt + following)
    asked = dict(max_new_tokens=len(following), stop=["nowhere", stop], seed=0) | (dict(gamma=gamma) if gamma else {})
    streamed = stream(target, drafter if gamma else None, prompt, **asked)
    pieces, trace = list(streamed), streamed.trace
    assert trace.finish_reason == "stop" and trace.tokens == following[:-1]
    assert trace.text == "".join(pieces) == "".join(trace.parts) == text
    whole = tokenizer.decode(prompt + trace.tokens)
    assert trace.prompt == tokenizer.decode(prompt) and whole.startswith(trace.prompt + text + stop)
    if gamma:
        whole = speculate(target, drafter, prompt, **asked)
        again = speculate(target, drafter, prompt, randomness=Scripted.from_trace(trace), **trace.settings)
        assert whole.tokens == again.tokens == trace.tokens and again.text == text


def test_a_prompt_that_ends_within_a_character():
    """The half belongs to the text that completes it: prompt and text together are still all that is said."""
    tokenizer, _ = kind("byte-level")
    prompt, following = ([tokenizer.vocabulary[entry] for entry in entries] for entries in (["b", "aâ"], ["Ĥ", "¬"]))
    target, _ = saying(tokenizer, prompt + following)
    for length, parts_of_it in ((2, ("ba", "€")), (1, ("ba\ufffd", ""))):
        streamed = stream(target, None, prompt, max_new_tokens=length, seed=0)
        assert "".join(streamed) == streamed.trace.text
        assert (streamed.trace.prompt, streamed.trace.text) == parts_of_it


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_streamed_pieces_add_up_wherever_decoding_is_broken_off(data):
    """Random models over few ids, so that characters are cut by rounds, by stop strings and by the end."""
    tokenizer, ids = kind(data.draw(st.sampled_from(sorted(KINDS))))
    which = data.draw(st.lists(st.sampled_from(ids), min_size=2, max_size=5, unique=True))
    few = OfFew(tokenizer, which)
    seeds = data.draw(st.integers(0, 99))
    target, drafter = (TableModel.random(len(which), 1, seed=seed) for seed in (seeds, seeds + 100))
    target.tokenizer = drafter.tokenizer = few
    prompt = data.draw(st.lists(st.integers(0, len(which) - 1), min_size=1, max_size=5))
    stops = data.draw(st.lists(st.text("ab é€\n", min_size=1, max_size=2), max_size=2))
    asked = dict(gamma=3, max_new_tokens=40, stop=stops, eos=data.draw(st.sampled_from([[], [0]])), seed=0)
    streamed = stream(target, drafter, prompt, **asked)
    sent = ""
    for piece in streamed:
        sent += piece
        assert streamed.trace.text.startswith(sent)
    trace = streamed.trace
    assert sent == trace.text == "".join(trace.parts) and len(trace.parts) == len(trace.tokens)
    said = trace.tokens[:-1] if trace.finish_reason == "eos" else trace.tokens
    whole = few.decode(prompt + said)
    assert whole.startswith(trace.prompt + trace.text)
    if trace.finish_reason == "stop":
        assert any(whole.startswith(trace.prompt + trace.text + stop) for stop in stops)
    else:
        assert whole == trace.prompt + trace.text
        assert not any(stop in trace.text for stop in stops)
    again = speculate(target, drafter, prompt, randomness=Scripted.from_trace(trace), **trace.settings)
    assert (again.tokens, again.text, again.finish_reason) == (trace.tokens, trace.text, trace.finish_reason)


class OfFew:
    """A tokenizer of some of another's ids, numbered from 0."""

    def __init__(self, tokenizer, ids):
        self.tokenizer, self.ids = tokenizer, ids
        fallback = getattr(tokenizer, "byte_fallback", ())
        self.byte_fallback = frozenset(i for i, token in enumerate(ids) if token in fallback)

    def decode(self, ids):
        return self.tokenizer.decode([self.ids[i] for i in ids])

    def piece(self, token):
        return self.tokenizer.piece(self.ids[token])


# --- what it costs, and how it looks ------------------------------------------------------------


@pytest.mark.parametrize("stops", [[], ["nowhere"]], ids=["no stop strings", "stop strings"])
def test_no_round_decodes_more_than_a_window(stops):
    """A long text: during the rounds nothing at all is decoded, or with stop strings a few ids each time."""
    decoded = []

    class Counting(SymbolTokenizer):
        def decode(self, ids):
            decoded.append(len(ids))
            return super().decode(ids)

    target = TableModel.random(4, 1, seed=1, context=2000)
    target.tokenizer = Counting("abcd")
    rounds_seen = []
    settings = dict(max_new_tokens=600, stop=stops, seed=0, on_round=lambda round: rounds_seen.append(len(decoded)))
    autoregress(target, [0] * 300, **settings)
    during = decoded[: rounds_seen[-1]]
    if stops:  # the prompt is shortened to its end at once
        assert len(during) < 600 * 2 and max(during) < LOOKBACK * 2 + WINDOW + 1
    else:
        assert during == []


def test_what_may_become_a_stop_string_is_held_back():
    assert hold_back("abc", ["cd", "bcx"]) == "a" and hold_back("abc", []) == hold_back("abc", ["b"]) == "abc"


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece", "unigram", "single bytes", "wordpiece"])
def test_the_bytes_of_an_id_are_what_it_adds_within_a_text(name):
    tokenizer, ids = kind(name)
    before = tokenizer.encode("a")
    for token in ids:
        text = tokenizer.decode([*before, token])
        if "\ufffd" not in text and text != tokenizer.decode(before):
            assert text == tokenizer.decode(before) + tokenizer.piece(token).decode()
    broken = {"sentencepiece": "<0xC3>", "byte-level": "aâ", "single bytes": "Ã"}
    if name in broken:
        assert tokenizer.piece(tokenizer.vocabulary[broken[name]]) in (b"\xc3", b"a\xe2")


# --- prompts ----------------------------------------------------------------------------------------


def words(**special):
    """A tokenizer of whole words, which begins texts with <s> where it is told to."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<s>", "a", "b", "c"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", **special)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("tensors", [None, "pt", "np"])
def test_a_tokenizers_output_is_read_by_its_mask(side, tensors):
    tokenizer = words()
    tokenizer.padding_side = side
    target = TableModel.random(5)
    target.tokenizer = HubTokenizer(tokenizer)
    texts = ["a b c", "b"]
    encoded = tokenizer(texts, padding=True, return_tensors=tensors)
    settings = dict(max_new_tokens=3, seed=0)
    expected = autoregress(target, [[2, 3, 4], [3]], **settings)
    traces = autoregress(target, encoded, **settings)
    assert [(t.prompt_tokens, t.tokens) for t in traces] == [(t.prompt_tokens, t.tokens) for t in expected]
    with pytest.warns(
        UserWarning, match="begin or end with the padding id 0, and are read as they stand: give the tok"
    ):
        padded = autoregress(target, encoded["input_ids"], **settings)
    assert [len(t.prompt_tokens) for t in padded] == [3, 3]
    alone = autoregress(target, tokenizer("a b"), **settings)
    assert alone.prompt_tokens == [2, 3]


def test_a_text_that_begins_with_bos_gets_no_second_one():
    tokenizer = HubTokenizer(words(bos_token="<s>"))
    assert tokenizer.encode("a b") == tokenizer.encode("<s> a b") == [1, 2, 3]
    assert tokenizer.encode("<s>") == [1]
