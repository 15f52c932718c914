"""Arguments, checked: one clear error that names the argument, its value and the remedy.

The results are Python's own ints and floats, of whatever kind the arguments were: JSON can hold them.
"""

from __future__ import annotations

import math
import numbers
import operator
import warnings


def integer(value, name: str, least: int, remedy: str = "") -> int:
    """value as an int (NumPy's and torch's integers too); ValueError for other types and below least."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"{name}={value!r}: must be an integer >= {least}{remedy}.")
    return number


def real(value) -> float:
    """value as a float, or as the int that it is (Fractions, NumPy's and torch's scalars too); NaN for other types."""
    if _is_scalar(value) and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return value if type(value) is int else number


def encodable(text: str, name: str) -> str:
    """text, unless it holds a lone surrogate, which no tokenizer and no file can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}={text!r} holds half a character ({error.reason}): remove it.") from None
    return text


def _is_scalar(value) -> bool:
    return getattr(value, "ndim", 1) == 0


def as_prompts(target, prompt) -> tuple[list[list[int]], bool]:
    """Text, ids, chat messages or a list of any of them, or a tokenizer's output -> (id lists, whether it was one)."""
    if hasattr(prompt, "keys") and "input_ids" in prompt:
        prompt = _without_padding(prompt)
    else:
        _warn_of_padding(target, prompt)
    sequence = hasattr(prompt, "__len__") and hasattr(prompt, "__getitem__")
    if not sequence or isinstance(prompt, (bytes, bytearray)) or hasattr(prompt, "keys") or _is_scalar(prompt):
        raise ValueError(
            f"prompt={prompt!r}: must be text, token ids, or a list of either, a tokenizer's output, "
            'or chat messages [{"role": "user", "content": "…"}].'
        )
    single = isinstance(prompt, str) or _is_chat(prompt) or getattr(prompt, "ndim", 2) == 1
    single = single or (len(prompt) > 0 and (_is_scalar(prompt[0]) or not hasattr(prompt[0], "__len__")))
    prompts = [prompt] if single else list(prompt)
    if not prompts:
        raise ValueError("prompt=[] is empty: give text, token ids, or a list of either.")
    return [_encode(target, p, "prompt" if single else f"prompt[{i}]") for i, p in enumerate(prompts)], single


def _without_padding(encoded):
    """The ids of a tokenizer's output for which its attention mask is 1."""
    ids, mask = encoded["input_ids"], encoded.get("attention_mask")
    if mask is None or len(ids) == 0:
        return ids
    if not _is_row(ids[0]):
        return [token for token, keep in zip(ids, mask) if int(keep)]
    return [[token for token, keep in zip(*row) if int(keep)] for row in zip(ids, mask)]


def _warn_of_padding(target, prompt):
    """Rows of one length of which some, not all, begin or end with the padding id are most likely padded."""
    padding = getattr(getattr(target.tokenizer, "hub", None), "pad_token_id", None)
    listed = isinstance(prompt, (list, tuple)) or getattr(prompt, "ndim", 0) == 2
    if padding is None or not listed or not all(_is_row(row) and len(row) for row in prompt):
        return
    padded = {place: sum(bool(row[place] == padding) for row in prompt) for place in (0, -1)}
    if len(set(map(len, prompt))) == 1 and any(0 < rows < len(prompt) for rows in padded.values()):
        warnings.warn(
            f"prompt: some rows begin or end with the padding id {padding}, and are read as they stand: give the "
            "tokenizer's whole output, whose attention mask tells what is text.",
            stacklevel=4,
        )


def _is_row(ids) -> bool:
    return isinstance(ids, (list, tuple)) or getattr(ids, "ndim", 0) == 1


def _is_chat(prompt) -> bool:
    """Whether this is one conversation: a list that begins with a message."""
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and isinstance(prompt[0], dict)


def _check_chat(target, messages, name):
    for i, message in enumerate(messages):
        fields = [message.get(field) for field in ("role", "content")] if isinstance(message, dict) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise ValueError(f'{name}[{i}]={message!r}: a message is {{"role": "user", "content": "…"}}.')
        encodable(message["content"], f"{name}[{i}]")
    if not hasattr(target.tokenizer, "chat"):
        raise ValueError(f"{name} is a conversation, but {target.name!r} has no tokenizer with a chat template.")


def _encode(target, prompt, name) -> list[int]:
    if isinstance(prompt, str):
        if target.tokenizer is None:
            raise ValueError(f"{name}={prompt!r} is text, but {target.name!r} has no tokenizer: give token ids.")
        ids = target.tokenizer.encode(encodable(prompt, name))
    elif _is_chat(prompt):
        _check_chat(target, prompt, name)
        ids = target.tokenizer.chat(list(prompt))
    else:
        ids = prompt
    ids = as_ids(ids, target, name)
    if not ids:
        raise ValueError(f"{name}={prompt!r} is empty: the first token needs at least one token before it.")
    if len(ids) > target.context:
        raise ValueError(
            f"{name} has {len(ids)} tokens, more than the context of {target.name!r} ({target.context}): shorten it."
        )
    return ids


def as_ids(ids, target, name) -> list[int]:
    """Token ids within target's vocabulary, as a list of ints."""
    try:
        if any(isinstance(token, bool) for token in ids):
            raise TypeError("True and False are no ids")
        ids = [operator.index(token) for token in ids]  # an id of 1.7 is an error, not a 1
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={ids!r}: must be token ids (integers).") from error
    outside = [token for token in ids if not 0 <= token < target.vocab_size]
    if outside:
        raise ValueError(
            f"{name}: ids {outside} are outside the vocabulary of {target.name!r} (0 .. {target.vocab_size - 1})."
        )
    return ids


def as_eos(eos, target) -> frozenset[int]:
    """The ids that end a text: an id or several."""
    single = _is_scalar(eos) or not hasattr(eos, "__iter__")
    return frozenset(as_ids([eos] if single else list(eos), target, "eos"))


def as_stops(stop, target) -> list[str]:
    """Stop strings, as a list."""
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, (list, tuple)) or any(not isinstance(text, str) or not text for text in stops):
        raise ValueError(f"stop={stop!r}: must be a string, or a list of strings, none of them empty.")
    if stops and target.tokenizer is None:
        raise ValueError(f"stop={stop!r}: {target.name!r} has no tokenizer, so it has no text to compare.")
    return [encodable(text, "stop") for text in stops]


def check_model(target):
    """ValueError unless target is a language model (specviz.models.protocol)."""
    names = ("vocab_size", "context", "tokenizer", "start_tokens", "new_cache")
    lacking = [name for name in names if not hasattr(target, name)]
    if lacking:
        raise ValueError(
            f"target is a {type(target).__name__} without {', '.join(lacking)}: must be a language model, such as "
            "CausalLM(model, tokenizer) around a transformers model; load_pair gives one by name."
        )
