"""Our decoding beside its peers, on one pair, interleaved in one process.

    python benchmarks/decode.py [--runs N] [--prompts N] [--threads N] [--out docs/decode.md]

Plain and assisted generate() of transformers and, if it is installed, the package flashspec (pip install flashspec),
each at its best γ of 1, 2, 3, 5 on the first prompts; and plain and speculative decoding of this package, at each γ.
Every run decodes all prompts with every contender, in turn and each time in another order; figures are medians over
the runs of all prompts' tokens a second, and of ratios to two of the contenders within a run. Texts have exactly 128
tokens (EOS does not end them) after prompts of 64. Run it where nothing else runs.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
import transformers

from specviz import SamplingParams, autoregress, load_pair, speculate
from specviz.progress import progress_bar
from specviz.speedup.profiler import machine

BLOCKS = Path(__file__).parent / "data" / "heldout.json"
PROMPT, NEW, PEER_GAMMAS, GAMMAS, FIRST = 64, 128, (1, 2, 3, 5), range(1, 9), 3
TEMPERATURES = {"temperature 1": 1.0, "greedy": 0.0}
PLAIN, PEER_PLAIN, PEER = "specviz, plain", "transformers, plain", "transformers, assisted"


# --- contenders: name -> function of (prompt, seed) that decodes NEW tokens ----------------------


def ours(target, draft, temperature, gamma):
    settings = dict(max_new_tokens=NEW, sampling=SamplingParams(temperature=temperature), eos=(), record="none")

    def decode(prompt, seed):
        if gamma == 0:
            return autoregress(target, prompt, seed=seed, **settings).tokens
        return speculate(target, draft, prompt, gamma=gamma, seed=seed, **settings).tokens

    return decode


def of_transformers(target, draft, temperature, gamma):
    """generate(), with its habits that change γ or end a draft early switched off."""
    how = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature else dict(do_sample=False)
    if gamma:
        how["assistant_model"] = draft.model

    def decode(prompt, seed):
        torch.manual_seed(seed)
        for model in (target.model, draft.model):
            config = model.generation_config
            config.eos_token_id = None
            config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma or 20, "constant"
            config.assistant_confidence_threshold = 0.0
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = target.model.generate(ids, attention_mask=mask, max_new_tokens=NEW, pad_token_id=0, **how)
        return out[0, len(prompt) :].tolist()

    return decode


def of_flashspec(target, draft, temperature, gamma):
    """None where the package is not installed."""
    try:
        from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
        from flashspec.engine import HuggingFaceDrafter, TargetModel
    except ImportError:
        return None
    device, dtype = torch.device("cpu"), torch.float32
    sampling = SamplingConfig(temperature=temperature, gamma=gamma, variant="rejection" if temperature else "greedy")
    config = FlashSpecConfig(  # one arm: one fixed γ
        device="cpu", sampling=sampling, drafter_strategy="bandit", bandit=BanditConfig(n_arms=1)
    )
    drafter = HuggingFaceDrafter("draft", device, dtype, temperature=temperature, model=draft.model)
    engine = SpeculativeEngine(config, [drafter], TargetModel("target", device, dtype, model=target.model))

    def decode(prompt, seed):
        torch.manual_seed(seed)
        result = engine.generate(torch.tensor([prompt]), max_new_tokens=NEW)
        return result.output_ids[0, : result.n_tokens_generated].tolist()

    return decode


# --- measuring ------------------------------------------------------------------------------------


def seconds(decode, prompts, seed):
    """Of all prompts together. ValueError if a text has another length: then the figures would not compare."""
    began = time.perf_counter()
    texts = [decode(prompt, seed + i) for i, prompt in enumerate(prompts)]
    took = time.perf_counter() - began
    if any(len(text) != NEW for text in texts):
        raise ValueError(f"{[len(text) for text in texts]} tokens where {NEW} were asked for")
    return took


def best_of(make, pair, temperature, prompts):
    """(γ, contender) that was fastest on the first prompts, or None."""
    found = [(gamma, make(*pair, temperature, gamma)) for gamma in PEER_GAMMAS]
    found = [(gamma, decode) for gamma, decode in found if decode is not None]
    if not found:
        return None
    for _, decode in found:
        seconds(decode, prompts[:1], 0)  # warms up
    return min(found, key=lambda each: seconds(each[1], prompts[:FIRST], 1))


def measure(pair, temperature, prompts, runs, progress_text):
    """{contender: [seconds of a run]}, runs side by side."""
    contenders = {PEER_PLAIN: of_transformers(*pair, temperature, 0)}
    for name, make in ((PEER, of_transformers), ("flashspec", of_flashspec)):
        if (found := best_of(make, pair, temperature, prompts)) is not None:
            contenders[f"{name}, γ = {found[0]}"] = found[1]
    contenders |= {PLAIN: ours(*pair, temperature, 0)}
    contenders |= {f"specviz, γ = {gamma}": ours(*pair, temperature, gamma) for gamma in GAMMAS}
    took = {name: [] for name in contenders}
    with progress_bar(runs * len(prompts), progress_text, True, unit="prompt") as bar:
        for run in range(-1, runs):  # the first warms up, on one prompt
            totals = dict.fromkeys(contenders, 0.0)
            for i, prompt in enumerate(prompts if run >= 0 else prompts[:1]):
                for name in np.roll(list(contenders), run + i):
                    totals[name] += seconds(contenders[name], [prompt], 100 * run + i + 1000)
                bar.update(run >= 0)
            for name, total in totals.items() if run >= 0 else ():
                took[name].append(total)
    return took


def table(took, tokens):
    """Markdown: tokens a second, and ratios to plain decoding here and to assisted generation."""
    assisted = next(name for name in took if name.startswith(PEER))
    rows = ["| | tokens/s | over our plain | over transformers assisted |", "| --- | --- | --- | --- |"]
    for name, times in took.items():
        cells = [f"{tokens / statistics.median(times):.0f}"]
        for other in (PLAIN, assisted):
            ratios = [theirs / own for theirs, own in zip(took[other], times, strict=True)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="also write the tables there")
    args = parser.parse_args()
    if args.prompts < FIRST or args.runs < 1:
        parser.error(f"--prompts must be at least {FIRST}, --runs at least 1")

    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    pair = load_pair("tales", device="cpu")
    blocks = json.loads(BLOCKS.read_text(encoding="utf-8"))
    every = max(1, len(blocks) // args.prompts)
    prompts = [pair[0].tokenizer.encode(block["text"])[:PROMPT] for block in blocks[::every]][: args.prompts]
    lines = [
        "# Decoding beside its peers",
        f"The bundled pair, {len(prompts)} prompts of {PROMPT} tokens, {NEW} new tokens each, {args.runs} runs, on "
        f"{machine('cpu')}, {args.threads} threads, torch {torch.__version__.split('+')[0]}, transformers "
        f"{transformers.__version__}. Medians over the runs; ratios within a run, with the least and the greatest. "
        "Written by `python benchmarks/decode.py --out docs/decode.md`.",
    ]
    for name, temperature in TEMPERATURES.items():
        took = measure(pair, temperature, prompts, args.runs, name)
        lines += [f"## {name.capitalize()}", table(took, NEW * len(prompts))]
        print(f"\n{name}\n\n{lines[-1]}", flush=True)
    if args.out:
        args.out.write_text("\n\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
