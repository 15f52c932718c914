"""The decoding of this package beside its peers, on one pair, interleaved in one process.

    python benchmarks/decode.py [--pair tales|smollm2] [--device cpu|cuda] [--dtype float32|…] [--runs N]
                                [--prompts N] [--threads N] [--temperatures T …] [--out docs/decode.md]

tales: plain and assisted generate() of transformers and, if they are installed, flashspec (pip install flashspec) and
onnxruntime-genai (pip install onnxruntime-genai onnx-ir), each at its best γ of 1 to 6 on the first prompts; and plain
and speculative decoding of this package, at each γ. Texts have exactly 128 tokens
(EOS does not end them) after prompts of 64.

smollm2: SmolLM2-135M-Instruct edits and summarises texts (data/chats.json), and prompt lookup drafts: this
package's at each γ, and that of transformers (prompt_lookup_num_tokens) at its best γ of 4 and 10 on the first prompt.
Texts end at EOS, or at 64 tokens.

Every run decodes all prompts with every contender, in turn and each time in another order; figures are medians over
the runs of all prompts' tokens a second, and of ratios of these to two of the contenders' within a run. Reading the
prompt counts. Run it where nothing else runs.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

from specviz import SamplingParams, autoregress, load_pair, speculate
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.progress import progress_bar
from specviz.speedup.measure import machine
from specviz.zoo.pairs import DTYPES

DATA = Path(__file__).parent / "data"
PLAIN, PEER_PLAIN, PEER = "specviz, plain", "transformers, plain", "transformers, assisted"
TALES, CHATS = 128, 64  # new tokens
TALES_PROMPT = 64  # tokens


@dataclass
class Job:
    """The subject of a table: one target, prompts (ids), one way to sample, the length of the texts."""

    title: str
    target: object
    prompts: list[list[int]]
    sampling: SamplingParams
    new: int
    ends: bool  # at EOS; otherwise all texts have exactly `new` tokens

    @property
    def eos(self):
        return sorted(self.target.eos) if self.ends else []


# --- contenders: functions of (prompt, seed) that give the new tokens ----------------------------


def of_specviz(job, drafter, gamma):
    settings = dict(max_new_tokens=job.new, sampling=job.sampling, eos=job.eos, record="none")

    def decode(prompt, seed):
        if gamma == 0:
            return autoregress(job.target, prompt, seed=seed, **settings).tokens
        return speculate(job.target, drafter, prompt, gamma=gamma, seed=seed, **settings).tokens

    return decode


def of_transformers(job, drafter, gamma):
    """generate(), with its habits that change γ or end a draft early switched off."""
    model, temperature = job.target.model, job.sampling.temperature
    how = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature else dict(do_sample=False)
    models = [model]
    if gamma and isinstance(drafter, PromptLookup):
        how["prompt_lookup_num_tokens"] = gamma
    elif gamma:
        how["assistant_model"] = drafter.model
        models.append(drafter.model)

    def decode(prompt, seed):
        torch.manual_seed(seed)
        for each in models:
            config = each.generation_config
            config.eos_token_id = job.eos or None
            config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma or 20, "constant"
            config.assistant_confidence_threshold = 0.0
        ids = torch.tensor([prompt], device=job.target.device)
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=job.new, pad_token_id=0, **how)
        return out[0, len(prompt) :].tolist()

    return decode


def of_flashspec(job, draft, gamma):
    """None where the package is not installed."""
    try:
        from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
        from flashspec.engine import HuggingFaceDrafter, TargetModel
    except ImportError:
        return None
    device, dtype, temperature = job.target.device, job.target.dtype, job.sampling.temperature
    sampling = SamplingConfig(temperature=temperature, gamma=gamma, variant="rejection" if temperature else "greedy")
    config = FlashSpecConfig(  # one arm: one fixed γ
        device=str(device), sampling=sampling, drafter_strategy="bandit", bandit=BanditConfig(n_arms=1)
    )
    drafter = HuggingFaceDrafter("draft", device, dtype, temperature=temperature, model=draft.model)
    engine = SpeculativeEngine(config, [drafter], TargetModel("target", device, dtype, model=job.target.model))

    def decode(prompt, seed):
        torch.manual_seed(seed)
        result = engine.generate(torch.tensor([prompt], device=device), max_new_tokens=job.new)
        return result.output_ids[0, : result.n_tokens_generated].tolist()

    return decode


def of_genai(job, draft, gamma):
    """None where the package onnxruntime-genai, or onnx-ir, which its builder needs, is not installed."""
    try:
        import onnx_ir  # noqa: F401
        import onnxruntime_genai as genai
    except ImportError:
        return None
    threads, temperature = torch.get_num_threads(), job.sampling.temperature
    model = genai.Model(_genai_folder(job.target, draft if gamma else None, threads))

    def decode(prompt, seed):
        params = genai.GeneratorParams(model)
        how = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0, random_seed=seed)
        params.set_search_options(max_length=len(prompt) + job.new, **(how if temperature else dict(do_sample=False)))
        if gamma:
            params.set_speculative_options(max_draft_tokens=gamma)
        generator = genai.Generator(model, params)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        return generator.get_sequence(0)[len(prompt) :].tolist()

    return decode


FOLDERS = {}  # that genai's builder wrote, by the names of target and draft


def _genai_folder(target, draft, threads):
    """A folder that onnxruntime-genai opens: the target, and in a folder of its own below it the draft, if any."""
    key = target.name, draft and draft.name
    if key in FOLDERS:
        return FOLDERS[key].name
    FOLDERS[key] = tempfile.TemporaryDirectory()
    root = Path(FOLDERS[key].name)
    for model, folder in ((target, root), (draft, root / "draft")):
        if model is not None:
            weights = root / "weights"
            model.model.save_pretrained(weights)
            model.tokenizer.hub.save_pretrained(weights)
            builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-p", "fp32", "-e", "cpu"]
            subprocess.run([*builder, "-m", weights, "-i", weights, "-o", folder], check=True, capture_output=True)
            shutil.rmtree(weights)
    config = json.loads((root / "genai_config.json").read_text())
    config["model"]["eos_token_id"] = target.tokenizer.hub.convert_tokens_to_ids("ÿ")  # a byte that is in no text
    if draft is not None:
        own = json.loads((root / "draft" / "genai_config.json").read_text())
        config["model"]["draft"] = own["model"]["decoder"] | {"filename": "draft/model.onnx"}
    for part in set(config["model"]) & {"decoder", "draft"}:
        config["model"][part]["session_options"]["intra_op_num_threads"] = threads
    (root / "genai_config.json").write_text(json.dumps(config))
    return str(root)


# --- measuring ------------------------------------------------------------------------------------


def timed(job, decode, prompts, seed):
    """(seconds, tokens) of all prompts together. ValueError if a text has another length than was asked for."""
    on_gpu = job.target.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(job.target.device)
    began = time.perf_counter()
    texts = [decode(prompt, seed + i) for i, prompt in enumerate(prompts)]
    if on_gpu:
        torch.cuda.synchronize(job.target.device)
    took = time.perf_counter() - began
    lengths = [len(text) for text in texts]
    if not all(0 < n <= job.new and (n == job.new or job.ends) for n in lengths):
        raise ValueError(f"{lengths} tokens where {'up to ' * job.ends}{job.new} were asked for")
    return took, sum(lengths)


def best_of(job, make, drafter, gammas, first):
    """(γ, contender) with the most tokens a second on the first prompts, or None."""
    found = [(gamma, make(job, drafter, gamma)) for gamma in gammas]
    found = [(gamma, decode) for gamma, decode in found if decode is not None]
    if not found:
        return None
    for _, decode in found:
        timed(job, decode, job.prompts[:1], 0)  # warms up

    def pace(each):
        seconds, tokens = timed(job, each[1], job.prompts[:first], 1)
        return seconds / tokens

    return min(found, key=pace)


def measure(job, contenders, runs):
    """{contender: [tokens a second of a run]}, runs side by side."""
    rates = {name: [] for name in contenders}
    with progress_bar(runs * len(job.prompts), job.title, True, unit="prompts") as bar:
        for run in range(-1, runs):  # the first warms up, on one prompt
            totals = {name: np.zeros(2) for name in contenders}
            for i, prompt in enumerate(job.prompts if run >= 0 else job.prompts[:1]):
                for name in np.roll(list(contenders), run + i):
                    totals[name] += timed(job, contenders[name], [prompt], 100 * run + i + 1000)
                bar.update(run >= 0)
            for name, (seconds, tokens) in totals.items() if run >= 0 else ():
                rates[name].append(tokens / seconds)
    return rates


def table(rates):
    """Markdown: tokens a second, and ratios to plain decoding here and to assisted generation."""
    assisted = next(name for name in rates if name.startswith(PEER))
    rows = ["| | tokens/s | over our plain | over transformers assisted |", "| --- | --- | --- | --- |"]
    for name, own in rates.items():
        cells = [f"{statistics.median(own):.{0 if statistics.median(own) >= 100 else 1}f}"]
        for other in (PLAIN, assisted):
            ratios = [mine / theirs for mine, theirs in zip(own, rates[other], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


# --- the two pairs ----------------------------------------------------------------------------------


@dataclass
class Comparison:
    """One --pair: an introduction, a Job for each table, and each Job's contenders."""

    about: str
    jobs: list[Job]
    contenders: Callable  # (job) -> {name: contender}


def tales(how, temperatures, n) -> Comparison:
    target, draft = load_pair("tales", **how)
    blocks = json.loads((DATA / "heldout.json").read_text(encoding="utf-8"))
    every = max(1, len(blocks) // n)
    prompts = [target.tokenizer.encode(block["text"])[:TALES_PROMPT] for block in blocks[::every]][:n]

    def contenders(job):
        named = {PEER_PLAIN: of_transformers(job, draft, 0)}
        peers = ((PEER, of_transformers), ("flashspec", of_flashspec), ("onnxruntime-genai", of_genai))
        for name, make in peers:
            if (found := best_of(job, make, draft, range(1, 7), first=3)) is not None:
                named[f"{name}, γ = {found[0]}"] = found[1]
        if (plain := of_genai(job, draft, 0)) is not None:
            named["onnxruntime-genai, plain"] = plain
        named[PLAIN] = of_specviz(job, None, 0)
        return named | {f"specviz, γ = {gamma}": of_specviz(job, draft, gamma) for gamma in range(1, 9)}

    about = (
        f"The bundled pair, {len(prompts)} prompts of {TALES_PROMPT} tokens, {TALES} new tokens each. Peers run at the "
        "γ of 1 to 6 that was fastest on the first prompts. The last column holds two gains: that of this package's "
        f"forward (see *{PLAIN}*) and that of speculation"
    )
    jobs = [Job(_way(t).capitalize(), target, prompts, SamplingParams(t), TALES, False) for t in temperatures]
    return Comparison(about, jobs, contenders)


def smollm2(how, temperatures, n) -> Comparison:
    target, lookup = load_pair("smollm2", **how)
    lookups = {"": PromptLookup(shortest=2), ", matches of one token too": lookup}

    def contenders(job):
        named = {PEER_PLAIN: of_transformers(job, lookup, 0)}
        gamma, best = best_of(job, of_transformers, lookup, (4, 10), first=1)
        named |= {f"{PEER} by prompt lookup, γ = {gamma}": best, PLAIN: of_specviz(job, None, 0)}
        for gamma in (2, 4, 8):
            for remark, drafter in lookups.items():
                if gamma == 4 or not remark:
                    named[f"specviz, γ = {gamma}{remark}"] = of_specviz(job, drafter, gamma)
        return named

    chats = json.loads((DATA / "chats.json").read_text(encoding="utf-8"))
    jobs = []
    for kind, asked in chats.items():
        prompts = [target.tokenizer.chat(_messages(turns)) for turns in asked[:n]]
        for t in temperatures:
            jobs.append(Job(f"{kind.capitalize()}, {_way(t)}", target, prompts, SamplingParams(t), CHATS, True))
    lengths = [len(prompt) for job in jobs for prompt in job.prompts]
    about = (
        f"{target.name} with prompt lookup (the last 2 to 3 tokens are looked for, unless said otherwise). It is asked "
        f"to edit {n} texts (change a name, a date, the spelling, a variable in code) and to summarise {n} by copying "
        "out their main sentences, each after one example; the model is small, and copies better than it edits. "
        f"Prompts of {min(lengths)} to {max(lengths)} tokens, up to {CHATS} new ones each: EOS may end a text before, "
        "so sampled texts differ in length between contenders, and what compares is tokens a second, with the time to "
        "read the prompt counted. A drafted token is accepted with probability p(x), so at temperature 1 prompt lookup "
        "pays as far as the model is sure of its copy"
    )
    return Comparison(about, jobs, contenders)


def _way(temperature):
    return f"temperature {temperature:g}" if temperature else "greedy"


def _messages(turns):
    return [dict(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(turns)]


PAIRS = {"tales": (tales, dict(runs=5, prompts=20)), "smollm2": (smollm2, dict(runs=2, prompts=4))}


def main():
    dtypes = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=PAIRS, default="tales")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=dtypes, default="float32")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.0], help="0 is greedy")
    parser.add_argument("--runs", type=int, help="by default 5, with smollm2 2")
    parser.add_argument("--prompts", type=int, help="by default 20, with smollm2 4 (of each kind)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--out", type=Path, help="also write the tables there")
    args = parser.parse_args()
    compare, usual = PAIRS[args.pair]
    runs, n = (usual[key] if (given := getattr(args, key)) is None else given for key in ("runs", "prompts"))
    least, most = (3, 50) if args.pair == "tales" else (1, 4)
    if not least <= n <= most or runs < 1 or args.threads < 1:
        parser.error(f"--prompts must be {least} to {most} with {args.pair}, --runs and --threads at least 1")

    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    try:
        comparison = compare(dict(device=args.device, dtype=dtypes[args.dtype]), args.temperatures, n)
    except ValueError as error:  # no such device, or SmolLM2 out of reach
        parser.error(str(error))
    device = comparison.jobs[0].target.device
    where = machine(device) + (f", threads: {args.threads}" if device.type == "cpu" else "")
    options = "".join(
        f" --{key} {getattr(args, key)}"
        for key in ("pair", "device", "dtype", "runs", "prompts", "threads")
        if getattr(args, key) != parser.get_default(key)
    )
    lines = [
        "# Decoding beside its peers" + ": SmolLM2" * (args.pair == "smollm2"),
        f"{comparison.about}. Runs: {runs}, in {args.dtype}, on {where}, torch {torch.__version__.split('+')[0]}, "
        f"transformers {transformers.__version__}. Medians over the runs; ratios within a run, with the least and the "
        f"greatest. Written by `python benchmarks/decode.py{options} --out …`.",
    ]
    for job in comparison.jobs:
        rates = measure(job, comparison.contenders(job), runs)
        lines += [f"## {job.title}", table(rates)]
        print(f"\n{job.title}\n\n{lines[-1]}", flush=True)
    if args.out:
        args.out.write_text("\n\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
