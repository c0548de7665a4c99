"""Color noise: the photometric half of RandAugment, with ProDA's ranges.

Each operation is a pure function of images [N, C, H, W] in [0, 1] and an integer magnitude [N] out of 10. In a batch
every sample draws its own operation, and a step never asks the host which; so a round computes all of them, folded
into few passes: four are blends with a reference, two are lookups in a table of 256 levels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fewmask.config import ViewSettings
from fewmask.determinism import any_order
from fewmask.randomness import Randomness

OPERATIONS = (
    "identity",
    "autocontrast",
    "brightness",
    "color",
    "contrast",
    "equalize",
    "posterize",
    "sharpness",
    "solarize",
)
LUMA = (0.2989, 0.587, 0.114)
LEVELS = 256


def color_noise(random: Randomness, stream: str, position: Tensor, images: Tensor, settings: ViewSettings) -> Tensor:
    """Apply to each sample `color_operations` operations, drawn with replacement, each with its probability."""
    count = settings.color_operations
    smallest, largest = settings.color_magnitude
    which, how_much, whether = random.bits(stream, position, 3, count).unbind(1)  # [N, count] each
    magnitude = smallest + (how_much * (largest - smallest + 1) >> 32)
    applied = whether < settings.color_probability * 2.0**32
    operation = torch.where(applied, which * len(OPERATIONS) >> 32, OPERATIONS.index("identity"))
    for turn in range(count):
        images = apply_operations(images, operation[:, turn], magnitude[:, turn])
    return images


def apply_operations(images: Tensor, operation: Tensor, magnitude: Tensor) -> Tensor:
    """Each sample under its own operation, an index [N] into OPERATIONS."""
    chosen = {name: _column(operation == place) for place, name in enumerate(OPERATIONS)}  # [N, 1, 1, 1] each
    rest = 1 - _enhancement(magnitude)  # what a reference weighs in a blend
    gray = _gray(images)  # [N, 1, H, W]
    scale, shift = _stretch(images)  # [N, C, 1, 1]
    scale = torch.where(chosen["autocontrast"], scale, 1 - rest * _any(chosen, "brightness", "color", "contrast"))
    shift = torch.where(chosen["autocontrast"], shift, _mean(gray) * rest * chosen["contrast"])
    result = torch.addcmul(shift, images, scale).addcmul_(gray, rest * chosen["color"])  # [N, C, H, W]
    _smooth_(result, images, rest * chosen["sharpness"])
    # A threshold of 2 is never reached, and a table is read only where one was asked for
    _solarize_(result.clamp_(0, 1), torch.where(chosen["solarize"], _threshold(magnitude), 2.0))
    levels = _levels(images)  # [N, C, H * W]
    table = torch.where(chosen["equalize"][..., 0], _equalizing(levels), _posterizing(magnitude))  # [N, C, 256]
    return torch.where(_any(chosen, "equalize", "posterize"), _looked_up(levels, table, images), result)


def identity(images: Tensor, magnitude: Tensor) -> Tensor:  # noqa: ARG001, all operations are called alike
    return images


def autocontrast(images: Tensor, magnitude: Tensor) -> Tensor:  # noqa: ARG001
    """Stretch each channel to the whole range."""
    scale, shift = _stretch(images)
    return torch.addcmul(shift, images, scale).clamp(0, 1)


def brightness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with black."""
    return images * _enhancement(magnitude)


def color(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the gray image."""
    return torch.lerp(_gray(images), images, _enhancement(magnitude))


def contrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the mean gray."""
    return torch.lerp(_mean(_gray(images)), images, _enhancement(magnitude))


def sharpness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the smoothed image."""
    return _smooth_(images.clone(), images, 1 - _enhancement(magnitude))


def equalize(images: Tensor, magnitude: Tensor) -> Tensor:  # noqa: ARG001
    """Flatten the histogram of each channel, in 256 levels."""
    levels = _levels(images)
    return _looked_up(levels, _equalizing(levels), images)


def posterize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Keep the upper bits of 8-bit values."""
    levels = _levels(images)
    return _looked_up(levels, _posterizing(magnitude), images)


def solarize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Invert the values from a threshold on."""
    return _solarize_(images.clone(), _threshold(magnitude))


def _column(values: Tensor) -> Tensor:
    return values[:, None, None, None]  # [N, 1, 1, 1]


def _any(chosen: dict[str, Tensor], *names: str) -> Tensor:
    return torch.stack([chosen[name] for name in names]).any(0)  # [N, 1, 1, 1]


def _enhancement(magnitude: Tensor) -> Tensor:
    return _column(0.05 + 0.09 * magnitude.float())


def _threshold(magnitude: Tensor) -> Tensor:
    return _column((256 - 25.6 * magnitude.float()) / 255)


def _gray(images: Tensor) -> Tensor:
    """Luma of RGB, the mean of any other channels, [N, 1, H, W]."""
    if images.shape[1] != len(LUMA):
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return torch.add(red * LUMA[0], green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _mean(gray: Tensor) -> Tensor:
    """Mean of each image, [N, 1, 1, 1], in fixed point: a float sum depends on threads and batch size."""
    total = (gray * 2.0**24).int().sum((1, 2, 3), keepdim=True)  # int64
    return (total.double() * (2.0**-24 / math.prod(gray.shape[1:]))).float()


def _stretch(images: Tensor) -> tuple[Tensor, Tensor]:
    """Factor and summand that bring each channel to [0, 1]; a channel of one value stays as it is."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)  # [N, C, 1, 1]
    flat = high == low
    scale = 1 / torch.where(flat, 1.0, high - low)
    return scale, torch.where(flat, 0.0, -low * scale)


def _smooth_(result: Tensor, images: Tensor, weight: Tensor) -> Tensor:
    """Move `result` by `weight` of the way from the images to their smoothed copy, in which the border is unchanged.

    A smoothed pixel is the mean of itself, weighing 5, and its eight neighbors, weighing 1 each.
    """
    if min(images.shape[2:]) > 2:
        rows = (images[:, :, :-2] + images[:, :, 1:-1]).add_(images[:, :, 2:])
        square = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:])  # [N, C, H - 2, W - 2]
        square.sub_(images[:, :, 1:-1, 1:-1], alpha=9)  # 13 times the difference
        result[:, :, 1:-1, 1:-1].addcmul_(square, weight / 13)
    return result


def _solarize_(images: Tensor, threshold: Tensor) -> Tensor:
    return images.sub_((images >= threshold).to(images.dtype)).abs_()  # 1 - x is |x - 1|


def _levels(images: Tensor) -> Tensor:
    """8-bit values, [N, C, H * W] int64; torchvision's rounding."""
    return (images.flatten(2) * (LEVELS - 1e-3)).long()


def _looked_up(levels: Tensor, table: Tensor, images: Tensor) -> Tensor:
    """The images with each level replaced by its entry in table [N, C or 1, 256]."""
    return table.expand(-1, levels.shape[1], -1).gather(2, levels).view_as(images)


def _posterizing(magnitude: Tensor) -> Tensor:
    """[N, 1, 256]"""
    dropped = 4 - magnitude * 2 // 5  # bits; 4 + floor(0.4 v) stay
    level = torch.arange(LEVELS, device=magnitude.device)
    return (level >> dropped[:, None, None] << dropped[:, None, None]).float() / 255


def _equalizing(levels: Tensor) -> Tensor:
    """PIL's rule: as many pixels to each level as there are, the brightest bin not counted, over 255; [N, C, 256]."""
    ones = torch.ones((), dtype=torch.int32, device=levels.device).expand_as(levels)
    histogram = torch.zeros(*levels.shape[:2], LEVELS, dtype=torch.int32, device=levels.device)
    with any_order():
        histogram.scatter_add_(2, levels, ones)
    below = histogram.cumsum(2) - histogram  # pixels of lower levels, int64
    brightest = levels.amax(2, keepdim=True)
    step = below.gather(2, brightest) // 255
    table = ((below + step // 2) // step.clamp(min=1)).clamp(0, 255)
    unchanged = torch.arange(LEVELS, device=levels.device)
    return torch.where(step == 0, unchanged, table).float() / 255
