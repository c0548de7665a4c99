"""Street scenes that the project renders itself: the demo's data, saved as a folder that any user could have made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from fewmask.data.dataset import Classes
from fewmask.data.synthetic_canvas import Array
from fewmask.data.synthetic_scene import draw_scene
from fewmask.errors import ConfigError, DataError

CLASSES = Classes(
    names=("sky", "building", "road", "pavement", "tree", "car", "person", "pole"),
    colors=(
        (70, 130, 180),
        (70, 70, 70),
        (128, 64, 128),
        (244, 35, 232),
        (107, 142, 35),
        (0, 0, 142),
        (220, 20, 60),
        (250, 170, 30),
    ),
)
# Each part of the data set has its own range of scenes, so that asking for more of one leaves the others as they were.
_UNLABELED_START, _VAL_START = 1_000_000, 2_000_000


def render_scene(seed: int, index: int, size: tuple[int, int] = (96, 128)) -> tuple[Array, Array]:
    """Image [H, W, 3] uint8 and class indices [H, W] uint8; nothing but the arguments decides them."""
    if seed < 0 or index < 0 or min(size) < 16:
        raise ConfigError(
            "a scene cannot be rendered from these numbers",
            where=f"seed={seed}, index={index}, size={size}",
            fix="seed and index of 0 or more, height and width of at least 16",
        )
    return draw_scene(np.random.Generator(np.random.PCG64([seed, index])), size)


def write_scenes(
    root: Path,
    *,
    seed: int = 0,
    labeled: int = 12,
    unlabeled: int = 300,
    val: int = 60,
    size: tuple[int, int] = (96, 128),
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a folder data set that appears at `root` only when it is complete.

    `progress` is told how many scenes are done, of how many. The masks of unlabeled scenes are never written.
    """
    root = root.resolve()
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise DataError("the folder for the scenes is not empty", where=str(root), fix="a path that does not exist yet")
    parts = [("", 0, labeled), ("unlabeled", _UNLABELED_START, unlabeled), ("val", _VAL_START, val)]
    jobs = [(part, start + i, f"scene_{i:04d}.png") for part, start, count in parts for i in range(count)]
    partial = root.with_name(f".{root.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _make_folders(partial)
        for done, (part, index, name) in enumerate(jobs, start=1):
            _write_scene(partial, part, name, render_scene(seed, index, size))
            if progress is not None:
                progress(done, len(jobs))
        if root.exists():
            root.rmdir()
        partial.rename(root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_folders(root: Path) -> None:
    for folder in ("images", "masks", "unlabeled", "val/images", "val/masks"):
        (root / folder).mkdir(parents=True)
    listing = [{"name": name, "color": list(color)} for name, color in zip(CLASSES.names, CLASSES.colors, strict=True)]
    (root / "classes.yaml").write_text(yaml.safe_dump({"classes": listing}, sort_keys=False))


def _write_scene(root: Path, part: str, name: str, scene: tuple[Array, Array]) -> None:
    image, label = scene
    if part == "unlabeled":
        Image.fromarray(image).save(root / part / name)
        return
    Image.fromarray(image).save(root / part / "images" / name)
    mask = Image.fromarray(label).convert("P")
    mask.putpalette([channel for color in CLASSES.colors for channel in color])
    mask.save(root / part / "masks" / name)
