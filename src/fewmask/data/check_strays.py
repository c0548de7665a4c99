"""Files in a folder data set that look like data but are not used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fewmask.data.check_report import Finding, Level
from fewmask.data.folder import Listing
from fewmask.data.paths import relative, shown

_OTHER_SUFFIXES = {
    ".gif": "GIF",
    ".jp2": "JPEG 2000",
    ".heic": "HEIC",
    ".avif": "AVIF",
    ".svg": "SVG",
    ".psd": "PSD",
    ".tga": "TGA",
    ".exr": "OpenEXR",
    ".ppm": "PPM",
    ".pgm": "PGM",
    ".npy": "NumPy",
    ".mat": "MATLAB",
    ".dcm": "DICOM",
    ".nii": "NIfTI",
    ".gz": "compressed",
    ".pdf": "PDF",
}


def stray_findings(root: Path, listing: Listing) -> Iterator[tuple[Level, Finding]]:
    """Masks without an image, files that share a stem, and files of formats that are not read."""
    for path in listing.extra_masks:
        yield "warning", _extra_mask(relative(root, path))
    for first, second in listing.clashes:
        message = f"`{shown(first.stem)}` names two files, {relative(root, first)} and {relative(root, second)}"
        yield "error", Finding("name-clash", relative(root, second), message, "rename or remove one of the two")
    for path in listing.other_files:
        if name := _OTHER_SUFFIXES.get(path.suffix.lower()):
            message = f"the file is left out: {name} is not read"
            fix = "convert it to PNG, JPEG, TIFF, BMP or WebP, or remove it"
            yield "warning", Finding("wrong-format", relative(root, path), message, fix)


def _extra_mask(path: str) -> Finding:
    image = Path(*("images" if part == "masks" else part for part in Path(path).with_suffix("").parts)).as_posix()
    fix = f"add the image as {image} with its own ending, rename the mask like its image, or remove it"
    return Finding("extra-mask", path, "there is no image for this mask", fix)
