"""The widgets' JavaScript: each file is an ES module, and a page is sent several of them joined into one text.

A notebook hands a browser one text for a widget, and an exported page is one file, so an import of a second file cannot
be followed there. Joined, each module is a function that returns its exports, and an import takes names from what an
earlier function returned. There is no build step: a browser, node or a linter reads each file as it is.
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent

IMPORT = re.compile(r'^import (\{[\w\s,]+\}) from "\./(\w+\.js)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:function|class|const) (\w+))", re.MULTILINE)
OTHER = re.compile(r"^\s*(?:import|export)\b.*|^.*\bimport\(.*", re.MULTILINE)


def joined(*names: str, folder: Path = FOLDER) -> str:
    """These modules, and before them those that they import, each once: modules["a.js"] has the exports of a.js.

    Raises ValueError for a statement in another form than: import { a, b } from "./c.js"; or export before a function,
    class or const, at the start of a line; and for modules that import each other.
    """
    blocks = {}

    def add(name, importers):
        if name in importers:
            raise ValueError(f"{name}: imports itself by way of {', '.join(importers)}; move the shared names out.")
        if name in blocks:
            return
        text = (folder / name).read_text(encoding="utf-8")
        for _, imported in IMPORT.findall(text):
            add(imported, [*importers, name])
        exports = ", ".join(EXPORT.findall(text))
        text = EXPORT.sub("", IMPORT.sub(r'const \1 = modules["\2"];', text))
        if other := OTHER.search(text):
            raise ValueError(f"{name}: {other[0].strip()!r} cannot be joined; use one of the forms in joined.__doc__.")
        blocks[name] = f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {exports} }};\n}})();'

    for name in names:
        add(name, [])
    return "\n\n".join(["const modules = {};", *blocks.values()])


def styles(*parts: str) -> str:
    """common.css and the style sheets of these widgets."""
    return "\n".join((FOLDER / f"{part}.css").read_text(encoding="utf-8") for part in ("common", *parts))
