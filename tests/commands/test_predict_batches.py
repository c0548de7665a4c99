"""`fewmask predict`: images of equal size go through the network together, with the answers they would get alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewmask.commands.image_files import Job
from fewmask.commands.predict import Segmenter, _answers, load_segmenter
from fewmask.config import EvaluationSettings
from fewmask.errors import DataError
from fewmask.training.run_folder import RunFolder
from tests.commands.folders import noise, write_model

SIZES = [(20, 30)] * 5 + [(30, 20)] * 2 + [(20, 30)]


@pytest.fixture
def photos(tmp_path: Path) -> list[Job]:
    for number, size in enumerate(SIZES):
        Image.fromarray(noise(size, seed=number)).save(tmp_path / f"{number}.png")
    return [Job(tmp_path / f"{number}.png", tmp_path / "none.png", None) for number in range(len(SIZES))]


def segmenter(folder: Path, **settings: object) -> Segmenter:
    write_model(folder)
    made = load_segmenter(RunFolder(folder), None, tile=None, max_pixels=None, device="cpu")
    return Segmenter(made.predictors, made.card, EvaluationSettings(**settings), made.max_pixels, made.device)


@pytest.mark.parametrize("mode", ["whole", "tiled"])
def test_together_or_alone(tmp_path: Path, photos: list[Job], mode: str):
    model = segmenter(tmp_path / "model", batch=4, mode=mode, tile=(16, 16))
    groups = list(model.groups(model.read(job) for job in photos))
    assert [len(group) for group in groups] == [4, 1, 2, 1]  # four at a time, neighbors of equal size, in order
    assert [photo.job for group in groups for photo in group] == photos
    for group in groups:
        for photo, (label, confidence) in _answers(model, group, []):
            alone_label, alone_confidence = model.alone(photo)
            assert label.shape == photo.size
            assert np.array_equal(label, alone_label)
            np.testing.assert_allclose(confidence, alone_confidence, atol=1e-6)


def test_large_images_go_through_alone(tmp_path: Path, photos: list[Job], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fewmask.commands.predict._MOST_PIXELS", 20 * 30 * 2 + 1)
    model = segmenter(tmp_path / "model")
    groups = list(model.groups(model.read(job) for job in photos))
    assert [len(group) for group in groups] == [2, 2, 1, 2, 1]
    monkeypatch.setattr("fewmask.commands.predict._MOST_PIXELS", 100)
    assert {len(group) for group in model.groups(model.read(job) for job in photos)} == {1}


def test_what_does_not_fit_together_is_tried_alone(tmp_path: Path, photos: list[Job]):
    model = segmenter(tmp_path / "model")
    fits = model.predictors[0]

    def cramped(images: torch.Tensor) -> torch.Tensor:
        if len(images) > 1 or images.shape[-1] == 20:
            raise torch.OutOfMemoryError
        return fits(images)

    small = Segmenter([cramped], model.card, model.settings, model.max_pixels, model.device)
    failures: list[DataError] = []
    groups = model.groups(model.read(job) for job in photos)
    done = [photo.job for group in groups for photo, _ in _answers(small, group, failures)]
    assert done == [*photos[:5], photos[7]]
    assert [failure.what for failure in failures] == ["not enough memory for 20x30 pixels at once"] * 2
