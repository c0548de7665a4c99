"""A miniature MNIST: ten random patterns under noise, as idx files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    """The array as an idx file of unsigned bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_digits(folder: Path, *, train: int = 180, test: int = 40, compressed: bool = False) -> Path:
    """The four files; label i of a part is i % 10, and every digit has a pattern of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2, (10, 28, 28)) * 150
    for part, count in (("train", train), ("t10k", test)):
        labels = np.arange(count) % 10
        images = patterns[labels] + rng.integers(0, 100, (count, 28, 28))
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            write(folder / name, idx_bytes(array), compressed)
    return folder


def write(path: Path, content: bytes, compressed: bool = False) -> None:
    path.with_name(path.name + ".gz" * compressed).write_bytes(gzip.compress(content) if compressed else content)
