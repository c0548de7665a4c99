"""The matrix and its scores against hand-computed numbers, a plain loop and scikit-learn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, jaccard_score, recall_score
from torch._subclasses.fake_tensor import FakeTensorMode

from fewmask.evaluation.confusion import confusion_matrix, scores
from fewmask.labels import IGNORE


def test_matrix_and_scores_by_hand() -> None:
    label = torch.tensor([[0, 0, 0, 1], [1, 2, IGNORE, IGNORE]])
    prediction = torch.tensor([[0, 0, 1, 1], [2, 2, 0, 1]])
    matrix = confusion_matrix(label, prediction, 4)
    assert matrix.tolist() == [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    result = scores(matrix, ["sky", "road", "car", "pole"])
    assert result.iou == {"sky": 2 / 3, "road": 1 / 3, "car": 1 / 2, "pole": None}
    assert result.miou == pytest.approx(0.5, abs=1e-12)
    assert result.pixel_accuracy == pytest.approx(4 / 6, abs=1e-12)
    assert result.frequency_weighted_iou == pytest.approx((3 * 2 / 3 + 2 / 3 + 1 / 2) / 6, abs=1e-12)
    assert result.class_accuracy == pytest.approx((2 / 3 + 1 / 2 + 1) / 3, abs=1e-12)
    assert result.pixels == 6


def test_absent_class_that_is_predicted_costs_only_the_true_class() -> None:
    label = torch.tensor([0, 0, 1, 1])
    as_absent = scores(confusion_matrix(label, torch.tensor([0, 2, 1, 1]), 3), "abc")
    as_present = scores(confusion_matrix(label, torch.tensor([0, 1, 1, 1]), 3), "abc")
    assert as_absent.iou == {"a": 0.5, "b": 1.0, "c": None}
    assert as_absent.miou == 0.75
    assert as_present.iou["b"] == pytest.approx(2 / 3)  # a wrong pixel enters the union of a present class


def test_all_ignore_has_no_score_and_valid_json() -> None:
    result = scores(confusion_matrix(torch.full((3, 3), IGNORE), torch.zeros(3, 3), 2), ["a", "b"])
    assert math.isnan(result.miou)
    assert math.isnan(result.pixel_accuracy)
    read = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert read["miou"] is None
    assert read["iou"] == {"a": None, "b": None}
    assert read["pixels"] == 0


def test_label_that_is_no_class_fails_instead_of_being_counted() -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        confusion_matrix(torch.tensor([0, 2]), torch.tensor([0, 0]), 2)


def test_matrix_asks_the_host_for_nothing() -> None:
    with FakeTensorMode():
        label, prediction = torch.zeros(8, 8, dtype=torch.uint8), torch.zeros(8, 8, dtype=torch.int64)
        assert confusion_matrix(label, prediction, 5).shape == (5, 5)


@given(
    num_classes=st.integers(1, 6),
    pixels=st.integers(1, 60),
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from([torch.uint8, torch.int64]),
)
@settings(max_examples=60, deadline=None)
def test_equal_to_scikit_learn(num_classes: int, pixels: int, seed: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.choice([*rng.integers(0, num_classes, 3), IGNORE], pixels)  # few classes: some are absent
    predicted = rng.integers(0, num_classes, pixels)
    matrix = confusion_matrix(torch.from_numpy(drawn).to(dtype), torch.from_numpy(predicted), num_classes)
    names = [str(index) for index in range(num_classes)]
    result = scores(matrix, names)

    truth, guess = drawn[drawn != IGNORE], predicted[drawn != IGNORE]
    looped = np.zeros((num_classes, num_classes), dtype=np.int64)
    for row, column in zip(truth, guess, strict=True):
        looped[row, column] += 1
    assert matrix.tolist() == looped.tolist()
    present = sorted(set(truth.tolist()))
    assert [name for name in names if result.iou[name] is not None] == [str(index) for index in present]
    if not present:
        assert math.isnan(result.miou)
        return
    options = {"labels": present, "zero_division": 0}
    per_class = jaccard_score(truth, guess, average=None, **options)
    assert [result.iou[str(index)] for index in present] == pytest.approx(per_class.tolist(), abs=1e-9)
    assert result.miou == pytest.approx(jaccard_score(truth, guess, average="macro", **options), abs=1e-9)
    weighted = jaccard_score(truth, guess, average="weighted", **options)
    assert result.frequency_weighted_iou == pytest.approx(weighted, abs=1e-9)
    assert result.pixel_accuracy == pytest.approx(accuracy_score(truth, guess), abs=1e-9)
    assert result.class_accuracy == pytest.approx(recall_score(truth, guess, average="macro", **options), abs=1e-9)


def test_counts_beyond_float32_stay_exact() -> None:
    matrix = torch.tensor([[2**40, 1], [0, 3]])
    result = scores(matrix, ["a", "b"])
    assert result.pixels == 2**40 + 4
    assert result.iou["a"] == 2**40 / (2**40 + 1)
