"""Miniatures of the public data sets, as they lie on disk: three training images, one for validation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from fewmask.data.layouts.voc import palette_color
from fewmask.data.synthetic import write_scenes

Size = tuple[int, int]
TRAIN, VAL = 3, 1
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)


def write_voc(root: Path, size: Size) -> Path:
    """VOCdevkit/VOC2012 with JPEG images, palette masks and lists."""
    folder = root / "VOCdevkit" / "VOC2012"
    (folder / "ImageSets/Segmentation").mkdir(parents=True)
    for part in ("train", "val"):
        names = []
        for number, image, label in _pictures(part, size, 21):
            names.append(f"2007_{number:06d}")
            _save(folder / "JPEGImages" / f"{names[-1]}.jpg", Image.fromarray(image))
            mask = Image.fromarray(label, "P")
            mask.putpalette([value for index in range(256) for value in palette_color(index)])
            _save(folder / "SegmentationClass" / f"{names[-1]}.png", mask)
        (folder / f"ImageSets/Segmentation/{part}.txt").write_text("\n".join(names) + "\n")
    return root


def write_cityscapes(root: Path, size: Size) -> Path:
    """leftImg8bit/PART/CITY with gtFine's labelIds."""
    ids = np.zeros(256, np.uint8)  # 0 is `unlabeled`
    ids[: len(_CITYSCAPES_IDS)] = _CITYSCAPES_IDS
    for part, city in (("train", "aachen"), ("val", "frankfurt")):
        for number, image, label in _pictures(part, size, len(_CITYSCAPES_IDS)):
            name = f"{part}/{city}/{city}_{number:06d}_000019"
            _save(root / "leftImg8bit" / f"{name}_leftImg8bit.png", Image.fromarray(image))
            _save(root / "gtFine" / f"{name}_gtFine_labelIds.png", Image.fromarray(ids[label]))
    return root


def write_camvid(root: Path, size: Size) -> Path:
    """SegNet's form: train/ + trainannot/, val/ + valannot/, void 11."""
    for part in ("train", "val"):
        for number, image, label in _pictures(part, size, 11):
            name = f"0001TP_{number:06d}.png"
            _save(root / part / name, Image.fromarray(image))
            _save(root / f"{part}annot" / name, Image.fromarray(np.minimum(label, 11)))
    return root


def write_pets(root: Path, size: Size) -> Path:
    """The folder convention: background and 37 breeds, the border ignored."""
    root.mkdir(parents=True)
    (root / "classes.txt").write_text("\n".join(["background", *(f"breed_{index}" for index in range(37))]) + "\n")
    for part in ("train", "val"):
        for number, image, label in _pictures(part, size, 38):
            _save(root / part / "images" / f"pet_{number}.jpg", Image.fromarray(image))
            _save(root / part / "masks" / f"pet_{number}.png", Image.fromarray(label))
    return root


def write_demo(root: Path, size: Size) -> Path:
    """The demo's own scenes; the first is the labeled one."""
    write_scenes(root, labeled=1, unlabeled=TRAIN - 1, val=VAL, size=size)
    return root


def _pictures(part: str, size: Size, classes: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Number, image [H, W, 3] and label [H, W]: a striped ground that holds every class, and an ignored corner."""
    first, count = (0, TRAIN) if part == "train" else (TRAIN, VAL)
    for number in range(first, first + count):
        draw = np.random.default_rng(number)
        stripes = np.arange(size[1]) * classes // size[1]
        label = np.broadcast_to(np.roll(stripes, 7 * number), size).astype(np.uint8)
        colors = draw.integers(0, 256, (classes, 3))
        image = (colors[label] + draw.integers(-20, 20, (*size, 3))).clip(0, 255).astype(np.uint8)
        label[: size[0] // 8, : size[1] // 8] = 255
        yield number, image, label


def _save(path: Path, picture: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
