"""Kinds of drafters side by side, on the bundled pair and, where it can be had, on SmolLM2; and batches.

    python benchmarks/drafters.py [--runs N] [--prompts N] [--no-smollm2] [--out docs/drafters.md]

Every run decodes each prompt plainly and with each drafter, one right after the other, on one thread. A reading of one
machine: run it where nothing else runs, or read it as a direction.
"""

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

from specviz import SamplingParams, autoregress, load_pair, speculate
from specviz.drafters.layer_skip import LayerSkip
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.equivalence.greedy import first_difference
from specviz.models.ngram import NgramModel
from specviz.progress import progress_bar
from specviz.speedup.measure import machine
from specviz.zoo.smollm2 import Unavailable

BLOCKS = Path(__file__).parent / "data" / "heldout.json"
GAMMA, SIZES = 4, (1, 2, 4, 8, 16)
TEMPERATURES = {"temperature 1": 1.0, "greedy": 0.0}

REFRAIN = '''"Who will help me cut the wheat?" said the hen. "Not I," said the cat. "Not I," said the dog.
"Then I will cut it myself," said the hen, and she did.
"Who will help me grind the wheat?" said the hen. "Not I," said the cat. "Not I," said the dog.
"Then I will grind it myself," said the hen, and she did.
"Who will help me bake the bread?" said the hen. "Not I,"'''
CHATS = [
    "Explain in two sentences why the sky is blue.",
    "Repeat this text word for word: The old mill stands by the river. The river turns the wheel, and the wheel turns "
    "the stone. The stone grinds the corn for the whole village.",
    "Name three animals that live in the sea.",
]
OTHER_CHATS = [  # for the n-grams to learn from
    "What is the moon made of?", "Tell me about the ocean in a few sentences.", "Why do leaves fall in autumn?",
    "What do whales eat?", "How is bread made?", "Describe an old village.", "Why is grass green?", "What is a river?",
]  # fmt: skip


# --- one drafter ----------------------------------------------------------------------------------


@dataclass
class Row:
    """What one drafter did; times in target steps, a step being the target phase of a round of plain decoding."""

    name: str
    alpha: float | None
    c: float | None  # draft phase a drafted token
    drafts: float  # a round
    tokens: float  # a round
    verify: float  # V, over the lengths that occurred
    speedups: list[float]  # one a run
    remark: str = ""

    @property
    def predicted(self):
        """Tokens a round / (γ·c + V), γ being the drafts a round that there really were."""
        return self.tokens / (self.drafts * (self.c or 0) + self.verify)

    def cells(self):
        low, middle, high = min(self.speedups), statistics.median(self.speedups), max(self.speedups)
        alpha, c = ("–" if value is None else f"{value:.2f}" for value in (self.alpha, self.c))
        measured = f"{middle:.2f}x ({low:.2f}–{high:.2f})"
        return [
            self.name, alpha, c, f"{self.drafts:.2f}", f"{self.tokens:.2f}", f"{self.verify:.2f}",
            f"{self.predicted:.2f}x", measured, self.remark,
        ]  # fmt: skip


def compare(target, drafters, prompts, sampling, runs, new, eos=None) -> list[Row]:
    """A Row for each of drafters {name: drafter}."""
    kinds = {"plain": None, **drafters}
    rounds = {name: [] for name in drafters}  # (round, seconds of a target step at that time)
    seconds = {name: [] for name in kinds}  # a token, one entry a run
    texts = {}
    with progress_bar(1 + runs * len(prompts), "decoding", unit="prompts") as bar:
        for run in range(-1, runs):  # the first one warms up
            spent, count = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0)
            for at, prompt in enumerate(prompts if run >= 0 else prompts[:1]):
                names, here = list(kinds), {}
                turn = (run + at) % len(names)  # each comes first in its turn
                for name in names[turn:] + names[:turn]:
                    settings = dict(max_new_tokens=new, sampling=sampling, eos=eos, seed=at, record="none")
                    if kinds[name] is None:
                        trace = autoregress(target, prompt, **settings)
                    else:
                        trace = speculate(target, kinds[name], prompt, gamma=GAMMA, **settings)
                    here[name] = trace.rounds
                    if run >= 0:
                        spent[name] += sum(sum(r.seconds.values()) for r in trace.rounds)
                        count[name] += len(trace.tokens)
                        texts[name, at] = trace
                # The machine's pace changes, so a step is that of the same prompt in the same run.
                step = statistics.median(r.seconds["target"] for r in here.pop("plain"))
                if run >= 0:
                    for name in here:
                        rounds[name] += [(r, step) for r in here[name]]
                bar.update()
            if run >= 0:
                for name in kinds:
                    seconds[name].append(spent[name] / count[name])
    done = []
    for name in drafters:
        remark = ""
        if sampling.temperature == 0:
            pairs = [(texts["plain", at], texts[name, at]) for at in range(len(prompts))]
            remark = greedy_difference(target, pairs)
        speedups = [plain / own for plain, own in zip(seconds["plain"], seconds[name], strict=True)]
        done.append(summary(name, rounds[name], speedups, remark))
    return done


def summary(name, timed, speedups, remark) -> Row:
    rounds = [r for r, _ in timed]
    lengths = [len(r.draft_tokens) for r in rounds]

    def mean_steps(phase):  # of a round: medians by the number of drafts, over the numbers that occurred
        steps = {n: [] for n in lengths}
        for r, step in timed:
            steps[len(r.draft_tokens)].append(r.seconds[phase] / step)
        typical = {n: statistics.median(values) for n, values in steps.items()}
        return sum(typical[n] for n in lengths) / len(rounds)

    tested, drafts = sum(r.tested for r in rounds), sum(lengths) / len(rounds)
    return Row(
        name=name,
        alpha=sum(r.accepted for r in rounds) / tested if tested else None,
        c=mean_steps("draft") / drafts if drafts else None,
        drafts=drafts,
        tokens=sum(len(r.tokens) for r in rounds) / len(rounds),
        verify=mean_steps("target"),
        speedups=speedups,
        remark=remark,
    )


def greedy_difference(target, pairs) -> str:
    """Whether greedy texts (plain, speculative) are equal; else how close the logits are at the first differences."""
    found = [parting for plain, other in pairs if (parting := first_difference(target, plain, other))]
    if not found:
        return "equal to plain"
    worst = max(found, key=lambda parting: parting.gap)
    return f"{len(found)} of {len(pairs)} differ, of which the widest: {worst}"


# --- batches --------------------------------------------------------------------------------------


def batches(target, draft, prompts, runs, new):
    """[(rows, plain tokens/s, speculative tokens/s, rounds of the batch, mean rounds of a row)], temperature 1."""
    rates = {(rows, kind): [] for rows in SIZES for kind in ("plain", "speculative")}
    counts = {}
    with progress_bar((runs + 1) * len(SIZES), "batches", unit="batches") as bar:
        for run in range(-1, runs):
            for rows in SIZES:
                asked = [prompts[i % len(prompts)] for i in range(rows)]
                settings = dict(max_new_tokens=new, eos=(), seed=max(run, 0), record="none")
                for kind in ("plain", "speculative"):
                    if kind == "plain":
                        traces = autoregress(target, asked, **settings)
                    else:
                        traces = speculate(target, draft, asked, gamma=GAMMA, **settings)
                        lengths = [len(trace.rounds) for trace in traces]
                        counts.setdefault(rows, []).append((max(lengths), statistics.mean(lengths)))
                    # a round's seconds are the whole batch's, and the row that took most rounds saw all of them
                    seconds = max(sum(sum(r.seconds.values()) for r in trace.rounds) for trace in traces)
                    if run >= 0:
                        rates[rows, kind].append(rows * new / seconds)
                bar.update()
    for rows in SIZES:
        whole, mean = (statistics.mean(column) for column in zip(*counts[rows]))
        plain, fast = (statistics.median(rates[rows, kind]) for kind in ("plain", "speculative"))
        yield rows, plain, fast, whole, mean


# --- the page -------------------------------------------------------------------------------------


def markdown(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


HEAD = ["drafter", "α", "c", "drafts a round", "tokens a round", "V", "predicted", "measured", "greedy text"]


def section(title, target, drafters, prompts, runs, new, eos=None):
    parts = []
    for name, temperature in TEMPERATURES.items():
        rows = compare(target, drafters, prompts, SamplingParams(temperature), runs, new, eos)
        head = HEAD if temperature == 0 else HEAD[:-1]
        parts.append(f"### {title}, {name}\n\n" + markdown(head, [row.cells()[: len(head)] for row in rows]))
    return "\n\n".join(parts)


def ngrams(target, prompts, new):
    """Unigram, bigram and trigram, learned from the target's texts after these prompts; and how many tokens."""
    own = autoregress(target, prompts, max_new_tokens=new, seed=0, record="none")
    names = {1: "unigram", 2: "bigram", 3: "trigram"}
    texts = [trace.tokens for trace in own]
    return {names[k]: NgramModel.learn(texts, k, target) for k in names}, sum(map(len, texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--no-smollm2", action="store_true")
    parser.add_argument("--out", type=Path, help="write the page there, instead of printing it")
    args = parser.parse_args()
    torch.set_num_threads(1)

    target, draft = load_pair("tales", device="cpu")
    blocks = [block["text"] for block in json.loads(BLOCKS.read_text(encoding="utf-8"))]
    ids = [target.tokenizer.encode(block)[:64] for block in blocks]
    every = len(ids) // args.prompts  # from both books
    prompts, others = ids[::every][: args.prompts], [each[:16] for each in ids[1::every]]
    learned, learned_from = ngrams(target, others * 6, 200)
    drafters = {"model (tales-draft)": draft, **learned, "prompt lookup": PromptLookup()}
    drafters |= {f"layer skip, {n} of {target.layers}": LayerSkip(n) for n in (4, 8)}
    page = [
        "# Drafters compared",
        f"Made by `python benchmarks/drafters.py` on one machine: {machine('cpu')}, one thread, torch "
        f"{torch.__version__}, float32. Other programs ran on it meanwhile, so read the times as a direction; α and "
        "tokens a round do not depend on them.",
        f"γ = {GAMMA}. A target step is the median target phase of plain decoding, of the same prompt in the same run. "
        "*c*: the draft phase, drawing "
        "included, a drafted token. *V*: the target phase, over the lengths that occurred. *Predicted*: tokens a round "
        "/ (drafts a round · c + V). *Measured*: time a token of plain decoding over that with the drafter, all of a "
        f"round counted; median of {args.runs} interleaved runs (slowest–fastest).",
        f"## The bundled pair\n\n{len(prompts)} held-out prompts of 64 tokens, 48 new tokens each; the n-grams learned "
        f"from {learned_from:,} tokens that the target wrote itself (temperature 1) after other prompts. In *a text "
        "that repeats* the prompt is a tale with a refrain, decoded three times a run (with three seeds).",
        section("Held-out prompts", target, drafters, prompts, args.runs, 48, ()),
        section("A text that repeats", target, drafters, [REFRAIN] * 3, args.runs, 48, ()),
    ]
    rows = [
        [n, f"{plain:.0f}", f"{fast:.0f}", f"{fast / plain:.2f}x", f"{whole:.1f}", f"{mean:.1f}"]
        for n, plain, fast, whole, mean in batches(target, draft, ids[2:18], args.runs, 48)
    ]
    head = ["rows", "plain, tokens/s", "speculative, tokens/s", "speedup", "rounds of the batch", "rounds of a row"]
    page += [
        "## Batches\n\nThe bundled pair, temperature 1, 48 new tokens a row. Rows accept different numbers of tokens, "
        "and a batch is done when its slowest row is.",
        markdown(head, rows),
    ]
    if not args.no_smollm2:
        page += smollm2(args.runs)
    text = "\n\n".join(page) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    else:
        print(text)


def smollm2(runs):
    try:
        target, lookup = load_pair("smollm2", device="cpu")
    except Unavailable as error:
        return [f"## SmolLM2\n\nNot measured: {error}"]
    chats, others = ([[{"role": "user", "content": said}] for said in each] for each in (CHATS, OTHER_CHATS))
    learned, learned_from = ngrams(target, others, 40)
    drafters = {"prompt lookup": lookup, "bigram": learned["bigram"]}
    drafters[f"layer skip, 20 of {target.layers}"] = LayerSkip(20)
    about = (
        f"## SmolLM2-135M-Instruct\n\n{target.name}, {len(chats)} chat prompts (one of them asks to repeat a text), up "
        f"to 32 new tokens each; the n-grams learned from only {learned_from:,} tokens of its own answers to other "
        "questions."
    )
    return [about, section("Chat", target, drafters, chats, runs, 32)]


if __name__ == "__main__":
    main()
