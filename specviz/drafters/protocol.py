"""The contract between the decoder and its drafters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass
class Proposal:
    """The drafts of one round, for B rows."""

    tokens: torch.Tensor  # [B, gamma] int64
    q: torch.Tensor  # [B, gamma, V]: the very distributions that the tokens were drawn from
    lengths: torch.Tensor  # [B] int64, on the CPU: tokens drafted; the rest is padding
    u: torch.Tensor  # [B, gamma] float64, on the CPU: the uniforms that drew them, NaN where none did
    forwards: int = 0  # forward passes of a draft model
    gamma: list[int] | None = None  # [B]: how many were asked for; set by the decoder, as is round
    round: int | None = None
    forwarded: bool = False  # target_forward() has read it


def nothing_drafted(rows: int, vocab_size: int, device) -> Proposal:
    """A proposal of no tokens, which leaves a round one plain step of the target."""
    return Proposal(
        tokens=torch.zeros(rows, 0, dtype=torch.long, device=device),
        q=torch.zeros(rows, 0, vocab_size, device=device),
        lengths=torch.zeros(rows, dtype=torch.long),
        u=torch.zeros(rows, 0, dtype=torch.float64),
    )


class DraftSession(Protocol):
    """The state of one decoding: drafters themselves keep none and can be shared."""

    def propose(self, committed, lengths, gamma, sampling, randomness) -> Proposal:
        """committed [B, T] right-padded; lengths, gamma: lists [B] (gamma 0: an inactive row) -> Proposal.

        Where no row has a draft it is nothing_drafted(): torch.tensor([[]]) would hold floats, and ids are int64.
        Rounds run in torch.inference_mode(): learn under torch.inference_mode(False) and torch.enable_grad(), from
        clones.
        """

    def rewind(self, lengths: list[int]) -> None:
        """Forget the tokens beyond lengths [B]."""


class Drafter(Protocol):
    """Proposes tokens for a target, by a DraftSession for each decoding.

    An optional attribute, needs, names what the target's cache must be able to do (backends/protocol.py).
    """

    name: str

    def check_target(self, target) -> None:
        """Raise ValueError, with the reason, unless this drafter can draft for target."""

    def new_session(self, target, prompts, capacity, eos, target_cache) -> DraftSession:
        """A session for these prompts, for texts of up to capacity tokens that end at an id in eos.

        Its q is over the target's ids. A drafter that uses target_cache puts its lengths back before propose() ends.
        """
