"""The folder convention: images/ + masks/ with the same stems, unlabeled/, val/ and test/, classes.txt or classes.yaml.

The labeled pairs may also stand in train/images + train/masks, or in images/train + masks/train beside images/val.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fewmask.config import DataSettings
from fewmask.data.classes import read_classes
from fewmask.data.coding import decide_coding, require_telling
from fewmask.data.dataset import Classes, Dataset, MaskCoding, Sample
from fewmask.data.paths import one_spelling, relative
from fewmask.data.problem import DataProblem
from fewmask.data.reading import IMAGE_SUFFIXES

TREE = """DATA/
  images/      photo_1.jpg ...
  masks/       photo_1.png ...   same stem, class indices, 255 = ignore
  unlabeled/   any images
  val/images/  val/masks/        optional
  classes.txt                    optional, one name per line"""


@dataclass(frozen=True)
class Listing:
    """The files of a folder data set, odd ones included, so that the checker can report them."""

    labeled: tuple[Sample, ...]
    unlabeled: tuple[Sample, ...]
    val: tuple[Sample, ...]
    test: tuple[Sample, ...]
    extra_masks: tuple[Path, ...] = ()  # no image has their stem
    clashes: tuple[tuple[Path, Path], ...] = ()  # two files in one folder with the same stem; the second is left out
    other_files: tuple[Path, ...] = ()  # not named like an image


def is_folder(root: Path) -> bool:
    """Whether anything of the convention is there."""
    return any(
        (root / name).is_dir() for name in ("images", "train/images", "unlabeled", "train/unlabeled", "val/images")
    )


def read_folder(root: Path) -> Dataset:
    """A folder data set, all labeled images labeled; its classes are undecided until `with_classes`."""
    listing = list_folder(root)
    if listing.clashes:
        first, second = listing.clashes[0]
        what = f"`{first.stem}` names two files, {relative(root, first)} and {relative(root, second)}"
        raise DataProblem("name-clash", what, where=second, fix="one file per stem; rename or remove one")
    if not listing.labeled:
        what = "there is no labeled image"
        raise DataProblem("no-labeled", what, where=root, fix=f"images in images/ with masks in masks/\n{TREE}")
    notes: tuple[str, ...] = ()
    if listing.other_files:
        suffixes = ", ".join(sorted({path.suffix or path.name for path in listing.other_files}))
        notes = (f"left out, as not named like images: {len(listing.other_files)} ({suffixes})",)
    parts = (listing.labeled, listing.unlabeled, listing.val, listing.test)
    return Dataset(root, "folder", Classes((), ()), MaskCoding("index"), *parts, notes)


@dataclass(frozen=True)
class KnownClasses:
    """Classes and the coding of masks, for a folder that does not say."""

    source: Path
    classes: Classes
    coding: MaskCoding


def with_classes(
    dataset: Dataset,
    settings: DataSettings,
    shown: Collection[str] | None = None,
    known: KnownClasses | None = None,
) -> Dataset:
    """A folder data set with what its class file and the masks of labeled, val and test images say of its classes.

    Hidden masks have no say: they would tell a run what it must not know. `shown` are names of labeled images, where
    the masks of the others were hidden from the run whose classes are wanted.
    """
    labeled = [sample for sample in dataset.labeled if shown is None or sample.name in shown]
    declared = read_classes(dataset.root)
    if declared is None and known is not None:
        require_telling([*labeled, *dataset.val, *dataset.test], known.coding, settings.max_pixels, dataset.root)
        note = f"there is no class file: masks are read as {known.source} says"
        return replace(dataset, classes=known.classes, coding=known.coding, notes=(note, *dataset.notes))
    classes, coding, notes = decide_coding(labeled, dataset.val + dataset.test, declared, settings, dataset.root)
    return replace(dataset, classes=classes, coding=coding, notes=notes + dataset.notes)


def list_folder(root: Path) -> Listing:
    """All samples, sorted by name; an image without a mask keeps mask=None."""
    pairs = _pair_folders(root)
    labeled, val, test = (_Pairs.read(*pairs[part]) if part in pairs else _Pairs() for part in ("train", "val", "test"))
    free = [
        _Pairs.read(root / name, None, f"{name}/")
        for name in ("unlabeled", "train/unlabeled")
        if (root / name).is_dir()
    ]
    parts = [labeled, val, test, *free]
    return Listing(
        labeled.samples,
        tuple(sample for part in free for sample in part.samples),
        val.samples,
        test.samples,
        tuple(path for part in parts for path in part.extra_masks),
        tuple(clash for part in parts for clash in part.clashes),
        tuple(path for part in parts for path in part.other_files),
    )


def _pair_folders(root: Path) -> dict[str, tuple[Path, Path]]:
    if (root / "images/train").is_dir() and (root / "masks/train").is_dir():
        found = {part: (root / "images" / part, root / "masks" / part) for part in ("train", "val", "test")}
    else:
        found = {part: (root / part / "images", root / part / "masks") for part in ("train", "val", "test")}
        if (root / "images").is_dir() and found["train"][0].is_dir():
            what = "both images/ and train/images/ are there"
            raise DataProblem("unknown-layout", what, where=root, fix="the labeled images in one of the two")
        if (root / "images").is_dir():
            found["train"] = (root / "images", root / "masks")
    return {part: folders for part, folders in found.items() if folders[0].is_dir()}


@dataclass(frozen=True)
class _Pairs:
    """What one pair of folders holds."""

    samples: tuple[Sample, ...] = ()
    extra_masks: tuple[Path, ...] = ()
    clashes: tuple[tuple[Path, Path], ...] = ()
    other_files: tuple[Path, ...] = ()

    @classmethod
    def read(cls, image_folder: Path, mask_folder: Path | None, prefix: str = "") -> _Pairs:
        images, clashes, others = _by_stem(image_folder)
        masks, mask_clashes, other_masks = _by_stem(mask_folder) if mask_folder else ({}, [], [])
        samples = tuple(Sample(prefix + stem, images[stem], masks.get(stem)) for stem in sorted(images))
        extra = tuple(Path(masks[stem]) for stem in sorted(set(masks) - set(images)))
        return cls(samples, extra, tuple(clashes + mask_clashes), tuple(others + other_masks))


def _by_stem(folder: Path) -> tuple[dict[str, str], list[tuple[Path, Path]], list[Path]]:
    """Image files by their path below the folder without suffix; clashes; files that are not named like images."""
    found: dict[str, str] = {}
    clashes, others = [], []
    for path in sorted(_files(folder), key=_by_parts):
        start, suffix = os.path.splitext(path)
        stem = one_spelling(start[len(os.fspath(folder)) + 1 :].replace(os.sep, "/"))
        if suffix.lower() not in IMAGE_SUFFIXES:
            others.append(Path(path))
        elif stem in found:
            clashes.append((Path(found[stem]), Path(path)))
        else:
            found[stem] = path
    return found, clashes, others


def _by_parts(path: str) -> str:
    """Sorts as paths do, a folder before what its name is the start of; as strings, which take less room than paths."""
    return path.replace(os.sep, "\0")


def _files(folder: Path) -> Iterator[str]:
    """All files below a folder but hidden ones; linked folders are entered once."""
    seen: set[str] = set()
    for current, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(current)
        folders[:] = [] if real in seen else sorted(name for name in folders if not name.startswith("."))
        if real not in seen:
            yield from (os.path.join(current, name) for name in files if not name.startswith("."))
        seen.add(real)
