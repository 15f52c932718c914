"""Shared by all tests: nothing here may need the network, a GPU, or the corpus."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest  # noqa: E402
import torch  # noqa: E402
from browser import browser, lab, modules, open_page  # noqa: E402, F401
from hypothesis import settings  # noqa: E402

INSTRUCTION_SETS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")  # read by the libraries

# Tiny models gain nothing from a second thread, and on a busy machine threads that wait for each other lose much.
torch.set_num_threads(1)

# No deadlines (shared machines are slow at times) and the same examples in every run.
settings.register_profile("specviz", deadline=None, derandomize=True)
settings.load_profile("specviz")


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="where the tests' tiny models are: cpu, or cuda")


def pytest_configure(config):
    device = config.getoption("device")
    if device != "cpu":
        _put_models_on(device)


def pytest_report_header():
    """Which instructions compute: rounding, and so what the tolerances must bear, differs between them."""
    asked = [f"{name}={os.environ[name]}" for name in INSTRUCTION_SETS if name in os.environ]
    return ", ".join([f"torch {torch.__version__} uses {torch.backends.cpu.get_cpu_capability()}", *asked])


def _put_models_on(device):
    """From now on every table, and every transformers model that is wrapped, goes to device, unless a test says where.

    The decoder's bookkeeping stays on the CPU, as it does for users; so nothing here touches torch's default device.
    """
    from specviz.models.causal import HubModel
    from specviz.models.table import TableModel
    from specviz.zoo.pairs import choose_device

    try:
        torch.zeros(1, dtype=torch.float64, device=choose_device(device))
    except (ValueError, TypeError) as error:  # the latter where a device has no float64
        raise pytest.UsageError(f"--device: the tests cannot run there. {error}") from None

    wrap, tabulate = HubModel.__init__, TableModel.__init__

    def wrap_there(self, model, *others):
        spread = hasattr(model, "_hf_hook")  # by accelerate
        wrap(self, model if spread else model.to(device), *others)

    def tabulate_there(self, logits, device=device, **settings):
        tabulate(self, logits.cpu() if torch.is_tensor(logits) else logits, device=device, **settings)

    HubModel.__init__, TableModel.__init__ = wrap_there, tabulate_there
