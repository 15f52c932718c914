"""RoundPlayer, Python's side: what the browser is given, messages in place of bad traces, decoding afresh."""

import json
import math

import numpy as np
import pytest

from specviz import SamplingParams, TableModel, autoregress, speculate
from specviz.widgets import RoundPlayer
from specviz.widgets.player import _decode, player_data

# A space, a line break, two halves of é, an emoji in four parts, markup, an end: all that makes text awkward.
PIECES = [b"a", b" bee", b"\xc3", b"\xa9", b"</script>", b"\n", "γ".encode(), b"\xf0\x9f", b"\x98\x80", b"<eos>"]


class Pieces:
    """A tokenizer of given pieces."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.vocabulary = {repr(piece): i for i, piece in enumerate(pieces)}

    def encode(self, text):
        rest, ids = text.encode(), []
        while rest:
            ids.append(next(i for i, piece in enumerate(self.pieces) if rest.startswith(piece)))
            rest = rest[len(self.pieces[ids[-1]]) :]
        return ids

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")

    def piece(self, token):
        return self.pieces[token]


def table(seed, spoken=True, eos=9, **settings):
    model = TableModel.random(10, order=1, seed=seed, scale=1.0, eos=eos, context=2000, **settings)
    model.tokenizer = Pieces(PIECES) if spoken else None
    return model


def awkward(seed=0, **settings):
    """A trace whose tokens are halves of characters, markup and line breaks."""
    settings = dict(gamma=3, max_new_tokens=40, seed=seed, eos=[]) | settings
    return speculate(table(1), table(2), "a", **settings)


# --- the data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_parts_join_to_the_text(seed):
    trace = awkward(seed)
    assert "".join(trace.parts) == trace.text
    assert len(trace.parts) == len(trace.tokens)
    ends = speculate(table(1), table(2), "a", seed=seed, max_new_tokens=200)
    assert ends.finish_reason == "eos"
    assert "".join(ends.parts) == ends.text and ends.parts[-1] == ""  # EOS itself adds nothing
    stopped = awkward(seed, stop="bee")
    assert "".join(stopped.parts) == stopped.text
    assert len(stopped.parts) == len(stopped.tokens)


def test_the_data_is_json_and_what_decides_is_exact():
    trace = awkward()
    data = json.loads(json.dumps(player_data(trace), allow_nan=False))
    assert [r["draft"] for r in data["rounds"]] == [r.draft_tokens for r in trace.rounds]
    for given, round in zip(data["rounds"], trace.rounds, strict=True):
        assert given["a"] == round.accept_probability and given["coins"] == round.coins
        assert given["if_rejected"] == round.next_if_rejected and given["if_all"] == round.next_if_all_accepted
        for i, position in enumerate(given["probs"]):
            assert set(position) == ({*"pqr", "ids"} if i < len(round.draft_tokens) else {"p", "ids"})
            assert all(math.isclose(sum(position[k]), 1, abs_tol=1e-3) for k in "pq" if k in position)
    assert data["pieces"]["2"] == [0xC3] and data["pieces"]["4"] == "</script>"


def test_a_full_record_is_cut_to_the_likeliest():
    big = [TableModel.random(300, seed=seed) for seed in (1, 2)]
    trace = speculate(*big, [0], max_new_tokens=12, seed=0, record="full")
    for given, round in zip(player_data(trace)["rounds"], trace.rounds, strict=True):
        for i, position in enumerate(given["probs"]):
            assert len(position["ids"]) < 40 and position["ids"] == sorted(position["ids"])
            assert position["p"][-1] == pytest.approx(1 - sum(position["p"][:-1]), abs=1e-3)  # the rest
            best = max(zip(round.p[i].probs, round.p[i].ids, strict=True))
            assert best[1] in position["ids"]
        assert {*given["draft"], given["next"]} - {None} <= {i for top in given["probs"] for i in top["ids"]}


def test_without_a_tokenizer_the_ids_are_the_text():
    trace = speculate(table(1, spoken=False), table(2, spoken=False), [0, 1], max_new_tokens=9, seed=0, eos=[])
    data = player_data(trace)
    assert "".join(data["parts"]) == "".join(f" {i}" for i in trace.tokens)
    assert data["prompt"] == " 0 1" and not data["spoken"]


def test_the_baseline_is_raced_at_measured_times():
    trace, plain = awkward(), autoregress(table(1), "a", max_new_tokens=40, seed=0, eos=[], record="none")
    race = player_data(trace, plain)["baseline"]
    assert race["tokens"] == list(range(1, 41))
    assert race["seconds"][-1] == pytest.approx(sum(plain.seconds.values()) - plain.prefill_seconds)
    assert race["name"] is None


def test_plain_traces_and_deterministic_ones_play_too():
    plain = autoregress(table(1), "a", max_new_tokens=5, seed=0, eos=[])
    assert RoundPlayer(plain).error == ""
    greedy = awkward(sampling=SamplingParams(temperature=0))
    assert RoundPlayer(greedy).error == ""


# --- what cannot be shown -----------------------------------------------------------------------


def test_traces_that_cannot_be_replayed_get_a_message():
    trace = awkward()
    assert "record='top'" in RoundPlayer(awkward(record="none")).error
    assert "max_new_tokens=0" in RoundPlayer(awkward(max_new_tokens=0)).error
    later = trace.to_json().replace('"version": 2', '"version": 3')
    assert "version 3" in RoundPlayer(later).error
    assert "not the JSON" in RoundPlayer("{}x").error
    assert "version 3" in RoundPlayer(trace, later).error
    player = RoundPlayer(awkward(record="none"))
    player.load(trace)
    assert player.error == "" and player.data["rounds"]


@pytest.mark.parametrize("wrong", [None, 3, [], {"rounds": []}])
def test_what_is_no_trace_is_an_error(wrong):
    with pytest.raises(ValueError, match="trace is a"):
        RoundPlayer(wrong)
    with pytest.raises(ValueError, match=r"give one, such as trace\[0\]"):
        RoundPlayer([awkward()])
    if wrong is not None:
        with pytest.raises(ValueError, match="baseline is a"):
            RoundPlayer(awkward(), wrong)


# --- state --------------------------------------------------------------------------------------


def test_show_round():
    trace = awkward()
    player = RoundPlayer(trace.to_json())
    lengths = [len(r.draft_tokens) + r.tested + 2 for r in trace.rounds]
    player.show_round(2)
    assert player.position == sum(lengths[:3])
    player.show_round(2, 1)
    assert player.position == sum(lengths[:2]) + 1
    with pytest.raises(ValueError, match="number=99"):
        player.show_round(99)


def test_another_trace_begins_anew():
    player = RoundPlayer(awkward())
    player.position, player.what_if, player.playing = 7, {"round": 0, "coins": {"0": 0.5}}, True
    player.load(awkward(seed=1))
    assert (player.position, player.what_if, player.playing) == (0, {}, False)


# --- decoding afresh ----------------------------------------------------------------------------


@pytest.fixture
def live():
    return RoundPlayer.live(table(1), table(2), "a", seed=3, max_new_tokens=20, pairs={"same": (table(1), table(1))})


def press(player, message, wait=True):
    player._hear(player, message, [])
    if wait and player._thread is not None:
        player._thread.join(60)
        assert not player._thread.is_alive()


def test_live_decodes_once_at_the_start(live):
    settings = dict(max_new_tokens=20, seed=3)
    assert live.data["parts"] == speculate(table(1), table(2), "a", gamma=4, **settings).parts
    assert len(live.data["baseline"]["tokens"]) == len(autoregress(table(1), "a", **settings).rounds)
    assert len(live.settings["pairs"]) == 2 and live.progress == {"state": "idle"}


def test_live_decodes_what_the_controls_say(live):
    settings = live.settings | dict(gamma=2, seed="5", temperature=0.5, race=False, pair="same")
    live.position = 4
    press(live, {"type": "decode", "settings": settings})
    expected = speculate(
        table(1), table(1), "a", gamma=2, max_new_tokens=20, seed=5, sampling=SamplingParams(temperature=0.5)
    )
    assert live.data["parts"] == expected.parts and live.data["baseline"] is None
    assert live.position == 0 and live.progress == {"state": "idle"} and live.settings["seed"] == "5"


def test_live_sends_numbers_of_any_kind_as_pythons_own():
    given = dict(gamma=np.int64(2), temperature=np.float32(0.5), seed=np.int64(3), max_new_tokens=np.int64(8))
    live = RoundPlayer.live(table(1), table(2), "a", race=np.bool_(False), **given)
    assert json.dumps(live.settings) and live.settings["seed"] == "3"
    assert [live.settings[name] for name in ("gamma", "temperature", "max_new_tokens", "race")] == [2, 0.5, 8, False]


def test_live_says_why_it_cannot(live):
    before = live.data
    for change, why in [({"prompt": ""}, "prompt"), ({"gamma": 0}, "gamma=0"), ({"seed": "one"}, "seed='one'")]:
        press(live, {"type": "decode", "settings": live.settings | change})
        assert live.progress["state"] == "failed" and why in live.progress["message"]
        assert live.data == before


def test_live_stops_and_shows_what_it_has(live):
    def stop(change):
        if change["new"].get("done"):
            live._hear(live, {"type": "stop"}, [])

    live.observe(stop, "progress")
    press(live, {"type": "decode", "settings": live.settings | {"max_new_tokens": 1500, "seed": ""}})
    assert live.progress == {"state": "stopped"}
    assert live.data["finish"] in ("interrupted", "eos") and live.data["rounds"]


def test_a_plain_text_that_was_stopped_is_no_rival(live):
    """A stop that comes only after the speculative text is whole."""
    whole, baseline = _decode(live._pairs, live.settings)
    assert len(baseline.rounds) > 3

    rounds = []

    def late(round):
        rounds.append(round)
        return len(rounds) > len(whole.rounds) + 3

    trace, baseline = _decode(live._pairs, live.settings, late)
    assert trace.tokens == whole.tokens and baseline is None


def test_live_raises_at_once_for_bad_arguments():
    with pytest.raises(ValueError, match="prompt=.*must be text"):
        RoundPlayer.live(table(1), table(2), ["a", "b"])
    fresh = RoundPlayer.live(table(1), table(2), "a", seed=None, max_new_tokens=4)
    assert fresh.settings["seed"] == "" and fresh.data["rounds"]
    with pytest.raises(ValueError, match="gamma=0"):
        RoundPlayer.live(table(1), table(2), "a", gamma=0)
