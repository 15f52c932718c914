"""Widgets as one self-contained HTML file: page.html, their states, their modules, and page.js for the kernel."""

from __future__ import annotations

import html
import json
from pathlib import Path

from specviz.widgets.modules import FOLDER, joined, styles


def write(path, widgets, title: str = "specviz") -> Path:
    """Write a page with these widgets, top to bottom. Raises ValueError for a path that cannot be written."""
    text = page(widgets, title)
    try:
        path = Path(path)
        path.write_text(text, encoding="utf-8")
    except (OSError, TypeError) as problem:
        raise ValueError(f"path={path!r} cannot be written ({problem}); give a file name in a folder.") from problem
    return path


def page(widgets, title: str = "specviz") -> str:
    """The page's HTML. Widgets share their modules and keep states of their own."""
    widgets = list(widgets)
    parts = list(dict.fromkeys(widget.part for widget in widgets))
    states = [script_json(widget.state() | {"kernel": False}) for widget in widgets]
    mount = [f'modules["page.js"].mountAll("{part}", modules["{part}.js"].render);' for part in parts]
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    return template.format(
        title=html.escape(title),
        css=styles(*parts),
        places="\n".join(f'<div data-part="{w.part}" data-number="{n}"></div>' for n, w in enumerate(widgets)),
        noscript=html.escape(widgets[0].texts["noscript"] if widgets else ""),
        states="\n".join(f'<script type="application/json" id="state-{n}">{s}</script>' for n, s in enumerate(states)),
        code="\n".join([joined("page.js", *(f"{part}.js" for part in parts)), *mount]),
    )


def script_json(data) -> str:
    """JSON for a script element, without the characters that HTML or old JavaScript would read as their own.

    Raises ValueError for NaN and infinities, which JSON does not have.
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
