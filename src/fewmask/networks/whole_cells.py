"""Images of any size for bodies that round down or refuse: filled up to whole cells, and the maps cut back to them.

A level has ceil(size / stride) cells (alignment.py). ResNets give these by themselves. Others drop the rows that fill
no whole patch, refuse such images, or cannot join their own levels then; which sizes they want is found by trying.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmask.networks.timm_bodies import REFUSALS, feature_maps

_MULTIPLES = (1, 2, 4, 8, 16, 32)  # the last is the coarsest stride that there is
_TRIED = (32, 160)  # plus a multiple; so far apart that patches of 14 pixels are not taken for some of 16
_LONGEST = 64  # of the shortest sides that are tried


@dataclass(frozen=True)
class Filling:
    """Sides from which a body makes all cells of its levels: multiples of one number, and none shorter than another."""

    multiple: int = 1
    least: int = 1

    def filled(self, images: Tensor) -> Tensor:
        """Normalized images [N, C, H, W] with zeros at the right and below, where that is needed.

        Zero is the mean color: what convolutions see beyond the edge, and timm's own choice for transformers.
        """
        height, width = images.shape[2:]
        missing = (0, self._side(width) - width, 0, self._side(height) - height)
        return F.pad(images, missing) if any(missing) else images

    def _side(self, length: int) -> int:
        return max(self.least, -(-length // self.multiple) * self.multiple)


def cells(size: Iterable[int], stride: int) -> tuple[int, ...]:
    return tuple(-(-side // stride) for side in size)


def cut_to_cells(maps: Tensor, size: Iterable[int], stride: int) -> Tensor:
    """Maps [N, D, h, w] without the cells that lie beyond an image of this size altogether."""
    rows, columns = cells(size, stride)
    return maps if (rows, columns) == tuple(maps.shape[2:]) else maps[:, :, :rows, :columns]


def find_filling(module: nn.Module, strides: Mapping[int, int], channels: int) -> Filling | None:
    """The least filling with which the levels `strides` (place -> stride) have all their cells, at any size; or none.

    Sides just above a multiple of 32 are tried, where rounding down loses most: a level that has all its cells there
    has them at every side up to the next multiple.
    """
    for multiple in _MULTIPLES:
        height, width = (side + multiple for side in _TRIED)
        if _covers(module, strides, (channels, height, width)):
            break
    else:
        return None
    sides = [multiple << power for power in range(_LONGEST.bit_length()) if multiple << power <= _LONGEST]
    least = next((side for side in sides if _covers(module, strides, (channels, side, side))), None)
    return None if least is None else Filling(multiple, least)


@torch.no_grad()
def _covers(module: nn.Module, strides: Mapping[int, int], shape: tuple[int, int, int]) -> bool:
    """Whether an image of this shape gets all cells of these levels."""
    module.eval()  # BatchNorm keeps its statistics
    try:
        maps = feature_maps(module, torch.zeros(1, *shape))
    except REFUSALS:
        return False
    finally:
        module.train()
    return all(tuple(maps[place].shape[2:]) == cells(shape[1:], stride) for place, stride in strides.items())
