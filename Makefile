# make lab       JupyterLab, opened on the first lesson
# make test      all tests, and every notebook from top to bottom; pytest options: make test ARGS="-k exact"
# make quick     what to run all the time: no notebooks, no browser, and nothing that takes long
# make student   the notebooks without solutions, in student/
# make notebooks run every notebook again and keep its outputs, then check the house rules
# make lint      ruff
# make clean     delete what the above left behind (but not .venv)
#
# Each needs only Python 3.11 or newer (another than python3: make lab PYTHON=python3.13). The first call makes .venv.
# On Linux, pip's torch brings CUDA along. Without a GPU a smaller one will do:
#     PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make lab

PYTHON ?= python3
BIN := .venv/bin/python
NOTEBOOKS = $(sort $(wildcard notebooks/*.ipynb))

.PHONY: lab test quick student notebooks lint setup clean

lab: setup
	$(BIN) -m jupyterlab notebooks/01-draft.ipynb $(if $(filter 0,$(shell id -u)),--allow-root)

# As many workers as cores (see conftest.py). A debugger needs a single process: ARGS="-n0 --pdb".
PYTEST = HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN) -m pytest -n auto

# One pytest run for both, so that there is one closing line and one exit code.
test: setup
	$(PYTEST) tests $(NOTEBOOKS) \
	    --continue-on-collection-errors --nbval-lax --nbval-current-env --nbval-cell-timeout=300 $(ARGS)

quick: setup
	$(PYTEST) tests -m "not slow and not browser" $(ARGS)

student: setup
	$(BIN) tools/notebooks.py student

notebooks: setup
	HF_HUB_OFFLINE=1 $(BIN) tools/notebooks.py run
	$(BIN) tools/notebooks.py check

lint: setup
	$(BIN) -m ruff check .

setup: .venv/.installed

# The stamp keeps a second call from installing again.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) tools/setup_venv.py
	touch $@

clean:
	rm -rf student build dist .pytest_cache .ruff_cache .hypothesis .venv-colab
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -not -path './.venv*' -prune -exec rm -rf {} +
