"""Data folders and model folders for the command tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from fewmask.config import NetworkSettings
from fewmask.data.dataset import Classes
from fewmask.data.synthetic import render_scene
from fewmask.networks.build import build_network
from fewmask.training.model_file import ModelCard, save_model

TINY = ("network.backbone=test_resnet", "network.width=16", "training.steps=2", "training.batch=2")
SIZE = (32, 48)
Draw = Callable[[np.ndarray], np.ndarray]


def same(array: np.ndarray) -> np.ndarray:
    return array


def gray16(image: np.ndarray) -> np.ndarray:
    return image[:, :, 1].astype(np.uint16) * 257


def road_or_not(label: np.ndarray) -> np.ndarray:
    return np.where(label == 2, 255, 0).astype(np.uint8)


def write_folder(
    root: Path, *, labeled: int = 5, unlabeled: int = 3, val: int = 0, image: Draw = same, mask: Draw = same
) -> Path:
    """A folder data set without a class file, drawn from the scenes."""
    for part, start, count in (("", 0, labeled), ("val", 100, val)):
        for index in range(count):
            write_pair(root / part, f"photo {index}", render_scene(7, start + index, SIZE), image, mask)
    for index in range(unlabeled):
        path = root / "unlabeled" / f"more {index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image(render_scene(7, 200 + index, SIZE)[0])).save(path)
    return root


def write_pair(root: Path, name: str, scene: tuple[np.ndarray, np.ndarray], image: Draw, mask: Draw) -> None:
    for folder, array in (("images", image(scene[0])), ("masks", mask(scene[1]))):
        (root / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(root / folder / f"{name}.png")


def add_test_part(root: Path, *, count: int) -> None:
    for index in range(count):
        write_pair(root / "test", f"scene_{index:04d}", render_scene(0, 3_000_000 + index, SIZE), same, same)


def write_model(
    folder: Path, *, channels: int = 3, resize: tuple[int, int] | None = None, classes: int = 3, seed: int = 1
) -> ModelCard:
    """An untrained model as a run ships it: model.safetensors and model.json, nothing else."""
    settings = NetworkSettings(backbone="test_resnet", width=16, options={"zero_init_last": False})
    names = tuple(f"class_{index}" for index in range(classes))
    colors = tuple((40 * index, 200 - 40 * index, 10) for index in range(classes))
    card = ModelCard(
        settings, channels, Classes(names, colors), "teacher_1", None, None, method="mean_teacher", resize=resize
    )
    folder.mkdir(parents=True)
    network = build_network(settings, num_classes=classes, channels=channels, seed=seed)
    save_model(folder, network, card)
    return card


def noise(size: tuple[int, int], seed: int = 0, channels: int = 3) -> np.ndarray:
    """A picture on which an untrained network does not give the same class everywhere."""
    shape = (*size, channels) if channels > 1 else size
    coarse = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse[:4, :6]).resize((size[1], size[0]), Image.Resampling.NEAREST))


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def indices(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.mode == "P"
        return np.asarray(picture)
