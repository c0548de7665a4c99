"""Measurements as lines to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Result = Mapping[str, Any]


def summary(result: Result) -> str:
    lines = {"step": _step, "train": _train, "predict": _predict, "data": _data, "growth": _growth}[result["benchmark"]]
    rows = [*lines(result), ("machine", f"{result['machine']}, torch {result['torch']}, {result['date']}")]
    head = f"{result['benchmark']} of {result['preset']}" if "preset" in result else result["benchmark"]
    return "\n".join([head, *(f"  {name:<18} {text}" for name, text in rows)])


def _step(result: Result) -> Iterator[tuple[str, str]]:
    labeled, unlabeled = result["batch"]
    captured = ", captured" if result["captured"] else ""
    images = f"{labeled} labeled + {unlabeled} unlabeled crops of {_size(result['crop'])}"
    yield "work", f"{images}, {result['backbone']}, {result['precision']}{captured}"
    per_second = f"{result['images_per_second']:.0f} images/s"
    yield "step", f"{result['ms']:.1f} ms (median of {result['steps']}), {per_second}"
    share = f"{result['share_of_matrix_rate']:.0%} of the measured matrix rate, {result['matrix_tflops']:.3g} TFLOP/s"
    yield "least work", f"{result['least_tflop']:.3g} TFLOP, {result['tflops']:.3g} TFLOP/s, {share}"
    taken = f"of tensors, {result['reserved_memory_gib']:.2f} GiB taken from the device"
    whose = "of this process" if "CPU" in result["machine"] else taken  # a CPU does not tell them apart
    yield "peak memory", f"{result['peak_memory_gib']:.2f} GiB {whose}"
    yield "batch alone", f"{result['data_ms']:.2f} ms, {result['data_share']:.1%} of the step"
    if result["reference_ms"] is not None:
        yield "as research code", f"{result['reference_ms']:.1f} ms, {result['ratio']:.2f} times our step"
        if result["reference_busy_ms"] is not None:
            host = f"the host takes {result['launch_us']:.1f} µs to start the smallest kernel"
            yield "", f"the GPU works for {result['reference_busy_ms']:.1f} ms of it; {host}"
            yield "", f"the fastest process of {', '.join(f'{each:.1f}' for each in result['reference_tries_ms'])} ms"
        independent = f"{result['independent_ms']:.1f} ms; research code takes {result['independent_ratio']:.2f} times"
        yield "independent pairs", independent


def _train(result: Result) -> Iterator[tuple[str, str]]:
    with_what = f"logging, diagnostics every {result['diagnose_every']} steps, {result['checkpoints']} checkpoints"
    yield "training", f"{result['ms']:.1f} ms per step (mean of {result['steps']}), with {with_what}"
    yield "bare step", f"{result['step_ms']:.1f} ms; training takes {result['overhead']:+.1%}"
    yield "all stages", f"{result['planned_steps']:,} steps in {result['planned_hours']:.1f} hours"


def _predict(result: Result) -> Iterator[tuple[str, str]]:
    yield "work", f"{_size(result['size'])}, {result['mode']}, {result['backbone']}, {result['precision']}"
    for row in result["batches"]:
        rate = f"{row['images_per_second']:.1f} images/s"
        yield f"batch of {row['batch']}", f"{row['ms_per_image']:.2f} ms per image, {rate}"
    yield "peak memory", f"{result['peak_memory_gib']:.2f} GiB"


def _data(result: Result) -> Iterator[tuple[str, str]]:
    for row in result["decoding"]:
        rate = f"{row['images_per_second']:.0f} images/s, {row['megabytes_per_second']:.0f} MB/s of pixels"
        yield f"decoding {row['format']}", f"{rate} ({_size(result['size'])}, {row['kilobytes_per_file']:.0f} kB each)"
    batch = f"{result['views_per_batch']} views of {_size(result['crop'])} in {result['batch_ms']:.2f} ms"
    yield "views", f"{result['views_per_second']:.0f} per second ({batch})"


def _growth(result: Result) -> Iterator[tuple[str, str]]:
    yield "unlabeled images", "check and read, sweep (ms per image); store, process (MiB); batch, step (ms)"
    for row in result["rows"]:
        start = f"{row['reading_ms_per_image']:8.3f} {row['sweep_ms_per_image']:8.3f}"
        step = f"{row['batch_ms']:8.2f} {row['step_ms']:8.2f}"
        memory = f"{row['store_mib']:10.2f} {row['resident_mib']:8.0f}"
        yield f"{row['unlabeled_images']:>16,}", f"{start} {memory} {step}{', staged' if row['staged'] else ''}"


def _size(size: Any) -> str:
    return "x".join(map(str, size))
