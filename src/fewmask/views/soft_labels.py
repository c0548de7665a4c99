"""Stored per-pixel tensors of the pool, handed to a batch under the same geometry as its images."""

from __future__ import annotations

import torch
from torch import Tensor

from fewmask.types import PixelMaps
from fewmask.views.geometry import Windows


def sample_maps(maps: PixelMaps, windows: Windows, crop: tuple[int, int], stride: int) -> Tensor:
    """The maps under each window at a crop's feature cells, bilinear, [N, K, h, w] float32.

    One warp: cell center -> crop pixel -> source image (scale, place, flip) -> stored map. Cells and stored values both
    stand for the middle of their share of the image, as up-sampling with half-pixel centers has it. Values are
    log-probabilities; they are mixed as probabilities.
    """
    index = windows.index
    rows, columns = -(-crop[0] // stride), -(-crop[1] // stride)
    y = _centers(rows, crop[0], windows.top.device) + windows.top[:, None]  # [N, h] in the scaled image
    x = _centers(columns, crop[1], windows.top.device)
    x = torch.where(windows.flip[:, None], crop[1] - x, x) + windows.left[:, None]  # [N, w]
    top, bottom, down = _between(y / windows.scaled_height[:, None], maps.height[index])
    left, right, along = _between(x / windows.scaled_width[:, None], maps.width[index])
    down, along = down[:, :, None, None], along[:, None, :, None]
    first, second = (
        torch.lerp(_gather(maps, index, top, side), _gather(maps, index, bottom, side), down) for side in (left, right)
    )
    return torch.lerp(first, second, along).clamp(min=1e-12).log().permute(0, 3, 1, 2)


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
    return maps.values.index_select(0, cell.flatten()).view(*cell.shape, -1).float().exp()
