"""Images and masks decoded once into flat buffers, and the checksum of what was read.

Two passes: sizes from the headers, then a few threads decode each file into its own place, so that the result does
not depend on their timing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fewmask.data.dataset import MaskCoding, Sample
from fewmask.data.host_memory import HostMemory
from fewmask.data.imagefile import MAX_PIXELS, read_header
from fewmask.data.masks import read_mask
from fewmask.data.problem import DataProblem
from fewmask.data.reading import read_image
from fewmask.data.threads import map_in_threads
from fewmask.types import IGNORE, FlatImages

Size = tuple[int, int]
Advance = Callable[[int, int], None]  # called with files done and files in all
_THREADS = 4
_CHUNK = 1 << 20
_RELEASED_AFTER = 1 << 26  # values written between two releases of mapped memory


@dataclass(frozen=True)
class Headers:
    """What the files of a split say of themselves, in arrays, as there may be very many."""

    size: np.ndarray  # [N, 2] height and width as shown
    channels: np.ndarray  # [N]
    bits: np.ndarray  # [N] per channel


def load_images(
    samples: Sequence[Sample],
    *,
    channels: int | None = None,
    resize: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: Advance | None = None,
    memory: HostMemory | None = None,
    name: str = "images",
    headers: Headers | None = None,
) -> FlatImages:
    """All images; one channel if all are gray, else three with gray repeated; 16 bits if any image has them.

    `resize` (height, width) averages boxes where it divides the size exactly, else it is bilinear with antialiasing.
    `memory` gives the buffer called `name`; `headers` are those of the images, where they have been read before.
    """
    headers = read_headers(samples, max_pixels=max_pixels) if headers is None else headers
    channels = channels or int(headers.channels.max(initial=0)) or 3
    _require_channels(channels, headers, samples)
    deep = bool((headers.bits > 8).any())

    def read(path: Path) -> np.ndarray:
        array = read_image(path, max_pixels=max_pixels)
        if deep and array.dtype == np.uint8:
            array = array.astype(np.uint16) * 257  # 255 becomes 65535
        array = resize_image(array, resize) if resize else array
        return np.repeat(array, channels, axis=2) if array.shape[2] < channels else array

    buffer = _Buffer(_sizes(headers.size, resize), channels, deep, memory or HostMemory(), name)
    buffer.fill(read, lambda index: samples[index].image, progress)
    return buffer.images()


def read_headers(samples: Sequence[Sample], *, max_pixels: int = MAX_PIXELS) -> Headers:
    return _headers(lambda index: samples[index].image, len(samples), max_pixels)


def _headers(path: Callable[[int], Path], count: int, max_pixels: int) -> Headers:
    rows = np.empty((count, 4), np.int64)
    found = map_in_threads(lambda index: read_header(path(index), max_pixels=max_pixels), range(count), _THREADS)
    for row, header in zip(rows, found, strict=True):
        row[:] = *header.size, header.channels, header.bits
    return Headers(rows[:, :2], rows[:, 2], rows[:, 3])


def load_masks(
    samples: Sequence[Sample],
    coding: MaskCoding,
    *,
    resize: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: Advance | None = None,
    memory: HostMemory | None = None,
    name: str = "masks",
) -> FlatImages:
    """All masks as class indices with IGNORE, one uint8 channel; `resize` as in `resize_mask`."""
    paths = []
    for sample in samples:
        if sample.mask is None:
            raise DataProblem("missing-mask", f"`{sample.name}` has no mask", where=sample.image, fix="a mask for it")
        paths.append(sample.mask)
    sizes = _sizes(_headers(paths.__getitem__, len(paths), max_pixels).size, resize)

    def read(path: Path) -> np.ndarray:
        label = read_mask(path, coding, max_pixels=max_pixels)
        return (resize_mask(label, resize) if resize else label)[:, :, None]

    buffer = _Buffer(sizes, 1, False, memory or HostMemory(), name)
    buffer.fill(read, paths.__getitem__, progress)
    return buffer.images()


def load_hidden_masks(
    samples: Sequence[Sample],
    images: FlatImages,
    coding: MaskCoding,
    *,
    resize: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: Advance | None = None,
    memory: HostMemory | None = None,
    unfit: Callable[[int, DataProblem], None] | None = None,
) -> FlatImages:
    """The truth about unlabeled images, for diagnostics and scores only, as `load_masks` gives it.

    Where there is no mask, or none that fits its image of `images`, one IGNORE pixel stands for the whole image: the
    check has warned, and training needs none of them. `unfit` hears which masks these are, from several threads.
    """
    sizes = torch.stack([images.height, images.width], dim=1).cpu().numpy()  # [N, 2]
    known = np.array([sample.mask_form is not None for sample in samples], bool)  # [N]
    buffer = _Buffer(np.where(known[:, None], sizes, 1), 1, False, memory or HostMemory(), "hidden masks")

    def put(index: int) -> None:
        label = np.full((1, 1), IGNORE, np.uint8)  # nothing is known
        if known[index]:
            try:
                label = _hidden_mask(samples[index], _size(sizes, index), coding, resize, max_pixels)
            except DataProblem as problem:
                if unfit:
                    unfit(index, problem)
        buffer.write(index, label)
        buffer.sizes[index] = label.shape

    _each(put, len(samples), progress)
    return buffer.images()


def _hidden_mask(sample: Sample, size: Size, coding: MaskCoding, resize: Size | None, max_pixels: int) -> np.ndarray:
    """[H, W] at the `size` that the image has in its store."""
    assert sample.mask is not None
    label = read_mask(sample.mask, coding, max_pixels=max_pixels)
    label = resize_mask(label, resize) if resize else label
    if label.shape != size:
        shapes = [f"{width}x{height}" for height, width in (label.shape, size)]
        what = f"the mask is {shapes[0]} (width x height), its image {shapes[1]}"
        raise DataProblem("size-mismatch", what, where=sample.mask, fix="a mask of its image's size")
    return label


def resize_image(array: np.ndarray, size: Size) -> np.ndarray:
    """[H, W, C] at another size, in its own depth."""
    if array.dtype == np.uint8:
        picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
        return np.asarray(_resized(picture, size)).reshape(*size, -1)
    planes = [Image.fromarray(array[:, :, band].astype(np.float32)) for band in range(array.shape[2])]
    smooth = np.stack([np.asarray(_resized(plane, size)) for plane in planes], axis=2)
    return np.rint(smooth).clip(0, 65535).astype(np.uint16)


def _resized(picture: Image.Image, size: Size) -> Image.Image:
    height, width = size
    if picture.height % height == 0 and picture.width % width == 0:
        return picture.reduce((picture.width // width, picture.height // height))  # rounds once; resize rounds per axis
    return picture.resize((width, height), Image.Resampling.BILINEAR)


def resize_mask(label: np.ndarray, size: Size) -> np.ndarray:
    """[H, W] at another size: exactly half is a majority vote of 2x2 (as French et al.), anything else is nearest.

    In a tie the upper left pixel of those tied wins; ignore votes like a class.
    """
    if label.shape == (2 * size[0], 2 * size[1]):
        votes = np.stack([label[0::2, 0::2], label[0::2, 1::2], label[1::2, 0::2], label[1::2, 1::2]])  # [4, h, w]
        support = (votes[:, None] == votes[None]).sum(axis=1)
        return np.take_along_axis(votes, support.argmax(axis=0)[None], axis=0)[0]
    return np.asarray(Image.fromarray(label).resize((size[1], size[0]), Image.Resampling.NEAREST))


def data_checksum(samples: Sequence[Sample]) -> str:
    """sha256 over names, file sizes and bytes of all images and masks, in the order of their names."""
    total = hashlib.sha256()
    for sample in sorted(samples, key=lambda sample: sample.name):
        total.update(f"{sample.name}\0".encode())
        for path in filter(None, (sample.image, sample.mask)):
            total.update(f"{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    total.update(chunk)
    return total.hexdigest()


class _Buffer:
    """A flat buffer with room for images of known sizes [N, 2], which threads fill in any order."""

    def __init__(self, sizes: np.ndarray, channels: int, deep: bool, memory: HostMemory, name: str) -> None:
        self.sizes, self.channels, self.memory = sizes, channels, memory
        self.offset = np.concatenate([[0], np.cumsum(sizes.prod(axis=1) * channels)]).astype(np.int64)
        self.values = memory.empty(name, (int(self.offset[-1]),), torch.int16 if deep else torch.uint8)
        self.array = self.values.numpy().view(np.uint16 if deep else np.uint8)

    def fill(self, read: Callable[[Path], np.ndarray], path: Callable[[int], Path], progress: Advance | None) -> None:
        """Every image from its file."""
        _each(lambda index: self.put(index, read(path(index)), path(index)), len(self.sizes), progress)

    def put(self, index: int, array: np.ndarray, path: Path) -> None:
        size = _size(self.sizes, index)
        if array.shape != (*size, self.channels):
            what = f"the header says {size} pixels, the file holds {array.shape[:2]}"
            raise DataProblem("unreadable", what, where=path, fix="replace the file")
        self.write(index, array)

    def write(self, index: int, array: np.ndarray) -> None:
        start, stop = int(self.offset[index]), int(self.offset[index + 1])
        self.array[start : start + array.size] = array.reshape(-1)
        if start // _RELEASED_AFTER != stop // _RELEASED_AFTER:
            self.memory.release()

    def images(self) -> FlatImages:
        """What was written, once all is; images may be smaller than the room they got, if `sizes` was told."""
        self.memory.release()
        height, width = torch.from_numpy(self.sizes).unbind(1)
        offset = torch.from_numpy(self.offset[:-1].copy())
        return FlatImages(self.values, offset, height.contiguous(), width.contiguous(), self.channels)


def _sizes(found: np.ndarray, resize: Size | None) -> np.ndarray:
    """Those in the headers, or one for all, [N, 2]."""
    return np.broadcast_to(np.array(resize, np.int64), found.shape).copy() if resize else found


def _size(sizes: np.ndarray, index: int) -> Size:
    return int(sizes[index, 0]), int(sizes[index, 1])


def _each(function: Callable[[int], None], count: int, progress: Advance | None) -> None:
    """function of every index, with a few threads; the error of the first that fails is raised."""
    for index, _ in enumerate(map_in_threads(function, range(count), _THREADS)):
        if progress:
            progress(index + 1, count)


def _require_channels(channels: int, headers: Headers, samples: Sequence[Sample]) -> None:
    for index in np.flatnonzero(headers.channels > channels)[:1]:
        what = "a color image where gray ones are expected"
        where, fix = samples[index].image, "a gray image, like those of the training set"
        raise DataProblem("wrong-channels", what, where=where, fix=fix)
