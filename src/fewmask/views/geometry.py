"""Scaled, cropped and flipped windows into flat image buffers, sampled by index arithmetic.

Source coordinates are exact integer ratios, so every device picks the same pixels. Resampling follows torch's
half-pixel convention: bilinear without antialiasing for images, nearest-exact for labels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from fewmask.labels import IGNORE
from fewmask.randomness import Randomness
from fewmask.types import FlatImages

PADDING = 0.5  # gray


@dataclass(frozen=True)
class Windows:
    """One crop per sample; it may begin before or end behind its scaled image, which is padding."""

    index: Tensor  # [N] int64, which image
    scaled_height: Tensor  # [N] int64, the image's size after the random resize
    scaled_width: Tensor  # [N] int64
    top: Tensor  # [N] int64, where the crop begins in the scaled image
    left: Tensor  # [N] int64
    flip: Tensor  # [N] bool, mirror the crop left and right

    def to(self, device: torch.device) -> Windows:
        return Windows(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


class Center(NamedTuple):
    """The source pixel that a crop shall hold."""

    y: Tensor  # [N] int64
    x: Tensor  # [N] int64
    used: Tensor  # [N] bool, the samples that have such a pixel


def draw_windows(
    random: Randomness,
    stream: str,
    position: Tensor,
    images: FlatImages,
    index: Tensor,
    *,
    crop: tuple[int, int],
    scale: tuple[float, float],
    flip: bool,
    center: Center | None = None,
) -> Windows:
    """Draw a scale, a place and a flip for the image `index[i]` of each sample.

    Crops lie fully inside wherever the scaled image is large enough; a smaller image lies at a random place inside the
    crop. A crop with a `center` holds that pixel within a quarter of its size around the middle, or as near as the
    image's border allows.
    """
    # One call for all four draws: on the CPU a call costs more than its numbers
    scale_bits, top_bits, left_bits, flip_bits = random.bits(stream, position, 4).unbind(1)  # [N] each
    # float64: a rounded size then does not depend on the device
    factor = scale[0] + (scale[1] - scale[0]) * scale_bits.double() * 2.0**-32
    height, width = images.height[index], images.width[index]
    scaled_height = (height * factor).round().long().clamp(min=1)
    scaled_width = (width * factor).round().long().clamp(min=1)
    top, left = _anywhere(top_bits, scaled_height, crop[0]), _anywhere(left_bits, scaled_width, crop[1])
    if center is not None:
        pixel_y, pixel_x = _scaled(center.y, height, scaled_height), _scaled(center.x, width, scaled_width)
        top = torch.where(center.used, _around(pixel_y, top_bits, scaled_height, crop[0]), top)
        left = torch.where(center.used, _around(pixel_x, left_bits, scaled_width, crop[1]), left)
    return Windows(index, scaled_height, scaled_width, top, left, (flip_bits >= 1 << 31) & flip)


def _anywhere(bits: Tensor, scaled: Tensor, size: int) -> Tensor:
    """Uniform over all places where the smaller of crop and scaled image lies inside the other, [N] int64."""
    room = scaled - size
    return (bits * (room.abs() + 1) >> 32) + room.clamp(max=0)


def _around(pixel: Tensor, bits: Tensor, scaled: Tensor, size: int) -> Tensor:
    """Places that hold `pixel` about the middle of the crop, [N] int64."""
    jitter = size // 4
    wanted = pixel - size // 2 + (bits * (2 * jitter + 1) >> 32) - jitter
    room = scaled - size
    return torch.minimum(torch.maximum(wanted, room.clamp(max=0)), room.clamp(min=0))


def _scaled(pixel: Tensor, size: Tensor, scaled: Tensor) -> Tensor:
    """Where a source pixel's center lies in the scaled image."""
    return (2 * pixel + 1) * scaled // (2 * size)


def _places(windows: Windows, crop: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Row and column of every crop pixel in the scaled image, padding included, [N, H] and [N, W]."""
    row = torch.arange(crop[0], device=windows.top.device)
    column = torch.arange(crop[1], device=windows.top.device)
    column = torch.where(windows.flip[:, None], column.flip(0), column)  # [N, W]
    return row + windows.top[:, None], column + windows.left[:, None]


def inside(windows: Windows, crop: tuple[int, int]) -> Tensor:
    """True where a crop shows its image, False on padding, [N, H, W]."""
    row, column = _places(windows, crop)
    rows = (row >= 0) & (row < windows.scaled_height[:, None])
    columns = (column >= 0) & (column < windows.scaled_width[:, None])
    return rows[:, :, None] & columns[:, None, :]


def _nearest(place: Tensor, size: Tensor, scaled: Tensor) -> Tensor:
    """The source pixel below the center of each scaled pixel."""
    size, scaled = size[:, None], scaled[:, None]
    place = torch.minimum(place.clamp(min=0), scaled - 1)
    return (2 * place + 1) * size // (2 * scaled)


def _linear(place: Tensor, size: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The two source pixels around the center of each scaled pixel, and the second one's weight."""
    size, scaled = size[:, None], scaled[:, None]
    place = torch.minimum(place.clamp(min=0), scaled - 1)
    steps = ((2 * place + 1) * size - scaled).clamp(min=0)  # source coordinate in units of 1 / (2 * scaled)
    first = steps // (2 * scaled)
    weight = (steps - first * 2 * scaled).float() / (2 * scaled).float()
    return first, torch.minimum(first + 1, size - 1), weight


def _gather(images: FlatImages, index: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The stored values at row [N, H] and column [N, W] of each image, [N, H, W, C] uint8 or int32."""
    start = images.offset[index][:, None] + row * images.width[index][:, None] * images.channels  # [N, H]
    flat = start[:, :, None] + column[:, None, :] * images.channels  # [N, H, W]
    pixels = images.values.unfold(0, images.channels, 1)  # a view: the pixel that starts at each value
    values = pixels.index_select(0, flat.flatten()).view(*flat.shape, images.channels)
    return values.to(torch.int32) & 0xFFFF if values.dtype == torch.int16 else values


def sample_images(images: FlatImages, windows: Windows, crop: tuple[int, int]) -> Tensor:
    """The windows' pixels, bilinear, gray on padding, [N, C, H, W] float32 in [0, 1]."""
    row, column = _places(windows, crop)
    index = windows.index
    top, bottom, down = _linear(row, images.height[index], windows.scaled_height)
    left, right, along = _linear(column, images.width[index], windows.scaled_width)
    down, along = down[:, :, None, None], along[:, None, :, None]
    first, second = (
        torch.lerp(_gather(images, index, top, side).float(), _gather(images, index, bottom, side).float(), down)
        for side in (left, right)
    )
    pixels = torch.lerp(first, second, along)  # [N, H, W, C]
    pixels.div_(255.0 if images.values.dtype == torch.uint8 else 65535.0)
    pixels = pixels.permute(0, 3, 1, 2).contiguous()  # [N, C, H, W]
    return pixels.masked_fill_(~inside(windows, crop)[:, None], PADDING)


def sample_labels(labels: FlatImages, windows: Windows, crop: tuple[int, int]) -> Tensor:
    """The windows' labels, nearest-exact, IGNORE on padding, [N, H, W] int64."""
    row, column = _places(windows, crop)
    index = windows.index
    row = _nearest(row, labels.height[index], windows.scaled_height)
    column = _nearest(column, labels.width[index], windows.scaled_width)
    values = _gather(labels, index, row, column)[..., 0].long()  # [N, H, W]
    return torch.where(inside(windows, crop), values, IGNORE)
