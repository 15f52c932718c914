"""The file from which an audit goes on: a line of JSON with its settings, then one for each call's continuations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FORMAT = 1
_BEGINNING = b'{"specviz_audit"'


@contextmanager
def resume_file(path, header: dict) -> Iterator[tuple[list, Callable]]:
    """The calls that a file of this header holds, and a function that adds one; without a path, nothing is kept.

    Raises ValueError where no file can be, and for any file but one of this header; it is left as it was.
    """
    if path is None:
        yield [], lambda texts: None
        return
    if not isinstance(path, (str, os.PathLike)) or os.path.isdir(path):
        raise ValueError(f"resume={path!r}: must be the path of a file (it need not exist yet), not a folder.")
    if not os.path.isdir(folder := os.path.dirname(os.path.abspath(path))):
        raise ValueError(f"resume={str(path)!r}: the folder {folder!r} does not exist; make it first.")
    header = dict(specviz_audit=FORMAT, **header)
    calls = _read(path, header) if os.path.exists(path) else []
    with open(path, "a", encoding="utf-8", newline="\n") as file:

        def keep(entry):
            file.write(json.dumps(entry) + "\n")
            file.flush()

        if file.tell() == 0:
            keep(header)
        yield calls, keep


def _read(path, header) -> list[list[list[int]]]:
    """The calls in a file that belongs to header; a last line that was cut off is removed from it."""
    with open(path, "rb") as file:
        content = file.read()
    if not content.startswith(_BEGINNING[: len(content)]):
        raise ValueError(f"resume={str(path)!r} is no file of an audit; it was left alone. Name a new one.")
    whole = content.rfind(b"\n") + 1
    entries = []
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"resume={str(path)!r}: line {number} is damaged ({error}); start a new file.") from None
        if number > 1 and not isinstance(entries[-1], list):
            raise ValueError(f"resume={str(path)!r}: line {number} holds no continuations; start a new file.")
    if entries:
        kept = entries.pop(0)
        if different := [name for name in header if kept.get(name) != header[name]]:
            told = "; ".join(f"{name} was {kept.get(name)!r} and is {header[name]!r}" for name in different)
            raise ValueError(f"resume={str(path)!r} holds another audit: {told}. Use the same settings, or a new file.")
    if whole < len(content):
        os.truncate(path, whole)
    return entries
