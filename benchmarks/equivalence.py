"""How long the proofs and tests of exactness take.

    python benchmarks/equivalence.py

Medians of five repeats on one thread: a million outcomes at one position of 2,048 tokens, 100,000 continuations of
four tokens through the shipped decoder, and every branch of three small searches.
"""

import argparse
import platform
import statistics
import time

import numpy as np
import torch

from specviz import TableModel
from specviz.equivalence import branches, exact_law, sample_position, sample_sequences

REPEATS = 5


def seconds(work, *given, **settings):
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work(*given, **settings)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def pair(size):
    return TableModel.random(size, 1, seed=1), TableModel.random(size, 1, seed=2)


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, 1 thread, torch {torch.__version__}")
    p, q = np.random.default_rng(0).dirichlet(np.full(2048, 0.1), size=2)
    took = seconds(sample_position, p, q, 1_000_000)
    print(f"one position, 2,048 tokens, 1,000,000 outcomes: {took:.2f} s")
    for gamma in (1, 3):
        took = seconds(sample_sequences, *pair(3), [0], 100_000, gamma=gamma, max_new_tokens=4)
        print(f"3 symbols, 4 tokens, gamma {gamma}, 100,000 continuations: {took:.1f} s")
    for size, gamma, tokens in ((3, 2, 4), (3, 3, 4), (2, 2, 7)):
        asked = dict(gamma=gamma, max_new_tokens=tokens)
        count = sum(1 for _ in branches(*pair(size), [0], **asked))
        took = seconds(exact_law, *pair(size), [0], **asked)
        merged = seconds(exact_law, *pair(size), [0], merge=True, **asked)
        print(
            f"{size} symbols, {tokens} tokens, gamma {gamma}, {count} branches: {took:.2f} s replayed whole, "
            f"{merged:.2f} s with equal texts merged"
        )


if __name__ == "__main__":
    main()
