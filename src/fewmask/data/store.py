"""Images and masks decoded once into flat buffers, and the checksum of what was read.

Two passes: sizes from the headers, then a few threads decode each file into its own place, so that the result does
not depend on their timing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image

from fewmask.data.dataset import MaskCoding, Sample
from fewmask.data.host_memory import HostMemory
from fewmask.data.imagefile import MAX_PIXELS, Header, read_header
from fewmask.data.masks import read_mask
from fewmask.data.problem import DataProblem
from fewmask.data.reading import read_image
from fewmask.data.threads import map_in_threads
from fewmask.types import IGNORE, FlatImages

Size = tuple[int, int]
Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[int, int], None]  # called with files done and files in all
_THREADS = 4
_CHUNK = 1 << 20
_RELEASED_AFTER = 1 << 26  # values written between two releases of mapped memory


def load_images(
    samples: Sequence[Sample],
    *,
    channels: int | None = None,
    resize: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: Advance | None = None,
    memory: HostMemory | None = None,
    name: str = "images",
    headers: Sequence[Header] | None = None,
) -> FlatImages:
    """All images; one channel if all are gray, else three with gray repeated; 16 bits if any image has them.

    `resize` (height, width) averages boxes where it divides the size exactly, else it is bilinear with antialiasing.
    `memory` gives the buffer called `name`; `headers` are those of the images, where they have been read before.
    """
    paths = [sample.image for sample in samples]
    headers = read_headers(samples, max_pixels=max_pixels) if headers is None else headers
    channels = channels or max((header.channels for header in headers), default=3)
    _require_channels(channels, headers, paths)
    deep = any(header.bits > 8 for header in headers)

    def read(path: Path) -> np.ndarray:
        array = read_image(path, max_pixels=max_pixels)
        if deep and array.dtype == np.uint8:
            array = array.astype(np.uint16) * 257  # 255 becomes 65535
        array = resize_image(array, resize) if resize else array
        return np.repeat(array, channels, axis=2) if array.shape[2] < channels else array

    sizes = [resize or header.size for header in headers]
    buffer = _Buffer(sizes, channels, deep, memory or HostMemory(), name)
    _mapped(lambda index: buffer.put(index, read(paths[index]), paths[index]), range(len(paths)), progress)
    return buffer.images()


def read_headers(samples: Sequence[Sample], *, max_pixels: int = MAX_PIXELS) -> list[Header]:
    return _mapped(lambda sample: read_header(sample.image, max_pixels=max_pixels), samples)


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
    sizes = [resize or size for size in _mapped(lambda path: read_header(path, max_pixels=max_pixels).size, paths)]

    def read(path: Path) -> np.ndarray:
        label = read_mask(path, coding, max_pixels=max_pixels)
        return (resize_mask(label, resize) if resize else label)[:, :, None]

    buffer = _Buffer(sizes, 1, False, memory or HostMemory(), name)
    _mapped(lambda index: buffer.put(index, read(paths[index]), paths[index]), range(len(paths)), progress)
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
) -> FlatImages:
    """The truth about unlabeled images, for diagnostics only, as `load_masks` gives it.

    Where there is no mask, or none that fits its image of `images`, one IGNORE pixel stands for the whole image: the
    check has warned, and training needs none of them.
    """
    sizes = list(zip(images.height.tolist(), images.width.tolist(), strict=True))
    room = [size if sample.mask else (1, 1) for sample, size in zip(samples, sizes, strict=True)]
    buffer = _Buffer(room, 1, False, memory or HostMemory(), "hidden masks")

    def put(index: int) -> Size:
        label = _hidden_mask(samples[index], sizes[index], coding, resize, max_pixels)
        buffer.write(index, label)
        return label.shape[0], label.shape[1]

    return buffer.images(_mapped(put, range(len(samples)), progress))


def _hidden_mask(
    sample: Sample, size: Size, coding: MaskCoding, resize: Size | None, max_pixels: int
) -> np.ndarray:  # [H, W], or [1, 1] where nothing is known
    unknown = np.full((1, 1), IGNORE, np.uint8)
    if sample.mask is None:
        return unknown
    try:
        label = read_mask(sample.mask, coding, max_pixels=max_pixels)
    except DataProblem:
        return unknown
    label = resize_mask(label, resize) if resize else label
    return label if label.shape == size else unknown


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
    """A flat buffer with room for images of known sizes, which threads fill in any order."""

    def __init__(self, sizes: Sequence[Size], channels: int, deep: bool, memory: HostMemory, name: str) -> None:
        self.sizes, self.channels, self.memory = sizes, channels, memory
        counts = [height * width * channels for height, width in sizes]
        self.offset = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.values = memory.empty(name, (int(self.offset[-1]),), torch.int16 if deep else torch.uint8)
        self.array = self.values.numpy().view(np.uint16 if deep else np.uint8)

    def put(self, index: int, array: np.ndarray, path: Path) -> None:
        if array.shape != (*self.sizes[index], self.channels):
            what = f"the header says {self.sizes[index]} pixels, the file holds {array.shape[:2]}"
            raise DataProblem("unreadable", what, where=path, fix="replace the file")
        self.write(index, array)

    def write(self, index: int, array: np.ndarray) -> None:
        start, stop = int(self.offset[index]), int(self.offset[index + 1])
        self.array[start : start + array.size] = array.reshape(-1)
        if start // _RELEASED_AFTER != stop // _RELEASED_AFTER:
            self.memory.release()

    def images(self, sizes: Sequence[Size] | None = None) -> FlatImages:
        """What was written, once all is; `sizes` where images are smaller than the room they got."""
        self.memory.release()
        height, width = torch.tensor(sizes or self.sizes, dtype=torch.int64).reshape(-1, 2).unbind(1)
        offset = torch.from_numpy(self.offset[:-1].copy())
        return FlatImages(self.values, offset, height.contiguous(), width.contiguous(), self.channels)


def _mapped(function: Callable[[Item], Result], items: Sequence[Item], progress: Advance | None = None) -> list[Result]:
    """function over items with a few threads; the error of the first item that fails is raised."""
    results = []
    for result in map_in_threads(function, items, _THREADS):
        results.append(result)
        if progress:
            progress(len(results), len(items))
    return results


def _require_channels(channels: int, headers: Sequence[Header], paths: Sequence[Path]) -> None:
    for header, path in zip(headers, paths, strict=True):
        if header.channels > channels:
            what = "a color image where gray ones are expected"
            raise DataProblem("wrong-channels", what, where=path, fix="a gray image, like those of the training set")
