"""Plain and speculative decoding of the bundled pair over the batch size: the stored results of lesson 08.

    python benchmarks/batch.py              # about five minutes on one core; rewrites lesson08_batch.json
    python benchmarks/batch.py --out FILE

Every batch size decodes the same prompts, in groups of that size, and so many times in turn; medians are stored.
"""

import argparse
import json
import platform
import statistics
from pathlib import Path

import torch

from specviz import autoregress, load_pair, speculate
from specviz.progress import progress_bar
from specviz.speedup.measure import machine

STORED = Path(__file__).resolve().parent.parent / "specviz" / "exercises" / "lesson08_batch.json"
STARTS = [
    "Once upon a time", "The old king had", "In the garden", "A fox was walking", "The princess said",
    "There was a poor boy who", "When winter came", "Far away, in a deep wood,",
]  # fmt: skip
BATCHES, GAMMA, NEW_TOKENS, RUNS = (1, 2, 4, 8, 16, 32, 64), 3, 48, 3


def decode(target, draft, prompts, batch, gamma, seed):
    """Seconds by phase, and "rounds", of all prompts in groups of batch; gamma = 0 decodes plainly."""
    total = {"rounds": 0}
    for at in range(0, len(prompts), batch):
        group, asked = prompts[at : at + batch], dict(max_new_tokens=NEW_TOKENS, eos=(), seed=seed + at, record="none")
        traces = speculate(target, draft, group, gamma=gamma, **asked) if gamma else autoregress(target, group, **asked)
        rounds = max((trace.rounds for trace in traces), key=len)  # the slowest row's are all of the batch's
        total["rounds"] += len(rounds)
        for r in rounds:
            for phase, seconds in r.seconds.items():
                total[phase] = total.get(phase, 0.0) + seconds
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=STORED)
    options = parser.parse_args()
    torch.set_num_threads(1)
    target, draft = load_pair("tales", device="cpu")
    prompts = STARTS * (max(BATCHES) // len(STARTS))
    runs = {(batch, gamma): [] for batch in BATCHES for gamma in (0, GAMMA)}
    with progress_bar(RUNS * len(runs), "batches", unit="sweeps") as bar:
        for run in range(RUNS):
            for batch, gamma in runs:
                runs[batch, gamma].append(decode(target, draft, prompts, batch, gamma, seed=1000 * run))
                bar.update()
    rows = []
    for batch in BATCHES:
        plain, fast = ({key: statistics.median(r[key] for r in runs[batch, gamma]) for key in runs[batch, gamma][0]}
                       for gamma in (0, GAMMA))  # fmt: skip
        rows.append({"batch": batch, "plain": plain, "speculative": fast})
    stored = {
        "about": "Written by benchmarks/batch.py: the bundled pair, seconds by phase and rounds of all prompts, in "
        "groups of `batch`, plainly and with γ drafts a round; medians of the runs.",
        "machine": f"{machine('cpu')}, one core, torch {torch.__version__}, Python {platform.python_version()}",
        "gamma": GAMMA, "prompts": len(prompts), "max_new_tokens": NEW_TOKENS, "runs": RUNS, "rows": rows,
    }  # fmt: skip
    options.out.write_text(json.dumps(stored, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(options.out.name, "written")


if __name__ == "__main__":
    main()
