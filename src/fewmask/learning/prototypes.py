"""Class prototypes: the mean pixel feature of each class (RML, Eqs. 11 and 12)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fewmask.alignment import pitch
from fewmask.labels import IGNORE
from fewmask.types import Batch

FEWEST_PIXELS = 10  # an image says something about a class only with this many of its feature cells
PAPER_SPREAD = 16.0  # sqrt(256): the paper's feature has 256 channels, to which GroupNorm gives unit variance

_LEAST_VARIANCE = 1e-12  # features that are all the same have no scale


def class_sums(features: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Per image, the sum of each class's features and, in the last column, their number: [N, K, D + 1].

    features [N, D, h, w], label [N, h, w]; IGNORE cells, padding among them, never count.
    """
    classes = torch.arange(num_classes, device=label.device)[:, None]
    member = (label.flatten(1)[:, None] == classes).to(features.dtype)  # [N, K, hw]; IGNORE is no class
    with torch.autocast(features.device.type, enabled=False):  # sums over thousands of cells need float32
        sums = member @ features.flatten(2).transpose(1, 2)  # [N, K, D]
    return torch.cat([sums, member.sum(2, keepdim=True)], dim=2)


def coarse_label(label: Tensor, size: tuple[int, int]) -> Tensor:
    """The label [N, H, W] at the centers of feature cells, [N, h, w]."""
    rows, columns = (
        ((torch.arange(cells, device=label.device) + 0.5) * pitch(pixels, cells)).long().clamp(max=pixels - 1)
        for cells, pixels in zip(size, label.shape[-2:], strict=True)
    )
    return label.index_select(1, rows).index_select(2, columns)


class Prototypes(nn.Module):
    """One vector per class; a class that was never seen has no vector yet, and no weight."""

    center: Tensor  # [K, D] eta
    known: Tensor  # [K] bool
    start: Tensor  # [K, D] the centers after the last sweep, which a resumed stage repeats
    predicted: Tensor  # [K, D + 1] sums over images of per-image class means, and the number of images
    predicted_pixels: Tensor  # [K]
    labeled: Tensor  # [K, D + 1] the same from labeled truth
    moments: Tensor  # [D + 2] sums over feature cells of the feature, its squared norm, and one
    spread: Tensor  # [] root-mean-square distance of features from their mean

    def __init__(self, num_classes: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(num_classes, channels))
        self.register_buffer("known", torch.zeros(num_classes, dtype=torch.bool))
        self.register_buffer("start", torch.zeros(num_classes, channels), persistent=False)
        for name in ("predicted", "labeled"):
            self.register_buffer(name, torch.zeros(num_classes, channels + 1), persistent=False)
        self.register_buffer("predicted_pixels", torch.zeros(num_classes), persistent=False)
        self.register_buffer("moments", torch.zeros(channels + 2), persistent=False)
        self.register_buffer("spread", torch.tensor(PAPER_SPREAD))

    @torch.no_grad()
    def clear(self) -> None:
        """Before a sweep over the images."""
        for sums in (self.predicted, self.labeled, self.predicted_pixels, self.moments):
            sums.zero_()

    @torch.no_grad()
    def collect(self, features: Tensor, prediction: Tensor, label: Tensor | None) -> None:
        """Add some images of the sweep: features [N, D, h, w], prediction [N, h, w], truth [N, h, w] where known.

        Cells whose prediction is IGNORE count for nothing.
        """
        sums = class_sums(features, prediction, len(self.center))  # [N, K, D + 1]
        self.predicted += image_means(sums)
        self.predicted_pixels += sums[..., -1].sum(0)
        self.moments += _moments(features, prediction != IGNORE)
        if label is not None:
            self.labeled += image_means(class_sums(features, label, len(self.center)), fewest=1)

    @torch.no_grad()
    def settle(self) -> None:
        """Eq. 11: the mean over images of class means; a class hardly ever predicted starts from labeled truth."""
        seen = self.predicted_pixels >= FEWEST_PIXELS
        sums = torch.where(seen[:, None] & (self.predicted[:, -1:] > 0), self.predicted, self.labeled)
        self.center.copy_(sums[:, :-1] / sums[:, -1:].clamp(min=1))
        self.known.copy_(sums[:, -1] > 0)
        self.start.copy_(self.center)
        means = self.moments[:-1] / self.moments[-1].clamp(min=1)  # [D + 1]
        self.spread.copy_((means[-1] - means[:-1].square().sum()).clamp(min=_LEAST_VARIANCE).sqrt())

    def temperature(self, spread: float | Tensor = PAPER_SPREAD) -> Tensor:
        """T that gives distances the scale of features that lie `spread` from their mean, where T is 1. []"""
        return spread / self.spread

    @torch.no_grad()
    def move(self, sums: Tensor, momentum: float) -> None:
        """Eq. 12: eta <- lambda * eta + (1 - lambda) * eta', for the classes in `sums` [K, D + 1] only."""
        count = sums[:, -1:]
        batch = sums[:, :-1] / count.clamp(min=1)
        moved = torch.where(self.known[:, None], torch.lerp(batch, self.center, momentum), batch)
        self.center.copy_(torch.where(count > 0, moved, self.center))
        self.known.logical_or_(count[:, 0] > 0)

    @torch.no_grad()
    def drift(self) -> Tensor:
        """||eta - start|| / ||start||, the mean over the classes that the sweep found, []."""
        length = self.start.norm(dim=1)  # [K]
        found = length > 0
        moved = (self.center - self.start).norm(dim=1) / length.where(found, 1.0)
        return moved.where(found, 0.0).sum() / found.sum().clamp(min=1)


def _moments(features: Tensor, counted: Tensor) -> Tensor:
    """Sums over the counted cells of the feature, its squared norm, and one: [N, D, h, w] -> [D + 2]."""
    inside = counted[:, None].to(features.dtype)  # [N, 1, h, w]
    squared = (features.square() * inside).sum()
    return torch.cat([(features * inside).sum((0, 2, 3)), squared[None], inside.sum()[None]])


def image_means(sums: Tensor, fewest: int = FEWEST_PIXELS) -> Tensor:
    """Sum over images of class means, and how many images had one: [N, K, D + 1] -> [K, D + 1]."""
    count = sums[..., -1:]
    present = (count >= fewest).to(sums.dtype)
    means = sums[..., :-1] / count.clamp(min=1) * present
    return torch.cat([means.sum(0), present.sum(0)], dim=-1)


class Joining(NamedTuple):
    """Labeled images whose features join the prototypes in a step."""

    image: Tensor  # [J, C, H, W]
    known: Tensor  # [J, H, W] bool, False where the label is ignored


def joining_images(batch: Batch, step: Tensor, every: int) -> Joining:
    """A share of the labeled images, such that each place of the batch has its turn every so many steps."""
    count = -(-len(batch.image) // every)
    first = (step - batch.image_position[0]) % every  # positions count over all processes
    place = first + every * torch.arange(count, device=batch.image.device)  # [J]
    there = place < len(batch.image)
    place = place.clamp(max=len(batch.image) - 1)
    known = (batch.label.index_select(0, place) != IGNORE) & there[:, None, None]
    return Joining(batch.image.index_select(0, place), known)


def valid_cells(valid: Tensor, size: tuple[int, int]) -> Tensor:
    """Which feature cells have their center on the image, [U, H, W] bool -> [U, h, w] bool."""
    return coarse_label(valid.to(torch.int64), size) > 0


def prediction_label(logits: Tensor, valid: Tensor) -> Tensor:
    """The most likely class of each feature cell, IGNORE on padding: [U, K, h, w] and [U, h, w] -> [U, h, w]."""
    return logits.argmax(1).where(valid, IGNORE)
