"""Acceptance and text quality of the bundled pair on 50 held-out prompts.

    python benchmarks/alpha.py [--target FOLDER --draft FOLDER]

The first 64 tokens of each block are the prompt; the next 192 serve loss and greedy agreement (teacher forcing).
"""

import argparse
import json
import re
from pathlib import Path

import torch
import torch.nn.functional as F

from specviz import SamplingParams, autoregress, load_pair, speculate

DATA = Path(__file__).parent / "data"
GAMMA, NEW, PROMPT, AFTER = 4, 64, 64, 192


def acceptance(target, draft, prompts, sampling):
    """(α, mean overlap at tested positions, tokens a round, text of all rows) over one batch of all prompts."""
    traces = speculate(target, draft, prompts, gamma=GAMMA, max_new_tokens=NEW, sampling=sampling, eos=(), seed=0)
    rounds = [round for trace in traces for round in trace.rounds]
    tested = sum(r.tested for r in rounds)
    overlap = sum(sum(r.overlap[: r.tested]) for r in rounds) / tested
    return sum(r.accepted for r in rounds) / tested, overlap, sum(len(r.tokens) for r in rounds) / len(rounds), traces


@torch.no_grad()
def teacher_forcing(target, draft, texts):
    """(nats a token of the target, share of positions where both prefer the same token)."""
    ids = torch.tensor(texts, device=target.device)
    p, q = (model.model(ids).logits[:, PROMPT - 1 : -1].float() for model in (target, draft))
    nats = F.cross_entropy(p.flatten(0, 1), ids[:, PROMPT:].flatten()).item()
    return nats, (p.argmax(-1) == q.argmax(-1)).float().mean().item()


def distinct_4_grams(traces):
    grams = [tuple(t.tokens[i : i + 4]) for t in traces for i in range(len(t.tokens) - 3)]
    return len(set(grams)) / len(grams)


def known_words(target, prompts):
    """Share of generated words, at temperature 0.8, that occur in the corpus; the cut first and last are dropped."""
    known = set((DATA / "words.txt").read_text().split())
    traces = autoregress(
        target, prompts, max_new_tokens=128, sampling=SamplingParams(temperature=0.8), eos=(), seed=0, record="none"
    )
    words = [word for trace in traces for word in re.findall(r"[a-z]+(?:'[a-z]+)*", trace.text.lower())[1:-1]]
    return sum(word in known for word in words) / len(words), len(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    args = parser.parse_args()
    target, draft = load_pair(args.target, args.draft) if args.target else load_pair("tales")

    blocks = [block["text"] for block in json.loads((DATA / "heldout.json").read_text())]
    texts = [target.tokenizer.encode(block)[: PROMPT + AFTER] for block in blocks]
    prompts = [ids[:PROMPT] for ids in texts]
    print(f"{len(prompts)} prompts of {PROMPT} tokens, γ = {GAMMA}, {NEW} new tokens each, no top-k or top-p")
    for name, temperature in (("temperature 1", 1.0), ("greedy", 0.0)):
        alpha, overlap, per_round, traces = acceptance(target, draft, prompts, SamplingParams(temperature))
        print(
            f"{name:>14}: α = {alpha:.3f}, mean overlap = {overlap:.3f}, {per_round:.2f} tokens a round, "
            f"{distinct_4_grams(traces):.0%} distinct 4-grams"
        )
    nats, same = teacher_forcing(target, draft, texts)
    print(f"next {AFTER} tokens: target {nats:.3f} nats a token, greedy agreement {same:.3f}")
    share, count = known_words(target, prompts)
    print(f"temperature 0.8: {share:.1%} of {count} generated words occur in the corpus")


if __name__ == "__main__":
    main()
