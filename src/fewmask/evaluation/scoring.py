"""Scores every network of a run, and their ensemble, in one pass over the images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewmask.config import EvaluationSettings
from fewmask.evaluation.confusion import Scores, confusion_matrix, scores
from fewmask.evaluation.inference import Predictor, predict
from fewmask.types import FlatImages

ENSEMBLE = "ensemble"


def score_networks(
    networks: Mapping[str, Predictor],
    ensemble: Sequence[str],
    images: FlatImages,
    labels: FlatImages,
    settings: EvaluationSettings,
    class_names: Sequence[str],
    *,
    shard: tuple[int, int] = (0, 1),
    device: torch.device | None = None,
    reduce: Callable[[Tensor], Tensor] = lambda matrices: matrices,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Scores]:
    """Scores of each network and, when `ensemble` names two or more, of the mean of their probabilities.

    `shard` is (rank, ranks): rank r takes images r, r + ranks, ..., each image once; `reduce` sums the int64 matrices
    [networks, K, K] over ranks and is called once on every rank, also on one without images. `progress` hears
    (images done, images of this rank).
    """
    assert len(images) == len(labels), "one label map per image"
    assert set(ensemble) <= set(networks), "an ensemble of networks that are there"
    device = device or images.values.device
    names = [*networks, ENSEMBLE] if len(ensemble) > 1 else [*networks]
    matrices = torch.zeros(len(names), len(class_names), len(class_names), dtype=torch.int64, device=device)
    total = len(range(shard[0], len(images), shard[1]))
    done = 0
    for group in _groups(images, labels, settings, shard):
        image = torch.stack([images.image(index) for index in group]).to(device)  # [N, C, H, W]
        label = _labels(labels, group, settings.size).to(device)  # [N, H, W]
        matrices += torch.stack(_matrices(networks, ensemble, image, label, settings, len(class_names)))
        done += len(group)
        if progress is not None:
            progress(done, total)
    return {name: scores(matrix, class_names) for name, matrix in zip(names, reduce(matrices), strict=True)}


def _groups(
    images: FlatImages, labels: FlatImages, settings: EvaluationSettings, shard: tuple[int, int]
) -> Iterator[list[int]]:
    """Indices of this rank's images, in groups of equal image and label size that fit one forward pass."""
    shapes = [tensor.tolist() for tensor in (images.height, images.width, labels.height, labels.width)]
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index in range(shard[0], len(images), shard[1]):
        by_shape.setdefault(tuple(sizes[index] for sizes in shapes), []).append(index)
    for indices in by_shape.values():
        for first in range(0, len(indices), settings.batch):
            yield indices[first : first + settings.batch]


def _labels(labels: FlatImages, group: Sequence[int], size: tuple[int, int] | None) -> Tensor:
    """Label maps at the size at which they are scored, [N, H, W]; nearest keeps every pixel a class or IGNORE."""
    label = torch.stack([labels.raw(index) for index in group])  # [N, 1, H, W]
    if size is not None and label.shape[-2:] != size:
        label = F.interpolate(label.float(), size, mode="nearest-exact")
    return label[:, 0].long()


def _matrices(
    networks: Mapping[str, Predictor],
    ensemble: Sequence[str],
    image: Tensor,
    label: Tensor,
    settings: EvaluationSettings,
    num_classes: int,
) -> list[Tensor]:
    """One confusion matrix per network, then the ensemble's; each network runs once."""
    size = (label.shape[-2], label.shape[-1])
    matrices: list[Tensor] = []
    together: Tensor | None = None
    for name, network in networks.items():
        probability = predict([network], image, settings, size)  # [N, K, H, W]
        matrices.append(confusion_matrix(label, probability.argmax(dim=1), num_classes))
        if name in ensemble and len(ensemble) > 1:
            together = probability if together is None else together.add_(probability)
    if together is not None:
        matrices.append(confusion_matrix(label, together.argmax(dim=1), num_classes))  # the sum has the mean's argmax
    return matrices


def select(scores: Mapping[str, Scores], order: Sequence[str]) -> str | None:
    """The network with the best mIoU; of equals the one that comes first in `order`. None where no pixel was scored."""
    names = [name for name in order if name in scores] + [name for name in scores if name not in order]
    known = [name for name in names if math.isfinite(scores[name].miou)]
    return max(known, key=lambda name: scores[name].miou, default=None)


def evaluation_json(
    scores: Mapping[str, Scores], *, selected: str, selected_on: str | None, split: str
) -> dict[str, Any]:
    """What evaluation.json holds: `selected_on` is the split that chose the network, None when nothing did."""
    keys = ("miou", "iou", "pixel_accuracy", "frequency_weighted_iou")
    entries = {name: one.to_json() for name, one in scores.items()}
    return {
        "networks": {name: {key: entry[key] for key in keys} for name, entry in entries.items()},
        "selected": selected,
        "selected_on": selected_on,
        "split": split,
    }
