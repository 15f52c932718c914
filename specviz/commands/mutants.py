"""Line up wrong decoders: which are found out?

Each is the shipped decoder with one step exchanged. All are tried over every branch and by samples, beside the right
one. Exit status 1: a verdict is not the expected one.
"""

from __future__ import annotations

from specviz.commands import shared


def add_arguments(parser) -> None:
    add = parser.add_argument
    add("names", metavar="NAME", nargs="*", help="of a decoder, or several (default: all)")
    add("--samples", metavar="N", type=int, default=200_000, help="texts of each decoder at most (default 200000)")
    add("--seed", metavar="N", type=int, default=0, help="of all that is random (default 0)")
    shared.add_json(parser)


def run(options) -> int:
    import torch

    from specviz.equivalence import MUTANTS, RIGHT, line_up, line_up_table

    known = [*RIGHT, *MUTANTS]
    if unknown := sorted({*options.names} - {decoder.name for decoder in known}):
        names = ", ".join(dict.fromkeys(decoder.name for decoder in known))
        raise ValueError(f"NAME {unknown[0]!r} is unknown: must be one of {names}.")
    torch.set_num_threads(1)  # tables gain nothing from a second thread
    chosen = [decoder for decoder in known if not options.names or decoder.name in options.names]
    trials = line_up(chosen, max_samples=options.samples, seed=options.seed)
    shared.give(options, line_up_table(trials), {"trials": [trial.to_dict() for trial in trials]})
    return 0 if all(trial.as_expected for trial in trials) else 1
