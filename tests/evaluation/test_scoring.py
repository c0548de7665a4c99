"""One pass over ragged images, sharded exactly, equal to scoring everything by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score
from torch import Tensor

from fewmask.config import EvaluationSettings
from fewmask.evaluation.confusion import Scores, scores
from fewmask.evaluation.inference import Predictor, probabilities
from fewmask.evaluation.scoring import evaluation_json, score_networks, select
from fewmask.labels import IGNORE
from fewmask.types import FlatImages

NAMES = ("sky", "road", "car")
SIZES = [(12, 16), (12, 16), (9, 20), (12, 16), (9, 20), (7, 7), (12, 16)]


def flat(arrays: list[Tensor]) -> FlatImages:
    """Arrays [H, W, C] uint8 in one buffer."""
    counts = [array.numel() for array in arrays]
    offset = torch.tensor([sum(counts[:index]) for index in range(len(counts))])
    height, width = (torch.tensor([array.shape[axis] for array in arrays]) for axis in (0, 1))
    return FlatImages(torch.cat([array.reshape(-1) for array in arrays]), offset, height, width, arrays[0].shape[2])


@pytest.fixture
def data() -> tuple[FlatImages, FlatImages]:
    rng = np.random.default_rng(4)
    images = [torch.from_numpy(rng.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]
    labels = [torch.from_numpy(rng.choice([0, 1, 2, IGNORE], (*size, 1)).astype(np.uint8)) for size in SIZES]
    return flat(images), flat(labels)


def tilted(seed: int) -> Predictor:
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed))
    return lambda images: torch.einsum("kc,nchw->nkhw", weight, images * 6 - 3)


NETWORKS = {"student_1": tilted(0), "teacher_1": tilted(1), "teacher_2": tilted(2)}
TEACHERS = ("teacher_1", "teacher_2")


def by_hand(networks: list[Predictor], images: FlatImages, labels: FlatImages) -> float:
    """Mean IoU of scikit-learn over all pixels of all images."""
    truth, guess = [], []
    for index in range(len(images)):
        label = labels.raw(index)[0]
        image = images.image(index)[None]
        prediction = probabilities(networks, image, size=(label.shape[0], label.shape[1]))[0].argmax(0)
        truth.append(label[label != IGNORE])
        guess.append(prediction[label != IGNORE])
    return float(jaccard_score(torch.cat(truth), torch.cat(guess), average="macro"))


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("mode", ["whole", "tiled"])
def test_every_network_and_the_ensemble(data: tuple[FlatImages, FlatImages], batch: int, mode: str) -> None:
    options = EvaluationSettings(batch=batch, mode=mode, tile=(8, 8))
    heard: list[tuple[int, int]] = []
    result = score_networks(NETWORKS, TEACHERS, *data, options, NAMES, progress=lambda *done: heard.append(done))
    assert list(result) == ["student_1", "teacher_1", "teacher_2", "ensemble"]
    for name, network in NETWORKS.items():
        assert result[name].miou == pytest.approx(by_hand([network], *data), abs=1e-9)
    assert result["ensemble"].miou == pytest.approx(by_hand([NETWORKS[name] for name in TEACHERS], *data), abs=1e-9)
    assert result["ensemble"].miou != result["teacher_1"].miou
    assert heard[-1] == (7, 7)


def test_one_network_makes_no_ensemble(data: tuple[FlatImages, FlatImages]) -> None:
    result = score_networks({"student_1": tilted(0)}, ("student_1",), *data, EvaluationSettings(), NAMES)
    assert list(result) == ["student_1"]


@pytest.mark.parametrize("ranks", [2, 3, 9])
def test_shards_sum_to_the_whole(data: tuple[FlatImages, FlatImages], ranks: int) -> None:
    parts: list[Tensor] = []

    def record(matrices: Tensor) -> Tensor:
        parts.append(matrices)
        return matrices

    for rank in range(ranks):  # with 9 ranks two of them have no image and must still take part
        score_networks(NETWORKS, TEACHERS, *data, EvaluationSettings(), NAMES, shard=(rank, ranks), reduce=record)
    assert len(parts) == ranks
    assert all(part.dtype == torch.int64 for part in parts)
    whole = score_networks(NETWORKS, TEACHERS, *data, EvaluationSettings(), NAMES)
    summed = torch.stack(parts).sum(0)
    assert dict(zip(whole, (scores(matrix, NAMES) for matrix in summed), strict=True)) == whole


def test_each_network_sees_each_image_once(data: tuple[FlatImages, FlatImages]) -> None:
    seen: list[int] = []

    def counting(images: Tensor) -> Tensor:
        seen.append(len(images))
        return tilted(0)(images)

    networks = {"teacher_1": counting, "teacher_2": tilted(1)}
    score_networks(networks, TEACHERS, *data, EvaluationSettings(batch=3), NAMES)
    assert sorted(seen) == [1, 1, 2, 3]  # four of 12x16 in batches of three, two of 9x20, one of 7x7


def test_labels_are_scored_at_their_own_size_or_at_the_asked_one() -> None:
    image = torch.zeros(2, 2, 3, dtype=torch.uint8)
    image[:, 1] = 255
    label = torch.tensor([[0, 0, 1, 1]] * 4, dtype=torch.uint8)[..., None]

    def network(images: Tensor) -> Tensor:
        return torch.stack([1 - images[:, 0], images[:, 0], torch.zeros_like(images[:, 0])], dim=1) * 9

    own = score_networks({"a": network}, (), flat([image]), flat([label]), EvaluationSettings(), NAMES)["a"]
    assert (own.pixels, own.miou) == (16, 1.0)
    asked = EvaluationSettings(size=(2, 6))
    result = score_networks({"a": network}, (), flat([image]), flat([label]), asked, NAMES)["a"]
    assert (result.pixels, result.miou) == (12, 1.0)


def test_a_smaller_label_has_the_pixels_at_the_centers() -> None:
    """As Pillow resizes masks: of 1, 0, 0, 1 in two the second and the last, not the first and the third."""
    row = np.array([[1, 0, 0, 1]], np.uint8)
    resized = torch.from_numpy(np.asarray(Image.fromarray(row).resize((2, 1), Image.Resampling.NEAREST)).copy())
    assert resized.tolist() == [[0, 1]]
    image = torch.stack([resized * 255] * 3, dim=2)  # it shows what it is

    def network(images: Tensor) -> Tensor:
        return torch.cat([1 - images[:, :1], images[:, :1], torch.zeros_like(images[:, :1])], dim=1)

    label = torch.from_numpy(row)[..., None]
    asked = EvaluationSettings(size=(1, 2))
    assert score_networks({"a": network}, (), flat([image]), flat([label]), asked, NAMES)["a"].miou == 1.0


def test_images_of_one_size_may_have_labels_of_several() -> None:
    rng = np.random.default_rng(1)
    images = flat([torch.from_numpy(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)) for _ in range(3)])
    sizes = [(6, 8), (12, 16), (6, 8)]
    labels = flat([torch.from_numpy(rng.integers(0, 3, (*size, 1), dtype=np.uint8)) for size in sizes])
    result = score_networks(NETWORKS, (), images, labels, EvaluationSettings(), NAMES)
    for name, network in NETWORKS.items():
        assert result[name].miou == pytest.approx(by_hand([network], images, labels), abs=1e-9)


def test_progress_counts_the_images_of_the_own_rank(data: tuple[FlatImages, FlatImages]) -> None:
    heard: list[tuple[int, int]] = []
    options = EvaluationSettings(batch=1)
    progress: dict[str, Any] = {"shard": (1, 3), "progress": lambda *done: heard.append(done)}
    score_networks({"a": tilted(0)}, (), *data, options, NAMES, **progress)
    assert heard == [(1, 2), (2, 2)]  # images 1 and 4 of seven


def made(miou: float) -> Scores:
    return Scores(miou, {"a": 0.5}, 0.5, 0.25, 0.75, 10)


def test_selection_takes_the_best_and_breaks_ties_by_order() -> None:
    found = {"student_1": made(0.5), "teacher_1": made(0.6), "ensemble": made(0.6), "nothing": made(float("nan"))}
    assert select(found, ["ensemble", "teacher_1"]) == "ensemble"
    assert select(found, ["teacher_1", "ensemble"]) == "teacher_1"
    assert select({"b": made(float("nan")), "a": made(float("nan"))}, ["a", "b"]) is None
    assert select({"b": made(float("nan")), "a": made(0.0)}, ["b", "a"]) == "a"


def test_evaluation_json_holds_what_is_promised() -> None:
    found = evaluation_json({"teacher_1": made(float("nan"))}, selected="teacher_1", selected_on=None, split="val")
    assert json.loads(json.dumps(found, allow_nan=False))["networks"]["teacher_1"]["miou"] is None
    entry = {"miou": 0.5, "iou": {"a": 0.5}, "pixel_accuracy": 0.5, "frequency_weighted_iou": 0.25}
    assert evaluation_json({"x": made(0.5)}, selected="x", selected_on="val", split="test") == {
        "networks": {"x": entry},
        "selected": "x",
        "selected_on": "val",
        "split": "test",
    }
