"""Opening image files safely: five formats, a pixel limit checked before decoding, and one kind of error.

Only the header is read here. The pixels of images are read in `reading`, those of masks in `masks`.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from fewmask.data.problem import DataProblem
from fewmask.errors import DataError

FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
MAX_PIXELS = 100_000_000

_FORMATS_TEXT = "PNG, JPEG, TIFF, BMP or WebP"
_OTHER_FORMATS = {b"GIF8": "GIF", b"%PDF": "PDF", b"\0\0\0\x0c": "JPEG 2000", b"8BPS": "PSD", b"\x93NUM": "NumPy"}
_OWN_FORMATS = {b"\x89PNG": "PNG", b"\xff\xd8": "JPEG", b"II": "TIFF", b"MM": "TIFF", b"BM": "BMP"}


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says about itself before it is decoded; sizes are (height, width)."""

    format: str
    mode: str  # Pillow's
    bits: int  # per channel
    gray: bool
    orientation: int  # EXIF, 1 to 8
    size: tuple[int, int]  # as shown, after EXIF
    raw_size: tuple[int, int]  # as stored

    @property
    def channels(self) -> int:
        return 1 if self.gray else 3


class _PillowLimit:
    """Pillow's own pixel limit is one global number that first warns; ours takes its place while any file is open."""

    def __init__(self) -> None:
        self._lock, self._open, self._outside = threading.Lock(), 0, Image.MAX_IMAGE_PIXELS

    @contextmanager
    def lifted(self) -> Iterator[None]:
        with self._lock:
            if self._open == 0:
                self._outside, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if self._open == 0:
                    Image.MAX_IMAGE_PIXELS = self._outside


_LIMIT = _PillowLimit()


@contextmanager
def opened(path: Path, max_pixels: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """The file, opened but not decoded; whatever goes wrong until the block ends is a DataProblem."""
    try:
        with _LIMIT.lifted(), Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:  # only the header has been read so far
                raise _too_large(path, max_pixels, image.size)
            yield image
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise _unidentified(path) from error
    except Exception as error:  # on damaged files the parsers raise nearly anything, from KeyError to struct.error
        raise _unreadable(path, error) from error


def read_header(path: Path, *, max_pixels: int = MAX_PIXELS) -> Header:
    """Format, depth, orientation and sizes, without decoding."""
    with opened(path, max_pixels) as image:
        return header_of(image, path)


def unread_part(path: Path, *, max_pixels: int = MAX_PIXELS) -> str:
    """What a TIFF holds that is not read, in words: channels beyond color and alpha, and pages like the first."""
    with opened(path, max_pixels) as image:
        if not isinstance(image, TiffImagePlugin.TiffImageFile):
            return ""
        extra = image.tag_v2.get(TiffImagePlugin.EXTRASAMPLES, ())
        if 0 in extra:  # neither kind of alpha
            channels = image.tag_v2[TiffImagePlugin.SAMPLESPERPIXEL]
            return f"the file has {channels} channels, and nothing beyond the first {channels - len(extra)} is read"
        size = image.size
        try:
            image.seek(1)
        except Exception:  # there is no second page, or it is damaged, and then it is no image that was forgotten
            return ""
        return "the file has several pages, of which the first is read" if image.size == size else ""  # no preview


def header_of(image: Image.Image, path: Path) -> Header:
    """The header of a file that is open and not decoded yet."""
    bits, gray = _depth(image, path)
    orientation = _orientation(image, path)
    height, width = image.height, image.width
    turned = (width, height) if orientation >= 5 else (height, width)
    if image.format == "TIFF":  # Pillow reports a TIFF's size as shown, and turns its pixels while it decodes them
        size, raw_size = (height, width), turned
    else:
        size, raw_size = turned, (height, width)
    name = "JPEG" if image.format == "MPO" else str(image.format)  # MPO: a JPEG with more pictures behind it
    return Header(name, image.mode, bits, gray, orientation, size, raw_size)


def oriented(array: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels [H, W, ...] as the EXIF orientation says they are to be shown."""
    if orientation in (2, 3, 7, 8):
        array = array[:, ::-1]
    if orientation in (3, 4, 6, 7):
        array = array[::-1]
    if orientation >= 5:
        array = array.swapaxes(0, 1)
    return np.ascontiguousarray(array)


def _depth(image: Image.Image, path: Path) -> tuple[int, bool]:
    """Bits per channel and whether there is only one color channel; Pillow's mode hides 16-bit color."""
    gray = image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")
    if image.format == "PNG":
        with path.open("rb") as file:
            depth, color_type = file.read(26)[24:26]
        return (8 if color_type == 3 else depth), color_type in (0, 4)  # 3: palette
    if image.format == "TIFF" and image.mode not in ("P", "PA"):
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        return max(image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))), gray
    return 8, gray


def _orientation(image: Image.Image, path: Path) -> int:
    late = image.format == "PNG" and _png_metadata_after_pixels(path)
    try:
        # PngImageFile.getexif decodes the whole image to look behind it; mostly there is nothing to find
        exif = image.getexif() if late else Image.Image.getexif(image)
        orientation = exif.get(ExifTags.Base.Orientation, 1)
    except Exception:  # a damaged EXIF block says nothing; viewers show such images as they are stored
        return 1
    return orientation if orientation in range(1, 9) else 1


def _png_metadata_after_pixels(path: Path) -> bool:
    behind = False
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            behind = behind or kind == b"IDAT"
            if behind and kind in (b"eXIf", b"iTXt", b"tEXt", b"zTXt"):
                return True
            file.seek(length + 4, 1)
    return False


def _too_large(path: Path, max_pixels: int, size: tuple[int, int]) -> DataProblem:
    text = f"the image has {size[0]}x{size[1]} = {size[0] * size[1]:,} pixels"
    fix = f"up to {max_pixels:,} pixels; if the file can be trusted, raise data.max_pixels"
    return DataProblem("too-large", f"{text}, more than the limit of {max_pixels:,}", where=path, fix=fix)


def _unidentified(path: Path) -> DataProblem:
    with path.open("rb") as file:
        start = file.read(12)
    if not start:
        return DataProblem("zero-size", "the file has 0 bytes", where=path, fix="copy it again, or remove it")
    other = next((name for magic, name in _OTHER_FORMATS.items() if start.startswith(magic)), None)
    if other or start[4:8] == b"ftyp":
        name = other or "HEIF or AVIF"
        return DataProblem("wrong-format", f"the file is {name}", where=path, fix=f"convert it to {_FORMATS_TEXT}")
    own = next((name for magic, name in _OWN_FORMATS.items() if start.startswith(magic)), None)
    if own == "TIFF" and (bands := _tiff_bands(path)):
        what, fix = f"a TIFF with {bands}, which cannot be read", "1, 3 or 4 channels of 8 or 16 bits; keep three bands"
        return DataProblem("wrong-channels", what, where=path, fix=fix)
    what = f"not an image: it starts like a {own}, but the header is damaged" if own else "not an image"
    return DataProblem("unreadable", what, where=path, fix=f"{_FORMATS_TEXT}; replace or remove the file")


def _tiff_bands(path: Path) -> str:
    """What stands in the way of reading a TIFF: its channels and sample depth, or nothing if the file is damaged."""
    try:
        with path.open("rb") as file:
            tags = TiffImagePlugin.ImageFileDirectory_v2(file.read(8))
            file.seek(tags.next)
            tags.load(file)
        return f"{tags[TiffImagePlugin.SAMPLESPERPIXEL]} channels of {max(tags[TiffImagePlugin.BITSPERSAMPLE])} bits"
    except Exception:  # damaged
        return ""


def _unreadable(path: Path, error: Exception) -> DataProblem:
    if isinstance(error, OSError) and error.errno is not None:
        return DataProblem("unreadable", f"cannot be opened: {error.strerror}", where=path, fix="a readable file")
    if "truncated" in str(error).lower():
        return DataProblem(
            "truncated", "the file ends early (truncated)", where=path, fix="copy it again, or remove it"
        )
    what = f"the file is damaged ({error or type(error).__name__})"
    return DataProblem("unreadable", what, where=path, fix="replace or remove the file")
