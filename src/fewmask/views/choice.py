"""Which images a step sees: a pure function of (seed, step), so that the host knows it ahead of the device, too."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewmask.randomness import Randomness, shuffled
from fewmask.types import ViewRequest
from fewmask.views.anchors import Anchors
from fewmask.views.geometry import Center


@dataclass(frozen=True)
class Choice:
    """This process's share of the images of any step; the step's device is where everything is computed."""

    seed: int
    labeled: int  # images there are
    unlabeled: int
    batch: int  # images of a step, over all processes
    unlabeled_batch: int
    request: ViewRequest
    class_crops: float = 0.0
    anchors: Anchors | None = None
    rank: int = 0
    world: int = 1

    def to(self, device: torch.device) -> Choice:
        return replace(self, anchors=self.anchors and self.anchors.to(device))

    def positions(self, device: torch.device) -> Tensor:
        """Global positions of the labeled images."""
        return self._share(self.batch, device)

    def weak_positions(self, device: torch.device) -> Tensor:
        """Global positions of the unlabeled images; a second draw of partners comes after the first."""
        position = self._share(self.unlabeled_batch, device)
        if self.request.pairs != "independent":
            return position
        return torch.cat([position, position + self.unlabeled_batch])

    def labeled_images(self, step: Tensor) -> tuple[Tensor, Center | None]:
        """Which labeled images, [B], and the pixels that class-aware crops shall hold."""
        position, random = self.positions(step.device), Randomness(self.seed, step)
        index = shuffled(self.seed, "labeled", step * self.batch + position, self.labeled)
        if self.anchors is None:
            return index, None
        used = random.uniform("labeled/anchored", position) < self.class_crops
        anchored, y, x = self.anchors.draw(random, "labeled/anchor", position)
        return torch.where(used, anchored, index), Center(y, x, used)

    def unlabeled_images(self, step: Tensor) -> Tensor:
        """Which unlabeled images, [U]."""
        place = step * self.unlabeled_batch + self._share(self.unlabeled_batch, step.device)
        if not self.unlabeled_batch:
            return place
        index, size = shuffled(self.seed, "unlabeled", place, self.unlabeled), self.unlabeled
        if self.request.pairs == "independent":
            second = shuffled(self.seed, "unlabeled/partner", place, size)
            return torch.cat([index, torch.where(second == index, (second + 1) % size, second)])
        return index if self.request.mixing == "none" else _unlike_pairs(index, size)

    def _share(self, size: int, device: torch.device) -> Tensor:
        """Global positions of this process's share of a batch."""
        share = size // self.world
        return torch.arange(self.rank * share, (self.rank + 1) * share, device=device)


def _unlike_pairs(index: Tensor, size: int) -> Tensor:
    """Replace the second of a pair by its successor where both are the same image, as at the end of a pass."""
    place = torch.arange(len(index), device=index.device)
    before = index.roll(1)
    index = torch.where((place % 2 == 1) & (index == before), (index + 1) % size, index)
    if len(index) % 2 == 0:
        return index
    # The last of an odd batch takes its pixels from the one before, which may just have been replaced
    last = (place == len(index) - 1) & (index == index.roll(1))
    return torch.where(last, (index + 1) % size, index)
