"""Stored per-pixel tensors of the pool, handed to a batch under the same geometry as its images."""

from __future__ import annotations

import torch
from torch import Tensor

from fewmask.types import FlatImages, PixelMaps
from fewmask.views.geometry import Windows
from fewmask.views.soft_label_codes import CODES, LEAST


def sample_maps(maps: PixelMaps, images: FlatImages, windows: Windows, crop: tuple[int, int], stride: int) -> Tensor:
    """The maps of `images` under each window at a crop's feature cells, bilinear, [N, K, h, w] float32.

    One warp: cell center -> crop pixel -> source image (scale, place, flip) -> stored map. Cells of the crop and of the
    stored map lie `stride` pixels apart from their image's edge on, as up-sampling has it (alignment.py). They are
    mixed as probabilities and come back as log-probabilities.
    """
    index = windows.index
    y = _centers(crop[0], stride, windows.top.device) + windows.top[:, None]  # [N, h] in the scaled image
    x = _centers(crop[1], stride, windows.top.device)
    x = torch.where(windows.flip[:, None], crop[1] - x, x) + windows.left[:, None]  # [N, w]
    y = y * (images.height[index] / windows.scaled_height)[:, None]  # in the source image
    x = x * (images.width[index] / windows.scaled_width)[:, None]
    top, bottom, down = _between(y / stride, maps.height[index])
    left, right, along = _between(x / stride, maps.width[index])
    around = _gather(maps, index, torch.cat([top, bottom], dim=1), torch.cat([left, right], dim=1))  # [N, 2h, 2w, K]
    upper, lower = around.chunk(2, dim=1)
    first, second = torch.lerp(upper, lower, down[:, :, None, None]).chunk(2, dim=2)
    return torch.lerp(first, second, along[:, None, :, None]).clamp(min=LEAST).log().permute(0, 3, 1, 2)


def _centers(size: int, stride: int, device: torch.device) -> Tensor:
    """Where the cells' middles lie in pixels, counted from the crop's edge; the last may lie behind it."""
    return (torch.arange(-(-size // stride), device=device) + 0.5) * stride


def _between(place: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The stored values on both sides of a place given in cells from the edge, and the second one's weight."""
    size = size[:, None]
    place = torch.minimum((place - 0.5).clamp(min=0), (size - 1).to(place.dtype))
    first = place.floor().long()
    return first, torch.minimum(first + 1, size - 1), (place - first).float()


def _gather(maps: PixelMaps, index: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Probabilities at row [N, h] and column [N, w], [N, h, w, K] float32."""
    cell = maps.offset[index][:, None, None] + row[:, :, None] * maps.width[index][:, None, None] + column[:, None, :]
    rows = maps.values.index_select(0, cell.flatten())
    return CODES[maps.code].decode(rows, maps.classes).view(*cell.shape, maps.classes)
