"""Tests that need a GPU. cuBLAS reads its workspaces once in a process, so they are fixed before any test."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
pytest.register_assert_rewrite("tests.training.runs")

from tests.training.runs import write_data  # noqa: E402, after its asserts were registered


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("tiny") / "data")
