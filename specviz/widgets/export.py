"""Widgets as one self-contained HTML file: their state, their module, and a stand-in for the kernel."""

from __future__ import annotations

import html
import json
from pathlib import Path

# The same three parts that anywidget gives a module: a model, an element, and the module's render().
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
{css}
</style>
</head>
<body class="sv-page">
<main>
<h1>{title}</h1>
{places}
<noscript><p>{noscript}</p></noscript>
</main>
{states}
<script type="module">
{shim}
{modules}
</script>
</body>
</html>
"""

SHIM = """\
// In place of the kernel: a model that keeps its state in the page.
class PageModel {
  constructor(state) {
    this.state = state;
    this.handlers = new Map();
  }
  get(name) {
    return this.state[name];
  }
  set(name, value) {
    if (Object.is(this.state[name], value)) return;
    this.state[name] = value;
    for (const handler of [...(this.handlers.get(`change:${name}`) ?? [])]) handler();
  }
  on(event, handler) {
    if (!this.handlers.has(event)) this.handlers.set(event, new Set());
    this.handlers.get(event).add(handler);
  }
  off(event, handler) {
    this.handlers.get(event)?.delete(handler);
  }
  save_changes() {}
  send() {}
}
function mountAll(part, module) {
  for (const place of document.querySelectorAll(`[data-part="${part}"]`)) {
    const state = JSON.parse(document.getElementById(place.dataset.state).textContent);
    module.render({ model: new PageModel(state), el: place });
  }
}
"""


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
    """The page's HTML. Two widgets of one kind share its module and keep states of their own."""
    widgets = list(widgets)
    places, states, modules, css = [], [], {}, {}
    for number, widget in enumerate(widgets):
        name = f"state-{number}"
        places.append(f'<div data-part="{widget.part}" data-state="{name}"></div>')
        state = widget.state() | {"kernel": False}
        states.append(f'<script type="application/json" id="{name}">{script_json(state)}</script>')
        modules[widget.part] = _module(widget.part, str(widget._esm))
        css[widget.part] = str(widget._css)
    return PAGE.format(
        title=html.escape(title),
        css="\n".join(css.values()),
        places="\n".join(places),
        noscript=html.escape(widgets[0].texts["noscript"] if widgets else ""),
        states="\n".join(states),
        shim=SHIM,
        modules="\n".join(modules.values()),
    )


def _module(part: str, esm: str) -> str:
    """A widget's module as a block of the page's one script; its names stay in the block."""
    head, marker, tail = esm.partition("\nexport default ")
    if not marker or "\nexport " in head + tail:
        raise ValueError(f"{part}.js: must have one export, 'export default {{ render }}', at the start of a line.")
    if "</script" in esm.lower() or "<!--" in esm:
        raise ValueError(f"{part}.js: '</script' or '<!--' in it would end the page's script.")
    return f'{{\n{head}\nmountAll("{part}", {tail.rstrip().removesuffix(";")});\n}}'


def script_json(data) -> str:
    """JSON that may stand in a script element: no character that HTML or old JavaScript would read as its own.

    Raises ValueError for NaN and infinities, which JSON does not know.
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
