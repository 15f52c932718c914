"""Measure the bundled pair and write its profile into the package (specviz/speedup/tales.json).

    python benchmarks/profile_tales.py [--runs N] [--prompts N] [--threads N] [--out FILE]

The prompts are the first 64 tokens of held-out blocks; temperature 1. A reading of one machine: run it where nothing
else runs, or read it as a direction.
"""

import argparse
import json
from pathlib import Path

import torch

from specviz import load_pair
from specviz.speedup.profile import BUNDLED, measure

BLOCKS = Path(__file__).parent / "data" / "heldout.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="more gain little with models this small")
    parser.add_argument("--out", type=Path, default=BUNDLED["tales"])
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    target, draft = load_pair("tales", device="cpu")
    blocks = json.loads(BLOCKS.read_text(encoding="utf-8"))
    every = len(blocks) // args.prompts  # from both books
    prompts = [target.tokenizer.encode(block["text"])[:64] for block in blocks[::every]][: args.prompts]
    profile = measure(target, draft, prompts, runs=args.runs)
    args.out.write_text(profile.to_json() + "\n", encoding="utf-8")

    print(profile)
    print(f"target step {profile.target_seconds * 1e3:.2f} ms, c = {profile.c:.3f}, {profile.threads} threads")
    print("α by position:", ", ".join(f"{alpha:.3f} ({tested})" for alpha, tested in profile.alpha_by_position))
    print("V(n):", ", ".join(f"V({n}) = {cost:.2f}" for n, cost in profile.verify_cost.items()))
    print(f"{'γ':>3} {'predicted':>10} {'+ overhead':>11} {'measured':>9}  {'slowest – fastest of the runs'}")
    for gamma, speed in profile.speedups.items():
        print(
            f"{gamma:>3} {profile.predicted(gamma):>9.2f}x {profile.predicted(gamma, overhead=True):>10.2f}x "
            f"{speed.median:>8.2f}x  {speed.low:.2f} – {speed.high:.2f}"
        )


if __name__ == "__main__":
    main()
