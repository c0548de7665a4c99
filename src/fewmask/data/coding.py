"""How the masks of a folder are to be read: which values or colors mean which class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fewmask.config import DataSettings
from fewmask.data.classes import DeclaredClasses, default_colors, require_classes
from fewmask.data.dataset import Classes, MaskCoding, Sample
from fewmask.data.imagefile import read_header
from fewmask.data.masks import is_color, read_raw_mask
from fewmask.data.problem import DataProblem
from fewmask.errors import ConfigError, DataError
from fewmask.labels import IGNORE

Decision = tuple[Classes, MaskCoding, tuple[str, ...]]
_BINARY = frozenset({0, 255})
_SHOWN = 10  # mask values named in a message


def decide_coding(
    labeled: Sequence[Sample],
    held_out: Sequence[Sample],
    declared: DeclaredClasses | None,
    settings: DataSettings,
    root: Path,
) -> Decision:
    """Classes and mask coding, and in notes what was decided on the user's behalf."""
    masks, others = ([sample.mask for sample in part if sample.mask] for part in (labeled, held_out))
    ignore = frozenset({IGNORE, *settings.ignore, *(declared.ignore if declared else ())})
    if settings.foreground is not None:
        return _two_classes(declared, settings.foreground, settings, "")
    if declared and declared.colors and any(is_color(raw) for raw in _color_masks(masks, settings.max_pixels)):
        _refuse_values(settings.ignore)
        return _by_color(declared)
    asked_to_ignore = IGNORE in settings.ignore or (declared is not None and IGNORE in declared.ignore)
    if (
        (declared is None or len(declared.names) <= 2)
        and not asked_to_ignore
        and _is_binary(masks, others, settings.max_pixels)
    ):
        note = "every mask holds only 0 and 255: 255 is read as class 1 (--ignore 255 would ignore it)"
        return _two_classes(declared, 255, settings, note)
    if declared is None:
        return _inferred(masks + others, ignore, settings.max_pixels, root)
    require_classes(declared.names, declared.path)
    return declared.classes(), MaskCoding("index", _identity(len(declared.names), ignore), ignore=ignore), ()


def with_ignored(coding: MaskCoding, values: Sequence[int]) -> MaskCoding:
    """The coding of a known layout with more values ignored."""
    if coding.kind == "color":
        _refuse_values(values)
    lookup = {value: label for value, label in coding.lookup.items() if value not in values}
    return replace(coding, lookup=lookup, ignore=coding.ignore | frozenset(values))


def _refuse_values(values: Sequence[int]) -> None:
    """Color-coded masks hold no values that could be ignored."""
    if values:
        fix = "masks with class indices; for color-coded masks list the colors under `ignore` in classes.yaml"
        raise ConfigError("data.ignore names mask values, but the masks are color-coded", where="data.ignore", fix=fix)


def _two_classes(declared: DeclaredClasses | None, foreground: int, settings: DataSettings, note: str) -> Decision:
    """Two-class masks in which 0 is class 0 and `foreground` is class 1."""
    if foreground in settings.ignore or foreground == 0:
        what = f"mask value {foreground} cannot be the foreground and background or ignored as well"
        raise ConfigError(what, where="data.foreground", fix="two different mask values")
    names = declared.names if declared else ("background", "foreground")
    colors = declared.colors if declared else None
    if len(names) > 2:
        what = f"--foreground is for two classes, but {len(names)} are declared"
        raise ConfigError(what, where="data.foreground", fix="at most two classes in the class file")
    if len(names) == 1:
        names, colors = ("background", names[0]), None
    ignored = {IGNORE, *settings.ignore, *(declared.ignore if declared else ())} - {foreground}
    coding = MaskCoding("index", {0: 0, foreground: 1}, ignore=frozenset(ignored))
    return Classes(names, colors or default_colors(2)), coding, (note,) if note else ()


def _by_color(declared: DeclaredClasses) -> Decision:
    require_classes(declared.names, declared.path)
    assert declared.colors is not None
    lookup = {color: label for label, color in enumerate(declared.colors)}
    coding = MaskCoding("color", color_lookup=lookup, ignore_colors=declared.ignore_colors)
    return declared.classes(), coding, (f"the masks are color-coded, read by the colors in {declared.path.name}",)


def _inferred(masks: Sequence[Path], ignore: frozenset[int], max_pixels: int, root: Path) -> Decision:
    values: set[int] = set()
    for path, raw in _readable(masks, max_pixels):
        if is_color(raw):
            what = "the masks are color-coded, but no classes are declared"
            fix = "classes.yaml with one {name, color} per class"
            raise DataProblem("no-color-table", what, where=path, fix=fix)
        values |= _values(raw)
    values -= ignore
    if not values:
        raise _nothing_to_infer_from(masks, root)
    count = max(values) + 1
    if count > 2 * len(values) or count > 255:
        raise _no_indices(values, root)
    if count == 1:
        what = "no classes are declared, and the masks that are used hold nothing but 0"
        raise DataProblem("single-class", what, where=root, fix="classes.txt with one name per line, or other labels")
    names = tuple(f"class_{index}" for index in range(count))
    note = (
        f"no class file: the masks hold values up to {count - 1}, so there are {count} classes, class_0 to {names[-1]}"
    )
    return Classes(names, default_colors(count)), MaskCoding("index", _identity(count, ignore), ignore=ignore), (note,)


def _nothing_to_infer_from(masks: Sequence[Path], root: Path) -> DataProblem:
    if masks:
        what = "no classes are declared, and no mask can be read to find them"
        return DataProblem("no-classes", what, where=root, fix="classes.txt with one name per line, and lossless masks")
    what = "no classes are declared, and no image has a mask that would show them"
    return DataProblem("no-classes", what, where=root, fix="a mask of the same name, up to the suffix, for each image")


def _no_indices(values: set[int], root: Path) -> DataProblem:
    shown = ", ".join(map(str, sorted(values)[:_SHOWN])) + (", ..." if len(values) > _SHOWN else "")
    what = f"no classes are declared, and the mask values ({shown}) do not look like class indices"
    fix = "masks that hold 0, 1, 2, ... without gray edges, or classes.txt with one name per line"
    if len(values) == 2 and 0 in values:
        fix = f"--foreground {max(values)}, if that value means class 1, or {fix}"
    return DataProblem("no-classes", what, where=root, fix=fix)


def require_telling(samples: Sequence[Sample], coding: MaskCoding, max_pixels: int, root: Path) -> None:
    """Masks of 0 and 255 alone are mostly of two classes, of which a coding from elsewhere may ignore the second."""
    masks = [sample.mask for sample in samples if sample.mask]
    if coding.kind == "index" and IGNORE in coding.ignore and _is_binary(masks, [], max_pixels):
        what = "all masks hold only 0 and 255, and 255 was ignore where the model was trained"
        fix = "classes.txt in this folder: with two classes in it, 255 is read as the second"
        raise DataProblem("binary-ambiguous", what, where=root, fix=fix)


def _is_binary(labeled: Sequence[Path], held_out: Sequence[Path], max_pixels: int) -> bool:
    """Whether the labeled masks hold exactly 0 and 255; a few may show only one, and then the others count, too."""
    values = _binary_values(labeled, max_pixels)
    if values is not None and values != _BINARY:
        more = _binary_values(held_out, max_pixels)
        values = None if more is None else values | more
    return values == _BINARY


def _binary_values(masks: Sequence[Path], max_pixels: int) -> set[int] | None:
    """Which of 0 and 255 the masks hold; None if anything else."""
    values: set[int] = set()
    for _, raw in _readable(masks, max_pixels):
        if is_color(raw):
            return None
        values |= _values(raw)
        if not values <= _BINARY:
            return None
    return values


def _readable(masks: Sequence[Path], max_pixels: int) -> Iterator[tuple[Path, np.ndarray]]:
    """Masks that can be trusted: damaged ones and JPEGs are the checker's to report."""
    for path in masks:
        try:
            if read_header(path, max_pixels=max_pixels).format != "JPEG":
                yield path, read_raw_mask(path, max_pixels=max_pixels)
        except DataError:
            continue


def _color_masks(masks: Sequence[Path], max_pixels: int) -> Iterator[np.ndarray]:
    for path in masks:
        try:
            if not read_header(path, max_pixels=max_pixels).gray:
                yield read_raw_mask(path, max_pixels=max_pixels)
        except DataError:
            continue


def _values(raw: np.ndarray) -> set[int]:
    gray = raw[:, :, 0] if raw.ndim == 3 else raw
    if gray.dtype == np.uint8:
        return set(np.flatnonzero(np.bincount(gray.reshape(-1), minlength=256)).tolist())
    return set(np.unique(gray).tolist())


def _identity(count: int, ignore: frozenset[int]) -> dict[int, int]:
    return {index: index for index in range(count) if index not in ignore}
