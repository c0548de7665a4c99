"""Residual blocks and heads through torch.compile: normalization, activation, gate and shortcut become few kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import torch

from fewmask.networks.model_noise import gated_blocks

if TYPE_CHECKING:  # a network itself asks for a pass as written
    from fewmask.networks.segmentation import SegmentationNetwork

# Inductor would leave the head in torch's own layout, since its convolutions have far fewer channels behind than before
# them, and turn their weights at every step; and the many small kernels, such as a cast per weight, become few.
_OPTIONS = {"force_layout_optimization": True, "combo_kernels": True}
_MOST_VARIANTS = 128  # kinds of blocks, in train and eval mode, at a few batch sizes; dynamo stops at 8 otherwise


def compile_blocks(network: SegmentationNetwork, backend: str = "inductor") -> None:
    """Compile each block by itself: blocks of one kind share their code, so a deep network costs hardly more time.

    Those that have kernels of their own (networks/fused_norms.py) keep them.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_VARIANTS)
    options = _OPTIONS if backend == "inductor" else None
    network.compiled = True
    for module in (*gated_blocks(network), *network.embeddings()):
        if module._compiled_call_impl is None:
            module.compile(dynamic=False, backend=backend, options=options)


def compile_problem(device: torch.device, backend: str = "inductor") -> str | None:
    """Why torch.compile does not work here, found by trying it on a few numbers; None where it does.

    It needs a C compiler, Python's headers, Triton and a GPU that Triton knows, and says in many ways what is missing.
    """
    try:
        torch.compile(_tried, dynamic=False, backend=backend)(torch.ones(8, device=device))
    except Exception as error:
        cause = getattr(error, "inner_exception", error)  # dynamo's own error around a backend's says little
        lines = str(cause).strip().splitlines()
        return f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__
    return None


def _tried(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.sin() + 1


def as_written() -> AbstractContextManager[object]:
    """Compiled blocks run eagerly inside: for passes over whole images, which come in many sizes, counters and hooks.

    Each size would be compiled by itself, and each layer at each pass where it has a hook of its own; and torch 2.11
    gives up compiled code for good once a counter has watched it.
    """
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def for_any_size() -> Iterator[None]:
    """As written, and cuDNN's kernels are chosen by its rules: its trials would come anew with every size of an image,
    and with every number of images that share a pass. Those of steps are found again afterwards.
    """
    trials = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        with as_written():
            yield
    finally:
        torch.backends.cudnn.benchmark = trials
