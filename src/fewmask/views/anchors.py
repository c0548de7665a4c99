"""Pixels of each class, so that rare classes can be put into labeled crops."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewmask.errors import DataError
from fewmask.randomness import Randomness
from fewmask.types import FlatImages

PER_CLASS = 4096


@dataclass(frozen=True)
class Anchors:
    """Up to `PER_CLASS` labeled pixels of each class that occurs; rows are filled from the left."""

    index: Tensor  # [K, A] int64, which labeled image
    y: Tensor  # [K, A] int64
    x: Tensor  # [K, A] int64
    count: Tensor  # [K] int64, filled entries of each row

    def to(self, device: torch.device) -> Anchors:
        return Anchors(self.index.to(device), self.y.to(device), self.x.to(device), self.count.to(device))

    def draw(self, random: Randomness, stream: str, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A class with equal probability, then one of its pixels: image index, y and x, each [N] int64."""
        class_bits, pixel_bits = random.bits(stream, position, 2).unbind(1)  # [N] each
        row = class_bits * len(self.count) >> 32
        column = pixel_bits * self.count[row] >> 32
        return self.index[row, column], self.y[row, column], self.x[row, column]


def find_anchors(labels: FlatImages, num_classes: int) -> Anchors:
    """Pixels of every class that the labels hold, spread evenly over the images that hold it and over each image."""
    present = torch.stack([_counts(labels, image, num_classes) for image in range(len(labels))]) > 0  # [n, K]
    rows = []
    for label in present.any(0).nonzero().flatten().tolist():
        images = _evenly(present[:, label].nonzero().flatten(), PER_CLASS).tolist()
        quota = -(-PER_CLASS // len(images))
        found = [_evenly((_flat(labels, image) == label).nonzero().flatten(), quota) for image in images]
        owner = torch.cat([torch.full_like(pixels, image) for image, pixels in zip(images, found, strict=True)])
        rows.append(_evenly(torch.stack([owner, torch.cat(found)], dim=1), PER_CLASS))  # [a, 2]
    if not rows:
        raise DataError("no labeled pixel in any mask", where=f"{len(labels)} labeled images", fix="masks with classes")
    return _table(rows, labels.width)


def _table(rows: list[Tensor], widths: Tensor) -> Anchors:
    table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # [K, A, 2]
    index, pixel = table.unbind(2)
    width = widths[index]
    count = torch.tensor([len(row) for row in rows], device=table.device)
    return Anchors(index, pixel // width, pixel % width, count)


def _flat(labels: FlatImages, image: int) -> Tensor:
    return labels.raw(image)[0].flatten()


def _counts(labels: FlatImages, image: int, num_classes: int) -> Tensor:
    """Pixels per class of one mask, [K]."""
    return torch.bincount(_flat(labels, image).long(), minlength=num_classes)[:num_classes]


def _evenly(items: Tensor, count: int) -> Tensor:
    """At most `count` rows, evenly spaced."""
    if len(items) <= count:
        return items
    return items[torch.arange(count, device=items.device) * len(items) // count]
