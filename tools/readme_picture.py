"""Draw docs/round.png, the README's picture of one decoded round.

    python tools/readme_picture.py [--seed 43] [--round 4]      # --list prints the rounds to choose from
"""

import argparse
from pathlib import Path

from matplotlib.figure import Figure

from specviz import SamplingParams, load_pair, plots, speculate

OUT = Path(__file__).parent.parent / "docs" / "round.png"
PROMPT = "Once upon a time there lived a king who had"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=43)
    parser.add_argument("--round", type=int, default=4)
    parser.add_argument("--list", action="store_true", help="print the rounds of the first seeds instead")
    args = parser.parse_args()
    pair = load_pair("tales", device="cpu")

    def decode(seed):
        return speculate(*pair, PROMPT, max_new_tokens=40, sampling=SamplingParams(temperature=0.8), seed=seed)

    if args.list:
        for seed in range(20):
            trace = decode(seed)
            print(f"seed {seed}: {trace.text!r}")
            for number, round in enumerate(trace.rounds):
                drafts = [pair[0].tokenizer.decode([token]) for token in round.draft_tokens]
                print(f"   {number}: {drafts}, {round.accepted} accepted, {round.outcome}")
        return
    trace = decode(args.seed)
    figure = Figure(figsize=(9, 5))
    plots.draw_round(trace.rounds[args.round], trace.pieces, figure.add_axes([0, 0, 1, 1]))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_bytes(plots.png(figure, dpi=160))


if __name__ == "__main__":
    main()
