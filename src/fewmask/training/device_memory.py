"""How much memory a device has, how much of it was needed at most, and giving back what nobody owns."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from pathlib import Path

import torch

from fewmask.data.host_memory import available_memory

_NO_MEMORY = ("allocate memory", "could not create a primitive", "could not create a memory object", "bad_alloc")


def reset_peak(device: torch.device) -> None:
    """Count from here on; on a CPU without /proc the peak stays that of the whole process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forgets the resident peak


def peak_allocated(device: torch.device) -> int:
    """Most bytes held by tensors since the reset; on the CPU the most that this process had in memory."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident_peak()


def peak_reserved(device: torch.device) -> int:
    """Most bytes taken from the device since the reset, a captured graph's own memory included."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else _resident_peak()


def capacity(device: torch.device) -> int:
    """Bytes of memory that the device has."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available(device: torch.device) -> int:
    """Bytes that this process could still take."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return available_memory()


def held(device: torch.device) -> int:
    """Bytes that this process has taken and uses."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return _resident_peak()


def release(device: torch.device) -> None:
    """Give back what no longer has an owner: a dead graph's memory serves nobody else until then."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """On the CPU it is a plain RuntimeError, of an allocator or of oneDNN, which only says what it could not create."""
    plain = isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
    return plain or isinstance(error, (torch.OutOfMemoryError, MemoryError))


def _resident_peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
