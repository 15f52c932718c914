"""What one forward costs: c of the bundled pair and V(n) of its target, by the way that the package takes.

    python benchmarks/cost.py

Single-row forwards after a prompt of 64 tokens, interleaved as in decoding: four draft steps, then a target
forward of each size in turn; medians over the repeats, as ratios.
"""

import argparse
import platform
import statistics
import time

import torch

from specviz import load_pair

REPEATS, PROMPT, DRAFTS, SIZES = 60, 64, 4, (1, 2, 3, 5, 9)


@torch.inference_mode()  # as in a round
def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    models = dict(zip(("target", "draft"), load_pair("tales"), strict=True))
    caches = {name: model.new_cache([[0]], PROMPT + max(SIZES) + 1) for name, model in models.items()}
    for cache in caches.values():
        cache.feed(torch.ones(1, PROMPT, dtype=torch.long))
    rounds = [[("draft", 1)] * DRAFTS + [("target", n)] for n in SIZES]
    seconds = {job: [] for round in rounds for job in round}
    for repeat in range(REPEATS + 5):
        for name, n in [job for round in rounds for job in round]:
            caches[name].rewind(torch.tensor([PROMPT]))
            began = time.perf_counter()
            caches[name].feed(torch.ones(1, n, dtype=torch.long))
            if repeat >= 5:  # the first few warm up
                seconds[name, n].append(time.perf_counter() - began)
    median = {job: statistics.median(times) for job, times in seconds.items()}
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"target {median['target', 1] * 1e3:.2f} ms a token, draft {median['draft', 1] * 1e3:.2f} ms")
    print(f"c = {median['draft', 1] / median['target', 1]:.3f}")
    for n in SIZES:
        print(f"V({n}) = {median['target', n] / median['target', 1]:.2f}")


if __name__ == "__main__":
    main()
