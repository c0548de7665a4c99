"""Losses as sums with counts (fewmask.types.Loss), so that any number of ranks gives one process's loss.

Logits come at the network's stride and are up-sampled here to the label's size. IGNORE pixels neither add to a sum nor
to a count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fewmask.alignment import pitch, resampled
from fewmask.config import LossSettings
from fewmask.labels import IGNORE
from fewmask.types import Loss, Scores


def upsample(maps: Tensor, size: tuple[int, int], shown: tuple[int, int] | None = None) -> Tensor:
    """Bilinear between the cells' middles (alignment.py): [N, K, h, w] -> [N, K, H, W].

    `shown`: the size of the image that the maps are of, where it is not the one asked for. As matrix products, whose
    gradient is several times faster on CPU and GPU than F.interpolate's.
    """
    sides = zip(shown or size, maps.shape[-2:], size, strict=True)
    steps = [side / pitch(side, cells) / large for side, cells, large in sides]
    if tuple(maps.shape[-2:]) == tuple(size) and steps == [1, 1]:  # other steps: the last cell hangs over the image
        return maps
    with torch.autocast(maps.device.type, enabled=False):
        return resampled(maps, size, steps)


def cross_entropy(
    logits: Tensor, label: Tensor, *, pixel_weight: Tensor | None = None, class_weights: Tensor | None = None
) -> Loss:
    """Mean cross entropy over the labeled pixels.

    pixel_weight [N, H, W] scales single pixels and leaves the count alone, so that dropped pixels stay in the
    denominator; class_weights [K] scale both, as torch does.
    """
    valid = label != IGNORE  # [N, H, W]
    loss = _pixel_cross_entropy(logits, label)  # [N, H, W], 0 where ignored
    count = valid.to(loss.dtype)
    if class_weights is not None:
        # Only their ratios matter. With the least at 1 no count of labeled pixels is below that of a single one, and
        # what divides by it may take a smaller count for none (types.Loss).
        weights = class_weights.to(loss.dtype)
        weight = (weights / weights.where(weights > 0, math.inf).min())[label.where(valid, 0)] * count
        loss, count = loss * weight, weight
    if pixel_weight is not None:
        loss = loss * pixel_weight
    return Loss.mean("cross_entropy", loss.sum(), count.sum())


def cross_entropies(logits: Tensor, labels: Sequence[Tensor], counted: Tensor) -> list[Loss]:
    """The same logits against several labels, enlarged and normalized once for all of them.

    Each is the mean over the `counted` pixels [N, H, W] bool; of these, ignored ones add nothing and stay in the count.
    """
    log_probability = upsample(logits, _size(labels[0])).log_softmax(1)  # [N, K, H, W]
    count = counted.sum().to(log_probability.dtype)
    # Added up here: on CUDA nll_loss itself adds pixels in no fixed order
    totals = [F.nll_loss(log_probability, label, ignore_index=IGNORE, reduction="none").sum() for label in labels]
    return [Loss.mean("cross_entropy", total, count) for total in totals]


def hard_cross_entropy(logits: Tensor, label: Tensor, *, threshold: float, keep: float) -> Loss:
    """Online hard example mining, per image: the mean over pixels whose true class has probability below `threshold`.

    At least the share `keep` of each image's labeled pixels counts, the hardest first.
    """
    valid = (label != IGNORE).flatten(1)  # [N, HW]
    loss = _pixel_cross_entropy(logits, label).flatten(1)  # [N, HW]
    ranked = loss.detach().masked_fill(~valid, -1.0).sort(dim=1, descending=True).values
    fewest = (valid.sum(1) * keep).ceil().long().clamp(min=1)  # [N]
    bound = ranked.gather(1, fewest[:, None] - 1).clamp(max=-math.log(threshold) if threshold > 0 else math.inf)
    hard = valid & (loss.detach() >= bound)
    return Loss.mean("cross_entropy", (loss * hard).sum(), hard.sum().to(loss.dtype))


def dice(logits: Tensor, label: Tensor) -> Loss:
    """Soft Dice loss, averaged over every class that an image's label holds."""
    probability = upsample(logits, _size(label)).softmax(1)  # [N, K, H, W]
    valid = label != IGNORE
    classes = torch.arange(logits.shape[1], device=label.device)
    truth = (label[:, None] == classes[:, None, None]).to(probability.dtype)  # [N, K, H, W]
    shared = (probability * truth).sum((2, 3))  # [N, K]
    total = (probability * valid[:, None]).sum((2, 3)) + truth.sum((2, 3))
    present = (truth.sum((2, 3)) > 0).to(probability.dtype)
    lost = (1 - 2 * shared / total.clamp(min=1e-6)) * present
    return Loss.mean("dice", lost.sum(), present.sum())


class LabeledLoss(nn.Module):
    """The loss on labeled images that the settings ask for.

    Auxiliary heads, where a network has some, learn here and nowhere else: from the same labels by the same loss, each
    with its weight and under a name of its own.
    """

    class_weights: Tensor | None

    def __init__(self, settings: LossSettings, class_weights: Tensor | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.register_buffer("class_weights", class_weights, persistent=False)

    def forward(self, scores: Scores, label: Tensor) -> Loss:
        loss = self._loss(scores.logits, label)
        for number, logits in enumerate(scores.auxiliary, start=1):
            loss = loss + scores.auxiliary_weight * self._loss(logits, label, f"_auxiliary_{number}")
        return loss

    def _loss(self, logits: Tensor, label: Tensor, suffix: str = "") -> Loss:
        if self.settings.kind == "ohem":
            loss = hard_cross_entropy(
                logits, label, threshold=self.settings.ohem_threshold, keep=self.settings.ohem_keep
            )
        else:
            loss = cross_entropy(logits, label, class_weights=self.class_weights)
        loss = loss.named(f"labeled{suffix}")
        if self.settings.kind == "dice":
            loss = loss + self.settings.dice_weight * dice(logits, label).named(f"labeled_dice{suffix}")
        return loss


def inverse_frequency_weights(pixels: Tensor) -> Tensor:
    """Weights [K] from labeled pixel counts [K]: inverse frequency, mean 1 over the classes that occur, 0 elsewhere."""
    share = pixels.double() / pixels.sum().clamp(min=1)
    weights = torch.where(pixels > 0, 1 / share.clamp(min=1e-12), 0.0)
    present = (pixels > 0).sum().clamp(min=1)
    return (weights * present / weights.sum().clamp(min=1e-12)).float()


def _pixel_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(upsample(logits, _size(label)), label, ignore_index=IGNORE, reduction="none")


def _size(label: Tensor) -> tuple[int, int]:
    return label.shape[-2], label.shape[-1]
