"""Checks that arguments of several modules share."""

from __future__ import annotations

import operator


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


def encodable(text: str, name: str) -> str:
    """text, unless it holds a lone surrogate, which no tokenizer and no file can take."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}={text!r} holds half a character ({error.reason}): remove it.") from None
    return text
