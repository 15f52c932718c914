"""Measure a pair: does speculation pay here, and with which γ?

Acceptance, costs and speedups of a pair on this machine: a table, a verdict, and remedies.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specviz.commands import shared

MAX_GAMMA = 1000  # more is a slip of the finger
PROMPTS = Path(__file__).parent / "prompts.txt"


def add_arguments(parser) -> None:
    shared.add_pair(parser)
    add = parser.add_argument
    add("--prompts", metavar="FILE", type=Path, default=PROMPTS,
        help="UTF-8 text, one prompt a line, at least two (default: eight beginnings of tales)")  # fmt: skip
    add("--gammas", metavar="LIST", type=gammas, default=gammas("1-8"), help="such as 1-8 (default) or 1,2,4")
    add("--runs", metavar="N", type=int, default=5, help="how often all is repeated (default 5)")
    shared.add_decoding(parser, max_new_tokens=64, gamma=None)
    add("--html", metavar="FILE", help="write an interactive page")
    shared.add_json(parser)


def run(options) -> int:
    from specviz.speedup import profile

    prompts = lines(options.prompts)
    sampling = shared.sampling(options)
    target, drafter = shared.load(options)
    measured = profile(
        target, drafter, prompts, gammas=options.gammas, max_new_tokens=options.max_new_tokens, sampling=sampling,
        runs=options.runs, seed=options.seed,
    )  # fmt: skip
    shared.give(options, measured.report(), json.loads(measured.to_json()))
    if options.html is not None:
        from specviz.widgets import SpeedupExplorer

        shared.write(options.html, SpeedupExplorer(measured).to_html)
    return 0


def gammas(text) -> list[int]:
    """1-8 or 1,2,4, or both: 1-4,8."""
    try:
        ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
    except ValueError:
        ranges = []
    sound = all(len(ends) <= 2 and 1 <= ends[0] <= ends[-1] <= MAX_GAMMA for ends in ranges)
    if not ranges or not sound:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of γ: give such as 1-8 or 1,2,4, each from 1 to {MAX_GAMMA}"
        )
    return sorted({gamma for ends in ranges for gamma in range(ends[0], ends[-1] + 1)})


def lines(path) -> list[str]:
    """The prompts in a file, one a line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompts {path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"--prompts {path} cannot be read: {error.strerror}.") from None
    prompts = [line.strip() for line in text.split("\n") if line.strip()]
    if len(prompts) < 2:
        raise ValueError(f"--prompts {path} has {len(prompts)} of them: give at least two, one a line.")
    return prompts
