"""The base class of all widgets: their files, their traits, a message in place of bad data, export to a page."""

from __future__ import annotations

import json
from pathlib import Path

import anywidget
import traitlets

from specviz.widgets.modules import FOLDER, joined, styles


class Widget(anywidget.AnyWidget):
    """A picture that is drawn, and answers, in the browser; Python supplies the data.

        class Player(Widget):
            part = "player"

    has the module player.js with all that it imports, common.css and player.css, and the texts "common" and "player"
    of texts.json.

    data    everything to draw, as JSON (so ids are strings where they are keys)
    error   the fault of the data; shown in the widget's place when it is not empty
    texts   every word of the interface
    kernel  whether Python answers; False in an exported page

    Further traits of a subclass tagged sync=True travel both ways and into exported pages.
    """

    data = traitlets.Dict().tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    texts = traitlets.Dict().tag(sync=True)
    kernel = traitlets.Bool(True).tag(sync=True)

    def __init_subclass__(cls, **kwargs):
        if "part" in vars(cls):  # not a class keyword, which the metaclass of traitlets 5.7 would refuse
            module = f"{cls.part}.js"
            cls._esm = f'{joined(module)}\n\nexport default {{ render: modules["{module}"].render }};\n'
            cls._css = styles(cls.part)
        super().__init_subclass__(**kwargs)

    def __init__(self, **traits):
        super().__init__(texts=texts(self.part), **traits)

    def fill(self, make, *arguments):
        """Set data to make(*arguments), or error to the message of the ValueError that it raises."""
        try:
            data, error = make(*arguments), ""
        except ValueError as problem:
            data, error = {}, str(problem)
        with self.hold_sync():  # the browser sees both at once
            self.data, self.error = data, error

    def state(self) -> dict:
        """{name: value} of the widget's own traits: the initial state of an exported page."""
        inherited = set(anywidget.AnyWidget.class_trait_names())
        names = [name for name in self.trait_names(sync=True) if name not in inherited and not name.startswith("_")]
        return {name: getattr(self, name) for name in sorted(names)}

    def to_html(self, path, title: str | None = None) -> Path:
        """Write one self-contained HTML file, which needs neither a kernel nor the network, and return its path.

        Everything that the browser computes works there, and the address of the page follows each change, so that a
        link leads to the same situation. Controls that need Python are disabled, with the reason.
        Raises ValueError for a path that cannot be written.
        """
        from specviz.widgets.export import write

        return write(path, [self], title or self.texts["title"])

    def __repr__(self):
        return f"<{type(self).__name__}{': ' + self.error if self.error else ''}>"


def texts(part: str) -> dict:
    """The words of one widget: the common ones and its own."""
    everything = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))
    return everything["common"] | everything.get(part, {})
