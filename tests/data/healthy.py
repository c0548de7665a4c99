"""A healthy folder data set, and the form in which the ways to break it are written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 24, 32
CLASSES = ("background", "road", "car")


def write_image(path: Path, seed: int, *, size: tuple[int, int] = (HEIGHT, WIDTH), channels: int = 3) -> None:
    """A noise image; the seed makes it unlike every other."""
    shape = size if channels == 1 else (*size, channels)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)).save(path)


def blocks(size: tuple[int, int] = (HEIGHT, WIDTH)) -> np.ndarray:
    """Background above, road below, a car on the road and an ignored corner, [H, W] uint8."""
    height, width = size
    label = np.zeros(size, np.uint8)
    label[height // 2 :] = 1
    label[height // 2 : height // 2 + 6, 4:12] = 2
    label[:2, width - 4 :] = 255
    return label


def write_mask(path: Path, label: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(label).save(path)


def healthy(root: Path) -> Path:
    """Four labeled, three unlabeled, two val and two test images in the folder convention; nothing is wrong with it."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    seed = 0
    for folder, names in (("", "abcd"), ("val", "pq"), ("test", "st")):
        for name in names:
            seed += 1
            write_image(root / folder / "images" / f"{name}.png", seed)
            write_mask(root / folder / "masks" / f"{name}.png", blocks())
    for name in "xyz":
        seed += 1
        write_image(root / "unlabeled" / f"{name}.png", seed)
    return root


@dataclass(frozen=True)
class Broken:
    """One way to break the healthy set, and what the checker must say about it and nothing else."""

    name: str
    build: Callable[[Path], None]
    code: str
    path: str
    message: tuple[str, ...]  # parts that the message must hold
    fix: str  # a part of the fix
    level: Literal["error", "warning"] = "error"
    settings: dict[str, object] = field(default_factory=dict)


Build = Callable[[Path], None]


def broken(
    cases: list[Broken],
    code: str,
    path: str,
    message: str | tuple[str, ...],
    fix: str,
    *,
    level: Literal["error", "warning"] = "error",
    **settings: object,
) -> Callable[[Build], Build]:
    """Adds a builder to the cases, under its own name."""

    def add(build: Build) -> Build:
        parts = (message,) if isinstance(message, str) else message
        cases.append(Broken(build.__name__, build, code, path, parts, fix, level, settings))
        return build

    return add
