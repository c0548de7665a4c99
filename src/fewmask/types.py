"""The things that rooms hand to each other, and the shape legend.

B labeled images in a batch, U unlabeled images, N either, K classes, C image channels, D feature channels,
H W crop or image size, h w feature map size. Images are float32 in [0, 1], unnormalized. Labels are int64 with
IGNORE (labels.py) where nothing is known, padding included.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fewmask.randomness import Noise, Randomness


class Scores(NamedTuple):
    """What losses read of a prediction: the class scores, and those of auxiliary heads where there are any."""

    logits: Tensor  # [N, K, h, w]
    auxiliary: tuple[Tensor, ...] = ()  # [N, K, h, w] each, of earlier layers
    auxiliary_weight: float = 0.0  # of the loss of each of them

    def split(self, counts: Sequence[int]) -> list[Scores]:
        """Those of the first images, of the next, and so on."""
        parts = [each.split([*counts]) for each in (self.logits, *self.auxiliary)]
        return [Scores(logits, tuple(earlier), self.auxiliary_weight) for logits, *earlier in zip(*parts, strict=True)]


class Prediction(NamedTuple):
    """What a network returns, always float32."""

    logits: Tensor  # [N, K, h, w]
    features: Tensor  # [N, D, h, w], the pixel features that the classifier reads
    auxiliary: tuple[Tensor, ...] = ()  # [N, K, h, w] each, of earlier layers; in passes that train and only there
    auxiliary_weight: float = 0.0

    @property
    def scores(self) -> Scores:
        """Without the features: a method that holds on to these until its update has their memory in the way."""
        return Scores(self.logits, self.auxiliary, self.auxiliary_weight)

    @classmethod
    def joined(cls, parts: Sequence[Prediction], join: Callable[[list[Tensor]], Tensor]) -> Prediction:
        """One prediction about the images of all parts, each of its tensors joined from theirs."""
        logits, features = join([each.logits for each in parts]), join([each.features for each in parts])
        auxiliary = tuple(join([*layer]) for layer in zip(*(each.auxiliary for each in parts), strict=True))
        return cls(logits, features, auxiliary, parts[0].auxiliary_weight)


@dataclass(frozen=True)
class FlatImages:
    """Images of any sizes in one flat buffer: pixel (y, x) of image i is at offset[i] + (y * width[i] + x) * channels.

    16-bit images are kept bit for bit in an int16 buffer (few tensor operations know uint16).
    """

    values: Tensor  # [total] uint8 or int16
    offset: Tensor  # [n] int64
    height: Tensor  # [n] int64
    width: Tensor  # [n] int64
    channels: int

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def lengths(self) -> Tensor:
        """How many entries of `values` each image takes, [n]."""
        return self.height * self.width * self.channels

    def to(self, device: torch.device) -> FlatImages:
        tensors = (self.values.to(device), self.offset.to(device), self.height.to(device), self.width.to(device))
        return FlatImages(*tensors, channels=self.channels)

    def only(self, index: Tensor) -> FlatImages:
        """These images alone, in the same buffer."""
        return replace(self, offset=self.offset[index], height=self.height[index], width=self.width[index])

    def image(self, index: int) -> Tensor:
        """One image as stored, [C, H, W] float32 in [0, 1] (labels: raw integers as float)."""
        raw = self.raw(index)
        return raw.float() / (255.0 if self.values.dtype == torch.uint8 else 65535.0)

    def raw(self, index: int) -> Tensor:
        """One image's integers, [C, H, W] (uint8, or int32 for 16-bit images)."""
        height, width = int(self.height[index]), int(self.width[index])
        start = int(self.offset[index])
        flat = self.values[start : start + height * width * self.channels]
        if flat.dtype == torch.int16:
            flat = flat.to(torch.int32) & 0xFFFF
        return flat.reshape(height, width, self.channels).permute(2, 0, 1)


@dataclass(frozen=True)
class PixelMaps:
    """Vectors of a pool's feature cells: cell (y, x) of image i is row offset[i] + y * width[i] + x."""

    values: Tensor  # [total cells, *], rows as the code writes them
    offset: Tensor  # [n] int64
    height: Tensor  # [n] int64
    width: Tensor  # [n] int64
    code: str  # see views/soft_label_codes.py
    classes: int

    @property
    def lengths(self) -> Tensor:
        """How many rows of `values` each image takes, [n]."""
        return self.height * self.width


@dataclass(frozen=True)
class ViewRequest:
    """The views a method wants in its batches."""

    strong: int = 0  # color-distorted copies of each unlabeled crop, drawn independently
    unlabeled: bool = True  # False: the batch holds labeled images only
    labeled_color: bool = False  # color noise on the labeled images, too
    mixing: str = "none"  # "none" or "box"
    pairs: str = "batch"  # "batch": partners from the same images; "independent": a second draw, as many again
    without_mixing: str = "no mixing"  # the word by which a user switches it off, for errors


@dataclass(frozen=True)
class Batch:
    """One step's images, made on the device. An unlabeled image never brings a mask."""

    image: Tensor  # [B, C, H, W] labeled, weak view (with color noise if the method asked for it)
    label: Tensor  # [B, H, W] int64
    image_index: Tensor  # [B] which labeled image
    image_position: Tensor  # [B] global positions in the labeled batch
    weak: Tensor  # [U, C, H, W] unlabeled, geometry only
    valid: Tensor  # [U, H, W] bool, False on padding
    strong: tuple[Tensor, ...]  # each [U, C, H, W]: the same crop with color noise
    box: Tensor  # [M, H, W] bool, True where the mixing partner is pasted; M = U, or U / 2 with independent pairs
    partner: Tensor  # [M] index into the unlabeled images, never an image with itself
    weak_index: Tensor  # [U] which unlabeled image
    weak_position: Tensor  # [U] global positions in the unlabeled batch
    stored: Mapping[str, Tensor] = field(default_factory=dict)  # PixelStore maps, each [U, *, h, w], same geometry

    def tensors(self) -> list[Tensor]:
        """All of them, in one order."""
        single = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return [*single, *self.strong, *self.stored.values()]

    def copy(self) -> Batch:
        """The same values in other memory."""
        single = {name: value.clone() for name, value in vars(self).items() if isinstance(value, Tensor)}
        strong = tuple(view.clone() for view in self.strong)
        return replace(self, **single, strong=strong, stored={name: each.clone() for name, each in self.stored.items()})


@dataclass(frozen=True)
class Progress:
    """Where training stands, as tensors, so that a step never asks the host."""

    step: Tensor  # [] int64, within the stage
    fraction: Tensor  # [] float32, step / steps of the stage
    random: Randomness

    def noise(self, learner: str, *positions: Tensor, dropout: float = 0.0, survival: float = 1.0) -> Noise:
        """The model noise of `learner`'s forward pass over the concatenation of labeled and unlabeled samples."""
        shifted = [position + (index << 20) for index, position in enumerate(positions)]
        return Noise(self.random, learner, torch.cat(shifted), dropout, survival)


@dataclass(frozen=True)
class Term:
    """One mean in a loss: weight * total / count, where count is summed over all ranks before the division."""

    name: str
    total: Tensor  # [] sum over this process's pixels
    count: Tensor  # [] how many
    weight: float | Tensor = 1.0


@dataclass(frozen=True)
class Loss:
    """A weighted sum of means. Kept as sums and counts so that N ranks give the loss of one process."""

    terms: tuple[Term, ...]

    @classmethod
    def mean(cls, name: str, total: Tensor, count: Tensor) -> Loss:
        return cls((Term(name, total, count),))

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.terms + other.terms)

    def __mul__(self, weight: float | Tensor) -> Loss:
        return Loss(tuple(replace(term, weight=term.weight * weight) for term in self.terms))

    __rmul__ = __mul__

    def named(self, name: str) -> Loss:
        return Loss(tuple(replace(term, name=name) for term in self.terms))

    def value(self) -> Tensor:
        """The loss of this process alone, [] (training reduces the counts first)."""
        parts = [term.weight * term.total / term.count.clamp(min=1) for term in self.terms]
        return torch.stack([part.reshape(()) for part in parts]).sum()


@dataclass(frozen=True)
class Update:
    """Where the paper says "update": run backward for this optimizer's parameters and step it."""

    optimizer: str
    loss: Loss


@dataclass(frozen=True)
class Reduce:
    """`total = yield Reduce(tensor)`: the sum over all ranks, without gradient."""

    tensor: Tensor


@dataclass(frozen=True)
class Measure:
    """Something worth a column in metrics.jsonl: total / count, both summed over the steps of a line and all ranks."""

    name: str
    total: Tensor  # []
    count: Tensor  # []


@dataclass(frozen=True)
class Lane:
    """What follows needs nothing of the other lanes before the next Join: lanes may run side by side."""

    number: int


@dataclass(frozen=True)
class Join:
    """What follows may use what all lanes computed."""


Step = Generator[Update | Reduce | Measure | Lane | Join, Tensor | None, None]
