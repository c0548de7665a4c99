"""Long tests start first, so that no worker is left alone with one of them at the end; each worker has one thread.

Where there is no GPU, Triton's interpreter runs the kernels on the CPU; it has to be asked for before Triton is loaded.
"""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: threads of several workers wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # stable: files stay together otherwise
