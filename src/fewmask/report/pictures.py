"""Label maps as pictures: colors, grids, and the PNG files that `predict` writes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from fewmask.data.dataset import Classes, Color
from fewmask.labels import IGNORE

Array = NDArray[np.uint8]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Placed = list[tuple[int, str, Color]]  # left edge, name and color of what stands on one line

IGNORE_COLOR: Color = (64, 64, 64)
_HATCH_COLOR: Color = (96, 96, 96)
_CELL = 320  # width of a picture in the grid, about
_GAP = 8
_TEXT = 16
_INK, _PAPER = (32, 32, 32), (255, 255, 255)
_MADE_BY = ("Software", "fewmask predict")  # a PNG text chunk
_MADE_BY_AT = 37  # where that chunk's name begins: behind signature, IHDR and its own length


def colorize(label: NDArray[np.integer], colors: Sequence[Color]) -> Array:
    """A label map [H, W] in its classes' colors, [H, W, 3]; ignored pixels are hatched in dark gray."""
    ignored = label == IGNORE
    table = np.asarray(colors, dtype=np.uint8).reshape(-1, 3)
    picture = table[np.where(ignored, 0, label)]  # [H, W, 3]
    stripe = np.add.outer(np.arange(label.shape[0]), np.arange(label.shape[1])) % 8 < 3  # [H, W]
    picture[ignored & stripe] = _HATCH_COLOR
    picture[ignored & ~stripe] = IGNORE_COLOR
    return picture


def picture_grid(
    rows: Sequence[Sequence[NDArray[np.integer]]],
    column_titles: Sequence[str],
    *,
    legend: Classes | None,
    path: Path,
) -> None:
    """Writes rows of pictures under their titles, and the classes' colors below them, as one PNG.

    A two-dimensional array is a label map and is drawn in the legend's colors; pictures are [H, W, 3] uint8.
    """
    drawn = [[_cell(cell, legend) for cell in row] for row in rows]
    widths = [max(row[column].width for row in drawn) for column in range(len(column_titles))]
    width = sum(widths) + _GAP * (len(widths) + 1)
    lefts = [_GAP + sum(widths[:column]) + _GAP * column for column in range(len(widths))]
    font = ImageFont.load_default(_TEXT)
    entries = list(zip(legend.names, legend.colors, strict=True)) if legend else []
    if any(cell.ndim == 2 and (cell == IGNORE).any() for row in rows for cell in row):
        entries.append(("ignored", IGNORE_COLOR))
    names = _legend_lines(entries, width, font)
    top = 2 * _GAP + _TEXT
    height = top + sum(max(cell.height for cell in row) + _GAP for row in drawn) + (_TEXT + _GAP) * len(names) + _GAP
    canvas = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(canvas)
    for left, title in zip(lefts, column_titles, strict=True):
        pen.text((left, _GAP), title, fill=_INK, font=font)
    for row in drawn:
        for left, cell in zip(lefts, row, strict=True):
            canvas.paste(cell, (left, top))
        top += max(cell.height for cell in row) + _GAP
    _draw_legend(pen, names, top + _GAP // 2, font)
    canvas.save(path, optimize=True)


def _cell(array: NDArray[np.integer], legend: Classes | None) -> Image.Image:
    """One picture at about the width of a cell: small ones grow by a whole factor, labels stay crisp."""
    is_label = array.ndim == 2
    assert legend is not None or not is_label, "a label map needs the classes' colors"
    picture = Image.fromarray(colorize(array, legend.colors) if is_label and legend else array.astype(np.uint8))
    factor: float = max(1, round(_CELL / picture.width))
    if picture.width > 2 * _CELL:
        factor = 2 * _CELL / picture.width
    size = (round(picture.width * factor), max(1, round(picture.height * factor)))
    return picture.resize(size, Image.Resampling.NEAREST if is_label else Image.Resampling.BICUBIC)


def _legend_lines(entries: Sequence[tuple[str, Color]], width: int, font: Font) -> list[Placed]:
    """Which names go on which line, each with its left edge."""
    lines: list[Placed] = []
    left = width
    for name, color in entries:
        needed = _TEXT + _GAP // 2 + round(font.getlength(name)) + 2 * _GAP
        if left + needed > width:
            lines.append([])
            left = _GAP
        lines[-1].append((left, name, color))
        left += needed
    return lines


def _draw_legend(pen: ImageDraw.ImageDraw, lines: list[Placed], top: int, font: Font) -> None:
    for line in lines:
        for left, name, color in line:
            pen.rectangle((left, top, left + _TEXT - 2, top + _TEXT - 2), fill=tuple(color), outline=_INK)
            pen.text((left + _TEXT + _GAP // 2, top - 1), name, fill=_INK, font=font)
        top += _TEXT + _GAP


def write_index_png(path: Path | IO[bytes], label: NDArray[np.integer], colors: Sequence[Color]) -> None:
    """Class indices as an 8-bit PNG with an embedded palette, so that viewers show colors and programs read indices."""
    palette = np.zeros((256, 3), dtype=np.uint8)
    palette[: len(colors)] = colors
    palette[IGNORE] = IGNORE_COLOR
    picture = Image.fromarray(label.astype(np.uint8))
    picture.putpalette(palette.tobytes())
    picture.save(path, format="PNG", pnginfo=_made_by())


def write_confidence_png(path: Path | IO[bytes], confidence: NDArray[np.floating]) -> None:
    """Confidence in [0, 1] as an 8-bit gray PNG, 255 is certain."""
    picture = Image.fromarray((confidence * 255).round().astype(np.uint8))
    picture.save(path, format="PNG", pnginfo=_made_by())


def is_own_png(path: Path) -> bool:
    """Whether one of the two functions above wrote the file; no longer so once another program has saved it."""
    expected = b"tEXt" + "\0".join(_MADE_BY).encode()
    try:
        with path.open("rb") as file:
            return file.read(_MADE_BY_AT + len(expected))[_MADE_BY_AT:] == expected
    except OSError:
        return False


def _made_by() -> PngInfo:
    info = PngInfo()
    info.add_text(*_MADE_BY)
    return info


def to_data_uri(picture: Array | Path, *, lossless: bool = True) -> str:
    """A picture [H, W, 3] or a PNG file as text that a page can hold; photographs are small as JPEG."""
    if isinstance(picture, Path):
        return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    buffer = io.BytesIO()
    if lossless:
        Image.fromarray(picture).save(buffer, format="PNG", optimize=True)
    else:
        Image.fromarray(picture).save(buffer, format="JPEG", quality=90)
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode()
