"""Decoders as audit() calls them: generate(prompt_ids, max_new_tokens, seed) -> token ids of the continuation.

from_transformers() wraps transformers' own generate(), plain or assisted; from_specviz() this package's decoder, as
the control. Any other library needs a function of three arguments and nothing from here. The report and the resume
file show the function's __name__.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import torch

from specviz.arguments import check_model, integer
from specviz.equivalence.samples import sample_sequences
from specviz.sampling import as_sampling
from specviz.settings import known

# --- transformers -------------------------------------------------------------------------------


def from_transformers(model, assistant=None, *, sampling=None, eos=None, gamma=4, prompt_lookup=False) -> Callable:
    """transformers' generate(): plain, with an assistant model, or with prompt lookup.

    model, assistant  transformers models with a generate(), or CausalLMs around them
    sampling          SamplingParams; temperature 0 is do_sample=False
    eos               id or ids that end a text, as for audit(); the model's own when None
    gamma             drafts a round: num_assistant_tokens, or prompt_lookup_num_tokens
    prompt_lookup     draft by looking the last tokens up in the text; without an assistant

    Everything that shapes the distribution is set here. Settings that a GenerationConfig lacks are filled in from the
    model's own and then from the library's defaults (top_k = 50 among them; the number of drafts is read from the
    *assistant's* configuration), so both models get a fresh one during the call, and theirs back after it. The
    caller's random state is left as it was.

    The seed goes to torch.manual_seed, one continuation a call. Raises ValueError for arguments that do not fit.
    """
    import transformers

    sampling = as_sampling(sampling)
    gamma = integer(gamma, "gamma", 1)
    if prompt_lookup and assistant is not None:
        raise ValueError("prompt_lookup=True and an assistant: transformers drafts with one of the two; leave one out.")
    target, assistant = _hub_model(model, "model"), assistant and _hub_model(assistant, "assistant")
    vocabulary = target.get_output_embeddings().weight.shape[0]
    eos = sorted(_ids(eos, model, target, vocabulary))
    config = dict(
        do_sample=sampling.temperature > 0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        min_length=0,
        num_beams=1,
        num_return_sequences=1,
        use_cache=True,
        pad_token_id=0,  # one row is never padded, but None would be filled in with a warning
        # Without any EOS, prompt lookup of transformers 5.0 crashes; an id that no model can say does no harm.
        eos_token_id=eos or ([vocabulary] if prompt_lookup else None),
    )
    if sampling.temperature > 0:
        config |= dict(
            temperature=float(sampling.temperature),
            top_k=sampling.top_k or 0,  # 0 keeps all; None would mean the library's 50
            top_p=1.0 if sampling.top_p is None else float(sampling.top_p),
            typical_p=1.0,
            epsilon_cutoff=0.0,
            eta_cutoff=0.0,
        )
    # min_p, top_h, guidance_scale, suppress_tokens and their like are off unless named, once nothing is inherited.
    if prompt_lookup:
        config |= dict(prompt_lookup_num_tokens=gamma, max_matching_ngram_size=2)
    if assistant is not None:
        config |= dict(
            num_assistant_tokens=gamma, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )

    def call(prompt_ids, max_new_tokens, seed):
        ids = torch.tensor([list(prompt_ids)], device=target.device)
        # The same for both: each setting is read from one of them, and a model may assist itself.
        asked = transformers.GenerationConfig(**config, max_new_tokens=max_new_tokens)
        devices = [target.device] if target.device.type == "cuda" else []
        with torch.random.fork_rng(devices), _configured(target, asked):
            torch.manual_seed(seed)
            inputs = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
            if sampling.processors:
                inputs["logits_processor"] = transformers.LogitsProcessorList(sampling.processors)
            if assistant is None:
                text = target.generate(**inputs)
            else:
                with _configured(assistant, asked):
                    text = target.generate(**inputs, assistant_model=assistant)
        return text[0, ids.shape[1] :].tolist()

    how = f"prompt lookup, gamma={gamma}" if prompt_lookup else "plain"
    if assistant is not None:
        layers = assistant.config.num_hidden_layers
        how = f"assisted by {type(assistant).__name__} of {layers} layers, gamma={gamma}"
    call.__name__ = f"transformers {transformers.__version__} generate(): {how}"
    return call


def _hub_model(model, argument):
    inner = getattr(model, "model", None)
    for candidate in (model, inner):  # a CausalLM holds one
        if hasattr(candidate, "generate") and hasattr(candidate, "generation_config"):
            if not candidate.config.is_encoder_decoder:
                return candidate
    raise ValueError(
        f"{argument} is a {type(model).__name__}: must be a transformers decoder with a generate(), or a CausalLM."
    )


def _ids(eos, model, target, vocabulary) -> set[int]:
    if eos is None:
        eos = model.eos if hasattr(model, "eos") else target.generation_config.eos_token_id
    eos = [] if eos is None else eos if hasattr(eos, "__iter__") else [eos]
    return {i for i in (integer(token, "eos: an id", 0) for token in eos) if i < vocabulary}


@contextmanager
def _configured(model, config):
    """The model has this generation_config within the block."""
    own = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = own


# --- this package -------------------------------------------------------------------------------


def from_specviz(target, drafter, *, rows=1000, name=None, **settings) -> Callable:
    """This package's own decoder: rows continuations a call, independent of each other.

    settings are those of speculate(): gamma, sampling, eos, and decode_round for a wrong decoder. drafter=None
    decodes plainly.
    """
    check_model(target)
    known("from_specviz", settings)
    rows = integer(rows, "rows", 1, " (continuations of one call)")

    def call(prompt_ids, max_new_tokens, seed):
        asked = dict(settings, max_new_tokens=max_new_tokens)
        tokens = sample_sequences(target, drafter, list(prompt_ids), rows, seed=seed, progress=False, **asked)
        return [[token for token in row if token >= 0] for row in tokens.tolist()]

    how = "plain" if drafter is None else f"drafts of {getattr(drafter, 'name', '?')}, gamma={settings.get('gamma', 4)}"
    call.__name__ = name or f"specviz: {how}"
    return call
