"""What the pseudo labels of a batch are worth, seen from outside the method, where hidden masks may be looked at.

Everything is counted first, so that the counts of several processes add up, and then read off as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewmask.evaluation.confusion import confusion_matrix, scores
from fewmask.labels import IGNORE
from fewmask.learning.prototypes import valid_cells
from fewmask.methods.method import PseudoLabels
from fewmask.networks.compilation import as_written
from fewmask.training.engine import Engine
from fewmask.types import FlatImages
from fewmask.views.geometry import sample_labels
from fewmask.views.sampler import BatchMaker

CERTAIN = 0.99  # a larger weight leaves p0 little say
# All other counts are pairs: how many, of how many
_HISTOGRAM, _MATRIX, _MATRIX_BEFORE = "histogram", "matrix", "matrix before rectification"
Counts = dict[str, Tensor]  # name -> [L, ...] float64, a row for each of the L sources of labels


@dataclass(frozen=True)
class Diagnostics:
    """Keeps the hidden masks: no batch and no method has them."""

    classes: tuple[str, ...]
    prior: Tensor  # [K] share of each class in the labeled pixels
    truth: FlatImages | None = None  # masks of the unlabeled images, on the host; None: there is not one
    looked_up: Callable[[], None] = lambda: None  # called after masks were read

    @torch.no_grad()
    def __call__(self, engine: Engine, maker: BatchMaker, step: Tensor) -> dict[str, float]:
        """The numbers for the batch of `step`, as the networks are now; all ranks must call this."""
        batch = maker(step)
        with engine.autocast(), as_written():
            found = engine.method.pseudo_labels(batch)
        if not found:
            return {}
        counts = count(found, batch.valid, self._truth(maker, step, batch.valid), len(self.classes))
        counts = {name: engine.world.sum(each).cpu() for name, each in counts.items()}
        return numbers(counts, [each.source for each in found], self.classes, self.prior)

    def _truth(self, maker: BatchMaker, step: Tensor, valid: Tensor) -> Tensor:
        """The hidden masks under the windows of the batch, [U, H, W]; IGNORE where nobody knows."""
        if self.truth is None:
            return torch.full_like(valid, IGNORE, dtype=torch.int64)
        windows = maker.unlabeled_windows(step).to(self.truth.values.device)
        truth = sample_labels(self.truth, windows, maker.crop).to(valid.device)
        self.looked_up()
        return truth


def count(found: Sequence[PseudoLabels], valid: Tensor, truth: Tensor, num_classes: int) -> Counts:
    """Everything that is counted about the labels of one batch; valid and truth are [U, H, W]."""
    rows = [
        _label_counts(each, valid, truth, num_classes)
        | _flip_counts(each, truth, num_classes)
        | _prototype_counts(each, valid)
        for each in found
    ]
    counts = {name: torch.stack([row[name].double() for row in rows]) for name in rows[0]}
    if len(found) > 1:
        labels = torch.stack([each.label for each in found])  # [L, U, H, W]
        taught_by_all = (labels != IGNORE).all(0)
        counts["coupling/same_label"] = _pair((labels == labels[0]).all(0), taught_by_all).double()[None]
    return counts


def _label_counts(found: PseudoLabels, valid: Tensor, truth: Tensor, num_classes: int) -> Counts:
    taught = found.label != IGNORE  # [U, H, W]
    classes = torch.arange(num_classes, device=taught.device)[:, None]
    return {
        "pseudo/taught": _pair(taught, valid),
        _HISTOGRAM: (found.label.flatten() == classes).sum(1),  # [K]
        _MATRIX: confusion_matrix(truth.where(taught, IGNORE), found.label, num_classes),  # [K, K]
    }


def _flip_counts(found: PseudoLabels, truth: Tensor, num_classes: int) -> Counts:
    """What rectification changed, and what the changed pixels were and are worth where the truth is known."""
    if found.before is None:
        return {}
    taught = found.label != IGNORE  # [U, H, W]
    flipped = taught & (found.label != found.before)
    known = flipped & (truth != IGNORE)
    return {
        "rectification/flipped": _pair(flipped, taught),
        "rectification/flips_right": _pair(found.label == truth, known),
        "rectification/flips_from_right": _pair(found.before == truth, known),
        _MATRIX_BEFORE: confusion_matrix(truth.where(taught, IGNORE), found.before, num_classes),  # [K, K]
    }


def _prototype_counts(found: PseudoLabels, valid: Tensor) -> Counts:
    counts: Counts = {}
    if found.weight is not None:
        cells = valid_cells(valid, (found.weight.shape[-2], found.weight.shape[-1]))  # [U, h, w]
        counts["rectification/certain"] = _pair(found.weight > CERTAIN, cells)
    if found.drift is not None:
        counts["prototypes/drift"] = torch.stack([found.drift, torch.ones_like(found.drift)])
    return counts


def _pair(hits: Tensor, among: Tensor) -> Tensor:
    """How many of `among` are hits, and how many there are, [2]."""
    return torch.stack([(hits & among).sum(), among.sum()])


def numbers(
    counts: Mapping[str, Tensor], sources: Sequence[str], classes: Sequence[str], prior: Tensor
) -> dict[str, float]:
    """Numbers over all sources together; what nothing was counted for is left out."""
    total = {name: rows.sum(0) for name, rows in sorted(counts.items())}
    histogram, matrix, before = total.pop(_HISTOGRAM), total.pop(_MATRIX), total.pop(_MATRIX_BEFORE, None)
    values = {name: (hits / among).item() for name, (hits, among) in total.items() if among > 0}
    if matrix.sum() > 0:
        values |= _against_truth(matrix, classes)
        values |= {} if before is None else {"rectification/miou_before": scores(before.long(), classes).miou}
        values |= _each_miou(counts[_MATRIX], sources, classes) if len(sources) > 1 else {}
    return values | (_against_prior(histogram, classes, prior) if histogram.sum() > 0 else {})


def _against_truth(matrix: Tensor, classes: Sequence[str]) -> dict[str, float]:
    found = scores(matrix.long(), classes)
    iou = {f"pseudo_iou/{name}": value for name, value in found.iou.items() if value is not None}
    return {"pseudo/accuracy": found.pixel_accuracy, "pseudo/miou": found.miou} | iou


def _each_miou(matrices: Tensor, sources: Sequence[str], classes: Sequence[str]) -> dict[str, float]:
    """The mIoU of each source that taught a pixel whose truth is known."""
    pairs = zip(sources, matrices.long(), strict=True)
    return {f"pseudo_miou/{name}": scores(matrix, classes).miou for name, matrix in pairs if matrix.sum() > 0}


def _against_prior(histogram: Tensor, classes: Sequence[str], prior: Tensor) -> dict[str, float]:
    """How often each class is taught, its share in the labeled pixels, and the total variation between the two."""
    share = histogram / histogram.sum()  # [K]
    values = {"pseudo/from_prior": 0.5 * (share - prior).abs().sum().item()}
    values |= {f"pseudo_share/{name}": each for name, each in zip(classes, share.tolist(), strict=True)}
    return values | {f"prior_share/{name}": each for name, each in zip(classes, prior.tolist(), strict=True)}
