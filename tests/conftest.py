"""Shared by all tests: nothing here may need the network, a GPU, or the corpus."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from browser import browser, lab, open_page  # noqa: E402, F401
from hypothesis import settings  # noqa: E402

# Tiny models gain nothing from a second thread, and on a busy machine threads that wait for each other lose much.
torch.set_num_threads(1)

# No deadlines (shared machines are slow at times) and the same examples in every run.
settings.register_profile("specviz", deadline=None, derandomize=True)
settings.load_profile("specviz")
