"""RoundPlayer: a trace, replayed round by round, coin by coin."""

from __future__ import annotations

import heapq
import math
import threading
import time

import traitlets

from specviz.decoding import autoregress, speculate
from specviz.models.zoo import load_pair
from specviz.sampling import SamplingParams
from specviz.trace import PHASES, VERSION, Trace
from specviz.widgets.base import Widget

TOP = 8  # probabilities that are kept of each distribution, beside those of drafted and following tokens


class RoundPlayer(Widget):
    """Replays a Trace: drafts with q, the target's one forward, coins against min(1, p/q), what enters the text.

    trace     a Trace (or its JSON) that was recorded with record="top" or "full"
    baseline  a Trace of the same prompt, by plain decoding say, to race against at the times that were measured

    A trace that cannot be replayed (recorded with record="none", of another version, without rounds) is answered by
    a message in the widget's place. Raises ValueError for what is no trace at all.

    position   steps taken, from 0: each draft is a step, the target's forward is one, each coin, and the round's end
    selected   the draft position (from 0) whose distributions are shown; -1 follows the steps
    playing    whether it runs by itself, at speed: "0.25" … "16" (times), "measured" or "slowed" (a tenth)
    what_if    {"round": r, "coins": {"i": u}}: round r replayed with coins that the learner chose; {} if none
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
        _check_type(trace, "trace")
        if baseline is not None:
            _check_type(baseline, "baseline")
        with self.hold_sync():
            self.position, self.selected, self.playing, self.what_if = 0, -1, False, {}
            self.fill(player_data, trace, baseline)

    def show_round(self, number: int, step: int | None = None):
        """Go to a round (from 0), after so many of its steps (default: all of them).

        Raises ValueError for a round that the trace does not have.
        """
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

        Decodes once at the start. Later decodings run in a thread, so that the stop button is heard.
        Raises ValueError as speculate() does.
        """
        if not isinstance(prompt, str):
            raise ValueError(f"prompt={prompt!r}: must be text, which the learner can then change.")
        name = f"{target.name} ← {getattr(drafter, 'name', drafter)}"
        seed = "" if seed is None else str(seed)
        settings = dict(
            prompt=prompt, gamma=gamma, temperature=temperature, seed=seed, max_new_tokens=max_new_tokens,
            race=race, pair=name,
        )  # fmt: skip
        pairs = {name: (target, drafter)} | dict(pairs or {})
        traces = _decode(pairs, settings)
        trace = traces[0]  # its numbers are Python's own, which alone can be sent to the browser
        settings |= dict(gamma=trace.gamma, temperature=trace.sampling["temperature"])
        settings |= dict(max_new_tokens=trace.max_new_tokens, race=bool(race))
        player = cls(*traces, settings=settings | {"pairs": list(pairs)}, progress={"state": "idle"})
        player._pairs, player._thread, player._stop = pairs, None, threading.Event()
        player.on_msg(player._hear)
        return player

    def _hear(self, _widget, message, _buffers):
        if message.get("type") == "stop":
            self._stop.set()
        if message.get("type") == "decode" and (self._thread is None or not self._thread.is_alive()):
            self._stop.clear()
            self.progress = {"state": "running", "done": 0, "of": 0}  # at once: a second click finds it running
            self._thread = threading.Thread(target=self._run, args=(message["settings"],), daemon=True)
            self._thread.start()

    def _run(self, settings):
        try:
            traces = _decode(self._pairs, settings, self._stop, self._report)
        except Exception as problem:  # nobody else would see it: this is a thread's last line
            self.progress = {"state": "failed", "message": str(problem)}
            return
        with self.hold_sync():
            self.settings = settings | {"pairs": list(self._pairs)}
            self.load(*traces)
            self.progress = {"state": "stopped" if self._stop.is_set() else "idle"}

    def _report(self, done, of):
        self.progress = {"state": "running", "done": done, "of": of}


def _decode(pairs, settings, stop=None, report=None) -> tuple[Trace, Trace | None]:
    """The traces that the live controls ask for: speculative, and plain where a race is wanted."""
    if isinstance(pairs[settings["pair"]], str):
        pairs[settings["pair"]] = load_pair(pairs[settings["pair"]])
    target, drafter = pairs[settings["pair"]]
    new, seed = int(settings["max_new_tokens"]), str(settings["seed"]).strip()
    if seed and not seed.isdecimal():
        raise ValueError(f"seed={seed!r}: must be a whole number, or empty for a fresh one.")
    common = dict(
        max_new_tokens=new,
        sampling=SamplingParams(temperature=float(settings["temperature"])),
        seed=int(seed) if seed else None,
    )
    done, said = 0, 0.0
    of = new * (2 if settings["race"] else 1)

    def on_round(round):
        nonlocal done, said
        done += len(round.tokens)
        if report is not None and time.monotonic() - said > 0.1:
            report(done, of)
            said = time.monotonic()
        return stop is not None and stop.is_set()

    trace = speculate(target, drafter, settings["prompt"], gamma=settings["gamma"], on_round=on_round, **common)
    if not settings["race"] or (stop is not None and stop.is_set()):
        return trace, None
    plain = autoregress(target, settings["prompt"], on_round=on_round, record="none", **common)
    return trace, None if plain.finish_reason == "interrupted" else plain  # half a plain text is no rival


# --- a trace as the browser needs it --------------------------------------------------------------


def _check_type(trace, name):
    if isinstance(trace, list) and trace and isinstance(trace[0], Trace):
        raise ValueError(f"{name} is a list of {len(trace)} traces: give one of them, such as {name}[0].")
    if not isinstance(trace, (Trace, str)):
        raise ValueError(
            f"{name} is a {type(trace).__name__}: must be a Trace, as speculate() returns it, or its JSON."
        )


def _replayable(trace, name) -> Trace:
    trace = Trace.from_json(trace) if isinstance(trace, str) else trace
    if trace.version != VERSION:
        raise ValueError(f"{name} version {trace.version!r}: this specviz reads version {VERSION}; decode anew.")
    return trace


def player_data(trace, baseline=None) -> dict:
    """The trait data of a RoundPlayer. Raises ValueError for a trace that cannot be replayed, with the remedy."""
    trace = _replayable(trace, "trace")
    if not trace.rounds:
        raise ValueError(
            f"the trace has no rounds (it ended by {trace.finish_reason!r} before the first, with "
            f"max_new_tokens={trace.max_new_tokens}): allow new tokens, or shorten the prompt."
        )
    if any(round.p is None for round in trace.rounds):
        raise ValueError(
            "the trace was recorded with record='none': it holds no probabilities and no coins. Decode again with "
            "record='top'."
        )
    spoken = trace.text is not None
    pieces = {i: _readable(piece) for i, piece in trace.pieces.items()}
    if not spoken:  # a model without tokenizer: its ids are the text
        used = {i for round in trace.rounds for masses in round.p for i in masses.ids}
        used |= {*trace.prompt_tokens, *trace.tokens}
        used |= {i for round in trace.rounds for i in (*round.draft_tokens, round.next_token, *_following(round))}
        pieces = {i: f" {i}" for i in used if i is not None}
    return {
        "target": trace.target,
        "drafter": trace.drafter,
        "finish": trace.finish_reason,
        "spoken": spoken,
        "prompt": trace.prompt if spoken else "".join(pieces[i] for i in trace.prompt_tokens),
        "parts": trace.parts if spoken else [pieces[i] for i in trace.tokens],
        "pieces": {str(i): piece for i, piece in pieces.items()},
        "eos": trace.eos,
        "stop": trace.stop,
        "rounds": [_round_data(round) for round in trace.rounds],
        "baseline": None if baseline is None else _race_data(_replayable(baseline, "baseline")),
    }


def _readable(piece: bytes) -> str | list[int]:
    """The text of a token, or its bytes where they are only part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _following(round) -> list[int | None]:
    return [*(round.next_if_rejected or []), round.next_if_all_accepted]


def _round_data(round) -> dict:
    length = len(round.draft_tokens)
    always = {*round.draft_tokens, round.next_token, *_following(round)}
    return {
        "draft": round.draft_tokens,
        "accepted": round.accepted,
        "tested": round.tested,
        "next": round.next_token,
        "outcome": round.outcome,
        "forwards": round.draft_forwards,
        "seconds": [round.seconds[phase] for phase in PHASES],
        # what decides is kept to the last digit, so that the browser's coins fall as Python's do
        "a": round.accept_probability,
        "coins": [None if math.isnan(u) else u for u in round.coins],
        "overlap": [_digits(beta) for beta in round.overlap],
        "if_rejected": round.next_if_rejected,
        "if_all": round.next_if_all_accepted,
        "masses": [_position_data(round, i, i < length, always) for i in range(length + 1)],
    }


def _position_data(round, i, drafted, always) -> dict:
    """p, q and p' at one position: of the likeliest ids and those that matter, and of all others together (rest)."""
    rows = [round.p[i], *([round.q[i], round.residual[i]] if drafted else [])]
    where = {id: k for k, id in enumerate(round.p[i].ids)}
    kept = {id for id in always if id in where}
    for masses in rows:
        kept |= {id for _, id in heapq.nlargest(TOP, zip(masses.probs, masses.ids))}
    ids = sorted(kept)
    data = {"ids": ids}
    for name, masses in zip("pqr", rows):
        shown = [masses.probs[where[id]] for id in ids]
        # the record's own rest, and what is left out here
        rest = masses.rest + sum(mass for id, mass in zip(masses.ids, masses.probs) if id not in kept)
        data[name] = [_digits(mass) for mass in [*shown, rest]]
    return data


def _digits(x: float) -> float:
    """Five significant digits: enough for a bar and its label."""
    return float(f"{x:.5g}")


def _race_data(baseline) -> dict:
    """After each of the baseline's rounds: the seconds and the tokens so far."""
    seconds, tokens, clock, count = [], [], 0.0, 0
    for round in baseline.rounds:
        clock += sum(round.seconds.values())
        count += len(round.tokens)
        seconds.append(clock)
        tokens.append(count)
    return {"name": baseline.drafter, "seconds": seconds, "tokens": tokens, "target": baseline.target}
