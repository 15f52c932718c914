"""Tiny random models for tests: tables, and Hugging Face decoders in float64 scaled to overlap."""

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from specviz import CausalLM, Seeded, speculate
from specviz.models.seq2seq import Seq2SeqLM

# --- a few families, each with its own configuration class ---------------------------------------


def hub_model(family, seed, vocab_size=3, context=64, dtype=torch.float64):
    """A random decoder of the family, in evaluation mode."""
    torch.manual_seed(seed)
    shape = dict(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    shape |= dict(vocab_size=vocab_size, max_position_embeddings=context)
    special = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False)
    if family == "gpt2":
        config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=context, vocab_size=vocab_size, **special)
        model = GPT2LMHeadModel(config)
    else:
        kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
        config, build = kinds[family]
        model = build(config(**shape, **special))
    return model.to(dtype).eval()


def language_model(family, seed, scale=8.0, **settings):
    """The same as a CausalLM, its logits scaled so that distributions are neither flat nor alike."""
    model = hub_model(family, seed, **settings)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    return CausalLM(model, name=f"{family}-{seed}")


def fresh_logits(model, ids, source=None):
    """[n, V]: logits at every position, by a forward without any memory. source: what an encoder-decoder has read."""
    text = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        if isinstance(model, CausalLM):
            return model.model(input_ids=text).logits[0]
        if isinstance(model, Seq2SeqLM):
            source = torch.tensor([source], device=model.device)
            return model.model(input_ids=source, decoder_input_ids=text).logits[0]
    padded = [model.vocab_size] * model.order + list(ids)  # a TableModel
    rows = [model.logits[tuple(padded[i + 1 : i + 1 + model.order])] for i in range(len(ids))]
    return torch.stack(rows)


def processed(logits, temperature=1.0, top_k=None, top_p=None):
    """The same processing as the package's, written again in plain numpy for one row."""
    logits = np.asarray(torch.as_tensor(logits).cpu(), dtype=np.float64)
    if temperature == 0:
        return np.eye(len(logits))[int(np.argmax(logits))]
    logits = logits / temperature
    order = np.argsort(-logits, kind="stable")
    if top_k is not None:
        logits = np.where(np.isin(np.arange(len(logits)), order[:top_k]), logits, -np.inf)
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    if top_p is not None:
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[(before >= top_p) & (np.arange(len(order)) > 0)]] = 0
        probs /= probs.sum()
    return probs


def plain_law(model, prompt, max_new_tokens, eos=(), **sampling):
    """{continuation: probability} by plain products of the processed rows; no decoder, no memory."""
    law, unfinished = {}, {(): 1.0}
    while unfinished:
        text, weight = unfinished.popitem()
        if len(text) == max_new_tokens or (text and text[-1] in eos):
            law[text] = weight
            continue
        probs = processed(fresh_logits(model, [*prompt, *text])[-1], **sampling)
        for token in np.flatnonzero(probs):
            unfinished[(*text, int(token))] = weight * probs[token]
    return law


def largest_difference(law, expected):
    return max(abs(law.get(text, 0.0) - expected.get(text, 0.0)) for text in {*law, *expected})


def mean_overlap(target, draft, prompt, length=3):
    """Mean of sum min(p, q) over all texts of up to length tokens after the prompt."""
    from itertools import product

    overlaps = []
    for n in range(length):
        for text in product(range(target.vocab_size), repeat=n):
            ids = [*prompt, *text]
            p, q = (fresh_logits(m, ids)[-1].double().softmax(-1) for m in (target, draft))
            overlaps.append(torch.minimum(p, q).sum().item())
    return float(np.mean(overlaps))


# --- any family, by its name in transformers ------------------------------------------------------

SHAPE = dict(
    vocab_size=3, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    tie_word_embeddings=False,
)  # fmt: skip
OLD_NAMES = dict(n_embd=16, n_layer=2, n_head=2, n_positions=64)
HEADS = dict(head_dim=8)
EXPERTS = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)

FULL_ATTENTION = {
    "llama": {},
    "gpt2": OLD_NAMES,
    "qwen2": {},
    "qwen3": HEADS,
    "gpt_neox": {},
    "phi": dict(num_key_value_heads=2),
    "phi3": dict(pad_token_id=0, sliding_window=None),
    "gemma": HEADS,
    "mistral": dict(sliding_window=None),
    "opt": dict(ffn_dim=32, word_embed_proj_dim=16),
    "olmo2": {},
    "stablelm": {},
    "granite": {},
    "smollm3": dict(pad_token_id=0, no_rope_layers=[1, 0], use_sliding_window=False),
    "falcon": dict(num_kv_heads=1, alibi=False),
    "gptj": OLD_NAMES | dict(rotary_dim=4),
    "cohere": {},
    "mixtral": EXPERTS | dict(sliding_window=None),
    "qwen3_moe": EXPERTS | HEADS,
    "deepseek_v3": EXPERTS
    | dict(
        num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4,
        n_routed_experts=4, n_group=1, topk_group=1, first_k_dense_replace=1,
    ),
}  # fmt: skip

WINDOW = 4
MIXED = dict(sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"])
SLIDING_WINDOW = {
    "mistral": dict(sliding_window=WINDOW),
    "phi3": dict(sliding_window=WINDOW, pad_token_id=0),
    "qwen2": MIXED | dict(use_sliding_window=True, max_window_layers=1),
    "gemma2": MIXED | HEADS,
    "gemma3_text": MIXED | HEADS,
    "cohere2": MIXED,
    "olmo3": MIXED,
    "gpt_oss": MIXED | HEADS | EXPERTS,
}


def decoder(name, seed=0, dtype=torch.float64, **settings):
    """A random model of transformers of that name; skips where this version has none."""
    if name not in CONFIG_MAPPING:
        pytest.skip(f"transformers has no {name} here")
    config = CONFIG_MAPPING[name](**(SHAPE | settings))
    torch.manual_seed(seed)
    plain = dict(experts_implementation="eager") if "num_experts" in settings else {}  # the fast ones lack float64
    return AutoModelForCausalLM.from_config(config, **plain).to(dtype).eval()


def decoder_pair(name, vocab_size=3, **settings):
    """(target, drafter) of one family, scaled to overlap."""
    return scaled_pair(lambda seed: CausalLM(decoder(name, seed, vocab_size=vocab_size, **settings)))


def t5(kind, seed, vocab_size=3, dtype=torch.float64):
    """ "t5" has one matrix for embeddings and head, and a ReLU; "v1.1" two, and a gated GELU."""
    gated = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False) if kind == "v1.1" else {}
    config = T5Config(
        vocab_size=vocab_size, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=12, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=None, **gated,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = T5ForConditionalGeneration(config).to(dtype)
    for module in model.modules():
        if hasattr(module, "relative_attention_bias"):
            torch.nn.init.normal_(module.relative_attention_bias.weight, std=2)  # so that positions matter
    return Seq2SeqLM(model, name=f"{kind}-{seed}")


def t5_pair(kind, vocab_size=3, dtype=torch.float64):
    """(target, drafter) of T5s, scaled to overlap."""
    return scaled_pair(lambda seed: t5(kind, seed, vocab_size, dtype))


def scaled_pair(build):
    """(build(1), build(another seed)), with heads flat at first and sharper until the mean overlap is at most 0.7."""
    for seed in range(2, 30):  # some two models agree, or disagree, whatever the scale
        pair = build(1), build(seed)
        for factor in [0.05] + 16 * [2]:
            with torch.no_grad():
                for model in pair:
                    model.model.get_output_embeddings().weight.mul_(factor)
            if (overlap := random_overlap(*pair)) <= 0.7:
                break
        if 0.4 <= overlap <= 0.7:
            for model in pair:
                if isinstance(model, CausalLM):
                    model.refresh()  # else it would go on without its backend
            return pair
    raise AssertionError("no seed and scale give a middling overlap")


def random_overlap(target, draft, n=8):
    """Mean of sum min(p, q) over the positions of n random texts of n tokens."""
    generator = torch.Generator().manual_seed(0)
    texts, sources = torch.randint(target.vocab_size, (2, n, n), generator=generator).to(target.device)
    with torch.no_grad():
        p, q = (
            model.model(input_ids=sources, decoder_input_ids=texts) if model.start_tokens else model.model(texts)
            for model in (target, draft)
        )
    p, q = p.logits.double().softmax(-1), q.logits.double().softmax(-1)
    return torch.minimum(p, q).sum(-1).mean().item()


# --- what every memory must keep -----------------------------------------------------------------


def worst_ragged_logits(model, sources=((1,), (2, 1, 2), (1, 1)), steps=12):
    """Largest difference from fresh forwards over random ragged feeds and rewinds of three rows."""
    generator = torch.Generator().manual_seed(0)
    cache = model.new_cache(list(map(list, sources)), capacity=40)
    texts, worst = [[] for _ in sources], 0.0
    for _ in range(steps):
        keep = [int(torch.randint(max(0, len(t) - 2), len(t) + 1, (1,), generator=generator)) for t in texts]
        cache.rewind(torch.tensor(keep))
        n = int(torch.randint(1, 5, (1,), generator=generator))
        new = torch.randint(0, model.vocab_size, (len(texts), n), generator=generator)
        count = torch.randint(0, n + 1, (len(texts),), generator=generator)
        logits = cache.feed(new, count)
        for row, kept in enumerate(count.tolist()):
            texts[row] = texts[row][: keep[row]] + new[row, :kept].tolist()
            if kept:
                expected = fresh_logits(model, texts[row], list(sources[row]))[-kept:]
                worst = max(worst, (logits[row, :kept] - expected).abs().max().item())
        assert cache.length.tolist() == [len(t) for t in texts]
    return worst


def worst_recorded(target, drafter, prompts, **settings):
    """Largest difference of a recorded p or q from a fresh forward's on its prefix (temperature 1), over all rounds."""
    worst = 0.0
    for trace in speculate(target, drafter, prompts, record="full", **settings):
        source = trace.prompt_tokens
        text = list(target.start_tokens or source)
        for round in trace.rounds:
            ids = text + round.draft_tokens
            for model, recorded in ((target, round.p), (drafter, round.q)):
                fresh = fresh_logits(model, ids, source)[len(text) - 1 :].cpu().double().softmax(-1)
                for top, expected in zip(recorded, fresh):
                    worst = max(worst, (torch.tensor(top.probs, dtype=torch.float64) - expected).abs().max().item())
            text += round.tokens
    return worst


def rows_that_differ(target, drafter, prompts, **settings):
    """The rows of a batch whose tokens or drafts are others than those of the same prompt alone."""
    batch = speculate(target, drafter, prompts, seed=3, **settings)
    differing = []
    for row, prompt in enumerate(prompts):
        alone = speculate(target, drafter, prompt, randomness=Seeded(3, rows=[row]), **settings)
        drafts = [[round.draft_tokens for round in trace.rounds] for trace in (alone, batch[row])]
        if alone.tokens != batch[row].tokens or drafts[0] != drafts[1]:
            differing.append(row)
    return differing
