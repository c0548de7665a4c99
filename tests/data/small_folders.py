"""Tiny data folders for tests: pictures of one color and masks of a few values, and how they open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewmask.config import DataSettings
from fewmask.data.dataset import Dataset
from fewmask.data.opening import open_dataset
from fewmask.data.problem import DataProblem


def image(path: Path, value: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(path)


def mask(path: Path, *values: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.resize(np.array(values, np.uint8), (4, 6))).save(path)


def pairs(root: Path, names: str, *values: int) -> Path:
    for name in names:
        image(root / f"images/{name}.jpg")
        mask(root / f"masks/{name}.png", *values)
    return root


def opened(root: Path, **settings: object) -> Dataset:
    return open_dataset(root, DataSettings(**settings))  # type: ignore[arg-type]


def names(samples: tuple) -> list[str]:
    return [sample.name for sample in samples]


def refused(root: Path, code: str, **settings: object) -> DataProblem:
    with pytest.raises(DataProblem) as caught:
        opened(root, **settings)
    assert caught.value.code == code
    assert caught.value.fix
    return caught.value
