"""Measure the bundled pair and write its profile into the package (specviz/speedup/tales.json).

    python benchmarks/profile_tales.py [--runs N] [--prompts N] [--threads N] [--out FILE]

The prompts are the first 64 tokens of held-out blocks, half of them for calibration; temperature 1. A reading of one
machine: run it where nothing else runs, or read it as a direction.
"""

import argparse
import json
from pathlib import Path

import torch

from specviz import load_pair
from specviz.speedup import profile
from specviz.speedup.result import BUNDLED

BLOCKS = Path(__file__).parent / "data" / "heldout.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="more gain little with models this small")
    parser.add_argument("--out", type=Path, default=BUNDLED["tales"])
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    target, draft = load_pair("tales", device="cpu")
    blocks = json.loads(BLOCKS.read_text(encoding="utf-8"))
    every = len(blocks) // args.prompts  # from both books
    prompts = [target.tokenizer.encode(block["text"])[:64] for block in blocks[::every]][: args.prompts]
    measured = profile(target, draft, prompts, runs=args.runs)
    args.out.write_text(measured.to_json() + "\n", encoding="utf-8")
    print(measured.report())


if __name__ == "__main__":
    main()
