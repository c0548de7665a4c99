"""Stored per-pixel tensors of the pool, handed to a batch under the same geometry as its images."""

from __future__ import annotations

import torch
from torch import Tensor

from fewmask.types import PixelMaps
from fewmask.views.geometry import Windows
from fewmask.views.soft_label_codes import CODES, LEAST


def sample_maps(maps: PixelMaps, windows: Windows, crop: tuple[int, int], stride: int) -> Tensor:
    """The maps under each window at a crop's feature cells, bilinear, [N, K, h, w] float32.

    One warp: cell center -> crop pixel -> source image (scale, place, flip) -> stored map. Cells and stored values both
    stand for the middle of their share of the image, as up-sampling with half-pixel centers has it. They are
    mixed as probabilities and come back as log-probabilities.
    """
    index = windows.index
    rows, columns = -(-crop[0] // stride), -(-crop[1] // stride)
    y = _centers(rows, crop[0], windows.top.device) + windows.top[:, None]  # [N, h] in the scaled image
    x = _centers(columns, crop[1], windows.top.device)
    x = torch.where(windows.flip[:, None], crop[1] - x, x) + windows.left[:, None]  # [N, w]
    top, bottom, down = _between(y / windows.scaled_height[:, None], maps.height[index])
    left, right, along = _between(x / windows.scaled_width[:, None], maps.width[index])
    around = _gather(maps, index, torch.cat([top, bottom], dim=1), torch.cat([left, right], dim=1))  # [N, 2h, 2w, K]
    upper, lower = around.chunk(2, dim=1)
    first, second = torch.lerp(upper, lower, down[:, :, None, None]).chunk(2, dim=2)
    return torch.lerp(first, second, along[:, None, :, None]).clamp(min=LEAST).log().permute(0, 3, 1, 2)


def _centers(cells: int, size: int, device: torch.device) -> Tensor:
    """Where the cells' middles lie in pixels, counted from the crop's edge."""
    return (torch.arange(cells, device=device) + 0.5) * (size / cells)


def _between(share: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The stored values on both sides of a place given as a share of the image, and the second one's weight."""
    size = size[:, None]
    place = torch.minimum((share * size - 0.5).clamp(min=0), (size - 1).to(share.dtype))
    first = place.floor().long()
    return first, torch.minimum(first + 1, size - 1), (place - first).float()


def _gather(maps: PixelMaps, index: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Probabilities at row [N, h] and column [N, w], [N, h, w, K] float32."""
    cell = maps.offset[index][:, None, None] + row[:, :, None] * maps.width[index][:, None, None] + column[:, None, :]
    rows = maps.values.index_select(0, cell.flatten())
    return CODES[maps.code].decode(rows, maps.classes).view(*cell.shape, maps.classes)
