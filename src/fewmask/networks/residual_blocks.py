"""The residual blocks of timm's ResNets that have convolutions, norms, ReLUs and a shortcut, and nothing else."""

from __future__ import annotations

from typing import Any

from timm.models.resnet import BasicBlock, Bottleneck
from torch import nn


def plain_depth(block: Any, *, folded: bool = False) -> int:
    """How many convolutions follow each other in such a block, each with norm and activation; 0 for other modules.

    `folded`: nothing is left of the norms, nor of the activations but the last, since convolutions have them.
    """
    if not isinstance(block, (BasicBlock, Bottleneck)) or block.se is not None:
        return 0
    depth = 3 if isinstance(block, Bottleneck) else 2
    norms = [getattr(block, f"bn{number}") for number in range(1, depth + 1)]
    *inner, last = (getattr(block, f"act{number}") for number in range(1, depth + 1))
    unused = [block.aa, block.drop_block, *([*norms, *inner] if folded else [])]
    activations = [last] if folded else [*inner, last]
    plain = all(type(each) is nn.ReLU for each in activations) and all(map(_nothing, unused))
    return depth if plain else 0


def _nothing(module: nn.Module | None) -> bool:
    """An identity, or several of them."""
    return module is None or all(type(each) in (nn.Identity, nn.Sequential) for each in module.modules())
