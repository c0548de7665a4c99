"""Images as arrays, in the files' own depth.

Gray stays one channel, palettes become RGB, alpha is dropped, 16 bits stay 16 bits, and EXIF orientation is applied.
Of a file with several pages the first is read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from fewmask.data.imagefile import IMAGE_SUFFIXES, MAX_PIXELS, Header, header_of, opened, oriented, read_header
from fewmask.data.problem import DataProblem

__all__ = ["IMAGE_SUFFIXES", "MAX_PIXELS", "file_format", "image_size", "raw_size", "read_image"]

_GRAY = ("1", "L", "LA")
_COLOR = ("P", "PA", "RGB", "RGBA", "RGBX")


def read_image(path: Path, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """[H, W, C] uint8 or uint16, C 1 or 3."""
    return read_image_and_header(Path(path), max_pixels=max_pixels)[0]


def read_image_and_header(path: Path, *, max_pixels: int = MAX_PIXELS) -> tuple[np.ndarray, Header]:
    """As `read_image`, with the header that was read on the way."""
    with opened(path, max_pixels) as image:
        header = header_of(image, path)
        array = _pixels(image, header, path, max_pixels)
    return (array[:, :, None] if array.ndim == 2 else array), header


def image_size(path: Path, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """(height, width) as shown, after EXIF orientation, from the header alone."""
    return read_header(Path(path), max_pixels=max_pixels).size


def raw_size(path: Path, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """(height, width) as stored, before EXIF orientation, from the header alone."""
    return read_header(Path(path), max_pixels=max_pixels).raw_size


def file_format(path: Path) -> str:
    """PNG, JPEG, TIFF, BMP or WEBP, whatever the file is called."""
    return read_header(Path(path)).format


def sixteen_bit_png(path: Path, rawmode: str, max_pixels: int) -> np.ndarray:
    """[H, W, bands] uint8 of a 16-bit PNG, its bytes unpacked as `rawmode` says."""
    with opened(path, max_pixels) as image:
        assert isinstance(image, PngImagePlugin.PngImageFile)
        image.tile = [image.tile[0]._replace(args=rawmode)]
        return np.asarray(image)


def sixteen_bit_gray_alpha(path: Path, max_pixels: int) -> np.ndarray:
    """The gray channel of a 16-bit PNG with alpha, [H, W] uint16: its two pairs of bytes are read as four channels."""
    array = sixteen_bit_png(path, "RGBA", max_pixels).astype(np.uint16)
    return array[:, :, 0] * 256 + array[:, :, 1]


def _pixels(image: Image.Image, header: Header, path: Path, max_pixels: int) -> np.ndarray:
    turn = 1 if header.format == "TIFF" else header.orientation  # Pillow turns TIFFs by itself
    if header.bits == 16 and not header.gray and header.format == "TIFF":
        return oriented(_tiff_color(path), header.orientation)
    if header.bits == 16 and not header.gray:
        return oriented(_png_color(path, image.mode, max_pixels), turn)
    if header.bits == 16 and image.mode == "RGBA":
        return oriented(sixteen_bit_gray_alpha(path, max_pixels), turn)
    if image.mode.startswith("I;16"):
        return oriented(np.asarray(image).astype(np.uint16), turn)
    if image.mode not in _GRAY + _COLOR:
        raise _unsupported(image.mode, header.bits, path)
    return oriented(np.asarray(image.convert("L" if image.mode in _GRAY else "RGB")), turn)


def _png_color(path: Path, mode: str, max_pixels: int) -> np.ndarray:
    """16-bit RGB as Pillow never shows it: unpacked once for the upper and once for the lower bytes."""
    high = sixteen_bit_png(path, f"{mode};16B", max_pixels)[:, :, :3].astype(np.uint16)
    low = sixteen_bit_png(path, f"{mode};16L", max_pixels)[:, :, :3]
    return high * 256 + low


def _tiff_color(path: Path) -> np.ndarray:
    try:
        import tifffile
    except ImportError as error:
        fix = "pip install 'fewmask[tiff]', or convert the file to PNG"
        raise DataProblem("unreadable", "16-bit color TIFF needs the tifffile package", where=path, fix=fix) from error
    with tifffile.TiffFile(path) as file:
        page = file.pages.first
        array = page.asarray()
        if page.planarconfig == tifffile.PLANARCONFIG.SEPARATE:
            array = np.moveaxis(array, 0, -1)
    return np.asarray(array[:, :, :3], dtype=np.uint16)


def _unsupported(mode: str, bits: int, path: Path) -> DataProblem:
    signed = "signed 16-bit integers" if bits == 16 else "32-bit integers"  # Pillow's mode I is either
    kinds = {"CMYK": "CMYK color (4 channels)", "I": signed, "F": "32-bit floats", "LAB": "LAB color"}
    fix = "gray or RGB, with or without alpha, 8 or 16 bits"
    if mode in ("I", "F"):
        fix = "unsigned 16 bits: shift and scale the values of all images alike, so that their range becomes 0 to 65535"
    return DataProblem(
        "wrong-channels", f"the image holds {kinds.get(mode, mode)}, which cannot be used", where=path, fix=fix
    )
