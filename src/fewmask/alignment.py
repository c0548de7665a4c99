"""Where the cells of a feature map lie: one every `stride` pixels from the image's edge, whatever the image's size.

A network gives ceil(size / stride) cells, of which the last may hang over the edge. Were each cell taken for an equal
share of the image, cells would lie up to a stride off where the size is no multiple of it, and differently in a crop
than in the whole image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pitch(size: int, cells: int) -> float:
    """Pixels from one cell's middle to the next: the power of two that gives so many cells, else an equal share.

    From two cells on at most one power of two does.
    """
    stride = 1
    while -(-size // stride) > cells:
        stride *= 2
    return stride if -(-size // stride) == cells else size / cells


def resampled(maps: Tensor, size: Sequence[int], steps: Sequence[float]) -> Tensor:
    """Maps [N, K, h, w] at rows and columns that lie `steps` cells apart, bilinear, [N, K, *size].

    The first place is half a step from the edge, as the first cell is half a cell. Two matrix products: their gradient
    is a product as well, and both are always summed in the same order.
    """
    sides = zip(size, maps.shape[2:], steps, strict=True)
    rows, columns = (_between(places, cells, step, like=maps) for places, cells, step in sides)
    return rows @ maps @ columns.T


def _between(places: int, cells: int, step: float, *, like: Tensor) -> Tensor:
    """The weight of each cell at each place, [places, cells]; rows sum to 1."""
    place = (torch.arange(places, dtype=torch.float64, device=like.device) + 0.5) * step - 0.5
    cell = torch.arange(cells, dtype=torch.float64, device=like.device)
    weight = 1 - (place.clamp(0, cells - 1)[:, None] - cell).abs()
    return weight.clamp(min=0).to(like.dtype)
