"""Prove on small tables that the text's distribution is the target's.

Two random tables, a target and its draft, go through the decoder over every branch: every outcome of every draw and
coin. The exact distribution of the text is compared with the target's own. Exit status 1: NOT EXACT.
"""

from __future__ import annotations

import math

from specviz.commands import shared

MAX_ENTRIES = 1_000_000  # logits of a table


def add_arguments(parser) -> None:
    add = parser.add_argument
    add("--vocabulary", metavar="V", type=int, default=3, help="symbols of the tables (default 3)")
    add("--order", metavar="N", type=int, default=1, help="tokens that the next one depends on (default 1)")
    add("--eos", metavar="ID", type=int, help="a symbol that ends the text (default: none)")
    shared.add_decoding(parser, max_new_tokens=4, seed=1, gamma=2)
    add("--merge", action="store_true", help="go on once from each text, by whatever way it came: fewer branches")
    add("--max-branches", metavar="N", type=int, default=1_000_000, help="refuse a longer search (default 1000000)")
    shared.add_json(parser)


def run(options) -> int:
    import torch

    from specviz import TableModel
    from specviz.arguments import integer
    from specviz.equivalence import prove

    integer(options.vocabulary, "vocabulary", 2)
    integer(options.order, "order", 0)
    integer(options.seed, "seed", 0)
    if (options.order + 1) * math.log(options.vocabulary + 1) > math.log(MAX_ENTRIES):
        raise ValueError(
            f"vocabulary={options.vocabulary} and order={options.order} make a table of more than {MAX_ENTRIES} "
            "entries; choose smaller ones."
        )
    sampling = shared.sampling(options)
    torch.set_num_threads(1)  # tables gain nothing from a second thread
    target, draft = (
        TableModel.random(options.vocabulary, options.order, seed) for seed in (options.seed, options.seed + 1)
    )
    try:
        proof = prove(
            target, draft, [0], gamma=options.gamma, max_new_tokens=options.max_new_tokens, sampling=sampling,
            eos=() if options.eos is None else options.eos, merge=options.merge, max_branches=options.max_branches,
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(str(error).replace("merge=True", "--merge")) from error
    settings = {name: getattr(options, name) for name in ("vocabulary", "order", "gamma", "max_new_tokens", "seed")}
    shared.give(options, proof, {**proof.to_dict(), **settings, "sampling": sampling.to_dict()})
    return 0 if proof.exact else 1
