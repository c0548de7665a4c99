"""The findings about a data set as a whole: its splits, classes, channels and copies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fewmask.data.check_files import SampleFacts
from fewmask.data.check_report import Finding, Level, counted
from fewmask.data.classes import default_colors
from fewmask.data.dataset import Color, Dataset
from fewmask.data.paths import relative
from fewmask.labels import IGNORE

_LARGEST = 65535  # value in 16 bits
_NARROW = 8  # images whose largest value lies below such a part of the range
_SHOWN = 8  # mask values named in a message

Findings = Iterator[tuple[Level, Finding]]


def split_findings(dataset: Dataset) -> Findings:
    """Splits that are empty."""
    if not dataset.labeled:
        message, fix = "there is no labeled image to learn from", "put images in images/ and their masks in masks/"
        yield "error", Finding("no-labeled", "", message, fix)
    if not dataset.unlabeled:
        fix = "put images without masks in unlabeled/, or hide some masks with --labels"
        if dataset.layout != "folder":  # where unlabeled/ is not read
            fix = "hide some masks with --labels"
        message = "there is no unlabeled image: only the supervised method makes sense"
        yield "warning", Finding("no-unlabeled", _folder(dataset, "unlabeled"), message, fix)
    if not dataset.val:
        message = "there is no validation image: nothing can be scored, and no network chosen, on held-out labels"
        fix = "hold out labeled images with data.holdout=0.2"
        if dataset.layout == "folder":
            fix = f"add val/images and val/masks, or {fix}"
        yield "warning", Finding("no-val", _folder(dataset, "val"), message, fix)


def channel_findings(root: Path, facts: Sequence[SampleFacts]) -> Findings:
    """Images whose number of channels or bit depth is not that of most."""
    images = [(item, item.image) for item in facts if item.image is not None]
    channels = most_common([image.channels for _, image in images])
    depth = most_common([image.depth for _, image in images])
    taken = network_channels(facts)
    for item, image in images:
        path = relative(root, item.sample.image)
        if image.channels > taken:
            message = f"the image has {counted(image.channels, 'channel')}, the network takes {taken}"
            fix = "convert the image to gray, like all images outside test/"
            yield "error", Finding("wrong-channels", path, message, fix)
        elif image.channels != channels:
            message = (
                f"the image has {counted(image.channels, 'channel')}, most have {channels}; gray is repeated as RGB"
            )
            fix = "convert the images to the same number of channels, all gray or all RGB, unless that is meant"
            yield "warning", Finding("wrong-channels", path, message, fix)
        if image.depth != depth:
            message = f"the image is {image.depth}-bit, most are {depth}-bit; each is scaled by its own largest value"
            fix = "convert the images to one bit depth, unless both fill their range"
            yield "warning", Finding("mixed-depth", path, message, fix)


def range_findings(facts: Sequence[SampleFacts]) -> Findings:
    """16-bit images that use little of their range: they are divided by 65535, whatever the camera's depth."""
    largest = max(
        (item.image.largest for item in facts if item.image is not None and item.image.depth == 16), default=0
    )
    if 0 < largest < (_LARGEST + 1) // _NARROW:
        message = f"the largest value in the 16-bit images is {largest} of {_LARGEST}, so they are almost black"
        fix = f"multiply all values, also in images to predict on later, by one number, at most {_LARGEST // largest}"
        yield "warning", Finding("narrow-range", "", message, fix)


def network_channels(facts: Sequence[SampleFacts]) -> int:
    """What the network will take: 1 if all images that training reads are gray, else 3; test images have no say."""
    images = [(item.split, item.image.channels) for item in facts if item.image is not None]
    read = [channels for split, channels in images if split != "test"]
    return max(read or [channels for _, channels in images], default=0)


def duplicate_findings(root: Path, facts: Sequence[SampleFacts]) -> Findings:
    """Images with the same pixels: an error where a labeled image is scored again in val or test."""
    first: dict[bytes, SampleFacts] = {}
    for item in facts:
        if item.image is None or item.image.digest is None:
            continue
        original = first.setdefault(item.image.digest, item)
        if original.sample.image != item.sample.image:  # data.pool=all has labeled images twice, and means to
            yield _duplicate(root, original, item)


def _duplicate(root: Path, original: SampleFacts, copy: SampleFacts) -> tuple[Level, Finding]:
    path, source = relative(root, copy.sample.image), relative(root, original.sample.image)
    level: Level = "error" if original.split == "labeled" and copy.split in ("val", "test") else "warning"
    if original.split == copy.split:
        message, fix = f"the same pixels as {source}, also {copy.split}", "remove one of the two"
    else:
        message = f"this {copy.split} image has the same pixels as the {original.split} image {source}"
        kept = "unlabeled" if copy.split == "unlabeled" else original.split
        fix = f"remove it from {kept}" if level == "warning" else f"remove it from {copy.split} or from labeled"
    return level, Finding("duplicate-image", path, message, fix)


def class_findings(root: Path, dataset: Dataset, facts: Sequence[SampleFacts], ignore_chosen: bool) -> Findings:
    """Classes that the labeled masks do not show."""
    masks = [item.mask for item in facts if item.split == "labeled" and item.mask is not None]
    folder = _common_folder(root, dataset)
    found = {label for mask in masks for label in mask.class_pixels if label != IGNORE}
    if not found:
        if masks and all(mask.only_ignore for mask in masks):
            message, fix = (
                "every labeled mask holds only ignore",
                "label images, or set --foreground for two-class masks",
            )
            yield "error", Finding("no-labeled", folder, message, fix)
        return
    names = dataset.classes.names
    values = _values(facts, "labeled")
    if dataset.coding.kind == "index" and values == {0, 255} and len(names) > 2 and not ignore_chosen:
        message = f"all labeled masks hold only 0 and 255, but {len(names)} classes are declared, so 255 means ignore"
        fix = "declare two classes and use --foreground 255, or say --ignore 255 if it is ignore"
        yield "error", Finding("binary-ambiguous", folder, message, fix)
    elif len(found) == 1:
        message = f"all labeled pixels are `{names[min(found)]}`: there is nothing to tell apart"
        yield "warning", Finding("single-class", folder, message, "label images that show the other classes, too")
    else:
        for label, name in enumerate(names):
            if label not in found:
                message = f"class {label}, `{name}`, has no pixel in the labeled masks and cannot be learned"
                fix = f"label an image that shows `{name}`, choose other labeled images, or drop the class"
                yield "warning", Finding("class-absent", folder, message, fix)


def foreground_findings(root: Path, dataset: Dataset, facts: Sequence[SampleFacts], foreground: int | None) -> Findings:
    """A value named as class 1 that the masks do not hold; few labels may not show it, so val and test count, too."""
    masks = {split: _values(facts, split) for split in ("labeled", "val", "test")}
    values = masks["labeled"]
    if foreground is None or not values or any(foreground in each for each in masks.values()):
        return
    message = (
        f"mask value {foreground}, which --foreground names, occurs in no labeled mask: they hold {_listed(values)}"
    )
    if IGNORE in values:
        message += f"; {IGNORE} was read as ignore"
    others = sorted(values - {0} - (dataset.coding.ignore - {IGNORE}))
    fix = "label images that show class 1, or choose other labeled images"
    if others:
        fix = f"--foreground {others[0]}" if len(others) == 1 else "--foreground with one of the values that occur"
        fix += ", if that value means class 1"
    yield "error", Finding("foreground-absent", _common_folder(root, dataset), message, fix)


def palette_findings(root: Path, dataset: Dataset, facts: Sequence[SampleFacts]) -> Findings:
    """Labeling tools number classes in an order of their own; where the colors tell that it is another one, say so.

    Files with one palette are judged together: a single color may be in the class file by chance.
    """
    colors = dataset.classes.colors
    if dataset.coding.kind != "index" or colors == default_colors(len(colors)):  # nobody has declared any
        return
    alike: dict[tuple[tuple[int, Color], ...], list[SampleFacts]] = {}
    for item in facts:
        if item.mask is not None and item.mask.palette:
            alike.setdefault(item.mask.palette, []).append(item)
    for palette, items in alike.items():
        seen = [item for item in items if item.split != "unlabeled"]
        if wrong := _misplaced(dataset, palette, seen):
            yield "error", _palette_finding(root, *wrong)
        elif wrong := _misplaced(dataset, palette, items):  # hidden truth can only give warnings
            yield "warning", _palette_finding(root, *wrong)


def _misplaced(
    dataset: Dataset, palette: Sequence[tuple[int, Color]], items: Sequence[SampleFacts]
) -> tuple[SampleFacts, str] | None:
    """The first file with a value whose color belongs to another class, and what is wrong with it."""
    names, colors, lookup = dataset.classes.names, dataset.classes.colors, dataset.coding.lookup
    used = frozenset[int]().union(*(item.mask.values for item in items if item.mask is not None))
    shown = {value: color for value, color in sorted(palette) if value in used}
    if len(shown) < 2 or len(set(shown.values())) < len(shown) or not set(shown.values()) <= set(colors):
        return None
    for value, color in shown.items():
        if colors[lookup[value]] != color:
            meant, read = names[colors.index(color)], names[lookup[value]]
            what = f"value {value} has the palette's color of `{meant}`, and in the class file its place is `{read}`"
            return next(item for item in items if item.mask is not None and value in item.mask.values), what
    return None


def _palette_finding(root: Path, item: SampleFacts, what: str) -> Finding:
    fix = "classes in the order in which the masks number them; or no colors, if the order is right as it is"
    return Finding("palette-order", relative(root, item.sample.mask or root), what, fix)


def most_common(values: Sequence[int]) -> int:
    """The most frequent value, the first seen among equals; 0 of nothing."""
    return Counter(values).most_common(1)[0][0] if values else 0


def _values(facts: Sequence[SampleFacts], split: str) -> frozenset[int]:
    """The files' own numbers in the masks of a split."""
    return frozenset[int]().union(
        *(item.mask.values for item in facts if item.split == split and item.mask is not None)
    )


def _listed(values: frozenset[int]) -> str:
    shown = [str(value) for value in sorted(values)[:_SHOWN]]
    rest = len(values) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more values"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _folder(dataset: Dataset, name: str) -> str:
    return name if dataset.layout == "folder" else ""


def _common_folder(root: Path, dataset: Dataset) -> str:
    parents = {os.fspath(sample.mask.parent) for sample in dataset.labeled if sample.mask is not None}
    common = relative(root, Path(os.path.commonpath(parents))) if parents else ""
    return "" if common == "." else common
