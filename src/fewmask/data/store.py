"""Images and masks decoded once into flat buffers, and the checksum of what was read.

Two passes: sizes from the headers, then a few threads decode each file into its own place, so that the result does
not depend on their timing. Training fills the buffers while it checks the files (`check.check_dataset`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fewmask.data.buffers import FlatBuffer, ImageBuffer, LabelBuffer
from fewmask.data.dataset import MaskCoding, Sample
from fewmask.data.host_memory import HostMemory
from fewmask.data.imagefile import MAX_PIXELS, read_header
from fewmask.data.masks import read_mask
from fewmask.data.problem import DataProblem
from fewmask.data.reading import read_image
from fewmask.data.resizing import Size, resize_mask
from fewmask.data.threads import map_in_threads
from fewmask.labels import IGNORE
from fewmask.types import FlatImages

Advance = Callable[[int, int], None]  # called with files done and files in all
_THREADS = 4
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Headers:
    """What the files of a split say of themselves, in arrays, as there may be very many."""

    size: np.ndarray  # [N, 2] height and width as shown
    channels: np.ndarray  # [N]
    bits: np.ndarray  # [N] per channel


def read_headers(samples: Sequence[Sample], *, max_pixels: int = MAX_PIXELS) -> Headers:
    return _headers(lambda index: samples[index].image, len(samples), max_pixels)


def _headers(path: Callable[[int], Path], count: int, max_pixels: int) -> Headers:
    rows = np.empty((count, 4), np.int64)
    found = map_in_threads(lambda index: read_header(path(index), max_pixels=max_pixels), range(count), _THREADS)
    for row, header in zip(rows, found, strict=True):
        row[:] = *header.size, header.channels, header.bits
    return Headers(rows[:, :2], rows[:, 2], rows[:, 3])


def image_buffer(
    samples: Sequence[Sample],
    *,
    channels: int | None = None,
    resize: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    memory: HostMemory | None = None,
    name: str = "images",
    headers: Headers | None = None,
) -> ImageBuffer:
    """Room for all images; one channel if all are gray, else three; 16 bits if any image has them.

    `memory` gives the buffer called `name`; `headers` are those of the images, where they have been read before.
    """
    headers = read_headers(samples, max_pixels=max_pixels) if headers is None else headers
    channels = channels or int(headers.channels.max(initial=0)) or 3
    _require_channels(channels, headers, samples)
    deep = bool((headers.bits > 8).any())
    return ImageBuffer(headers.size, channels, deep, resize, memory or HostMemory(), name)


def label_buffer(
    samples: Sequence[Sample],
    *,
    resize: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    memory: HostMemory | None = None,
    name: str = "masks",
) -> LabelBuffer:
    """Room for the masks of all samples."""
    paths = _mask_paths(samples)
    sizes = _headers(paths.__getitem__, len(paths), max_pixels).size
    return LabelBuffer(sizes, resize, memory or HostMemory(), name)


def load_images(
    samples: Sequence[Sample],
    *,
    channels: int | None = None,
    resize: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: Advance | None = None,
    memory: HostMemory | None = None,
) -> FlatImages:
    """All images, as `image_buffer` has room for them.

    `resize` (height, width) averages boxes where it divides the size exactly, else it is bilinear with antialiasing.
    """
    buffer = image_buffer(samples, channels=channels, resize=resize, max_pixels=max_pixels, memory=memory)

    def put(index: int) -> None:
        path = samples[index].image
        buffer.put(index, read_image(path, max_pixels=max_pixels), path)

    _each(put, len(samples), progress)
    return buffer.images()


def load_masks(
    samples: Sequence[Sample],
    coding: MaskCoding,
    *,
    resize: Size | None = None,
    max_pixels: int = MAX_PIXELS,
    progress: Advance | None = None,
) -> FlatImages:
    """All masks as class indices with IGNORE, one uint8 channel; `resize` as in `resize_mask`."""
    buffer, paths = label_buffer(samples, resize=resize, max_pixels=max_pixels), _mask_paths(samples)

    def put(index: int) -> None:
        buffer.put(index, read_mask(paths[index], coding, max_pixels=max_pixels), paths[index])

    _each(put, len(samples), progress)
    return buffer.images()


def _mask_paths(samples: Sequence[Sample]) -> list[Path]:
    paths = []
    for sample in samples:
        if sample.mask is None:
            raise DataProblem("missing-mask", f"`{sample.name}` has no mask", where=sample.image, fix="a mask for it")
        paths.append(sample.mask)
    return paths


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
    buffer = FlatBuffer(np.where(known[:, None], sizes, 1), 1, False, memory or HostMemory(), "hidden masks")

    def put(index: int) -> None:
        label = np.full((1, 1), IGNORE, np.uint8)  # nothing is known
        if known[index]:
            try:
                label = _hidden_mask(
                    samples[index], (int(sizes[index, 0]), int(sizes[index, 1])), coding, resize, max_pixels
                )
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
