"""What the data check learns from each file; every file is decoded once, by a pool of threads, and kept if wanted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fewmask.data.check_masks import MaskValues, mask_values
from fewmask.data.check_report import CODES, Finding
from fewmask.data.dataset import MaskCoding, Sample
from fewmask.data.imagefile import Header, read_header, unread_part
from fewmask.data.masks import decode_mask, is_color, read_mask_and_palette
from fewmask.data.paths import outside_root, relative, shown
from fewmask.data.problem import DataProblem
from fewmask.data.reading import read_image_and_header
from fewmask.data.threads import map_in_threads
from fewmask.errors import DataError

if TYPE_CHECKING:  # the check by itself needs no tensors
    from fewmask.data.buffers import ImageBuffer, LabelBuffer


@dataclass(frozen=True)
class SplitBuffers:
    """Where the pixels of a split are kept while its files are checked."""

    images: ImageBuffer | None = None
    labels: LabelBuffer | None = None  # of unlabeled images none: hidden truth is not for training


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """A decoded image in a few numbers."""

    header: Header
    channels: int
    depth: int  # bits per channel
    largest: int  # value, of 16-bit images; those of 8 bits are not searched for it
    digest: bytes | None  # of the pixels; none for a blank image, which may resemble another without being its copy


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """One sample and what its files hold; None where a file is missing or unreadable, which `problems` explains."""

    sample: Sample
    split: str
    image: ImageFacts | None = None
    mask: MaskValues | None = None
    problems: tuple[Finding, ...] = field(default=())
    remarks: tuple[Finding, ...] = field(default=())  # on files that were read, but not all of them


@dataclass(frozen=True)
class Examination:
    """How the files are read, and where what is decoded of a split is kept, if anywhere."""

    root: Path
    coding: MaskCoding
    max_pixels: int
    buffers: Mapping[str, SplitBuffers] = field(default_factory=dict)

    def __call__(
        self, splits: Mapping[str, Sequence[Sample]], progress: Callable[[int, int], None] | None = None
    ) -> list[SampleFacts]:
        """The facts of all samples, in their order."""
        items = [(split, index, sample) for split, part in splits.items() for index, sample in enumerate(part)]
        facts = []
        for found in map_in_threads(lambda item: _sample_facts(self, *item), items, 8):
            facts.append(found)
            if progress:
                progress(len(facts), len(items))
        return facts


def problem(error: DataError, root: Path) -> Finding:
    """The finding that an error stands for."""
    code = getattr(error, "code", "unusable")
    where = relative(root, Path(error.where)) if error.where else ""
    return Finding(code if code in CODES else "unusable", "" if where == "." else where, shown(error.what), error.fix)


def _sample_facts(how: Examination, split: str, index: int, sample: Sample) -> SampleFacts:
    problems: list[Finding] = []
    image, mask, keep = None, None, how.buffers.get(split, SplitBuffers())
    try:
        image = _image_facts(how, sample.image, keep.images, index)
    except DataError as error:
        problems.append(problem(error, how.root))
    try:
        mask = _mask_facts(how, sample.mask, keep.labels, index) if sample.mask else None
    except DataError as error:
        problems.append(problem(error, how.root))
    read = [(sample.image, image and image.header), (sample.mask, mask and mask.header)]
    remarks = [_remark(how, path) for path, header in read if path and header and header.format == "TIFF"]
    return SampleFacts(sample, split, image, mask, tuple(problems), tuple(filter(None, remarks)))


def _remark(how: Examination, path: Path) -> Finding | None:
    message = unread_part(path, max_pixels=how.max_pixels)
    fix = "save what is to be read as a file of one page, gray or RGB, unless the rest does not matter"
    return Finding("read-in-part", relative(how.root, path), message, fix) if message else None


def _image_facts(how: Examination, path: Path, buffer: ImageBuffer | None, index: int) -> ImageFacts:
    _require_inside(how.root, path)
    pixels, header = read_image_and_header(path, max_pixels=how.max_pixels)  # [H, W, C]
    if buffer:
        buffer.put(index, pixels, path)
    digest = hashlib.blake2b(repr((pixels.shape, pixels.dtype.str)).encode(), digest_size=16)
    digest.update(pixels.data)
    blank = bool((pixels == pixels[:1, :1]).all())
    largest = int(pixels.max()) if pixels.itemsize == 2 else 255
    return ImageFacts(header, pixels.shape[2], 8 * pixels.itemsize, largest, None if blank else digest.digest())


def _mask_facts(how: Examination, path: Path, buffer: LabelBuffer | None, index: int) -> MaskValues:
    coding, max_pixels = how.coding, how.max_pixels
    _require_inside(how.root, path)
    header = read_header(path, max_pixels=max_pixels)
    if header.format == "JPEG":
        what = "the mask is a JPEG, whose compression changes label values"
        fix = "export the mask from the labeling tool as PNG; converting this file does not bring the labels back"
        raise DataProblem("jpeg-mask", what, where=path, fix=fix)
    raw, palette = read_mask_and_palette(path, max_pixels=max_pixels, colors=coding.kind == "color")
    if coding.kind == "index" and is_color(raw):
        decode_mask(raw, coding, path)  # raises, and says which colors there are
    values = mask_values(raw, coding, header, palette)
    if buffer and not values.strangers:
        buffer.put(index, decode_mask(raw, coding, path), path)
    return values


def _require_inside(root: Path, path: Path) -> None:
    if outside_root(root, path):
        what = f"the file lies outside the data folder, at {path.resolve()}"
        raise DataProblem("outside-root", what, where=path, fix="copy it into the data folder, or train on that folder")
