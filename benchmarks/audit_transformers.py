"""Audit transformers' own assisted generation: does it emit the target's distribution?

    python benchmarks/audit_transformers.py --folder FOLDER [--samples 20000] [--only tales]
    python benchmarks/audit_transformers.py --folder FOLDER --report docs/audit-transformers.md

Every continuation is added to a file in FOLDER, so that a run can be stopped and goes on where it was. --report draws
nothing: it judges the continuations in the files by then, and writes the installed version's section of the page.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from specviz import CausalLM, SamplingParams, load_pair
from specviz.equivalence import audit, from_transformers

FOXES = "The king and the queen and the fox, and the"  # looks back at itself, so that prompt lookup finds something
GREEDY = [  # openings for temperature 0
    "Once upon a time", "The king", "There was", "It was", "In the", "A little", "When the", "And so", "The old",
    "One day", "Long ago", "The boy", "The girl", "My dear", "He said", "She went", "They came", "At last", "Then the",
    "What is", "The fox and the", "Down by the sea", "Up the hill", "The queen was", "In a far land",
]  # fmt: skip


def tiny_llama(seed, scale=8.0):
    """A random Llama over three symbols; scaled logits, so that distributions are neither flat nor alike."""
    torch.manual_seed(seed)
    special = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False)
    config = transformers.LlamaConfig(
        vocab_size=3, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, **special,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    return CausalLM(model, name="3 symbols")


@dataclass(frozen=True)
class Setting:
    name: str
    pair: str
    gamma: int = 4
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prompt_lookup: bool = False
    eos: tuple = ()
    seed: int = 1

    @property
    def file(self):
        return "".join(c if c.isalnum() else "-" for c in f"{self.pair} {self.name}") + ".jsonl"

    @property
    def tokens(self):
        return 5 if self.pair == "3 symbols" else 4

    def prompts(self, target):
        if self.pair == "3 symbols":
            several = [[a, b, c] for a in range(3) for b in range(3) for c in range(3)]
            return several if self.sampling.temperature == 0 else [0, 1, 2, 0, 1, 2, 0]
        texts = GREEDY if self.sampling.temperature == 0 else FOXES
        return (
            [target.tokenizer.encode(t) for t in texts] if isinstance(texts, list) else target.tokenizer.encode(texts)
        )


COOL_3, COOL = SamplingParams(0.7, top_k=2), SamplingParams(0.7, top_k=20)
NUCLEUS_3, NUCLEUS = SamplingParams(top_p=0.8), SamplingParams(top_p=0.9)
SETTINGS = [
    Setting("T=1, γ=4", "3 symbols"),
    Setting("T=1, γ=4", "tales"),
    Setting("T=1, γ=1", "3 symbols", gamma=1),
    Setting("T=1, γ=4, EOS", "3 symbols", eos=(2,)),
    Setting("T=0.7, top-k 2, γ=4", "3 symbols", sampling=COOL_3),
    Setting("top-p 0.8, γ=4", "3 symbols", sampling=NUCLEUS_3),
    Setting("T=1, prompt lookup, γ=4", "3 symbols", prompt_lookup=True),
    Setting("T=1, γ=1", "tales", gamma=1),
    Setting("T=0.7, top-k 20, γ=4", "tales", sampling=COOL),
    Setting("top-p 0.9, γ=4", "tales", sampling=NUCLEUS),
    Setting("T=1, prompt lookup, γ=4", "tales", prompt_lookup=True),
    Setting("greedy, γ=4", "3 symbols", sampling=SamplingParams(0)),
    Setting("greedy, prompt lookup, γ=4", "3 symbols", sampling=SamplingParams(0), prompt_lookup=True),
    Setting("greedy, γ=4", "tales", sampling=SamplingParams(0)),
    Setting("greedy, prompt lookup, γ=4", "tales", sampling=SamplingParams(0), prompt_lookup=True),
]


def run(setting, pairs, folder, samples, progress=None):
    target, draft = pairs[setting.pair]
    assistant = None if setting.prompt_lookup else draft
    shared = dict(sampling=setting.sampling, eos=setting.eos)
    generate = from_transformers(target, assistant, gamma=setting.gamma, prompt_lookup=setting.prompt_lookup, **shared)
    return audit(
        generate, target, setting.prompts(target), samples=samples, max_new_tokens=setting.tokens, drafter=assistant,
        seed=setting.seed, resume=folder / setting.file, progress=progress, **shared,
    )  # fmt: skip


def drawn(file) -> int:
    """Continuations in a file: its lines but the header."""
    return max(0, file.read_bytes().count(b"\n") - 1) if file.exists() else 0


PAGE = """# Is assisted generation in transformers exact?

Written by [`benchmarks/audit_transformers.py`](../benchmarks/audit_transformers.py) from continuations that
`model.generate(assistant_model=…)` and `model.generate(prompt_lookup_num_tokens=…)` returned; the audit sees nothing
but their token ids ([`specviz/equivalence/auditing.py`](../specviz/equivalence/auditing.py) says how it judges).

- **pairs**: *3 symbols* is a random Llama of two layers over three symbols, with another as its assistant (their
  distributions overlap by 0.68 on average); *tales* is the bundled pair, 2,048 tokens. In float32, on the CPU.
- **rows**: one audit each, at one prompt. *texts* continuations were drawn, each with a seed of its own and of up to
  *tokens* tokens; how many was a matter of time, not of results. A correct decoder would be convicted in an
  audit with a probability of {false_alarm:.0%} at most.
- **smallest p**: of its tests, corrected for their number. **error seen**: the total variation from the target's
  distribution that would have been convicted with a probability of 99 %, by any test of a single position, and by the
  joint test. Smaller errors, other prompts, other models and settings that are not listed are not covered. That the
  audit convicts wrong decoders is tested in [`tests/test_audit.py`](../tests/test_audit.py), also with a fault put into
  transformers.
- **greedy**: the text after each of several prompts is compared with the target's greedy text, token by token.
"""
FINDINGS = {
    "5.0.0": """**Prompt lookup returns more tokens than `max_new_tokens`.** The texts that convict are too long; what
stands before the limit fits the target's distribution. The cause, by reading `generation/candidate_generator.py`:
`PromptLookupCandidateGenerator` bounds the place that it copies from (`end_idx = min(end_idx, input_length,
max_length)`), not the number of candidates, so that a round can hold more drafts than there is room for; and
`_assisted_decoding` in `generation/utils.py` keeps all that were accepted. (Assistant models are asked for
`max_length - length - 1` drafts at most, and do not overrun.) 5.24.0 cuts the accepted tokens to the room that is left
(`tokens_budget`). In 5.0.0 prompt lookup also stops with a TypeError where no EOS is set; the audit's adapter names one
that no model can say.
"""
}


def section(pairs, folder) -> str:
    """The installed version's results, from the folder's files."""
    lines = [
        f"## transformers {transformers.__version__}",
        "",
        f"With torch {torch.__version__.split('+')[0]}.",
        "",
        "| pair | setting | tokens | texts | verdict | smallest p | error seen |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    reports = []
    for setting in SETTINGS:
        samples = drawn(folder / setting.file)
        if not samples:
            continue
        report = run(setting, pairs, folder, samples, progress=False)
        reports.append(report)
        cells = [
            setting.pair,
            setting.name,
            setting.tokens,
            f"{len(report.texts):,}",
            verdict(report),
            *numbers(report),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    convicted = [report for report in reports if report.convicted]
    lines += ["", f"{len(convicted)} of {len(reports)} audits convict." if convicted else "No audit convicts.", ""]
    lines += [FINDINGS[transformers.__version__]] if transformers.__version__ in FINDINGS else []
    which = "first that convicts" if convicted else "first of them"
    lines += [f"The {which} in full:", "", "```text", str([*convicted, *reports][0]), "```", ""]
    return "\n".join(lines)


def verdict(report) -> str:
    if not report.convicted:
        return "not convicted"
    what = ", ".join(f"{found.count} texts {found.what}" for found in report.impossible)
    return f"**convicted**: {what or f'position {report.first_position}'}"


def numbers(report) -> tuple[str, str]:
    if report.tests is None:
        near = sum(found.near_tie for found in report.differences)
        return "", f"{near} near ties" if near else ""
    errors = list(zip(report.histograms, report.tests.detectable))
    single = max(error for histogram, error in errors if histogram.position)
    whole = [error for histogram, error in errors if histogram.position is None][-1]
    return f"{min(report.tests.adjusted):.2g}", f"{single:.1%}, {whole:.1%}"


def write(page, text):
    """Put the section into the page in the place of an older one of the same version."""
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    heading = text.splitlines()[0]
    others = [part for part in ("\n" + old).split("\n## ")[1:] if f"## {part}".splitlines()[0] != heading]
    sections = sorted([text, *(f"## {part.rstrip()}\n" for part in others)], key=version, reverse=True)
    page.write_text("\n".join([PAGE.format(false_alarm=0.01), *sections]), encoding="utf-8")


def version(text) -> list[int]:
    return [int(number) for number in text.splitlines()[0].split()[-1].split(".")[:3]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--only", default="", help="settings whose pair and name contain this")
    parser.add_argument("--report", type=Path, help="the page to write, from the continuations drawn so far")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    asked.folder.mkdir(parents=True, exist_ok=True)
    pairs = {"3 symbols": (tiny_llama(1), tiny_llama(2)), "tales": load_pair("tales")}
    if asked.report:
        write(asked.report, section(pairs, asked.folder))
        return
    for setting in SETTINGS:
        if asked.only in f"{setting.pair} {setting.name}":
            report = run(setting, pairs, asked.folder, asked.samples)
            print(f"--- {setting.pair}, {setting.name}\n{report}\n", flush=True)


if __name__ == "__main__":
    main()
