"""Build the wheel, install it alone in a temporary folder, and use it from there.

    .venv/bin/python tools/check_wheel.py

Its dependencies come from the Python that runs this; specviz itself must not come from the checkout.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USE = """
import pathlib, sys
import specviz
home = pathlib.Path(specviz.__file__).resolve().parent
assert home.parent == pathlib.Path(sys.argv[1]).resolve(), f"specviz comes from {home}, not from the wheel"
target, drafter = specviz.load_pair("tales")
trace = specviz.speculate(target, drafter, "Once upon a time", gamma=4, max_new_tokens=8, seed=0, eos=())
assert len(trace.tokens) == 8, trace
print("the wheel alone says: Once upon a time" + trace.text)
"""


def main():
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--quiet"]
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, "."], cwd=ROOT, check=True)
        (wheel,) = Path(folder).glob("specviz-*.whl")

        packed = set(zipfile.ZipFile(wheel).namelist())
        tracked = subprocess.check_output(["git", "ls-files", "specviz"], cwd=ROOT, text=True).splitlines()
        if missing := sorted(set(tracked) - packed):
            sys.exit("not in the wheel: " + ", ".join(missing))
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, all {len(tracked)} files of specviz/")

        alone = Path(folder) / "alone"
        subprocess.run([*pip, "install", "--no-deps", "--target", alone, wheel], check=True)
        # PYTHONPATH comes before site-packages, and so before an editable install of the checkout.
        env = {**os.environ, "PYTHONPATH": str(alone), "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, "-c", USE, alone], cwd=folder, env=env, check=True)


if __name__ == "__main__":
    main()
