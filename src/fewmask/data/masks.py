"""Masks as class indices: index, palette, color-coded and 16-bit files, decoded by an explicit table.

Labels are never clipped: a value that is not in the table is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from fewmask.data.dataset import Color, MaskCoding
from fewmask.data.imagefile import MAX_PIXELS, Header, header_of, opened, oriented
from fewmask.data.problem import DataProblem
from fewmask.data.reading import sixteen_bit_gray_alpha
from fewmask.labels import IGNORE

_UNKNOWN = 256  # in look-up tables, beyond every class and IGNORE
_LARGEST_LISTED = 65535  # 16 bits; a table up to a stray 32-bit value would take gigabytes
_SHOWN = 8  # values named in a message


def read_mask(path: Path, coding: MaskCoding, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Class indices with IGNORE, [H, W] uint8."""
    raw = read_raw_mask(path, max_pixels=max_pixels, colors=coding.kind == "color")
    return decode_mask(raw, coding, path)


def read_raw_mask(path: Path, *, max_pixels: int = MAX_PIXELS, colors: bool = False) -> np.ndarray:
    """The file's own numbers: [H, W] integers (palette files: the indices), or [H, W, 3] for RGB.

    With `colors` a palette file gives its colors. EXIF orientation is applied by the mask's own tag.
    """
    return read_mask_and_palette(path, max_pixels=max_pixels, colors=colors)[0]


def read_mask_and_palette(
    path: Path, *, max_pixels: int = MAX_PIXELS, colors: bool = False
) -> tuple[np.ndarray, tuple[Color, ...]]:
    """As `read_raw_mask`, with the colors that a palette file gives to its indices; no others have any."""
    path = Path(path)
    with opened(path, max_pixels) as image:
        header = header_of(image, path)
        array = _raw_pixels(image, header, path, max_pixels, colors)
        parts = image.getpalette() or []
        palette = tuple((parts[at], parts[at + 1], parts[at + 2]) for at in range(0, len(parts) - 2, 3))
        # Pillow turns TIFFs by itself
        return oriented(array, 1 if header.format == "TIFF" else header.orientation), palette


def decode_mask(raw: np.ndarray, coding: MaskCoding, where: object = "") -> np.ndarray:
    """Class indices with IGNORE, [H, W] uint8, of a mask's own numbers."""
    if coding.kind == "color":
        return _decode_colors(raw, coding, where)
    if raw.ndim == 3:
        raw = _equal_channels(raw, where)
    return _decode_values(raw, coding, where)


def is_color(raw: np.ndarray) -> bool:
    """Whether a mask's own numbers are colors, not grays stored three times."""
    return raw.ndim == 3 and bool((raw != raw[:, :, :1]).any())


def _raw_pixels(image: Image.Image, header: Header, path: Path, max_pixels: int, colors: bool) -> np.ndarray:
    mode = image.mode
    if mode in ("P", "PA") and colors:
        return np.asarray(image.convert("RGB"))
    if mode in ("P", "PA"):
        return np.asarray(image) if mode == "P" else np.asarray(image)[:, :, 0]
    if mode == "1":
        return np.asarray(image).astype(np.uint8)
    if mode in ("L", "LA"):
        gray = np.asarray(image) if mode == "L" else np.asarray(image)[:, :, 0]
        return gray // (255 // (2**header.bits - 1)) if header.bits < 8 else gray  # Pillow stretches 2 and 4 bits to 8
    if mode.startswith("I"):
        return np.asarray(image).astype(np.int32)
    if header.bits == 16 and header.gray:
        return sixteen_bit_gray_alpha(path, max_pixels).astype(np.int32)
    if mode in ("RGB", "RGBA", "RGBX") and header.bits == 8:
        return np.asarray(image)[:, :, :3]
    what = f"the mask holds {header.bits}-bit {mode} pixels, which name no classes"
    raise DataProblem("wrong-channels", what, where=path, fix="class indices in one channel, or 8-bit RGB colors")


def _equal_channels(raw: np.ndarray, where: object) -> np.ndarray:
    if is_color(raw):
        colors = np.unique(_color_codes(raw))
        what = f"the mask is color-coded ({_listed(_color_text(code) for code in colors)}), but no color table is given"
        fix = "classes.yaml with one {name, color} per class, or masks that hold class indices"
        raise DataProblem("no-color-table", what, where=where, fix=fix)
    return raw[:, :, 0]


def _decode_values(raw: np.ndarray, coding: MaskCoding, where: object) -> np.ndarray:
    known = {**coding.lookup, **dict.fromkeys(coding.ignore, IGNORE)}
    if raw.min(initial=0) < 0 or raw.max(initial=0) > _LARGEST_LISTED:
        label = _found(raw.astype(np.int64), known)
    else:
        label = _table(known, int(raw.max(initial=0)))[raw]
    unknown = label == _UNKNOWN
    if unknown.any():
        values, counts = np.unique(raw[unknown], return_counts=True)
        raise _outside(
            [f"{value} ({count} pixels)" for value, count in zip(values, counts, strict=True)], coding, where
        )
    return label.astype(np.uint8)


def _table(known: Mapping[int, int], largest: int) -> np.ndarray:
    """What each value from 0 on means; much faster than a search."""
    table = np.full(max(largest, 255) + 1, _UNKNOWN, np.uint16)
    for value, index in known.items():
        if 0 <= value < len(table):
            table[value] = index
    return table


def _found(values: np.ndarray, known: Mapping[int, int]) -> np.ndarray:
    """What each value means, wherever the values lie: 32-bit masks may hold any."""
    ordered = sorted(known.items())
    keys = np.array([key for key, _ in ordered], np.int64)
    meaning = np.array([index for _, index in ordered], np.uint16)
    place = np.searchsorted(keys, values).clip(max=len(keys) - 1)
    return np.where(keys[place] == values, meaning[place], np.uint16(_UNKNOWN))


def _decode_colors(raw: np.ndarray, coding: MaskCoding, where: object) -> np.ndarray:
    colors = {**coding.color_lookup, **dict.fromkeys(coding.ignore_colors, IGNORE)}
    codes = _color_codes(raw if raw.ndim == 3 else np.repeat(raw[:, :, None], 3, axis=2))
    label = _found(codes, {_color_code(color): index for color, index in colors.items()})
    unknown = label == _UNKNOWN
    if unknown.any():
        values, counts = np.unique(codes[unknown], return_counts=True)
        texts = [f"{_color_text(code)} ({count} pixels)" for code, count in zip(values, counts, strict=True)]
        raise _outside(texts, coding, where)
    return label.astype(np.uint8)


def _outside(texts: list[str], coding: MaskCoding, where: object) -> DataProblem:
    noun = "value" if coding.kind == "index" else "color"
    what = f"the mask holds {noun}s outside the classes: {_listed(texts)}"
    return DataProblem("label-outside-classes", what, where=where, fix=valid_text(coding))


def valid_text(coding: MaskCoding) -> str:
    """What a mask under this coding may hold, for messages: `0 to 10; 255 = ignore`."""
    if coding.kind == "color":
        classes = _listed(_color_text(_color_code(color)) for color in coding.color_lookup)
        ignore = _listed(_color_text(_color_code(color)) for color in sorted(coding.ignore_colors))
    else:
        classes, ignore = _ranges(set(coding.lookup) - coding.ignore), _ranges(set(coding.ignore))
    return f"{classes}; {ignore} = ignore" if ignore else classes


def _ranges(values: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return _listed(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _listed(texts: Iterable[str]) -> str:
    items = list(texts)
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _color_code(color: Color) -> int:
    return color[0] << 16 | color[1] << 8 | color[2]


def _color_codes(raw: np.ndarray) -> np.ndarray:
    wide = raw.astype(np.int64)
    return wide[:, :, 0] << 16 | wide[:, :, 1] << 8 | wide[:, :, 2]


def _color_text(code: int) -> str:
    return f"({code >> 16}, {code >> 8 & 255}, {code & 255})"
