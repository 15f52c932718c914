"""Text as it grows, for every kind of tokenizer: always what all ids read when they are decoded at once."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from specviz import TableModel, autoregress, speculate, stream
from specviz.models.tokenizers import HubTokenizer, SymbolTokenizer
from specviz.text import WINDOW, Continuation, cut, hold_back, parts

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
    """Llama 2's and Mistral's kind, whose decode() drops the first space; Gemma's kind does not, and adds spaces."""
    entries = ["<unk>", "<s>", *(BYTES if byte_fallback else []), *WORDS]
    vocabulary = {entry: i for i, entry in enumerate(entries)}
    merges = [("▁", "▁"), ("▁", "a"), ("▁", "b"), ("▁a", "b")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=byte_fallback))
    replaced = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replaced]) if strip else replaced
    steps = [decoders.Replace("▁", " "), *([decoders.ByteFallback()] if byte_fallback else []), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    added = [] if strip else [AddedToken(run, normalized=False) for run in ("▁▁▁", "\n\n")]
    return hub(tokenizer, added, unk_token="<unk>", bos_token="<s>"), range(len(entries) + len(added))


def unigram(byte_fallback=True):
    """T5's kind: Unigram behind Metaspace."""
    entries = ["<unk>", *(BYTES if byte_fallback else []), *WORDS]
    model = models.Unigram([(entry, -1.0) for entry in entries], unk_id=0, byte_fallback=byte_fallback)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.ByteFallback(), decoders.Metaspace()] if byte_fallback else [decoders.Metaspace()]
    tokenizer.decoder = decoders.Sequence(steps)
    return hub(tokenizer, unk_token="<unk>"), range(len(entries))


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


def drawn(data, longest=60):
    """A tokenizer, and two lists of its ids. Long enough that the window moves on."""
    tokenizer, ids = kind(data.draw(st.sampled_from(sorted(KINDS))))
    some = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))  # few ids make long runs of a kind
    before = data.draw(st.lists(st.sampled_from(some), max_size=longest))
    return tokenizer, before, data.draw(st.lists(st.sampled_from(some), max_size=longest))


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


@settings(max_examples=200)
@given(st.data())
def test_parts_add_up(data):
    tokenizer, before, tokens = drawn(data)
    added = parts(tokenizer, before, tokens)
    assert len(added) == len(tokens) and "".join(added) == behind(tokenizer, before, tokens)
