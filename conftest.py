"""For tests and notebooks alike: how they are shared out among workers, and what of a notebook is compared."""

import os

import psutil
import pytest

# The workers of pytest-xdist are as many as the cores, so that a second thread in one takes a core from another.
# This must be said before torch is imported; kernels and other processes inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    for library in ("OMP", "MKL", "OPENBLAS"):
        os.environ[f"{library}_NUM_THREADS"] = "1"

# The cells of a notebook need each other; in the other files, tests share what takes some ten seconds to make.
TOGETHER = (".ipynb", "tests/test_families.py", "tests/test_goodness_of_fit.py", "tests/test_mutants.py")
WORKER_BYTES = 2e9  # a worker that has imported torch and transformers, with a notebook's kernel and a browser's share


@pytest.hookimpl(optionalhook=True)  # there is no such hook without pytest-xdist
def pytest_xdist_auto_num_workers(config):
    """-n auto: one for each core that this process may use, fewer where memory is short."""
    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count()
    return max(1, min(cores, int(psutil.virtual_memory().available / WORKER_BYTES)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """What is TOGETHER stays on one worker, in order; any other test goes where there is room."""
    if config.option.dist == "each":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return _file(nodeid) if _file(nodeid).endswith(TOGETHER) else nodeid

    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    return Scheduling(config, log)


def pytest_collection_modifyitems(config, items):
    for notebook in {item.parent for item in items if item.path.suffix == ".ipynb"}:
        # A saved notebook holds nothing from stderr (tools/notebooks.py), so there is nothing to compare with: what
        # comes there, such as progress bars, depends on how fast the machine is.
        notebook.skip_compare += ("stderr",)
    if hasattr(config, "workerinput"):  # the longest first, so that no worker sits on one of them in the end
        items.sort(key=lambda item: _file(item.nodeid).endswith(TOGETHER) or "slow" in item.keywords, reverse=True)


def _file(nodeid):
    return nodeid.partition("::")[0]
