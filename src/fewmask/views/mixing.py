"""Mixing pairs of unlabeled images: CutMix boxes (French et al., BMVC 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from fewmask.errors import ConfigError
from fewmask.randomness import Randomness

BOX_AREA = 0.5  # share of the crop that the partner's box covers


def box_mask(random: Randomness, stream: str, position: Tensor, crop: tuple[int, int]) -> Tensor:
    """One box per sample, half the crop in area, log-uniform in height, fully inside, [U, H, W] bool."""
    shape_bits, top_bits, left_bits = random.bits(stream, position, 3).unbind(1)  # [U] each
    # float64: a rounded size then does not depend on the device
    tall = BOX_AREA ** (shape_bits.double() * 2.0**-32)  # [U] share of the height
    rows = _interval(top_bits, tall, crop[0])  # [U, H]
    columns = _interval(left_bits, BOX_AREA / tall, crop[1])  # [U, W]
    return rows[:, :, None] & columns[:, None, :]


def _interval(bits: Tensor, share: Tensor, size: int) -> Tensor:
    """True on a randomly placed stretch of `share` of the pixels, [U, size] bool."""
    length = (share * size).round().long()
    start = bits * (size - length + 1) >> 32
    pixel = torch.arange(size, device=bits.device)
    return (pixel >= start[:, None]) & (pixel < (start + length)[:, None])


def partners(count: int, device: torch.device | None = None) -> Tensor:
    """Whose pixels each image of a batch receives: its neighbor in a pair, never itself, [U] int64."""
    if count < 2:
        raise ConfigError(
            f"mixing needs at least 2 unlabeled images per process, not {count}",
            where="training.unlabeled_batch",
            fix="a larger unlabeled_batch, fewer processes, or no mixing",
        )
    partner = torch.arange(count, device=device) ^ 1
    return torch.where(partner < count, partner, count - 2)  # the last of an odd batch takes its predecessor


def paste(tensor: Tensor, partner: Tensor, box: Tensor) -> Tensor:
    """The first M of U images [U, C, H, W] or labels [U, H, W], with partners' pixels inside the boxes [M, H, W]."""
    mask = box if tensor.ndim == 3 else box[:, None]
    return torch.where(mask, tensor.index_select(0, partner), tensor[: len(partner)])
