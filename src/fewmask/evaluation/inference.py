"""From images to class probabilities: whole images, or overlapping tiles with blended seams."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmask.config import EvaluationSettings
from fewmask.learning.losses import upsample

Predictor = Callable[[Tensor], Tensor]  # images [N, C, H, W] -> logits [N, K, h, w]
Progress = Callable[[int, int], None]  # how many tiles of an image are done, of how many
Window = tuple[int, Tensor]  # where it starts, and its share of each position, [length]


@torch.no_grad()
def probabilities(networks: Sequence[Predictor], images: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Mean over the networks of the softmax of their logits, upsampled to `size` first, [N, K, *size] float32."""
    total: Tensor | None = None
    for network in networks:
        logits = network(images).float()  # [N, K, h, w]
        shown = (images.shape[-2], images.shape[-1])
        probability = upsample(logits, size, shown).softmax(dim=1)  # [N, K, H, W]
        total = probability if total is None else total.add_(probability)
    assert total is not None, "at least one network"
    return total.div_(len(networks))


def predict_whole(networks: Sequence[Predictor], images: Tensor, *, size: tuple[int, int] | None = None) -> Tensor:
    """Probabilities of whole images in one pass, [N, K, *size]; none: the images' own size."""
    return probabilities(networks, images, size=size or (images.shape[-2], images.shape[-1]))


def predict_tiled(
    networks: Sequence[Predictor],
    image: Tensor,
    *,
    tile: tuple[int, int],
    overlap: float,
    batch: int,
    device: torch.device | None = None,
    accumulate: torch.device | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Probabilities of one image [C, H, W] from overlapping tiles, [K, H, W] float32.

    Tiles run on `device` and are summed on `accumulate` (both by default where the image lies), so that an image whose
    probabilities do not fit on the GPU is summed in main memory. An image smaller than a tile is one tile of its size.
    """
    height, width = image.shape[-2:]
    rows, columns = windows(height, tile[0], overlap), windows(width, tile[1], overlap)
    size = (len(rows[0][1]), len(columns[0][1]))
    where = accumulate or image.device
    total: Tensor | None = None
    grid = list(product(rows, columns))
    for first in range(0, len(grid), batch):
        group = grid[first : first + batch]
        crops = [image[:, top : top + size[0], left : left + size[1]] for (top, _), (left, _) in group]
        probability = probabilities(networks, torch.stack(crops).to(device or image.device), size=size).to(where)
        if total is None:
            total = torch.zeros(probability.shape[1], height, width, device=where)  # [K, H, W]
        for one, (row, column) in zip(probability, group, strict=True):
            add_tile(total, one, row, column)
        if progress is not None:
            progress(first + len(group), len(grid))
    assert total is not None, "every image has at least one window"
    return total


def add_tile(total: Tensor, tile: Tensor, row: Window, column: Window) -> None:
    """Add a tile's share [K, h, w] to where it lies in `total` [K, H, W]."""
    (top, row_share), (left, column_share) = row, column
    share = (row_share[:, None] * column_share).to(total)  # [h, w]
    total[:, top : top + len(row_share), left : left + len(column_share)] += tile * share


def windows(length: int, tile: int, overlap: float) -> list[Window]:
    """Windows that cover one axis exactly, the last one shifted inside, with smooth positive shares that sum to one.

    Along both axes together the share of a tile is the product, so nothing has to be divided after blending.
    """
    tile = min(tile, length)
    stride = max(1, tile - round(tile * overlap))
    count = math.ceil((length - tile) / stride) + 1
    starts = [min(index * stride, length - tile) for index in range(count)]
    # A raised cosine sampled at pixel centers: a tile's border, which sees little context, counts least.
    hill = torch.sin(torch.pi * (torch.arange(tile, dtype=torch.float64) + 0.5) / tile) ** 2  # [tile]
    total = torch.zeros(length, dtype=torch.float64)
    for start in starts:
        total[start : start + tile] += hill
    return [(start, (hill / total[start : start + tile]).float()) for start in starts]


def predict(
    networks: Sequence[Predictor],
    images: Tensor,
    settings: EvaluationSettings,
    size: tuple[int, int] | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Probabilities in the mode that the settings ask for, [N, K, *size], where the images lie.

    `size` is the images' own and `device`, where the networks run, is the images' own unless given.
    """
    if settings.mode == "whole":
        return predict_whole(networks, images.to(device or images.device), size=size).to(images.device)
    how: dict[str, Any] = {"tile": settings.tile, "overlap": settings.overlap, "batch": settings.batch}
    each = [predict_tiled(networks, image, **how, device=device, progress=progress) for image in images]
    tiled = torch.stack(each) if len(each) > 1 else each[0][None]  # [N, K, H, W]; one may be large: no copy of it
    if size is None or tiled.shape[-2:] == size:
        return tiled
    return F.interpolate(tiled, size, mode="bilinear", align_corners=False)


def segment(
    networks: Sequence[Predictor],
    images: Tensor,
    settings: EvaluationSettings,
    size: tuple[int, int] | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:
    """Label maps (uint8) and the probability of these labels (float32) of images [N, C, H, W], both [N, H, W]."""
    confidence, label = predict(networks, images, settings, size, device, progress).max(dim=1)
    return label.to(torch.uint8), confidence
