"""Run the notebooks, write copies for students, check the house rules.

    python tools/notebooks.py run [01-draft …]        # execute in place, keep the outputs
    python tools/notebooks.py student [--out student] # copies without solutions
    python tools/notebooks.py check [01-draft …]

Cells carry tags: `setup` (the install cell, see repository.py); `exercise`, `check` and `solution`, three cells
in a row with the cell metadata {"exercise": "its name"}; `widget`, with a `static` picture or table within two
cells; `full-decoder`, the one cell that may be long.
"""

import argparse
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
WIDGET = "application/vnd.jupyter.widget-view+json"
BADGE = re.compile(r"\[!\[Open in Colab\]\(\S+\)\]\(\S+\)\n?")
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
MAX_CELLS, MAX_BYTES, MAX_LINES, MAX_LINES_OF_SOME = 60, 1_000_000, 10, 25
LONGER = {"full-decoder", "exercise", "setup"}  # tags of the cells that may have MAX_LINES_OF_SOME
# What a compared cell may not ask for: its output would depend on the machine, its load, or the window's width.
MACHINE_MADE = re.compile(
    r"perf_counter|monotonic|process_time|time\.time|timeit|\bseconds\b|\bprofile\(|cpu_count|get_num_threads"
    r"|get_terminal_size|\btqdm\b|progress=True"
)
MACHINE_PATH = re.compile(rf"{re.escape(str(ROOT))}|/(?:root|home|Users|tmp)/|[A-Z]:\\Users")


def tags(cell):
    return set(cell.metadata.get("tags", []))


def text_of(output):
    """What an output says in words: streams, reprs, tables; no images."""
    parts = [output.get("text", "")]
    parts += [data for kind, data in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)


# --- exercises ----------------------------------------------------------------------------------


@dataclass
class Exercise:
    name: str
    stub: int  # index of its cell
    check: int
    solution: int


def exercises(notebook):
    """The exercises of a notebook in order; what is not a whole triple is left to `problems`."""
    cells = notebook.cells
    return [
        Exercise(cell.metadata.get("exercise", ""), i, i + 1, i + 2)
        for i, cell in enumerate(cells[:-2])
        if "exercise" in tags(cell) and "check" in tags(cells[i + 1]) and "solution" in tags(cells[i + 2])
    ]


def solution_code(cell):
    return FENCE.search(cell.source)[1]


# --- run ----------------------------------------------------------------------------------------


def run(path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,  # a print that arrived in two pieces stays one line
    )
    client.execute()
    tidy(notebook)
    nbformat.write(notebook, path)


def tidy(notebook):
    """Drop what differs from run to run and teaches nothing, and what GitHub does not show."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata.get("language_info", {}).pop("version", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            if output.get("name") == "stderr":
                print(f"dropped from stderr: {output.text.strip()[-200:]}")
            elif WIDGET in output.get("data", {}):
                # A stored widget has no model behind it any more: viewers would show an error.
                output.data = {"text/plain": "(a widget: run this cell to use it)"}
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]


# --- student copies -----------------------------------------------------------------------------


def student_copy(notebook):
    """Take out the solutions, the outputs of exercises and checks, and the badge, which leads to the solutions."""
    notebook.cells = [cell for cell in notebook.cells if "solution" not in tags(cell)]
    notebook.cells[0].source = BADGE.sub("", notebook.cells[0].source)
    for cell in notebook.cells:
        if tags(cell) & {"exercise", "check"}:
            cell.outputs, cell.execution_count = [], None
    return notebook


def write_student_copies(out):
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(student_copy(nbformat.read(path, as_version=4)), out / path.name)
        print(out / path.name)


# --- house rules --------------------------------------------------------------------------------


def problems(path):
    """What in this notebook breaks a house rule: a list of sentences."""
    notebook = nbformat.read(path, as_version=4)
    cells = notebook.cells
    code = [(i, cell) for i, cell in enumerate(cells) if cell.cell_type == "code"]
    found = []

    def rule(holds, sentence):
        if not holds:
            found.append(f"{path.name}: {sentence}")

    rule(path.stat().st_size < MAX_BYTES, f"is larger than {MAX_BYTES / 1e6:g} MB")
    rule(len(cells) <= MAX_CELLS, f"has {len(cells)} cells, more than {MAX_CELLS}")
    rule("widgets" not in notebook.metadata, "has metadata.widgets, with which GitHub does not show it")
    rule(cells[0].cell_type == "markdown" and cells[0].source.startswith("# "), "cell 0 is not the title")
    rule(f"/notebooks/{path.name})" in "".join(BADGE.findall(cells[0].source)), "cell 0 lacks its Open-in-Colab badge")
    rule(sum("setup" in tags(cell) for cell in cells) == 1, "needs exactly one cell tagged setup")
    rule(code and "setup" in tags(code[0][1]), "the first code cell is not the setup cell")
    counts = [cell.execution_count for _, cell in code]
    rule(counts == list(range(1, len(code) + 1)), f"execution counts are not 1, 2, 3, …: {counts}")

    for i, cell in code:
        lines = sum(bool(line.strip()) for line in cell.source.splitlines())
        most = MAX_LINES_OF_SOME if tags(cell) & LONGER else MAX_LINES
        rule(lines <= most, f"cell {i} has {lines} lines of code, more than {most}")
        rule(all(output.output_type != "error" for output in cell.outputs), f"cell {i} ended with an error")
        said = "\n".join(map(text_of, cell.outputs))
        rule(not MACHINE_PATH.search(said), f"cell {i} shows a path of the machine that ran it")
        compared = "NBVAL_CHECK_OUTPUT" in cell.source or "nbval-check-output" in tags(cell)
        rule(not compared or cell.outputs, f"cell {i} has NBVAL_CHECK_OUTPUT and no output to compare with")
        of_machine = set(MACHINE_MADE.findall(cell.source)) if compared else ()
        rule(not of_machine, f"cell {i} has NBVAL_CHECK_OUTPUT and shows what depends on the machine: {of_machine}")

    for i, cell in enumerate(cells):
        if "widget" in tags(cell):
            near = cells[max(0, i - 2) : i] + cells[i + 1 : i + 3]
            rule(any("static" in tags(other) for other in near), f"cell {i}: no static picture beside the widget")
    return found + exercise_problems(path, cells, exercises(notebook))


def exercise_problems(path, cells, triples):
    found = []
    whole = {i for e in triples for i in (e.stub, e.check, e.solution)}
    for i, cell in enumerate(cells):
        if tags(cell) & {"exercise", "check", "solution"} and i not in whole:
            found.append(f"{path.name}: cell {i} is not part of a triple: exercise, check, solution")
    for e in triples:
        kinds = [cells[i].cell_type for i in (e.stub, e.check, e.solution)]
        names = {cells[i].metadata.get("exercise") for i in (e.stub, e.check, e.solution)}
        solution = cells[e.solution].source
        if kinds != ["code", "code", "markdown"]:
            found.append(f"{path.name}: cell {e.stub}: stub and check must be code, the solution markdown")
        if not e.name or names != {e.name}:
            found.append(f"{path.name}: cell {e.stub}: the three cells name different exercises: {names}")
        if f'check("{e.name}"' not in cells[e.check].source:
            found.append(f'{path.name}: cell {e.check}: does not call check("{e.name}", …)')
        if solution.count("<details>") != 1 or solution.count("</details>") != 1 or len(FENCE.findall(solution)) != 1:
            found.append(f"{path.name}: cell {e.solution}: needs one <details> block with one ```python fence")
        elif not re.search(r"<details>.*\n\n```python\n.*^```\n.*</details>", solution, re.MULTILINE | re.DOTALL):
            found.append(f"{path.name}: cell {e.solution}: the fence needs an empty line before it, inside <details>")
    if len({e.name for e in triples}) < len(triples):
        found.append(f"{path.name}: two exercises have the same name")
    if triples and not any(f'summary("{path.stem}")' in cell.source for cell in cells[triples[-1].solution :]):
        found.append(f'{path.name}: no cell after the last exercise calls summary("{path.stem}")')
    return found


def main():
    parser = argparse.ArgumentParser(description="Run, copy for students, or check the notebooks.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("run", "check"):
        names = commands.add_parser(command).add_argument("names", nargs="*", help="01-draft …; all without any")
    student = commands.add_parser("student")
    student.add_argument("--out", type=Path, default=ROOT / "student")
    args = parser.parse_args()
    if args.command == "student":
        return write_student_copies(args.out)

    names = [Path(name).stem for name in args.names]
    paths = [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(NOTEBOOKS.glob("*.ipynb"))
    if args.command == "check":
        found = [problem for path in paths for problem in problems(path)]
        print("\n".join(found) or f"{len(paths)} notebooks keep the house rules")
        sys.exit(bool(found))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the outputs that are kept are those of the bundled pair
    for path in paths:
        print(f"running {path.name}", flush=True)
        try:
            run(path)
        except CellExecutionError as error:
            sys.exit(f"{path.name} stopped, and was not changed:\n{error}")


if __name__ == "__main__":
    main()
