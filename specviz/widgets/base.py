"""What all widgets share: their files, their traits, a message in place of bad data, export to a page."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import anywidget
import traitlets

FOLDER = Path(__file__).parent


class Widget(anywidget.AnyWidget):
    """A picture that is drawn, and answers, in the browser; Python supplies the data.

        class Player(Widget):
            part = "player"

    takes player.js and player.css from this folder, each behind the common file of its kind, and the texts "common"
    and "player" of texts.json. No build step: the joined text is the module that the browser runs.

    data    all that the browser needs, as JSON (so ids are strings where they are keys)
    error   what is wrong with the data; shown in the widget's place when it is not empty
    texts   every word of the interface
    kernel  whether Python answers; False in an exported page

    Further traits of a subclass tagged sync=True travel both ways and into exported pages.
    """

    data = traitlets.Dict().tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    texts = traitlets.Dict().tag(sync=True)
    kernel = traitlets.Bool(True).tag(sync=True)

    part = "common"

    def __init_subclass__(cls, **kwargs):
        if "part" in vars(cls):  # not a class keyword, which the metaclass of traitlets 5.7 would refuse
            cls._esm, cls._css = joined(cls.part, "js"), joined(cls.part, "css")
        super().__init_subclass__(**kwargs)

    def __init__(self, **traits):
        super().__init__(texts=texts(self.part), **traits)

    def fill(self, make, *arguments):
        """Set data to make(*arguments), or error to what the ValueError says that it raised instead."""
        try:
            data, error = make(*arguments), ""
        except ValueError as problem:
            data, error = {}, str(problem)
        with self.hold_sync():  # the browser sees both at once
            self.data, self.error = data, error

    def state(self) -> dict:
        """{name: value} of the traits that are the widget's own: what an exported page starts from."""
        inherited = set(anywidget.AnyWidget.class_trait_names())
        names = [name for name in self.trait_names(sync=True) if name not in inherited and not name.startswith("_")]
        return {name: getattr(self, name) for name in sorted(names)}

    def to_html(self, path, title: str | None = None) -> Path:
        """Write one self-contained HTML file, which needs neither a kernel nor the network, and return its path.

        What is computed in the browser keeps working there; what needs Python is shown disabled with the reason.
        Raises ValueError for a path that cannot be written.
        """
        from specviz.widgets.export import write

        return write(path, [self], title or self.texts["title"])

    def __repr__(self):
        return f"<{type(self).__name__}{': ' + self.error if self.error else ''}>"


def joined(part: str, kind: str) -> str:
    """The text of common.kind and part.kind, one behind the other."""
    files = (FOLDER / f"common.{kind}", FOLDER / f"{part}.{kind}")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


@cache
def _all_texts() -> dict:
    return json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))


def texts(part: str) -> dict:
    """The words of one widget: those that all share, and its own."""
    everything = _all_texts()
    return everything["common"] | everything.get(part, {})
