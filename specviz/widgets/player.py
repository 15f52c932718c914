"""RoundPlayer: the replay of a trace, round by round and coin by coin."""

from __future__ import annotations

import heapq
import math
import threading
import time
from itertools import accumulate

import traitlets

from specviz.decoding import autoregress, speculate
from specviz.sampling import SamplingParams
from specviz.trace import PHASES, Trace
from specviz.widgets.base import Widget
from specviz.zoo.pairs import load_pair

TOP = 8  # probabilities kept of each distribution, beside those of the drafted and the next tokens


class RoundPlayer(Widget):
    """The replay of a Trace (Algorithm 1): drafts with q, one target forward, coins against min(1, p/q), the new text.

    trace     a Trace (or its JSON) recorded with record="top" or "full"
    baseline  a Trace of the same prompt, by plain decoding for example, for a race at the measured times

    A trace that cannot be replayed (recorded with record="none", of another version, without rounds) leaves a message
    in the widget's place. Raises ValueError for other types.

    position   steps taken, from 0: each draft is a step, and so are the target's forward, each coin and the round's end
    selected   the draft position (from 0) whose distributions are shown; -1 follows the steps
    playing    whether the replay runs, at speed: "0.25" … "16" (times), "measured" or "slowed" (a tenth)
    what_if    {"round": r, "coins": {"i": u}}: round r replayed with these coins of the learner; {} if there are none
    settings, progress   of the live controls; see live(). progress["state"] is idle, running, stopped or failed
    """

    part = "player"

    position = traitlets.Int(0, min=0).tag(sync=True)
    selected = traitlets.Int(-1, min=-1).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    speed = traitlets.Unicode("1").tag(sync=True)
    what_if = traitlets.Dict().tag(sync=True)
    settings = traitlets.Dict().tag(sync=True)
    progress = traitlets.Dict().tag(sync=True)

    def __init__(self, trace, baseline=None, **traits):
        super().__init__(**traits)
        self.load(trace, baseline)

    def load(self, trace, baseline=None):
        """Show another trace, from its beginning. Raises as the constructor does."""
        for name, given in (("trace", trace), ("baseline", trace if baseline is None else baseline)):
            if not isinstance(given, (Trace, str)):
                of_list = f"; give one, such as {name}[0]" if isinstance(given, list) else ""
                raise ValueError(f"{name} is a {type(given).__name__}: must be a Trace, or its JSON{of_list}.")
        with self.hold_sync():
            self.position, self.selected, self.playing, self.what_if = 0, -1, False, {}
            self.fill(player_data, trace, baseline)

    def show_round(self, number: int, step: int | None = None):
        """Go to a round (from 0), after so many of its steps (default: all). Raises ValueError beyond the last."""
        rounds = self.data.get("rounds", [])
        if not 0 <= number < len(rounds):
            raise ValueError(f"number={number!r}: the trace has {len(rounds)} rounds, counted from 0.")
        steps = [len(r["draft"]) + r["tested"] + 2 for r in rounds]
        self.what_if = {}
        self.position = sum(steps[:number]) + (steps[number] if step is None else min(step, steps[number]))

    # --- decoding afresh ------------------------------------------------------------------------

    @classmethod
    def live(
        cls, target, drafter, prompt="Once upon a time", *, gamma=4, temperature=1.0, seed=0, max_new_tokens=48,
        race=True, pairs=None,
    ) -> RoundPlayer:  # fmt: skip
        """A player with controls for prompt, gamma, temperature, seed and pair, which decode afresh.

        pairs  {name: (target, drafter), or a name for load_pair()} to choose from, beside the given pair
        race   decode plainly too, as the baseline

        Decodes once at the start. Later decodings run in a thread, so that the stop button works.
        Raises ValueError as speculate() does.
        """
        if not isinstance(prompt, str):
            raise ValueError(f"prompt={prompt!r}: must be text, which the learner can then change.")
        name = f"{target.name} ← {getattr(drafter, 'name', drafter)}"
        pairs = {name: (target, drafter)} | dict(pairs or {})
        settings = dict(
            prompt=prompt, gamma=gamma, temperature=temperature, seed="" if seed is None else str(seed),
            max_new_tokens=max_new_tokens, race=bool(race), pair=name, pairs=list(pairs),
        )  # fmt: skip
        traces = _decode(pairs, settings)
        trace = traces[0]  # it holds the settings as Python's numbers; NumPy's cannot be sent to the browser
        plain = dict(gamma=trace.gamma, temperature=trace.sampling["temperature"], max_new_tokens=trace.max_new_tokens)
        player = cls(*traces, settings=settings | plain, progress={"state": "idle"})
        player._pairs, player._thread, player._stop = pairs, None, threading.Event()
        player.on_msg(player._hear)
        return player

    def _hear(self, _widget, message, _buffers):
        if message.get("type") == "stop":
            self._stop.set()
        if message.get("type") == "decode" and (self._thread is None or not self._thread.is_alive()):
            self._stop.clear()
            settings = message["settings"]
            of = settings["max_new_tokens"] * (2 if settings["race"] else 1)
            self.progress = {"state": "running", "done": 0, "of": of}
            self._thread = threading.Thread(target=self._run, args=(settings,), daemon=True)
            self._thread.start()

    def _run(self, settings):
        try:
            self._done, self._reported = 0, 0.0
            traces = _decode(self._pairs, settings, self._on_round)
        except Exception as problem:  # an error that ends a thread would not be seen
            self.progress = {"state": "failed", "message": str(problem)}
            return
        with self.hold_sync():
            self.settings = settings | {"pairs": list(self._pairs)}
            self.load(*traces)
            self.progress = {"state": "stopped" if self._stop.is_set() else "idle"}

    def _on_round(self, round):
        """Report the progress, ten times a second at most; True once the stop button was pressed."""
        self._done += len(round.tokens)
        if time.monotonic() - self._reported > 0.1:
            self.progress = self.progress | {"done": self._done}
            self._reported = time.monotonic()
        return self._stop.is_set()


def _decode(pairs, settings, on_round=None) -> tuple[Trace, Trace | None]:
    """The traces for the live controls: speculative, and plain where there is a race."""
    if isinstance(pairs[settings["pair"]], str):
        pairs[settings["pair"]] = load_pair(pairs[settings["pair"]])
    target, drafter = pairs[settings["pair"]]
    seed = str(settings["seed"]).strip()
    if seed and not seed.isdecimal():
        raise ValueError(f"seed={seed!r}: must be a whole number, or empty for a fresh one.")
    common = dict(
        max_new_tokens=settings["max_new_tokens"], sampling=SamplingParams(temperature=settings["temperature"]),
        seed=int(seed) if seed else None, on_round=on_round,
    )  # fmt: skip
    trace = speculate(target, drafter, settings["prompt"], gamma=settings["gamma"], **common)
    if not settings["race"] or trace.finish_reason == "interrupted":
        return trace, None
    plain = autoregress(target, settings["prompt"], record="none", **common)
    return trace, None if plain.finish_reason == "interrupted" else plain  # a cut baseline is no race


# --- a trace as data for the browser --------------------------------------------------------------


def player_data(trace, baseline=None) -> dict:
    """The trait data of a RoundPlayer. Raises ValueError for a trace that cannot be replayed, with the remedy."""
    trace, baseline = (Trace.from_json(each) if isinstance(each, str) else each for each in (trace, baseline))
    if not trace.rounds:
        why = f"finish_reason={trace.finish_reason!r}, max_new_tokens={trace.max_new_tokens}"
        raise ValueError(f"the trace has no rounds ({why}): allow more new tokens, or shorten the prompt.")
    if any(round.p is None for round in trace.rounds):
        raise ValueError("the trace was recorded with record='none', without coins: decode again with record='top'.")
    spoken = trace.text is not None
    pieces = {i: _readable(piece) for i, piece in trace.pieces.items()}
    if not spoken:  # a model without tokenizer: its ids are the text
        used = {*trace.prompt_tokens, *trace.tokens}.union(*(round.ids for round in trace.rounds))
        pieces = {i: f" {i}" for i in used}
    return {
        "drafter": trace.drafter,
        "finish": trace.finish_reason,
        "spoken": spoken,
        "prompt": trace.prompt if spoken else "".join(pieces[i] for i in trace.prompt_tokens),
        "parts": trace.parts if spoken else [pieces[i] for i in trace.tokens],
        "pieces": {str(i): piece for i, piece in pieces.items()},
        "eos": trace.eos,
        "stop": trace.stop,
        "rounds": [_round_data(round) for round in trace.rounds],
        "baseline": None if baseline is None else _race_data(baseline),
    }


def _readable(piece: bytes) -> str | list[int]:
    """The text of a token, or its bytes where they are only part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _round_data(round) -> dict:
    following = [*(round.next_if_rejected or []), round.next_if_all_accepted]
    always = {*round.draft_tokens, round.next_token, *following}
    return {
        "draft": round.draft_tokens,
        "accepted": round.accepted,
        "tested": round.tested,
        "next": round.next_token,
        "outcome": round.outcome,
        "forwards": round.draft_forwards,
        "seconds": [round.seconds[phase] for phase in PHASES],
        # A and u keep all their digits, so that the browser's coins decide as Python's do.
        "a": round.accept_probability,
        "coins": [None if math.isnan(u) else u for u in round.coins],
        "overlap": [_digits(beta) for beta in round.overlap],
        "if_rejected": round.next_if_rejected,
        "if_all": round.next_if_all_accepted,
        "probs": [_position_data(round, i, always) for i in range(len(round.p))],
    }


def _position_data(round, i, always) -> dict:
    """p, q and p' at one position: of the likeliest ids and of those in always; the last entry is the rest."""
    rows = {"p": round.p[i]}
    if i < len(round.draft_tokens):
        rows |= {"q": round.q[i], "r": round.residual[i]}
    index = {id: k for k, id in enumerate(round.p[i].ids)}  # the same in q and in the residual
    kept = always & index.keys()
    for top in rows.values():
        kept |= {id for _, id in heapq.nlargest(TOP, zip(top.probs, top.ids))}
    data = {"ids": sorted(kept)}
    for name, top in rows.items():
        shown = [top.probs[index[id]] for id in data["ids"]]
        data[name] = [_digits(prob) for prob in (*shown, max(0.0, 1 - math.fsum(shown)))]
    return data


def _digits(x: float) -> float:
    """Five significant digits: enough for a bar and its label."""
    return float(f"{x:.5g}")


def _race_data(baseline) -> dict:
    """The seconds and the tokens so far, after each of the baseline's rounds."""
    seconds = list(accumulate(sum(round.seconds.values()) for round in baseline.rounds))
    tokens = list(accumulate(len(round.tokens) for round in baseline.rounds))
    return {"name": baseline.drafter, "seconds": seconds, "tokens": tokens}
