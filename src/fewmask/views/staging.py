"""Images that do not fit on the device reach it step by step, while the step before is computed.

The images of a step are known ahead. A thread gathers those of the next step in one buffer of the host and sends it to
the device on a stream of its own; at the start of that step it is copied once more, into slots that never move, so that
a captured step reads them where it always does. On the CPU there are no streams, and everything else is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from fewmask.types import FlatImages, PixelMaps

Source = FlatImages | PixelMaps
Form = tuple[tuple[int, ...], torch.dtype]  # of one tensor
AnySource = TypeVar("AnySource", bound=Source)
_ALIGNMENT = 16  # bytes; every type may begin there


class Staging:
    """Slots for one step's images of some stores that are indexed alike, such as images and their soft labels.

    `choose` says which images a step has; `gathered` is called after their pixels were read.
    """

    def __init__(
        self,
        images: Mapping[str, FlatImages],
        maps: Mapping[str, PixelMaps],
        choose: Callable[[int], Tensor],
        *,
        device: torch.device,
        gathered: Callable[[], None] = lambda: None,
    ) -> None:
        self.sources: list[Source] = [*images.values(), *maps.values()]
        self.choose, self.gathered = choose, gathered
        self.forms = [_forms(source, len(choose(0))) for source in self.sources]
        size = sum(_padded(form) for forms in self.forms for form in forms)
        self.host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.arrived = self.host if device.type == "cpu" else torch.empty(size, dtype=torch.uint8, device=device)
        self.kept = torch.empty_like(self.arrived)
        self.filled = [_slots(*each) for each in zip(self.sources, self._cut(self.host), strict=True)]
        parts = self._cut(self.kept)
        self.images = {name: _slots(source, next(parts)) for name, source in images.items()}  # what views sample from
        self.maps = {name: _slots(source, next(parts)) for name, source in maps.items()}
        self.transfer = _CudaTransfer(device) if device.type == "cuda" else _Transfer()
        self.worker: ThreadPoolExecutor | None = None
        self.coming: tuple[int, Future[None]] | None = None
        self.held: int | None = None  # the step whose images lie in the slots

    def _cut(self, buffer: Tensor) -> Iterator[list[Tensor]]:
        """Values, heights and widths of each source, cut out of one buffer of bytes."""
        start = 0
        for forms in self.forms:
            part = []
            for form in forms:
                part.append(buffer[start : start + _length(form)].view(form[1]).view(form[0]))
                start += _padded(form)
            yield part

    def hold(self, step: int) -> None:
        """Put the images of `step` into the slots and send for those of the next; any order of steps will do."""
        if step == self.held:
            return
        if self.coming is None or self.coming[0] != step:
            self.settle()
            self._send_for(step)
        assert self.coming is not None
        (_, fetched), self.coming, self.held = self.coming, None, None
        fetched.result()  # what went wrong in the thread is raised here, in the step
        self.transfer.receive(self.arrived, self.kept)
        self.held = step
        self._send_for(step + 1)

    def settle(self) -> None:
        """Wait until the thread rests; nothing else may talk to a GPU while a graph is captured."""
        if self.coming is not None:
            wait([self.coming[1]])

    def close(self) -> None:
        """End the thread; the next `hold` would start another."""
        if self.worker is not None:
            self.worker.shutdown()
            self.transfer.wait_until_sent()
        self.worker, self.coming = None, None

    def _send_for(self, step: int) -> None:
        self.worker = self.worker or ThreadPoolExecutor(1, thread_name_prefix="staging")
        self.coming = (step, self.worker.submit(self._fetch, step))

    def _fetch(self, step: int) -> None:
        index = self.choose(step).tolist()
        self.transfer.wait_until_sent()
        for source, slots in zip(self.sources, self.filled, strict=True):
            _gather(source, index, slots)
        self.gathered()
        self.transfer.send(self.host, self.arrived)


class _Transfer:
    """The way from the host's buffer to the slots; on the CPU a plain copy, with nothing to wait for."""

    def wait_until_sent(self) -> None:
        """Called in the thread, before the host's buffer is written again."""

    def send(self, host: Tensor, arrived: Tensor) -> None:
        """Called in the thread; on the CPU what the host has gathered has arrived."""

    def receive(self, arrived: Tensor, kept: Tensor) -> None:
        """Called where the step is computed."""
        kept.copy_(arrived)


class _CudaTransfer(_Transfer):
    """A stream for the copies to the device, and events that order them with the steps' own stream, both ways."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.sent = torch.cuda.Event(blocking=True)  # the thread sleeps; an event never recorded is not waited for
        self.received = torch.cuda.Event()

    def wait_until_sent(self) -> None:
        self.sent.synchronize()

    def send(self, host: Tensor, arrived: Tensor) -> None:
        arrived.record_stream(self.stream)  # its memory is not given to others while a copy is under way
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.received)  # the slots have what arrived last
            arrived.copy_(host, non_blocking=True)
            self.sent.record(self.stream)

    def receive(self, arrived: Tensor, kept: Tensor) -> None:
        stream = torch.cuda.current_stream(kept.device)
        stream.wait_event(self.sent)
        kept.copy_(arrived, non_blocking=True)
        self.received.record(stream)


def _forms(source: Source, count: int) -> list[Form]:
    """Room for `count` images, each as large as the largest: values, heights and widths."""
    largest = int(source.lengths.max())
    numbers: Form = ((count,), torch.int64)
    return [((count * largest, *source.values.shape[1:]), source.values.dtype), numbers, numbers]


def _length(form: Form) -> int:
    """In bytes."""
    shape, dtype = form
    return math.prod(shape) * dtype.itemsize


def _padded(form: Form) -> int:
    return -(-_length(form) // _ALIGNMENT) * _ALIGNMENT


def _slots(source: AnySource, part: Sequence[Tensor]) -> AnySource:
    """The source's form over other tensors; the slots lie at equal distances."""
    values, height, width = part
    offset = torch.arange(len(height), device=height.device) * (len(values) // max(1, len(height)))
    return replace(source, values=values, offset=offset, height=height, width=width)


def _gather(source: Source, index: Sequence[int], slots: Source) -> None:
    """Copy images into slots; by numpy, which starts no threads of its own beside those that compute the step."""
    values, into = source.values.numpy(), slots.values.numpy()
    chosen = torch.tensor(index, dtype=torch.int64)
    slots.height.copy_(source.height[chosen])
    slots.width.copy_(source.width[chosen])
    start, length = source.offset[chosen].tolist(), slots.lengths.tolist()
    for place, begin, size in zip(slots.offset.tolist(), start, length, strict=True):
        into[place : place + size] = values[begin : begin + size]
