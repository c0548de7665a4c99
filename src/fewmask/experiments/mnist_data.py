"""MNIST from its four idx files, plain or compressed with gzip."""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fewmask.errors import DataError

SIDE = 28  # pixels
CLASSES = 10
_UNSIGNED_BYTE = 8  # the third byte of an idx file says what its elements are
_FIX = "the four files of MNIST as they are published, e.g. train-images-idx3-ubyte or train-images-idx3-ubyte.gz"


@dataclass(frozen=True)
class Digits:
    images: Tensor  # [N, 1, 28, 28] uint8
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)


def read_digits(folder: Path, part: Literal["train", "t10k"]) -> Digits:
    """The training or the test images of MNIST, with their labels."""
    images_file, labels_file = _find(folder, f"{part}-images-idx3-ubyte"), _find(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or images.shape[1:] != (SIDE, SIDE):
        raise DataError(f"images of {SIDE}x{SIDE} pixels are needed, not {_shape(images)}", where=str(images_file))
    if labels.ndim != 1 or len(labels) != len(images):
        raise DataError(f"{len(images)} images, but labels {_shape(labels)}", where=str(labels_file), fix=_FIX)
    if not len(labels) or int(labels.max()) >= CLASSES:
        what = f"the label {int(labels.max())} is not a digit" if len(labels) else "the file holds no labels"
        raise DataError(what, where=str(labels_file), fix="labels from 0 to 9")
    return Digits(images[:, None], labels.long())


def read_idx(path: Path) -> Tensor:
    """The array of bytes in an idx file: two zeros, the type, the number of sizes, the sizes, the elements."""
    content = _content(path)
    if len(content) < 4 or content[0] or content[1] or not content[3]:
        raise DataError("this is not an idx file", where=str(path), fix=_FIX)
    if content[2] != _UNSIGNED_BYTE:
        raise DataError(f"elements of type {content[2]}, not unsigned bytes (8)", where=str(path), fix=_FIX)
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError("the file ends within its header", where=str(path), fix="a whole copy of the file")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        what = f"the header promises {math.prod(shape)} bytes, but {len(content) - start} follow"
        raise DataError(what, where=str(path), fix="a whole copy of the file")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{name} is not there, neither plain nor with .gz", where=str(folder), fix=_FIX)


def _content(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"it cannot be unpacked: {error}", where=str(path), fix="a whole copy of the file") from None


def _shape(array: Tensor) -> str:
    return "x".join(map(str, array.shape))
