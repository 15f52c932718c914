"""Train the bundled pair `tales`: tokenizer, target, and a draft distilled from the target.

    python tools/train_tales.py --corpus CORPUS            # a folder with train/*.txt and heldout/*.txt
    python tools/train_tales.py --corpus CORPUS --fetch    # no corpus yet: download the public-domain books

Stages run in order (tokenizer, target, text, draft, export); each is skipped when its result is there,
and an interrupted stage goes on from its last checkpoint in --work. To train a target for longer, raise
--target-steps and run again before its learning rate has begun to fall (the last 40% of the steps).
"""

import argparse
import json
import shutil
import time
import urllib.request
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TOOLS = Path(__file__).parent
VOCABULARY = 2048
CONTEXT = 512
SAVE_EVERY = 250  # steps
END = "<|endoftext|>"  # between stories, and the models' EOS
END_ID = 0

TARGET = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=12)
# Half as wide: what a draft step costs matters as much as what it gets right (c, section 3.3 of the paper).
DRAFT = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=1)
# The target's own text, a third of what the draft learns from: (temperature, texts)
OWN_TEXT = ((1.0, 320), (0.7, 64), (0.0, 128))


# --- corpus -------------------------------------------------------------------------------------


def fetch_books(corpus):
    """Download the books listed in tales_books.json from Project Gutenberg and clean them."""
    for book in tqdm(json.loads((TOOLS / "tales_books.json").read_text()), desc="fetching", unit="book"):
        path = corpus / book["set"] / f"{book['title'].replace(' ', '-')}.txt"
        if path.exists():
            continue
        url = f"https://www.gutenberg.org/cache/epub/{book['number']}/pg{book['number']}.txt"
        with urllib.request.urlopen(url, timeout=60) as reply:
            text = clean_book(reply.read().decode("utf-8-sig"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def clean_book(raw):
    """Gutenberg's plain text -> ASCII, one paragraph a line, an empty line between chapters.

    Chapters are what the plain-text editions separate by three or more empty lines. The bundled pair was
    trained on a copy cleaned by hand (no contents pages, no footnotes); this gives nearly the same text.
    """
    body = raw.replace("\r\n", "\n").partition("*** START OF")[2].partition("\n")[2]
    body = body.partition("*** END OF")[0]
    for typographic, plain in {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--"}.items():
        body = body.replace(typographic, plain)
    body = body.replace("_", "").encode("ascii", "ignore").decode()
    chapters = []
    for chapter in body.split("\n\n\n\n"):
        paragraphs = [" ".join(paragraph.split()) for paragraph in chapter.split("\n\n")]
        if any(paragraphs):
            chapters.append("\n".join(filter(None, paragraphs)))
    return "\n\n".join(chapters) + "\n"


def blocks(corpus, part):
    """The stories of the books in corpus/part, in the order of the file names."""
    files = sorted((corpus / part).glob("*.txt"))
    if not files:
        raise SystemExit(f"--corpus {corpus}: no {part}/*.txt there. Name another folder, or add --fetch when online.")
    return [block for file in files for block in file.read_text().strip().split("\n\n")]


# --- tokenizer ----------------------------------------------------------------------------------


def train_tokenizer(corpus, folder):
    """A byte-level BPE of 2,048 entries, saved so that transformers' AutoTokenizer loads it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator(blocks(corpus, "train"), trainer)
    save_tokenizer(bpe, folder)


def save_tokenizer(bpe, folder):
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, model_max_length=CONTEXT, clean_up_tokenization_spaces=False
    )
    fast.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that transformers 5.0 knows as well
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def encode(bpe, texts):
    """All texts as one stream of ids, each followed by END."""
    return torch.tensor([i for e in bpe.encode_batch(texts) for i in [*e.ids, END_ID]], dtype=torch.long)


# --- training -----------------------------------------------------------------------------------


def build(shape, seed):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=None,
        **shape,
    )
    return LlamaForCausalLM(config)


@torch.no_grad()
def begin_from(target, draft):
    """Give the draft the target's embedding, in the directions that matter most if the draft is narrower.

    Head and embedding are one matrix, so this is the best approximation of that rank of what logits are made from.
    """
    u, s, _ = torch.linalg.svd(target.get_input_embeddings().weight.float().cpu(), full_matrices=False)
    width = draft.config.hidden_size
    draft.get_input_embeddings().weight.copy_(u[:, :width] * s[:width])


def optimizers(model, lr):
    """Muon for the matrices (about twice as fast as AdamW here, per token), AdamW for embedding and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim < 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, 0.6 * lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def learning_rate(step, steps):
    """Share of the peak: a short warm-up, a plateau, and a linear fall over the last 40%."""
    return min(1.0, (step + 1) / 40, (steps - step) / (0.4 * steps))


class Checkpoint:
    """Model, optimizers and step in safetensors, so that a stage can be stopped and continued."""

    def __init__(self, path, model, optimizers):
        self.path, self.model, self.optimizers = path, model, optimizers

    def save(self, step):
        tensors = {f"model/{k}": v.contiguous() for k, v in self.model.state_dict().items() if k != "lm_head.weight"}
        for i, optimizer in enumerate(self.optimizers):
            for j, slots in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer/{i}/{j}/{k}": v.contiguous() for k, v in slots.items()}
        draft = self.path.with_suffix(".tmp")
        save_file(tensors, draft, metadata={"step": str(step)})
        draft.replace(self.path)

    def load(self):
        """Restore what was saved and return its step; 0 when there is nothing."""
        if not self.path.exists():
            return 0
        from safetensors import safe_open

        with safe_open(self.path, "pt") as file:
            step = int(file.metadata()["step"])
        tensors = load_file(self.path)
        weights = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        self.model.load_state_dict(weights, strict=False)
        for i, optimizer in enumerate(self.optimizers):
            state = {}
            for key, value in tensors.items():
                if key.startswith(f"optimizer/{i}/"):
                    _, _, j, slot = key.split("/")
                    state.setdefault(int(j), {})[slot] = value
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        return step


def train(name, model, loss_of, steps, lr, work, device, validate):
    """Minimise loss_of(step) (a scalar, from a generator seeded by the step) with a progress bar."""
    model.to(device).train()
    opts = optimizers(model, lr)
    checkpoint = Checkpoint(work / f"{name}.checkpoint.safetensors", model, opts)
    first = checkpoint.load()
    peaks = [lr, 0.6 * lr]
    log = (work / f"{name}.log").open("a")
    began = time.time()
    bar = tqdm(range(first, steps), initial=first, total=steps, desc=name, unit="step", mininterval=5)
    for step in bar:
        for opt, peak in zip(opts, peaks, strict=True):
            for group in opt.param_groups:
                group["lr"] = peak * learning_rate(step, steps)
        loss = loss_of(step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad(set_to_none=True)
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            checkpoint.save(step + 1)
            record = {"step": step + 1, "loss": loss.item(), "seconds": time.time() - began, **validate()}
            print(json.dumps(record), file=log, flush=True)
    log.close()
    model.eval()


def windows(ids, step, batch, seed, length=CONTEXT + 1):
    """[batch, length]: random windows of the stream, chosen by (seed, step) alone."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    starts = torch.randint(0, len(ids) - length, (batch,), generator=generator)
    return torch.stack([ids[s : s + length] for s in starts])


@torch.no_grad()
def nats(model, ids, device, every=1, least=None):
    """Mean loss in nats a token, each predicted from at least `least` tokens before it (default CONTEXT // 2).

    Windows of CONTEXT tokens overlap by `least`; of each only what is new counts. every=n takes every n-th.
    """
    least = CONTEXT // 2 if least is None else least
    total = count = 0
    for start in range(0, len(ids) - 1 - least, (CONTEXT - least) * every):
        window = ids[start : start + CONTEXT + 1].to(device)[None]
        new = slice(0 if start == 0 else least, None)
        logits = model(window[:, :-1]).logits[0, new].float()
        total += F.cross_entropy(logits, window[0, 1:][new], reduction="sum").item()
        count += len(logits)
    return total / count


@torch.no_grad()
def agreement(target, draft, ids, device, every=8):
    """Mean overlap sum min(p, q) and share of equal argmax on held-out windows (teacher forcing)."""
    overlap, same = [], []
    for start in range(0, len(ids) - CONTEXT, CONTEXT * every):
        window = ids[start : start + CONTEXT].to(device)[None]
        p, q = (m(window).logits.float().softmax(-1) for m in (target, draft))
        overlap.append(torch.minimum(p, q).sum(-1).mean().item())
        same.append((p.argmax(-1) == q.argmax(-1)).float().mean().item())
    return {"overlap": float(np.mean(overlap)), "same_argmax": float(np.mean(same))}


@torch.no_grad()
def generate(target, prompts, length, temperature, device, seed):
    """[len(prompts), length] token ids that the target continues the prompts with (prompts included)."""
    torch.manual_seed(seed)
    target.generation_config.eos_token_id = None  # a fixed length keeps the batch rectangular
    settings = (
        dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature else dict(do_sample=False)
    )
    bar = tqdm(prompts.split(64), desc=f"text at T={temperature}", unit="batch")
    return torch.cat([target.generate(rows.to(device), max_length=length, **settings).cpu() for rows in bar])


def distillation_loss(p_logits, q_logits, greedy_weight):
    """1 - overlap (the rejection probability itself) plus KL(p || q), at temperature 1 and, weighted, at 0.3.

    Acceptance at temperature 1 is the overlap, so it is minimised directly; the KL term keeps a gradient where
    p and q do not meet. The sharpened copy stands for greedy decoding, where only the argmax counts.
    """
    loss = 0.0
    for temperature, weight in ((1.0, 1.0), (0.3, greedy_weight)):
        p = (p_logits / temperature).softmax(-1)
        log_q = (q_logits / temperature).log_softmax(-1)
        rejection = 0.5 * (p - log_q.exp()).abs().sum(-1).mean()
        kl = -(p * log_q).sum(-1).mean() * temperature
        loss = loss + weight * (rejection + 0.2 * kl)
    return loss


# --- stages -------------------------------------------------------------------------------------


def export(model, tokenizer_folder, folder):
    """A Hugging Face folder in half precision."""
    folder.mkdir(parents=True, exist_ok=True)
    model = model.to("cpu", torch.float16)
    model.generation_config.eos_token_id = END_ID
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner's eyes only
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_folder / file, folder / file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--fetch", action="store_true", help="download missing books into --corpus first")
    parser.add_argument("--work", type=Path, default=Path("runs/tales"), help="checkpoints and logs")
    parser.add_argument("--out", type=Path, default=Path("specviz/checkpoints/tales"))
    parser.add_argument("--target-steps", type=int, default=5000)
    parser.add_argument("--draft-steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=8, help="windows of 512 tokens a step")
    parser.add_argument("--greedy-weight", type=float, default=0.5, help="weight of the sharpened distillation loss")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile the forwards (needs a C++ compiler)")
    args = parser.parse_args()
    device = torch.device(args.device)
    args.work.mkdir(parents=True, exist_ok=True)
    if args.fetch:
        fetch_books(args.corpus)

    if not (args.work / "tokenizer.json").exists():
        train_tokenizer(args.corpus, args.work)
    bpe = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    train_ids, held_out = (encode(bpe, blocks(args.corpus, part)) for part in ("train", "heldout"))
    print(f"{len(train_ids):,} training tokens, {len(held_out):,} held out, on {device}")

    def forward(model):
        compiled = torch.compile(model) if args.compile else model

        def logits(tokens):
            with torch.autocast(device.type, torch.bfloat16):
                return compiled(tokens.to(device)).logits.float()

        return logits

    target = build(TARGET, args.seed)
    target_logits = forward(target)

    def target_loss(step):
        window = windows(train_ids, step, args.batch, args.seed)
        return F.cross_entropy(target_logits(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten().to(device))

    train(
        "target",
        target,
        target_loss,
        args.target_steps,
        args.lr,
        args.work,
        device,
        lambda: {"nats": nats(target, held_out, device, every=16)},
    )

    text_file = args.work / "text.safetensors"
    if not text_file.exists():
        prompts = windows(train_ids, 0, max(n for _, n in OWN_TEXT), args.seed + 1, length=16)
        texts = {str(t): generate(target, prompts[:n], CONTEXT // 2, t, device, args.seed) for t, n in OWN_TEXT}
        save_file(texts, text_file)
    own_text = torch.cat(list(load_file(text_file).values()))

    draft = build(DRAFT, args.seed)
    begin_from(target, draft)
    draft_logits = forward(draft)
    distil = torch.compile(distillation_loss) if args.compile else distillation_loss

    def draft_loss(step):
        if step % 3 == 0:
            rows = torch.Generator().manual_seed(step)
            window = own_text[torch.randint(0, len(own_text), (2 * args.batch,), generator=rows)]
        else:
            window = windows(train_ids, step, args.batch, args.seed + 2, length=CONTEXT)
        with torch.no_grad():
            p_logits = target_logits(window)
        return distil(p_logits, draft_logits(window), args.greedy_weight)

    train(
        "draft",
        draft,
        draft_loss,
        args.draft_steps,
        args.lr,
        args.work,
        device,
        lambda: agreement(target, draft, held_out, device),
    )

    for model, name in ((target, "target"), (draft, "draft")):
        export(model, args.work, args.out / name)
    # Measured on what is shipped: the weights after rounding to half precision.
    shipped = {
        name: LlamaForCausalLM.from_pretrained(args.out / name, dtype=torch.float32) for name in ("target", "draft")
    }
    report = {
        "parameters": {name: model.num_parameters() for name, model in shipped.items()},
        "nats": {name: nats(model, held_out, torch.device("cpu")) for name, model in shipped.items()},
        "nats_from_an_empty_context": nats(shipped["target"], held_out, torch.device("cpu"), least=0),
        "training_tokens": len(train_ids),
        "held_out_tokens": len(held_out),
        "target_steps": args.target_steps,
        "draft_steps": args.draft_steps,
        "tokens_a_step": args.batch * CONTEXT,
        "seed": args.seed,
        "lr": args.lr,
        **agreement(shipped["target"], shipped["draft"], held_out, torch.device("cpu")),
    }
    (args.work / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
