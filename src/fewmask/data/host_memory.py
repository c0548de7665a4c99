"""Room for decoded pixels and soft labels on the host: main memory up to a budget, then mapped files.

A mapped file has no name, so it vanishes with its last tensor, or with the process, however that ends. What was written
to it or read from it stays in the system's cache, which is given back whenever someone needs the memory.
"""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from fewmask.errors import ConfigError

_CGROUP = Path("/sys/fs/cgroup")


class HostMemory:
    """Buffers that together take `budget` bytes of main memory at most; None: no limit."""

    def __init__(self, budget: int | None = None, folder: Path | None = None) -> None:
        self.budget, self.folder = budget, folder or Path(tempfile.gettempdir())
        # What the tensors stand on, by address; a buffer is forgotten with its last tensor, as when that went to a GPU
        self.resident: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()
        self.files: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()

    def empty(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialized tensor; `name` says what it is for, where there is no room."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(*shape, dtype=dtype)
        if self.has_room(size):
            buffer = np.empty(size, np.uint8)
            tensor = torch.frombuffer(buffer, dtype=dtype).view(*shape)
            self.resident[tensor.data_ptr()] = buffer
            return tensor
        mapping = _mapped_file(self.folder, size, name)
        tensor = torch.frombuffer(mapping, dtype=dtype).view(*shape)
        self.files[tensor.data_ptr()] = mapping
        return tensor

    @property
    def taken(self) -> int:
        """Bytes of main memory that are in use now."""
        return sum(buffer.nbytes for buffer in list(self.resident.values()))

    def has_room(self, size: int) -> bool:
        return self.budget is None or self.taken + size <= self.budget

    def is_mapped(self, tensor: Tensor) -> bool:
        return not tensor.is_cuda and tensor.data_ptr() in self.files

    def release(self) -> None:
        """Let go of the pages that were touched; they come back, from the system's cache or the disk, when needed."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        for mapping in list(self.files.values()):
            mapping.madvise(mmap.MADV_DONTNEED)


def _mapped_file(folder: Path, size: int, name: str) -> mmap.mmap:
    """The disk space is taken at once: a disk that fills up later would kill the process.

    Where the folder is still to be made, its parent serves as well: the file has no name, and nothing else may come.
    """
    try:
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        free = shutil.disk_usage(there).free
        if free < size:
            raise _no_room(f"{name} take {_gib(size)}, and the disk has {_gib(free)} left", folder)
        with tempfile.TemporaryFile(dir=there) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise _no_room(f"{name} ({_gib(size)}) cannot be kept on disk: {error.strerror}", folder) from None


def _no_room(what: str, folder: Path) -> ConfigError:
    fix = "training.cache=FOLDER on a larger disk, or a larger training.host_share if memory is free"
    return ConfigError(what, where=str(folder), fix=fix)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def available_memory() -> int:
    """Bytes of main memory that new data may take, as the system and its limit for this process have it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _within_limit()
    return free if limit is None else min(free, limit)


def _within_limit() -> int | None:
    """What the control group still allows; its file cache would be given back."""
    try:
        limit, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = next(
            int(line.split()[1]) for line in (_CGROUP / "memory.stat").read_text().splitlines() if line[:5] == "file "
        )
    except (OSError, ValueError, StopIteration):  # no such group, or no limit: "max"
        return None
    return max(0, limit - used + cached)
