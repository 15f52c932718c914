"""docs/reference.md: the public names of specviz and its rooms, with their signatures and docstrings.

    python tools/reference.py            # write it
    python tools/reference.py --check    # exit status 1 if it isn't what the docstrings say
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

ROOMS = (
    "specviz", "specviz.steps", "specviz.rules", "specviz.drafters", "specviz.models", "specviz.zoo",
    "specviz.equivalence", "specviz.speedup", "specviz.speedup.theory", "specviz.widgets", "specviz.plots",
)  # fmt: skip
FILE = Path(__file__).parent.parent / "docs" / "reference.md"
HEAD = """# Reference

The public names of specviz, made from the docstrings by `python tools/reference.py`. The lessons and the
[README](../README.md) show how they are used.
"""


def reference() -> str:
    """The whole page. Each name is described once, in the first room that lists it."""
    described: dict[int, str] = {}
    return "\n".join([HEAD, *(part for room in ROOMS for part in _room(room, described))])


def _room(room, described):
    module = importlib.import_module(room)
    yield f"## {room}\n\n{inspect.getdoc(module)}\n"
    for name in sorted(public(module), key=str.lower):
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            yield f"- `{value.__name__}`: {inspect.getdoc(value).splitlines()[0]}"
        elif id(value) in described:
            yield f"- `{name}`: see {described[id(value)]}"
        else:
            described[id(value)] = room
            yield from _entry(name, value)
    yield ""


def public(module) -> list[str]:
    """What __all__ lists; of a module without it the functions and classes that it defines."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]


def _entry(name, value):
    is_class = inspect.isclass(value)
    if not is_class and not inspect.isfunction(value):
        yield f"\n### {name}\n\n{_value(value)}"
        return
    yield f"\n### {name}\n\n```python\n{'class ' if is_class else ''}{name}{_signature(value)}\n```\n"
    yield f"```text\n{inspect.getdoc(value)}\n```\n"
    if is_class:
        for method, member in vars(value).items():
            described = inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod, property))
            if described and not method.startswith("_") and (text := inspect.getdoc(getattr(value, method))):
                shown = "" if isinstance(member, property) else _signature(getattr(value, method))
                yield f"- `.{method}{shown}`: {_first_sentence(text)}"


def _value(constant) -> str:
    """A constant as it is, and of a dict or list the names of what it holds."""
    if not isinstance(constant, (dict, list)):
        return f"`{constant!r}`"
    names = dict.fromkeys(getattr(held, "name", held) for held in constant)
    return f"A {type(constant).__name__} of: {', '.join(f'`{name}`' for name in names)}."


def _signature(value) -> str:
    """One argument a line where they do not fit into one."""
    try:
        text = re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return "(…)"
    text = text.replace("(self, ", "(").replace("(self)", "()")
    text = re.sub(r"(: |-> )(['\"])(.*?)\2(?= = |, |\)|$)", r"\1\3", text)  # annotations are kept as strings
    if len(text) <= 90:
        return text
    arguments, _, answer = text[1:].rpartition(")")
    parts = re.split(r", (?=[*\w/]+(?::|=|,|$))", arguments)
    return "(\n    " + ",\n    ".join(parts) + ",\n)" + answer


def _first_sentence(text) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    text = reference()
    if parser.parse_args(arguments).check:
        same = FILE.is_file() and FILE.read_text(encoding="utf-8") == text
        print("docs/reference.md is up to date" if same else "docs/reference.md is old: python tools/reference.py")
        return 0 if same else 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
