"""How long each phase of a round took, without making a GPU wait."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Laps between marks. On CUDA the marks are events; they are read once the round's results are there."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.device = device
        self.restart()

    def restart(self) -> None:
        self._marks = [(None, self._now())]

    def mark(self, name: str) -> None:
        """End the lap that began at the last mark and call it name."""
        self._marks.append((name, self._now()))

    def seconds(self) -> dict[str, float]:
        laps = zip(self._marks, self._marks[1:], strict=False)
        return {name: self._between(before, now) for (_, before), (name, now) in laps}

    def _now(self):
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _between(self, before, now) -> float:
        if not self.cuda:
            return now - before
        now.synchronize()
        return before.elapsed_time(now) / 1000
