"""The findings about one image and its mask."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator
from functools import cache
from pathlib import Path

from fewmask.data.check_files import SampleFacts
from fewmask.data.check_masks import value_finding
from fewmask.data.check_report import Finding, Level
from fewmask.data.dataset import MaskCoding
from fewmask.data.imagefile import Header
from fewmask.data.paths import is_text, relative

_MASK_SUFFIXES = (".png", ".tif", ".tiff")
_MASK_WORDS = ("mask", "label", "labels", "seg", "gt", "segmentation")
_MASK_ENDINGS = tuple(f"{mark}{word}" for word in _MASK_WORDS for mark in "_-.")


def pair_findings(root: Path, facts: Iterable[SampleFacts], coding: MaskCoding) -> Iterator[tuple[Level, Finding]]:
    """What is wrong with each sample. The hidden truth of an unlabeled image can only give warnings."""
    names = cache(_names)  # read once, however many masks are missing
    for item in facts:
        yield from _findings(root, item, coding, names)


def _names(folder: Path) -> frozenset[str]:
    return frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()


def _findings(
    root: Path, facts: SampleFacts, coding: MaskCoding, names: Callable[[Path], Container[str]]
) -> Iterator[tuple[Level, Finding]]:
    sample = facts.sample
    if not is_text(sample.name):
        yield "error", _bad_name(relative(root, sample.image))
    for finding in facts.problems:
        hidden_truth = facts.split == "unlabeled" and finding.path != relative(root, sample.image)
        yield "warning" if hidden_truth else "error", finding
    for remark in facts.remarks:
        yield "warning", remark
    if sample.mask is None:
        if facts.split != "unlabeled":
            yield "error", _missing_mask(root, sample.image, names)
        return
    if facts.mask is None:
        return
    level: Level = "warning" if facts.split == "unlabeled" else "error"
    path = relative(root, sample.mask)
    if facts.image is not None and facts.image.header.size != facts.mask.header.size:
        yield level, _size_mismatch(path, relative(root, sample.image), facts.image.header, facts.mask.header)
    if strange := value_finding(facts.mask, coding, path):
        yield level, strange
    if facts.mask.only_ignore and facts.split != "unlabeled":
        yield "warning", _empty_mask(path, facts.split)


def _bad_name(path: str) -> Finding:
    fix = "rename the image, and its mask with it; names from older systems are often in Latin-1"
    return Finding("bad-name", path, "the file's name is not UTF-8, so it cannot be written to a run's records", fix)


def _missing_mask(root: Path, image: Path, names: Callable[[Path], Container[str]]) -> Finding:
    path = relative(root, image)
    parts = Path(path).with_suffix(".png").parts
    own = Path(*("masks" if part == "images" else part for part in parts))
    if "images" not in parts:
        fix = "add its mask to those of the other images"
    elif (other := _other_name(own, names(root / own.parent))) is not None:
        fix = f"rename {other.as_posix()} to {other.with_stem(own.stem).name}, if it is the mask"
    else:
        fix = f"add {own.as_posix()}, or move the image to unlabeled/"
    return Finding("missing-mask", path, "the image has no mask", fix)


def _other_name(own: Path, there: Container[str]) -> Path | None:
    """A mask that is there under a name that labeling tools give, such as photo_1_mask.png."""
    names = (own.with_name(f"{own.stem}{end}{suffix}") for end in _MASK_ENDINGS for suffix in _MASK_SUFFIXES)
    return next((name for name in names if name.name in there), None)


def _empty_mask(path: str, split: str) -> Finding:
    use = "nothing can be learned from this image" if split == "labeled" else "this image is not scored"
    fix = "label it, move its image to unlabeled/, or set --foreground if one of its values means a class"
    return Finding("empty-mask", path, f"the mask holds only ignore, so {use}", fix)


def _size_mismatch(path: str, image_path: str, image: Header, mask: Header) -> Finding:
    readings = f"the image is {_reading(image)}; the mask is {_reading(mask)}"
    message = f"size differs from {image_path} (width x height): {readings}"
    if image.raw_size == mask.raw_size or image.size == mask.raw_size or image.raw_size == mask.size:
        turned = "image" if image.orientation != 1 else "mask"
        fix = f"remove the EXIF orientation of the {turned}, or give image and mask the same orientation"
    else:
        fix = f"re-export the mask at {_text(image.size)}, the size of its image"
    return Finding("size-mismatch", path, message, fix)


def _reading(header: Header) -> str:
    if header.orientation == 1:
        return f"{_text(header.size)} (no EXIF orientation)"
    return f"{_text(header.size)} with its EXIF orientation {header.orientation}, {_text(header.raw_size)} without"


def _text(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"
