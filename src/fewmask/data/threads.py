"""A function over many files, with a few threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_BLOCK = 512  # files handed out at once: what waits costs memory, and time of the garbage collector


def map_in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> Iterator[Result]:
    """The results in order; the error of the first item that fails is raised."""
    with ThreadPoolExecutor(min(threads, os.cpu_count() or 1)) as pool:
        for start in range(0, len(items), _BLOCK):
            yield from pool.map(function, items[start : start + _BLOCK])
