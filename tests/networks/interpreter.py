"""Where the kernels can run in tests: on a GPU, or in the interpreter of a Triton that is new enough."""

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is only there where it has GPUs to compile for")


def require_kernels() -> None:
    if not torch.cuda.is_available() and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        pytest.skip("the interpreter of this Triton cannot count turns with the numpy of today")
