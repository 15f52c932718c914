"""The files around the code: packaging, environments, badges, and the house rules of the notebooks."""

import json
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement

from tools import notebooks, repository, setup_venv

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BENCHMARKS = [file.relative_to(ROOT) for file in (ROOT / "benchmarks").glob("*.py")]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# From Colab's published list of 2026-02.
COLAB = {
    "torch": "2.10.0+cpu",
    "transformers": "5.0.0",
    "numpy": "2.0.2",
    "scipy": "1.16.3",
    "matplotlib": "3.10.0",
    "ipywidgets": "7.7.1",
    "anywidget": "0.9.21",
}
CONDA_NAMES = {"pytorch": "torch"}  # where conda-forge calls a package otherwise


def requirements(*extras):
    """{name: Requirement} of pyproject.toml, with those of the extras."""
    lines = PROJECT["dependencies"] + [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    return {r.name: r for r in map(Requirement, lines)}


def constraints():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {r.name: r for r in pinned}


@pytest.mark.parametrize("script", ["tools/setup_venv.py", *sorted(map(str, BENCHMARKS))])
def test_help_shows_what_a_script_is_for_and_does_nothing(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert not end.value.code and capsys.readouterr().out.startswith(f"usage: {Path(script).name}")


# --- versions -----------------------------------------------------------------------------------


def test_every_requirement_is_pinned_within_its_range():
    pins = constraints()
    for name, requirement in requirements("fast", "lab", "test").items():
        pinned = next((pin for key, pin in pins.items() if key.lower() == name.lower()), None)
        assert pinned is not None, f"constraints.txt lacks {name}"
        (exact,) = pinned.specifier
        assert exact.operator == "==" and "+" not in exact.version, pinned
        assert requirement.specifier.contains(exact.version), f"{pinned} is outside of {requirement}"


@pytest.mark.parametrize("name", COLAB)
def test_colab_needs_no_upgrade(name):
    assert requirements()[name].specifier.contains(COLAB[name])


def test_conda_environment_is_that_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert "-e ." in pip
    entries = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    entries += [entry for entry in pip if entry != "-e ."]
    # conda writes python=3.12 for pip's python==3.12.*
    entries = [entry.replace("python=3", "python==3") for entry in entries]
    found = {CONDA_NAMES.get(r.name, r.name): r for r in map(Requirement, entries)}
    (python,) = found.pop("python").specifier
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python.version)
    assert found.pop("pip")
    assert {name: r.specifier for name, r in found.items()} == {
        name: r.specifier for name, r in requirements("fast", "lab", "test").items()
    }


def test_setup_keeps_a_torch_that_pyproject_accepts():
    assert str(requirements()["torch"].specifier) == ">=" + ".".join(map(str, setup_venv.OLDEST_TORCH))


# --- badges and setup cells ---------------------------------------------------------------------


def test_badges_and_setup_cells_name_this_repository():
    assert repository.problems() == []


@pytest.fixture
def project(tmp_path):
    """A copy of what names the repository, with one notebook more than there is."""
    for name in ("pyproject.toml", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", dirs_exist_ok=True)
    repo = repository.owner_name()
    nbformat.write(lesson(repo), tmp_path / "notebooks" / "99-test.ipynb")
    badges = [repository.BADGE.format(repo=repo, name=path.stem) for path in (tmp_path / "notebooks").glob("*.ipynb")]
    other = "See https://github.com/huggingface/transformers/issues/1 and https://github.com/google-research/t5x."
    readme = "\n".join([*badges, f"git clone https://github.com/{repo}", other, ""])
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    return tmp_path


def lesson(repo="specviz/specviz"):
    """A notebook that keeps every house rule, with one exercise and one widget."""
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    triple = [
        code("answer = None", metadata={"tags": ["exercise"], "exercise": "sum"}),
        code('check("sum", answer)', metadata={"tags": ["check"], "exercise": "sum"}),
        markdown(
            "<details><summary>Solution</summary>\n\n```python\nanswer = 1 + 1\n```\n\n</details>",
            metadata={"tags": ["solution"], "exercise": "sum"},
        ),
    ]
    cells = [
        markdown("# A test – γ\n\n" + repository.BADGE.format(repo=repo, name="99-test") + "\n\nTen minutes."),
        code(repository.SETUP.format(repo=repo), metadata={"tags": ["setup"]}),
        code("show()", metadata={"tags": ["widget"]}),
        code("print(1)", metadata={"tags": ["static"]}, outputs=[nbformat.v4.new_output("stream", text="1\n")]),
        *triple,
        code('summary("99-test")'),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    for count, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
    return notebook


def contents(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_fork_is_one_command_away_and_so_is_the_way_back(project):
    before, repo = contents(project), repository.owner_name(project)
    assert repository.problems(project) == []

    repository.write(project, "some-one/fork.2")
    assert repository.problems(project) == []
    for path, text in contents(project).items():
        assert text != before[path], f"{path} did not change"
        assert repo.encode() not in text, f"{path} still names {repo}"
    readme = (project / "README.md").read_text(encoding="utf-8")
    assert "https://github.com/huggingface/transformers/issues/1 and https://github.com/google-research/t5x." in readme

    repository.write(project, repo)
    assert contents(project) == before


@pytest.mark.parametrize("file", ["README.md", "CITATION.cff", "notebooks/99-test.ipynb"])
def test_an_address_of_another_repository_is_found(project, file):
    path = project / file
    path.write_text(path.read_text(encoding="utf-8").replace(repository.owner_name(), "an/other"), encoding="utf-8")
    assert any(file in problem for problem in repository.problems(project))
    repository.write(project)
    assert repository.problems(project) == []


def test_a_changed_setup_cell_is_found_and_mended(project):
    path = project / "notebooks" / "99-test.ipynb"
    before = path.read_bytes()
    path.write_bytes(before.replace(b"%pip install -q", b"%pip install -U"))
    assert repository.problems(project)
    repository.write(project)
    assert path.read_bytes() == before


def test_the_setup_cell_keeps_what_is_installed(monkeypatch):
    """Without specviz it runs pip once, and asks for the torch, transformers and widgets that are there."""
    import importlib.metadata
    import sys

    from IPython.core.inputtransformer2 import TransformerManager

    class Shell:
        def run_line_magic(self, magic, line):
            asked.append((magic, line))
            sys.modules["specviz"] = importlib  # anything that can be imported now

    asked = []
    source = TransformerManager().transform_cell(repository.SETUP.format(repo="a/b"))
    monkeypatch.setitem(sys.modules, "specviz", None)  # makes `import specviz` fail
    names = {"get_ipython": Shell}
    exec(source, names)
    (magic, line), keep = asked[0], names["keep"]
    assert (magic, line) == ("pip", 'install -q "specviz[fast] @ git+https://github.com/a/b" {keep}')
    version = importlib.metadata.version
    kept = ("torch", "transformers", "ipywidgets", "protobuf")
    assert sorted(keep.split()) == sorted(f"{name}=={version(name)}" for name in kept)


# --- notebooks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_house_rules(path):
    assert notebooks.problems(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_as_jupyter_saves_it(path):
    text = path.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_student_copies_hold_no_solution(path):
    notebook = nbformat.read(path, as_version=4)
    solutions = [notebooks.solution_code(notebook.cells[e.solution]) for e in notebooks.exercises(notebook)]
    copy = notebooks.student_copy(nbformat.read(path, as_version=4))
    assert len(copy.cells) == len(notebook.cells) - len(solutions)
    text = "\n".join(cell.source for cell in copy.cells)
    assert "<details>" not in text and "Open in Colab" not in text
    assert not any(solution.strip() in text for solution in solutions)


def test_the_model_lesson_keeps_the_house_rules(tmp_path):
    assert broken(tmp_path, lambda notebook: None) == []


def broken(tmp_path, change):
    notebook = lesson()
    change(notebook)
    nbformat.write(notebook, tmp_path / "99-test.ipynb")
    return notebooks.problems(tmp_path / "99-test.ipynb")


def output(text):
    return [nbformat.v4.new_output("stream", text=text)]


@pytest.mark.parametrize(
    ("says", "change"),
    [
        ("61 cells", lambda n: n.cells.extend(nbformat.v4.new_markdown_cell() for _ in range(61 - len(n.cells)))),
        ("1 MB", lambda n: n.cells[0].update(source=n.cells[0].source + " " * 1_000_000)),
        ("metadata.widgets", lambda n: n.metadata.update(widgets={})),
        ("title", lambda n: n.cells.insert(0, nbformat.v4.new_markdown_cell("Hello"))),
        ("badge", lambda n: n.cells[0].update(source="# A test")),
        ("tagged setup", lambda n: n.cells[1].metadata.update(tags=[])),
        ("execution counts", lambda n: n.cells[3].update(execution_count=9)),
        ("11 lines", lambda n: n.cells[3].update(source="print(1)\n" * 11)),
        ("26 lines", lambda n: n.cells[4].update(source="answer = 1\n" * 26)),
        ("an error", lambda n: n.cells[3].update(outputs=[nbformat.v4.new_output("error", ename="E", evalue="")])),
        ("a path", lambda n: n.cells[3].update(outputs=output("/home/me/.cache/x.py:1: a warning"))),
        ("NBVAL_CHECK_OUTPUT", lambda n: n.cells[3].update(source="# NBVAL_CHECK_OUTPUT\n1;", outputs=[])),
        ("depends on the machine", lambda n: n.cells[3].update(source="# NBVAL_CHECK_OUTPUT\nprint(perf_counter())")),
        ("static picture", lambda n: n.cells[3].metadata.update(tags=[])),
        ("part of a triple", lambda n: n.cells.pop(6)),
        ("different exercises", lambda n: n.cells[6].metadata.update(exercise="difference")),
        ('check("sum"', lambda n: n.cells[5].update(source='check("other", answer)')),
        ("<details>", lambda n: n.cells[6].update(source="```python\nanswer = 2\n```")),
        ("empty line", lambda n: n.cells[6].update(source="<details>\n```python\nanswer = 2\n```\n\n</details>")),
        ("same name", lambda n: n.cells.extend(lesson().cells[4:7])),
        ("summary", lambda n: n.cells.pop()),
    ],
)
def test_a_broken_rule_is_named(tmp_path, says, change):
    assert any(says in problem for problem in broken(tmp_path, change))


@pytest.mark.parametrize("tag", ["full-decoder", "exercise", "setup"])
def test_some_cells_may_be_longer(tmp_path, tag):
    problems = broken(tmp_path, lambda n: n.cells[3].update(source="x = 1\n" * 25, metadata={"tags": ["static", tag]}))
    assert not any("lines of code" in problem for problem in problems)


@pytest.mark.slow
def test_of_a_compared_cell_only_what_a_saved_notebook_holds_is_compared(tmp_path):
    """A progress bar appears where a machine is slow, on stderr, which notebooks.run() drops."""
    bar = "# NBVAL_CHECK_OUTPUT\nfrom tqdm import tqdm\nprint(sum(tqdm([1, 2])))"
    cells = [nbformat.v4.new_code_cell(bar, execution_count=1, outputs=output(said)) for said in ("3\n", "4\n")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "bars.ipynb")
    # tmp_path lies outside of the project, so that pytest must be told of its configuration and conftest.py.
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "conftest", "-p", "no:cacheprovider"]
    command += ["--nbval-lax", "--nbval-current-env", tmp_path / "bars.ipynb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout and "FAILED" in done.stdout and "Cell 1" in done.stdout, done.stdout


def test_a_run_keeps_what_teaches_and_drops_the_rest(tmp_path):
    source = [
        "import sys, ipywidgets\nprint('noise', file=sys.stderr)\nprint('kept')",
        "ipywidgets.IntSlider()",
        "6 * 7",
    ]
    path = tmp_path / "run.ipynb"
    cells = [nbformat.v4.new_code_cell(text, execution_count=9) for text in source]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"widgets": {}}), path)
    notebooks.run(path)
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3]
    assert [notebooks.text_of(o) for o in notebook.cells[0].outputs] == ["kept\n"]
    assert "run this cell" in notebook.cells[1].outputs[0].data["text/plain"]
    assert notebook.cells[2].outputs[0].data == {"text/plain": "42"}
    assert "widgets" not in notebook.metadata and not any("execution" in cell.metadata for cell in notebook.cells)
    assert "version" not in notebook.metadata.language_info


def test_student_copies_are_written(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    nbformat.write(lesson(), tmp_path / "notebooks" / "99-test.ipynb")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path / "notebooks")
    notebooks.write_student_copies(tmp_path / "student")
    copy = nbformat.read(tmp_path / "student" / "99-test.ipynb", as_version=4)
    assert [notebooks.tags(cell) & {"exercise", "check", "solution"} for cell in copy.cells[4:6]] == [
        {"exercise"},
        {"check"},
    ]
    assert "1 + 1" not in str(copy) and "Open in Colab" not in str(copy)
    assert copy.cells[3].outputs and copy.cells[4].execution_count is None
