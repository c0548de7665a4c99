"""Clocks, the machine's own rates, and what stands beside every measurement."""

from __future__ import annotations

import datetime
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fewmask.training.device_memory import held, peak_allocated

WARM_UP = {"cuda": 10, "cpu": 2}  # calls before the clock starts: eager steps, the choice of kernels, the capture
_MATRIX = {"cuda": (8192, torch.bfloat16), "cpu": (1024, torch.float32)}
_MATRIX_CALLS = {"cuda": 50, "cpu": 5}
_LAUNCH_ROUNDS, _LAUNCHES = 10, 500  # few enough that the queue never fills up
Kernel = tuple[str, float, int]  # name, milliseconds that it ran, how often it was started


def milliseconds(call: Callable[[int], object], count: int, device: torch.device) -> list[float]:
    """How long each of `count` calls takes, one after the other, after a warm-up; `call` gets its number from 0 on.

    On CUDA these are the times between events on the stream, so work that the host queues ahead is not waited for.
    """
    warm_up = WARM_UP[device.type]
    for number in range(warm_up):
        call(number)
    if device.type == "cuda":
        return _between_events(lambda number: call(warm_up + number), count, device)
    moments = [time.perf_counter()]
    for number in range(count):
        call(warm_up + number)
        moments.append(time.perf_counter())
    return [1000 * (end - start) for start, end in pairwise(moments)]


def _between_events(call: Callable[[int], object], count: int, device: torch.device) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for number, event in enumerate(events[1:]):
        call(number)
        event.record()
    torch.cuda.synchronize(device)
    return [float(start.elapsed_time(end)) for start, end in pairwise(events)]


def median_ms(call: Callable[[int], object], count: int, device: torch.device) -> float:
    return statistics.median(milliseconds(call, count, device))


def kernels(call: Callable[[int], object], count: int, device: torch.device) -> list[Kernel]:
    """What ran in one call, the mean of `count` of them; on the CPU these are torch's own operations."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as recorded:
        for number in range(count):
            call(number)
        if cuda:
            torch.cuda.synchronize(device)
    found = [
        (event.key, (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1000 / count, event.count)
        for event in recorded.key_averages()
    ]
    return [(name, ms, started // count) for name, ms, started in found if ms > 0]  # the host's calls have none


def busy_ms(call: Callable[[int], object], count: int, device: torch.device) -> float | None:
    """How long the GPU works in a call, whatever the host takes to start its kernels; None on the CPU."""
    return sum(ms for _, ms, _ in kernels(call, count, device)) if device.type == "cuda" else None


def launch_us(device: torch.device) -> float | None:
    """How long this host takes to start the smallest kernel, in microseconds; None on the CPU, which starts none."""
    if device.type != "cuda":
        return None
    numbers = torch.ones(8, device=device)
    times = []
    for _ in range(_LAUNCH_ROUNDS):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(_LAUNCHES):
            numbers.add_(1)
        times.append((time.perf_counter() - start) / _LAUNCHES)
    return 1e6 * statistics.median(times)


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """The call as a CUDA graph, so that the time of its kernels is seen and not that of their launches."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay


def matrix_tflops(device: torch.device) -> float:
    """The rate of a large matrix product, in 1e12 operations per second: bf16 on CUDA, float32 on the CPU."""
    side, dtype = _MATRIX[device.type]
    one, other = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    taken = median_ms(lambda _: one @ other, _MATRIX_CALLS[device.type], device)
    return 2 * side**3 / taken / 1e9


def peak_memory_gib(device: torch.device) -> float:
    """Most memory held by tensors since the reset; on the CPU by this process."""
    return peak_allocated(device) / 2**30


def resident_mib() -> float:
    """What this process has in main memory now."""
    return held(torch.device("cpu")) / 2**20


def surroundings(device: torch.device, command: str) -> dict[str, Any]:
    """Where, when and how; without these a number says nothing."""
    return {
        "machine": machine_name(device),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "command": command,
    }


def machine_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' if threads > 1 else ''} of {os.cpu_count()}"
