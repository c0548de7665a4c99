"""One tiny data folder for all tests of the room, and one thread, as in the processes that the tests start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("tests.training.runs")

from tests.training.runs import write_data  # noqa: E402, after its asserts were registered


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("tiny") / "data")


@pytest.fixture(autouse=True, scope="module")  # sums depend on the threads, so runs that modules share have one, too
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
