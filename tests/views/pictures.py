"""Flat stores of small images for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fewmask.types import FlatImages

Size = tuple[int, int]


def flat_images(images: Sequence[Tensor], gap: int = 0) -> FlatImages:
    """Store [C, H, W] integer images one behind the other, with `gap` unused values before each."""
    channels = images[0].shape[0]
    wide = images[0].dtype != torch.uint8
    pieces, offsets, total = [], [], 0
    for image in images:
        offsets.append(total + gap)
        values = image.permute(1, 2, 0).reshape(-1)
        values = values.to(torch.int32).to(torch.int16) if wide else values
        pieces += [torch.full((gap,), 7, dtype=values.dtype), values]
        total += gap + len(values)
    sizes = torch.tensor([image.shape[1:] for image in images])
    return FlatImages(torch.cat(pieces), torch.tensor(offsets), sizes[:, 0], sizes[:, 1], channels)


def noise_images(sizes: Sequence[Size], channels: int = 3, seed: int = 0, high: int = 256) -> list[Tensor]:
    """Images of independent uniform integers below `high`; 8-bit if they fit."""
    rng = np.random.default_rng(seed)
    dtype = np.uint8 if high <= 256 else np.int32
    return [torch.from_numpy(rng.integers(0, high, (channels, *size)).astype(dtype)) for size in sizes]


def random_sizes(count: int, seed: int, low: int = 1, high: int = 60) -> list[Size]:
    rng = np.random.default_rng(seed)
    return [(int(height), int(width)) for height, width in rng.integers(low, high, (count, 2))]
