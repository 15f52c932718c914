"""Each exercise's check passes with the solution, and fails with the stub and with typical wrong answers."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from wrong_answers import WRONG

from tools.notebooks import exercises, solution_code

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_checks_judge_rightly(name):
    """One kernel runs the notebook up to its last check, and tries several answers in each stub's place.

    The solution comes last, so that what follows in the notebook builds on it.
    """
    notebook = read(name)
    cells, script, tries = notebook.cells, [], []
    triples = exercises(notebook)
    by_stub = {e.stub: e for e in triples}
    checks = {e.check for e in triples}
    for i in range(triples[-1].check + 1 if triples else 0):
        if i in by_stub:
            e = by_stub[i]
            answers = [("the stub", cells[i].source, False)]
            answers += [("a wrong answer", code, False) for code in WRONG.get(name, {}).get(e.name, [])]
            answers += [("the solution", solution_code(cells[e.solution]), True)]
            for kind, code, passes in answers:
                script += [code, cells[e.check].source, probe(e.name)]
                tries.append((e.name, kind, code, passes))
        elif i not in checks and cells[i].cell_type == "code":
            script.append(cells[i].source)

    misjudged = []
    for (exercise, kind, code, passes), result in zip(tries, outcomes(script), strict=True):
        if result["passed"] != passes:
            misjudged.append(f"{exercise}: {kind} got {result}\n{code}")
    assert not misjudged, "\n\n".join(misjudged)


def probe(exercise):
    """Code that prints the latest verdict on an exercise."""
    return (
        "import json as _json, specviz.exercises as _exercises\n"
        f"_verdict = _exercises.results[{exercise!r}]\n"
        "print(_json.dumps({'passed': _verdict.passed, 'message': _verdict.message}))"
    )


def outcomes(script):
    """Run the cells in a fresh kernel; what the probes among them printed."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in script])
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    return [
        json.loads(cell.outputs[0].text) for cell in notebook.cells if cell.source.startswith("import json as _json")
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_exercise_has_a_wrong_answer(name):
    missing = [e.name for e in exercises(read(name)) if not WRONG.get(name, {}).get(e.name)]
    assert not missing


def test_wrong_answers_belong_to_an_exercise():
    known = {(name, e.name) for name in NOTEBOOKS for e in exercises(read(name))}
    assert {(name, exercise) for name in WRONG for exercise in WRONG[name]} <= known
