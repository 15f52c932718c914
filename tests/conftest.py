"""Shared by all tests: nothing here may need the network, a GPU, or the corpus."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402

torch.set_num_threads(min(2, os.cpu_count() or 1))
