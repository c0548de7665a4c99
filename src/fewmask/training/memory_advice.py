"""What to change where memory is short, for the plan, a step that does not fit and one that runs out of memory."""

from __future__ import annotations

import re

import torch

from fewmask.config import Config, Size
from fewmask.training.engine import Precision

_LARGEST_STRIDE = 16  # of those that are worth a try: predictions at 32 are too coarse
_ALLOCATION = re.compile(r"tried to allocate (\d+(?:\.\d+)? \w+)", re.IGNORECASE)


def savings(config: Config, precision: Precision, device: torch.device) -> list[str]:
    """Settings that keep batch and network, nothing that is in use already; first those that cost least."""
    found = []
    if device.type == "cuda" and precision != "bf16":
        found.append("training.precision=bf16")
    if not config.training.checkpointing:
        found.append("training.checkpointing=true")
    return found


def reductions(config: Config) -> list[str]:
    """What makes another run of it."""
    coarser = ["network.stride=16"] if config.network.stride < _LARGEST_STRIDE else []
    return ["a smaller views.crop", "another network.backbone", *coarser]


def untried(config: Config, precision: Precision, device: torch.device) -> str:
    """All of it, where no smaller step was tried."""
    parts = f"training.accumulate={2 * config.training.accumulate}"
    smaller = ["a smaller training.batch", *reductions(config)]
    return f"any of these may be enough: {'; '.join([*savings(config, precision, device), parts, *smaller])}"


def step_size(config: Config) -> str:
    """What a step's memory goes by."""
    assert config.views.crop is not None
    return f"training.batch={config.training.batch}, views.crop={written_size(config.views.crop)}"


def written_size(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def allocation(error: BaseException) -> str:
    """How much was asked for, out of torch's long message; its first sentence where it does not say."""
    found = _ALLOCATION.search(str(error))
    return f"tried to allocate {found.group(1)}" if found else str(error).split(". ")[0]
