"""What the data check reads out of a mask's numbers: classes, strangers among them, and traces of resampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fewmask.data.check_report import Finding, counted
from fewmask.data.dataset import Color, MaskCoding
from fewmask.data.imagefile import Header
from fewmask.data.masks import valid_text
from fewmask.labels import IGNORE

_SHOWN = 6  # strange values named in a message
_EDGE_VALUES = 4  # resampling leaves at least so many different strangers
_EDGE_SHARE = 0.8  # of them, so many touch a valid pixel
_BLEND = 2  # how far rounding moves a blended color off the line between two
_MOST_BLENDS = 2048  # different strangers; a photo has many more
_VALUES_FIX = "correct the mask, add the class to classes.txt or classes.yaml, or name the value with --ignore"
_COLORS_FIX = "correct the mask, or add the color to classes.yaml, for a class or under `ignore`"


@dataclass(frozen=True)
class MaskValues:
    """A mask in a few numbers."""

    header: Header
    values: frozenset[int]  # the file's own numbers; colors as 0xRRGGBB
    class_pixels: dict[int, int]  # class (or IGNORE) -> pixels
    strangers: dict[int, int]  # numbers that are neither a class nor ignore -> pixels
    soft: bool  # the strangers look like resampled edges
    palette: tuple[tuple[int, Color], ...] = ()  # values that stand for classes, and their colors in the file

    @property
    def only_ignore(self) -> bool:
        return not self.strangers and set(self.class_pixels) <= {IGNORE}


def mask_values(raw: np.ndarray, coding: MaskCoding, header: Header, palette: Sequence[Color] = ()) -> MaskValues:
    """Counts of a mask's own numbers, [H, W] integers or [H, W, 3] colors."""
    numbers = _numbers(raw, coding)  # [H, W] int64
    known = _known(coding)
    values, counts = _counted(numbers)
    class_pixels: dict[int, int] = {}
    strangers: dict[int, int] = {}
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        if value in known:
            class_pixels[known[value]] = class_pixels.get(known[value], 0) + count
        else:
            strangers[value] = count
    soft = len(strangers) >= _EDGE_VALUES and (
        _along_edges(np.isin(numbers, list(strangers)))
        or (coding.kind == "color" and _blended(strangers, coding) and not _solid(numbers, strangers))
    )
    colors = _class_colors(tuple(palette), tuple(coding.lookup)) if coding.kind == "index" else ()
    return MaskValues(header, frozenset(values.tolist()), class_pixels, strangers, soft, colors)


@lru_cache(16)  # there may be very many masks, and hardly more than one palette
def _class_colors(palette: tuple[Color, ...], values: tuple[int, ...]) -> tuple[tuple[int, Color], ...]:
    return tuple((value, palette[value]) for value in values if value < len(palette))


def value_finding(mask: MaskValues, coding: MaskCoding, path: str) -> Finding | None:
    """What is wrong with a mask's numbers, if anything."""
    if not mask.strangers:
        return None
    pixels, valid = sum(mask.strangers.values()), valid_text(coding)
    if mask.soft:
        shown = _listed(list(mask.strangers), coding)
        where = "nearly all along edges" + (" or between two colors" if coding.kind == "color" else "")
        message = f"{pixels} pixels hold values in between ({shown}), {where}; valid: {valid}"
        fix = "export the mask again without smoothing; if you resize it, use nearest neighbor; save as PNG"
        return Finding("gray-edges", path, message, fix)
    shown = _listed(list(mask.strangers), coding, mask.strangers)
    noun, fix = ("values", _VALUES_FIX) if coding.kind == "index" else ("colors", _COLORS_FIX)
    message = f"{noun} outside the classes: {shown}; valid: {valid}"
    return Finding("label-outside-classes", path, message, fix)


def _listed(values: list[int], coding: MaskCoding, counts: dict[int, int] | None = None) -> str:
    texts = []
    for value in values[:_SHOWN]:
        text = str(value) if coding.kind == "index" else str(_color(value))
        texts.append(f"{text} ({counted(counts[value], 'pixel')})" if counts else text)
    rest = len(values) - _SHOWN
    return ", ".join(texts) + (f" and {rest} more" if rest > 0 else "")


def _numbers(raw: np.ndarray, coding: MaskCoding) -> np.ndarray:
    wide = raw.astype(np.int64)
    if coding.kind == "index":
        return wide if raw.ndim == 2 else wide[:, :, 0]
    if raw.ndim == 2:
        return wide * 0x010101
    return wide[:, :, 0] << 16 | wide[:, :, 1] << 8 | wide[:, :, 2]


def _counted(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different numbers and how often each occurs; class indices are counted without sorting the pixels."""
    if numbers.min() >= 0 and numbers.max() < 1 << 16:
        counts = np.bincount(numbers.ravel())
        values = counts.nonzero()[0]
        return values, counts[values]
    return np.unique(numbers, return_counts=True)


def _known(coding: MaskCoding) -> dict[int, int]:
    if coding.kind == "index":
        return {**coding.lookup, **dict.fromkeys(coding.ignore, IGNORE)}
    colors = {**coding.color_lookup, **dict.fromkeys(coding.ignore_colors, IGNORE)}
    return {red << 16 | green << 8 | blue: label for (red, green, blue), label in colors.items()}


def _along_edges(strange: np.ndarray) -> bool:
    """Whether strange pixels form thin lines: nearly each lies within one pixel of a valid one, [H, W] bool."""
    padded = np.pad(strange, 1, constant_values=True)
    surrounded = np.ones_like(strange)
    height, width = strange.shape
    for down in range(3):
        for right in range(3):
            surrounded &= padded[down : down + height, right : right + width]
    inner = int((strange & surrounded).sum())
    return inner <= (1 - _EDGE_SHARE) * int(strange.sum()) and not bool(strange.all())


def _blended(strangers: dict[int, int], coding: MaskCoding) -> bool:
    """Whether nearly all strange pixels are mixtures of two known colors, as in marks too thin to have an inside."""
    if len(strangers) > _MOST_BLENDS:
        return False
    known = np.array([*{*coding.color_lookup, *coding.ignore_colors}], dtype=float)  # [K, 3]
    colors = np.array([_color(value) for value in strangers], dtype=float)  # [S, 3]
    distance = np.full(len(colors), np.inf)
    for first, one in enumerate(known):
        for other in known[first + 1 :]:
            way = other - one
            share = np.clip((colors - one) @ way / (way @ way), 0, 1)  # [S]
            distance = np.minimum(distance, np.abs(colors - one - share[:, None] * way).max(axis=1))
    pixels = np.array([*strangers.values()])
    return bool(pixels[distance <= _BLEND].sum() >= _EDGE_SHARE * pixels.sum())


def _solid(numbers: np.ndarray, strangers: dict[int, int]) -> bool:
    """Whether strange pixels form areas of one color, which smoothing does not, [H, W] numbers."""
    same = np.ones_like(numbers, dtype=bool)
    for axis in (0, 1):
        for side in (1, -1):
            same &= np.roll(numbers, side, axis) == numbers
    inside = int((same & np.isin(numbers, list(strangers))).sum())
    return inside > (1 - _EDGE_SHARE) * sum(strangers.values())


def _color(value: int) -> tuple[int, int, int]:
    return value >> 16, value >> 8 & 255, value & 255
