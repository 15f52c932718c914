"""Point every Open-in-Colab badge, setup cell and clone command at this repository, or at a fork of it.

    python tools/repository.py                       # check; lists what differs, and exits with 1 if anything does
    python tools/repository.py --write               # rewrite
    python tools/repository.py --set OWNER/NAME --write

owner/name stands in one place, [project.urls] Repository in pyproject.toml. Only the forms below are looked
at, so that links to other people's repositories stay as they are.
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPO = r"[\w-]+/[\w-]+(?:\.[\w-]+)*"
PLACE = re.compile(rf'^(Repository = "https://github\.com/)({REPO})(?=")', re.MULTILINE)
FORMS = re.compile(
    r"(colab\.research\.google\.com/github/|git\+https://github\.com/|git clone https://github\.com/"
    rf"|repository-code: \"https://github\.com/)({REPO})"
)
BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{repo}/blob/main/notebooks/{name}.ipynb)"
)

# The setup cell of every notebook. What is installed is asked for as it is, so that pip leaves it alone.
SETUP = """\
try:
    import specviz
except ImportError:  # on Colab, say; what others need there, such as torch, stays as it is
    from importlib.metadata import distributions
    kept = "torch", "transformers", "ipywidgets", "protobuf"
    keep = {{d.name: d.version for d in distributions() if d.name in kept}}
    keep = " ".join(f"{{name}}=={{version}}" for name, version in keep.items())
    %pip install -q "specviz[fast] @ git+https://github.com/{repo}" {{keep}}
    import specviz"""


def owner_name(root=ROOT):
    return PLACE.search((root / "pyproject.toml").read_text(encoding="utf-8"))[2]


def rewritten(path, repo):
    """The text that the file should have."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = with_setup_cell(text, SETUP.format(repo=repo))
    return FORMS.sub(rf"\g<1>{repo}", text)


def with_setup_cell(text, source):
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if "setup" in cell["metadata"].get("tags", []) and "".join(cell["source"]) != source:
            cell["source"] = source.splitlines(keepends=True)
            text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"  # as Jupyter writes it
    return text


def files(root):
    """Those that name the repository, besides pyproject.toml."""
    optional = [root / "README.md", root / "CONTRIBUTING.md", root / "CITATION.cff"]
    return [path for path in optional if path.exists()] + sorted((root / "notebooks").glob("*.ipynb"))


def problems(root=ROOT):
    repo = owner_name(root)
    found = [
        f"{path.relative_to(root)}: a badge, setup cell or address is not that of {repo}"
        for path in files(root)
        if rewritten(path, repo) != path.read_text(encoding="utf-8")
    ]
    for notebook in sorted((root / "notebooks").glob("*.ipynb")):
        badge = BADGE.format(repo=repo, name=notebook.stem)
        for page in (notebook, root / "README.md"):
            if page.exists() and badge not in page.read_text(encoding="utf-8"):
                found.append(f"{page.relative_to(root)}: lacks the badge {badge}")
    return found


def write(root=ROOT, repo=None):
    """Rewrite all files for owner/name `repo`, by default the one in pyproject.toml."""
    if repo:
        pyproject = root / "pyproject.toml"
        pyproject.write_text(PLACE.sub(rf"\g<1>{repo}", pyproject.read_text(encoding="utf-8")), encoding="utf-8")
    for path in files(root):
        path.write_text(rewritten(path, repo or owner_name(root)), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Check or rewrite what names the repository.")
    parser.add_argument("--write", action="store_true", help="rewrite instead of only checking")
    parser.add_argument("--set", metavar="OWNER/NAME", help="with --write: first make this the repository")
    args = parser.parse_args()
    if args.set and not (args.write and re.fullmatch(REPO, args.set)):
        parser.error("--set needs OWNER/NAME, and --write beside it")
    if args.write:
        write(repo=args.set)
    found = problems()
    print("\n".join(found) or f"all badges, setup cells and addresses name {owner_name()}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
