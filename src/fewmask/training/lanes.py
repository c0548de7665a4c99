"""Parts of a step side by side on the GPU: a stream for each lane that a method opens."""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager

import torch


@functools.cache
def own_stream(device: torch.device, role: str) -> torch.cuda.Stream:  # noqa: ARG001, what is cached by
    """The process's stream for a role, whichever session asks.

    cuBLAS keeps a workspace of some 32 MiB for every stream that it ever served; a run has a session for each stage and
    baseline and for what is tried before them, and streams of their own would add up to a gigabyte.
    """
    return torch.cuda.Stream(device)


class Lanes:
    """Where the current part of a step runs. Without streams every lane is the stream that the step began on.

    What a lane allocates stays alive until the step ends, after the last join, so no other stream can reuse it early.
    """

    def __init__(self, streams: int, device: torch.device, role: str = "lane") -> None:
        self.device = device  # need not be the current one
        self.streams = [own_stream(device, f"{role} {number}") for number in range(streams)]
        self.used: set[int] = set()  # since the last join
        self.number: int | None = None

    def enter(self, number: int) -> None:
        if not self.streams:
            return
        self.number = number % len(self.streams)
        if self.number not in self.used:
            self.streams[self.number].wait_stream(torch.cuda.current_stream(self.device))
            self.used.add(self.number)

    def join(self) -> None:
        for number in sorted(self.used):
            torch.cuda.current_stream(self.device).wait_stream(self.streams[number])
        self.used.clear()
        self.number = None

    def current(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if self.number is None else torch.cuda.stream(self.streams[self.number])
