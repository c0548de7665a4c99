"""Deterministic mode: a GPU adds in one fixed order, so the same run gives the same bits, at some cost in speed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fewmask.errors import ConfigError

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS adds in a fixed order only with workspaces of a fixed size
_FIXED = (":4096:8", ":16:8")
_WHERE = "training.deterministic"


@contextmanager
def deterministic(wanted: bool, device: torch.device) -> Iterator[None]:
    """Within it torch takes algorithms with a fixed order, or refuses; afterwards all switches are as they were.

    Switches torch.compile to choices that are not measured, too. CUBLAS_WORKSPACE_CONFIG stays in the environment, as
    cuBLAS has read it by then.
    """
    if not wanted:
        yield
        return
    if device.type == "cuda":
        _fix_workspaces()
    with _switched():
        try:
            yield
        except RuntimeError as error:
            raise _explained(error) from error


@contextmanager
def any_order() -> Iterator[None]:
    """For sums of integers and writes to distinct places: exact in every order, so deterministic mode need not sort."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _fix_workspaces() -> None:
    chosen = os.environ.get(_WORKSPACE)
    if chosen is None and torch.cuda.is_initialized():
        what = f"this process began to use the GPU without {_WORKSPACE}, so its matrix products are not deterministic"
        raise ConfigError(what, where=_WHERE, fix=f"{_WORKSPACE}={_FIXED[0]} in the environment")
    if chosen not in (None, *_FIXED):
        what = f"with {_WORKSPACE}={chosen} matrix products are not deterministic"
        raise ConfigError(what, where="environment", fix=" or ".join(_FIXED))
    os.environ.setdefault(_WORKSPACE, _FIXED[0])


@contextmanager
def _switched() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    enabled, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    before = cudnn.benchmark, cudnn.deterministic, memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    cudnn.benchmark, cudnn.deterministic = False, True  # the fastest kernel of a measurement may be another next time
    memory.fill_uninitialized_memory = False  # nothing here reads what it has not written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        cudnn.benchmark, cudnn.deterministic, memory.fill_uninitialized_memory = before


def _explained(error: RuntimeError) -> Exception:
    """torch's refusal of an operation, as an error of the settings; any other error as it is."""
    name, refused, _ = str(error).partition(" does not have a deterministic implementation")
    if not refused:
        return error
    fix = "training.deterministic=false, or another network; a vision transformer takes crops of its own image size"
    return ConfigError(f"{name.split()[-1]} is not deterministic on this device", where=_WHERE, fix=fix)
