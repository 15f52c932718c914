"""Create .venv and install specviz there, with the tested versions of constraints.txt.

    python3 tools/setup_venv.py        # `make` does this; on Windows: py tools\\setup_venv.py

A torch that is already there, in .venv or in the Python that runs this, is kept if it is new enough:
it may be a CUDA build that fits the machine, and it is large.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
OLDEST_TORCH = (2, 10)  # as in pyproject.toml


def has_torch(python):
    ask = "from importlib.metadata import version; print(version('torch'))"
    answer = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return answer.returncode == 0 and tuple(int(n) for n in answer.stdout.split(".")[:2]) >= OLDEST_TORCH


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"specviz needs Python 3.11 or newer, and this is {sys.version.split()[0]}: make PYTHON=python3.12 …")
    if not PYTHON.exists():
        print("creating .venv", flush=True)
        try:
            venv.create(VENV, with_pip=True, system_site_packages=has_torch(sys.executable))
        except subprocess.CalledProcessError:
            shutil.rmtree(VENV)
            sys.exit("cannot put pip into .venv; on Debian and Ubuntu: apt install python3-venv")
    constraints = (ROOT / "constraints.txt").read_text()
    if has_torch(PYTHON):
        constraints = "".join(line for line in constraints.splitlines(True) if not line.startswith("torch=="))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.txt"
        file.write_text(constraints)
        install = [PYTHON, "-m", "pip", "install", "-c", file, "-e", ".[fast,lab,test]"]
        print("installing into .venv (some minutes the first time)", flush=True)
        sys.exit(subprocess.run(install, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
