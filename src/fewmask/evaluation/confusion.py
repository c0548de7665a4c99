"""The confusion matrix and the scores that are read off it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewmask.determinism import any_order
from fewmask.labels import IGNORE


def confusion_matrix(label: Tensor, prediction: Tensor, num_classes: int) -> Tensor:
    """How many pixels of each true class (rows) got each prediction (columns), [K, K] int64, without IGNORE pixels.

    No host sync: scatter_add, because bincount asks the device for the largest value even when minlength is given.
    Bin 0 takes the ignored pixels, so that a label that is neither a class nor IGNORE lies past the last bin and fails.
    """
    label, prediction = label.reshape(-1).long(), prediction.reshape(-1).long()
    cell = torch.where(label == IGNORE, 0, label * num_classes + prediction + 1)
    counts = torch.zeros(num_classes**2 + 1, dtype=torch.int64, device=label.device)
    with any_order():
        counts.scatter_add_(0, cell, torch.ones_like(cell))
    return counts[1:].reshape(num_classes, num_classes)  # [K, K]


@dataclass(frozen=True)
class Scores:
    """What a confusion matrix says; fractions, nan where there is no labeled pixel.

    A pixel predicted as a class that the truth does not hold is an error of its true class, whose union holds the
    pixel already; the absent class itself has no IoU (None) and is not averaged.
    """

    miou: float  # mean over the classes present in the truth
    iou: dict[str, float | None]  # None: the class is absent from the truth
    pixel_accuracy: float
    frequency_weighted_iou: float
    class_accuracy: float  # mean recall of the classes present in the truth
    pixels: int  # pixels scored

    def to_json(self) -> dict[str, Any]:
        """JSON knows no nan: it becomes null."""
        return {
            "miou": _number(self.miou),
            "iou": dict(self.iou),
            "pixel_accuracy": _number(self.pixel_accuracy),
            "frequency_weighted_iou": _number(self.frequency_weighted_iou),
            "class_accuracy": _number(self.class_accuracy),
            "pixels": self.pixels,
        }


def scores(matrix: Tensor, class_names: Sequence[str]) -> Scores:
    """All scores of one matrix, in float64 from exact counts."""
    matrix = matrix.cpu()
    hits = matrix.diagonal()  # [K]
    truth, predicted = matrix.sum(1), matrix.sum(0)  # [K]
    present = truth > 0
    # Classes that are neither true nor predicted would divide by zero; they are not present and not used.
    iou = hits.double() / (truth + predicted - hits).clamp(min=1)
    recall = hits.double() / truth.clamp(min=1)
    share = truth.double() / truth.sum()  # nan when there is no pixel at all
    per_class = zip(class_names, iou.tolist(), present.tolist(), strict=True)
    return Scores(
        miou=iou[present].mean().item(),
        iou={name: value if seen else None for name, value, seen in per_class},
        pixel_accuracy=(hits.sum().double() / truth.sum()).item(),
        frequency_weighted_iou=(share * iou).sum().item(),
        class_accuracy=recall[present].mean().item(),
        pixels=int(truth.sum()),
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
