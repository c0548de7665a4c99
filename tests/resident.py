"""How much of the mapped files of a HostMemory this process has in main memory, by the system's own account."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewmask.data.host_memory import HostMemory

_MAPS = Path("/proc/self/smaps")


def resident_kib(memory: HostMemory) -> int:
    """Over all files that are mapped now, of which there must be one."""
    if not _MAPS.exists():
        pytest.skip("needs /proc/self/smaps")
    assert list(memory.files), "nothing is mapped"
    found, inside = 0, False
    for line in _MAPS.read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):  # a mapping begins: its addresses, and what is known about the file
            inside = int(first.split("-")[0], 16) in memory.files
        elif inside and first == "Rss:":
            found += int(line.split()[1])
    return found
