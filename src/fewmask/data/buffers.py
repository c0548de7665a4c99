"""Flat buffers with room for images or labels of known sizes, which threads fill in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fewmask.data.host_memory import HostMemory
from fewmask.data.problem import DataProblem
from fewmask.data.resizing import Size, resize_image, resize_mask
from fewmask.types import FlatImages

_RELEASED_AFTER = 1 << 26  # values written between two releases of mapped memory


class FlatBuffer:
    """Room for images of these sizes [N, 2], in `memory` under this name."""

    def __init__(self, sizes: np.ndarray, channels: int, deep: bool, memory: HostMemory, name: str) -> None:
        self.sizes, self.channels, self.memory = sizes, channels, memory
        self.offset = np.concatenate([[0], np.cumsum(sizes.prod(axis=1) * channels)]).astype(np.int64)
        self.values = memory.empty(name, (int(self.offset[-1]),), torch.int16 if deep else torch.uint8)
        self.array = self.values.numpy().view(np.uint16 if deep else np.uint8)

    def write(self, index: int, array: np.ndarray) -> None:
        start, stop = int(self.offset[index]), int(self.offset[index + 1])
        self.array[start : start + array.size] = array.reshape(-1)
        if start // _RELEASED_AFTER != stop // _RELEASED_AFTER:
            self.memory.release()

    def _require(self, index: int, array: np.ndarray, path: Path) -> None:
        """That the file holds as much as its header says."""
        size = (int(self.sizes[index, 0]), int(self.sizes[index, 1]))
        if array.shape != (*size, self.channels):
            what = f"the header says {size} pixels, the file holds {array.shape[:2]}"
            raise DataProblem("unreadable", what, where=path, fix="replace the file")

    def images(self) -> FlatImages:
        """What was written, once all is; images may be smaller than the room they got, if `sizes` was told."""
        self.memory.release()
        height, width = torch.from_numpy(self.sizes).unbind(1)
        offset = torch.from_numpy(self.offset[:-1].copy())
        return FlatImages(self.values, offset, height.contiguous(), width.contiguous(), self.channels)


class ImageBuffer(FlatBuffer):
    """Images of one depth and number of channels, whatever their files have: 255 becomes 65535, gray is repeated."""

    def __init__(
        self, sizes: np.ndarray, channels: int, deep: bool, resize: Size | None, memory: HostMemory, name: str
    ) -> None:
        super().__init__(_sizes_after(sizes, resize), channels, deep, memory, name)
        self.deep, self.resize = deep, resize

    def put(self, index: int, array: np.ndarray, path: Path) -> None:
        """The pixels [H, W, C] that a file holds."""
        if self.deep and array.dtype == np.uint8:
            array = array.astype(np.uint16) * 257
        array = resize_image(array, self.resize) if self.resize else array
        array = np.repeat(array, self.channels, axis=2) if array.shape[2] < self.channels else array
        self._require(index, array, path)
        self.write(index, array)


class LabelBuffer(FlatBuffer):
    """Class indices with IGNORE, one channel of 8 bits."""

    def __init__(self, sizes: np.ndarray, resize: Size | None, memory: HostMemory, name: str) -> None:
        super().__init__(_sizes_after(sizes, resize), 1, False, memory, name)
        self.resize = resize

    def put(self, index: int, label: np.ndarray, path: Path) -> None:
        """The decoded mask [H, W] of a file."""
        array = (resize_mask(label, self.resize) if self.resize else label)[:, :, None]
        self._require(index, array, path)
        self.write(index, array)


def _sizes_after(found: np.ndarray, resize: Size | None) -> np.ndarray:
    """Those in the headers, or one for all, [N, 2]."""
    return np.broadcast_to(np.array(resize, np.int64), found.shape).copy() if resize else found
