"""The package as a whole: what importing it brings along, its public names, the way its arrows point."""

import ast
import subprocess
import sys
from pathlib import Path

import specviz

PACKAGE = Path(specviz.__file__).parent


def test_importing_specviz_brings_neither_transformers_nor_matplotlib_nor_widgets():
    code = "import sys, specviz; print(*{'transformers', 'matplotlib', 'ipywidgets', 'tokenizers'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []


def test_public_names_are_there_and_documented():
    for name in specviz.__all__:
        assert getattr(specviz, name).__doc__, name


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(specviz, "speculative")


def imports(file):
    """Modules that a file imports at its top level."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module


def test_arrows_point_one_way():
    """verification knows arrays alone; nothing below knows the decoder; the decoder knows no figure and no exercise."""
    for file, known in (("arrays.py", {"numpy", "torch"}), ("verification.py", {"numpy", "torch", "specviz.arrays"})):
        assert set(imports(PACKAGE / file)) - {"__future__", "dataclasses", "functools", "operator"} == known
    for folder in ("models", "drafters"):
        for file in (PACKAGE / folder).glob("*.py"):
            decoder = ("specviz.decoding", "specviz.steps", "specviz.streaming", "specviz.recording")
            assert not any(module.startswith(decoder) for module in imports(file)), file
    for file in PACKAGE.glob("*.py"):
        if file.name != "plots.py":
            assert not any("plots" in module or "exercises" in module for module in imports(file)), file
    for file in (PACKAGE / "backends").glob("*.py"):
        rooms = {module.split(".")[1] for module in imports(file) if module.startswith("specviz.")}
        assert rooms <= {"backends", "progress"}, file
