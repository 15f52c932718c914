"""Pieces of text as they come: together they are the trace's text, whatever is held back on the way."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz import SamplingParams, TableModel, load_pair, speculate, stream
from specviz.steps import decode_round

SYMBOLS = "abcd"
TARGET = TableModel.random(4, 2, seed=1, symbols=SYMBOLS)
DRAFTER = TableModel.random(4, 2, seed=2, symbols=SYMBOLS)


@pytest.mark.parametrize("drafter", [DRAFTER, None], ids=["speculative", "plain"])
@pytest.mark.parametrize("settings", [{}, dict(stop=["ca", "bbd"]), dict(eos=[3])], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_the_pieces_are_the_text(drafter, settings, seed):
    asked = dict(max_new_tokens=30, seed=seed, **settings) | (dict(gamma=3) if drafter else {})
    streamed = stream(TARGET, drafter, "ab", **asked)
    pieces = list(streamed)
    assert all(pieces) and "".join(pieces) == streamed.trace.text
    if drafter:
        whole = speculate(TARGET, drafter, "ab", **asked)
        assert streamed.trace.tokens == whole.tokens and streamed.trace.finish_reason == whole.finish_reason
        assert len(pieces) <= len(whole.rounds)


def test_a_batch_streams_each_row():
    streamed = stream(TARGET, DRAFTER, ["a", "bcd"], gamma=2, max_new_tokens=20, seed=1, stop="dd")
    pieces = list(streamed)
    assert all(len(piece) == 2 and any(piece) for piece in pieces)
    assert ["".join(row) for row in zip(*pieces)] == [trace.text for trace in streamed.trace]


def test_breaking_off_keeps_what_was_decoded_and_can_go_on():
    streamed = stream(TARGET, DRAFTER, "ab", gamma=2, max_new_tokens=30, seed=1)
    first = next(iter(streamed))
    assert streamed.trace.finish_reason == "interrupted" and streamed.trace.text == first
    rest = list(streamed)
    assert first + "".join(rest) == streamed.trace.text and streamed.trace.finish_reason == "length"


def test_an_interruption_between_a_round_and_its_pieces_loses_nothing():
    def interrupted(state):
        done = decode_round(state)
        if not state.active.any():
            raise KeyboardInterrupt
        return done

    streamed = stream(TARGET, DRAFTER, "ab", gamma=2, max_new_tokens=9, seed=1, decode_round=interrupted)
    pieces = []
    with pytest.raises(KeyboardInterrupt):
        for piece in streamed:
            pieces.append(piece)
    pieces += list(streamed)
    assert "".join(pieces) == streamed.trace.text and streamed.trace.finish_reason == "length"


@settings(max_examples=60)
@given(st.integers(0, 99), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers(1, 3))
def test_no_piece_is_taken_back_by_a_stop_string(seed, stops, gamma):
    pair = [TableModel.random(2, 1, seed=model, symbols="ab") for model in (1, 2)]
    streamed = stream(*pair, "a", gamma=gamma, max_new_tokens=12, seed=seed, stop=stops)
    assert "".join(streamed) == streamed.trace.text
    assert not any(stop in streamed.trace.text for stop in stops)


def test_characters_of_several_bytes_are_held_back_until_they_are_whole():
    """The bundled pair writes bytes where it must: a target that spells é byte by byte."""
    target, _ = load_pair("tales")
    spelled = target.tokenizer.encode("é—é")
    assert len(spelled) > 3
    script = iter(spelled)

    class Spelling:
        """A model that says the next of the spelled bytes, whatever the text."""

        name, vocab_size, context, eos = "spelling", target.vocab_size, 64, frozenset()
        start_tokens, tokenizer, device, dtype = None, target.tokenizer, target.device, target.dtype

        def new_cache(self, prompts, capacity, needs=frozenset()):
            table = TableModel([0.0] * self.vocab_size)
            cache = table.new_cache(prompts, capacity)
            feed = cache.feed

            def say(tokens, count=None):
                logits = feed(tokens, count).clone()
                logits[0, -1, next(script)] = 1000.0
                return logits

            cache.feed = say
            return cache

    streamed = stream(Spelling(), None, [0], max_new_tokens=len(spelled), seed=0)
    pieces = list(streamed)
    assert "".join(pieces) == streamed.trace.text == "é—é" and len(pieces) < len(spelled)
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("seed", range(4))
def test_nearly_random_bytes_stream_as_they_read_in_the_end(seed):
    """At this temperature halves of characters come in any order, with stop strings among them."""
    pair = load_pair("tales", device="cpu")
    settings = dict(gamma=3, max_new_tokens=80, seed=seed, sampling=SamplingParams(20.0), stop=["\ufffd\ufffd ", "qu"])
    streamed = stream(*pair, ["Once", "é"], **settings)
    pieces = list(streamed)
    assert ["".join(row) for row in zip(*pieces)] == [trace.text for trace in streamed.trace]
    assert any("\ufffd" in trace.text for trace in streamed.trace)


def test_bytes_that_never_become_a_character_are_sent_in_the_end():
    target, _ = load_pair("tales")
    half = target.tokenizer.encode("é")[0]
    assert "\ufffd" in target.tokenizer.decode([half])
    table = TableModel([0.0] * half + [1000.0] + [0.0] * (target.vocab_size - half - 1))
    table.tokenizer = target.tokenizer
    streamed = stream(table, None, [0], max_new_tokens=2, seed=0)
    assert "".join(streamed) == streamed.trace.text != ""


def test_bad_input_is_refused_before_anything_is_decoded():
    with pytest.raises(ValueError, match="'table' has no tokenizer, so there is no text to stream"):
        stream(TableModel.random(3, 1), None, [0])
    with pytest.raises(ValueError, match="gamma=0"):
        stream(TARGET, DRAFTER, "ab", gamma=0)


def test_an_interruption_at_any_line_of_a_round_loses_nothing():
    """KeyboardInterrupt at the lines of the package that rounds run, one after the other; then the rest of the text."""
    asked = dict(gamma=2, max_new_tokens=6, seed=4)
    expected = speculate(TARGET, DRAFTER, "ab", **asked)

    def interrupted(at):
        """(the stream's pieces, its trace), with an interruption at line number `at` after the first piece; or None."""
        streamed, pieces, lines = stream(TARGET, DRAFTER, "ab", **asked), [], 0
        running = iter(streamed)
        pieces.append(next(running))

        def trace(frame, event, _):
            nonlocal lines
            if "specviz" not in frame.f_code.co_filename:
                return None
            if event == "line":
                lines += 1
                if lines == at:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            pieces += running
        except KeyboardInterrupt:
            pieces += streamed
        finally:
            sys.settrace(None)
        return lines < at, pieces, streamed.trace

    at, over = 1, False
    while not over:
        over, pieces, trace = interrupted(at)
        assert trace.tokens == expected.tokens and trace.text == expected.text, at
        assert [round.tokens for round in trace.rounds] == [round.tokens for round in expected.rounds], at
        at += 3  # every third: each line comes in several rounds
    assert at > 600
