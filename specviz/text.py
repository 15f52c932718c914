"""One idea of text, for traces, stop strings, streaming and labels: the text of ids behind other ids.

The text of a continuation is the end of decode(before + tokens), behind decode(before): tokenizers decode an id by its
neighbours (a first space is dropped, bytes make characters together), so ids decoded one by one do not add up to it.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from os.path import commonprefix

LOOKBACK = 8  # ids in front of those that are decoded anew: no character has more than 4 bytes, each one id at most
WINDOW = 16  # how many ids are decoded anew before the window moves on


class Continuation:
    """The text that tokens add behind the ids `before`, while it grows: only the last few ids are decoded anew.

    before: the prompt's ids; none where the text begins with the tokens (an encoder-decoder's).
    tokenizer: decode(ids) -> text, and optionally byte_fallback, the ids of single bytes of which a whole run is read
    as characters or, where one byte is wrong, as none.
    """

    def __init__(self, tokenizer, before=()):
        self._decode = tokenizer.decode
        self._bytes = getattr(tokenizer, "byte_fallback", frozenset())
        self._done = ""  # the text before the window's seam; that behind it is read anew
        self._ids, self._seam, self._lead = self._window(list(before), len(before))
        self.count = 0  # tokens

    def extend(self, tokens) -> None:
        # Fields that belong together are assigned together: an interruption may come at any call in between.
        self._ids, self.count = [*self._ids, *tokens], self.count + len(tokens)
        seam = len(self._ids) - LOOKBACK  # later tokens change no more than that, runs of bytes aside
        if seam - self._seam < WINDOW or self._bytes.issuperset(self._ids[seam - 1 : seam + 1]):
            return
        before, whole = self._decode(self._ids[:seam]), self._decode(self._ids)
        if whole.startswith(before):  # else the seam would go through a character
            done, window = self._done + self._behind_lead(before), self._window(self._ids, seam)
            self._done, (self._ids, self._seam, self._lead) = done, window

    @property
    def text(self) -> str:
        """All the text so far; its end may still change (half a character reads as U+FFFD, or not at all)."""
        return self._done + self._tail()

    @property
    def settled(self) -> str:
        """The beginning of the text that no later token can change."""
        end = len(self._ids)
        while end > self._seam and self._ids[end - 1] in self._bytes:
            end -= 1
        return self._done + self._tail(end).rstrip("\ufffd")

    def until_stop(self, tokens, stops) -> int | None:
        """How many of these further tokens it takes to complete one of the stop strings; None if they complete none.

        Adds nothing to the text. Text that was there before is not searched again.
        """
        longest = max(map(len, stops))
        trial = copy.copy(self)
        for n, token in enumerate(tokens, 1):
            trial.extend([token])
            recent = trial._done[-longest:] + trial._tail()
            if any(stop in recent for stop in stops):
                return n
        return None

    def _tail(self, end=None) -> str:
        return self._behind_lead(self._decode(self._ids[:end]))

    def _behind_lead(self, said) -> str:
        return said[_shared(self._lead, said) :]

    def _window(self, ids, seam):
        """(ids, seam, text of the ids before the seam) of a window that begins shortly before the seam.

        But not in a run of bytes, nor where a space that decoding drops at the beginning would be missed behind it.
        """
        start = max(0, seam - LOOKBACK)
        while start and (ids[start - 1] in self._bytes or not self._decode(ids[start:seam])):
            start -= 1
        return ids[start:], seam - start, self._decode(ids[start:seam])


def cut(text: str, stops) -> str:
    """text up to the first of the stop strings in it."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def hold_back(text: str, stops) -> str:
    """text without an ending that may become a stop string."""
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held]


def parts(tokenizer, before, tokens) -> list[str]:
    """The text that each token adds; joined, the text of a Continuation. A token that completes a character has it."""
    whole, grown, ends = Continuation(tokenizer, before), Continuation(tokenizer, before), [0]
    whole.extend(tokens)
    text = whole.text
    for token in tokens:
        grown.extend([token])
        done, tail = len(grown._done), grown._tail()
        ends.append(max(ends[-1], done + _shared(tail, text[done : done + len(tail)])))
    if tokens:  # half a character at the end is the last token's
        ends[-1] = len(text)
    return [text[start:end] for start, end in pairwise(ends)]


def token_label(piece: bytes, longest: int = 9) -> str:
    """A token as a label: its leading space as ␣, a line break as ↵, bytes that are no text as hex."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return "".join(f"‹{byte:02x}›" for byte in piece[:2])
    text = text.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _shared(a: str, b: str) -> int:
    """The length of the beginning that both have in common."""
    return len(a) if b.startswith(a) else len(commonprefix([a, b]))
