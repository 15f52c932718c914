"""Tiny random models for tests: tables, and Hugging Face decoders in float64 scaled to overlap."""

import numpy as np
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from specviz import CausalLM


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


def fresh_logits(model, ids):
    """[n, V]: logits at every position, by a forward without any memory."""
    if isinstance(model, CausalLM):
        with torch.no_grad():
            return model.model(input_ids=torch.tensor([ids])).logits[0]
    padded = [model.vocab_size] * model.order + list(ids)  # a TableModel
    rows = [model.logits[tuple(padded[i + 1 : i + 1 + model.order])] for i in range(len(ids))]
    return torch.stack(rows)


def processed(logits, temperature=1.0, top_k=None, top_p=None):
    """The same processing as the package's, written again in plain numpy for one row."""
    logits = np.asarray(logits, dtype=np.float64)
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
