"""Sample a decoder and test whether its texts follow the target's distribution.

The verdict has a known rate of false alarms. Exit status 1: convicted. An interruption judges the texts so far.
"""

from __future__ import annotations

from specviz.commands import shared

ROWS = 100  # texts that this package's decoder draws in one call


def add_arguments(parser) -> None:
    shared.add_pair(parser)
    add = parser.add_argument
    add("--decoder", choices=("specviz", "transformers"), default="specviz",
        help="whose decoder: this package's (default), or assisted generation of transformers")  # fmt: skip
    add("--prompt", metavar="TEXT", default="Once upon a time", help='default: "Once upon a time"')
    add("--samples", metavar="N", type=int, default=2000, help="texts to draw (default 2000)")
    add("--false-alarm", metavar="P", type=float, default=0.01,
        help="how often a right decoder is convicted (default 0.01)")  # fmt: skip
    shared.add_decoding(parser, max_new_tokens=4)
    add("--resume", metavar="FILE", help="keep the texts in FILE, and go on from there next time")
    shared.add_json(parser)


def run(options) -> int:
    from specviz.equivalence import audit

    sampling = shared.sampling(options)
    target, drafter = shared.load(options)
    draft = drafter if hasattr(drafter, "vocab_size") else None  # a model, not prompt lookup
    report = audit(
        decoder(options, target, drafter, sampling), target, options.prompt, samples=options.samples,
        max_new_tokens=options.max_new_tokens, sampling=sampling, drafter=draft, false_alarm=options.false_alarm,
        seed=options.seed, resume=options.resume,
    )  # fmt: skip
    shared.give(options, report, report.to_dict())
    return 130 if report.interrupted else int(report.convicted)


def decoder(options, target, drafter, sampling):
    """The function that audit() calls for texts."""
    from specviz import LayerSkip, PromptLookup
    from specviz.equivalence import from_specviz, from_transformers

    if options.decoder == "specviz":
        return from_specviz(target, drafter, rows=ROWS, gamma=options.gamma, sampling=sampling)
    if isinstance(drafter, LayerSkip):
        raise ValueError(f"--drafter {options.drafter}: transformers has no such drafter; use --decoder specviz.")
    from transformers.utils import logging

    logging.set_verbosity_error()  # its generate() warns at every call
    lookup = isinstance(drafter, PromptLookup)
    assistant = None if lookup else drafter
    return from_transformers(target, assistant, gamma=options.gamma, sampling=sampling, prompt_lookup=lookup)
