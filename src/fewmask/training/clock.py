"""Where the time of a run went, by the words that its forecast uses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

STEPS = "steps"
SWEEPS = "sweeps"
START = "start"  # warm-up and capture
STARTS = "starts of a stage"
LOOKS = "looks at pseudo labels"
CHECKPOINTS = "checkpoints"  # until the state is copied; files are written beside the steps
VALIDATIONS = "validations"
FILES = "files"  # what had to be read, or written to the end, before the run could go on
REST = "the rest"


class Clock:
    """How often each part of a run came and how many seconds it took."""

    def __init__(self) -> None:
        self.spent: dict[str, tuple[int, float]] = {}

    @contextmanager
    def part(self, what: str, device: torch.device, count: int = 1) -> Iterator[None]:
        """Waits for the device before and after, so that queued steps count as steps.

        `count` 0: it belongs to the one before.
        """
        wait_for(device)
        began = time.perf_counter()
        try:
            yield
        finally:
            wait_for(device)
            self.add(what, time.perf_counter() - began, count)

    def reset(self) -> None:
        """What came before, such as images read and steps on trial, is no part of the run that is told."""
        self.spent.clear()

    def add(self, what: str, seconds: float, count: int = 1) -> None:
        before = self.spent.get(what, (0, 0.0))
        self.spent[what] = (before[0] + count, before[1] + seconds)

    def join(self, other: Clock, prefix: str) -> None:
        for what, (count, seconds) in other.spent.items():
            self.add(f"{prefix}{what}", seconds, count)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.spent.values())

    def parts(self) -> list[dict[str, Any]]:
        """For JSON, the longest first."""
        order = sorted(self.spent.items(), key=lambda item: -item[1][1])
        return [{"what": what, "count": count, "seconds": seconds} for what, (count, seconds) in order]


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
