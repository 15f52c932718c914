"""Decode a text and watch it grow.

The text goes to stdout as it is decoded. Tokens a round, the acceptance rate α and tokens a second follow on stderr.
An interruption keeps the text so far.
"""

from __future__ import annotations

import sys
import time

from specviz.commands import shared


def add_arguments(parser) -> None:
    shared.add_pair(parser)
    add = parser.add_argument
    add("--prompt", metavar="TEXT", required=True, help="the text to go on from")
    add("--stop", metavar="TEXT", action="append", help="a string that ends the text; may be given several times")
    add("--plain", action="store_true", help="decode without a draft")
    shared.add_decoding(parser, max_new_tokens=64, seed=None)
    shared.add_json(parser)


def run(options) -> int:
    from specviz import stream

    settings = dict(
        gamma=options.gamma, max_new_tokens=options.max_new_tokens, sampling=shared.sampling(options),
        stop=options.stop, seed=options.seed, record="none",
    )  # fmt: skip
    if options.plain and (options.draft or options.drafter):
        raise ValueError("--plain decodes without a draft: leave DRAFT and --drafter out.")
    target, drafter = (shared.load_target(options), None) if options.plain else shared.load(options)
    began, printed = time.perf_counter(), 0
    pieces = stream(target, drafter, options.prompt, **settings)
    try:
        for piece in pieces:
            printed += len(piece)
            if options.json != "-" and not shared.put(piece):
                return 0
    except KeyboardInterrupt:
        pass
    trace, seconds = pieces.trace, time.perf_counter() - began
    result = dict(
        prompt=options.prompt, text=trace.text, finish_reason=trace.finish_reason, tokens=len(trace.tokens),
        rounds=len(trace.rounds), tokens_per_round=trace.tokens_per_round, alpha=trace.alpha, seconds=seconds,
        target=trace.target, drafter=trace.drafter, gamma=trace.gamma, sampling=trace.sampling, seed=trace.seed,
    )  # fmt: skip
    shared.give(options, trace.text[printed:], result)
    print(summary(result), file=sys.stderr)
    return 130 if trace.finish_reason == "interrupted" else 0


def summary(result) -> str:
    parts = [f"{result['tokens']} tokens ({result['finish_reason']})"]
    if result["drafter"] is not None and result["rounds"]:
        parts.append(f"{result['tokens_per_round']:.2f} tokens a round")
    if result["alpha"] is not None:
        parts.append(f"α {result['alpha']:.2f}")
    return ", ".join([*parts, f"{result['tokens'] / result['seconds']:.1f} tokens a second, seed {result['seed']}"])
