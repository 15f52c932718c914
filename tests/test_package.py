"""The package as a whole: what importing it brings along, its public names, the way its arrows point."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import specviz
from tools import reference

PACKAGE = Path(specviz.__file__).parent
ROOT = PACKAGE.parent


def test_importing_specviz_brings_neither_torch_nor_matplotlib_nor_widgets():
    heavy = "{'torch', 'transformers', 'matplotlib', 'ipywidgets', 'tokenizers', 'scipy'}"
    code = f"import sys, specviz, specviz.plots, specviz.widgets; print(*{heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []


@pytest.mark.parametrize("room", reference.ROOMS)
def test_public_names_are_there_and_documented(room):
    module = import_module(room)
    assert module.__doc__
    if "__all__" in vars(module):
        assert sorted(dir(module)) == sorted(module.__all__)
    for name in reference.public(module):
        value = getattr(module, name)
        assert not callable(value) or value.__doc__, name


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(specviz, "speculative")


def test_the_reference_is_what_the_docstrings_say():
    assert reference.FILE.read_text(encoding="utf-8") == reference.reference(), "python tools/reference.py writes it"


# --- the map --------------------------------------------------------------------------------------


def rooms() -> dict[str, set[str]]:
    """CONTRIBUTING's map, {room: the rooms that it may import}, from the top floor down."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("| room of `specviz/`") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    named = [[name.rstrip("/").removesuffix(".py") for name in re.findall(r"`([\w./]+)`", row[0])] for row in rows]
    allowed = {}
    for at, (names, row) in enumerate(zip(named, rows)):
        below = [name for later in named[at + 1 :] for name in later]
        if row[2].startswith("all below"):
            may = set(below) - {name.rstrip("/") for name in re.findall(r"`(\w+)/?`", row[2])}
        else:
            may = {name.strip() for name in row[2].split(",") if name.strip()}
        assert may <= set(below), f"{names}: the map has an arrow upwards: {may - set(below)}"
        allowed |= dict.fromkeys(names, may)
    return allowed


def public_names() -> dict[str, str]:
    """{public name of specviz: its room}, as __init__.pyi has them."""
    nodes = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8")).body
    found = [(node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    return {name: (module or name).split(".")[0] for module, name in found}


def imports(file) -> set[str]:
    """The rooms of specviz that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    rooms = {name.split(".")[1] for name in found if name.startswith("specviz.")}
    return {public_names().get(name, name) for name in rooms}


def room_of(file) -> str:
    parts = file.relative_to(PACKAGE).parts
    return "commands" if parts[0] == "__main__.py" else parts[0].removesuffix(".py")


FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


def test_the_map_shows_every_room():
    assert {room_of(file) for file in FILES} == rooms().keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_arrows_point_downwards(file):
    outside = imports(file) - rooms()[room_of(file)] - {room_of(file)}
    assert not outside, f"CONTRIBUTING's map has no arrow from {room_of(file)} to {outside}"


def test_files_of_one_room_import_each_other_without_a_circle():
    graph = {}
    for file in FILES:
        module = ".".join(["specviz", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
        nodes = ast.parse(file.read_text(encoding="utf-8")).body  # at the top level: others wait until they are needed
        graph[module] = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    while leaves := {module for module, to in graph.items() if not to & graph.keys()}:
        graph = {module: to for module, to in graph.items() if module not in leaves}
    assert not graph, f"in a circle, or above one: {sorted(graph)}"


def test_the_algorithm_knows_arrays_alone():
    nodes = ast.parse((PACKAGE / "verification.py").read_text(encoding="utf-8")).body
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "dataclasses", "operator", "specviz.arrays"}
