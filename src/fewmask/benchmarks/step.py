"""`fewmask bench step`: the real training step of a preset, and the same method as research code writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fewmask.benchmarks.least_work import least_flop
from fewmask.benchmarks.reference import measured_alone, require_comparable, with_independent_pairs
from fewmask.benchmarks.timing import captured, launch_us, matrix_tflops, median_ms, peak_memory_gib
from fewmask.benchmarks.workloads import LABELED, UNLABELED, benchmark_session, unlabeled_batch
from fewmask.config import Config
from fewmask.determinism import deterministic
from fewmask.training.device_memory import peak_reserved, release, reset_peak
from fewmask.training.engine import choose_precision
from fewmask.training.observer import Observer
from fewmask.training.session import Session


@dataclass(frozen=True)
class Measured:
    """What one session gave."""

    ms: float
    data_ms: float
    peak_memory_gib: float
    reserved_memory_gib: float
    least_tflop: float
    crop: tuple[int, int]
    captured: bool


def measure_step(
    config: Config, *, device: torch.device, steps: int, reference: bool, observer: Observer
) -> dict[str, Any]:
    """One object for the JSON; what was not measured is None."""
    if reference:
        require_comparable(config)
    ours = measure_session(config, device=device, steps=steps, observer=observer)  # first: it may be deterministic
    rate = matrix_tflops(device)
    beside = _beside(config, device=device, steps=steps, observer=observer) if reference else {}
    independent_ms, reference_ms = beside.get("independent_ms"), beside.get("reference_ms")
    tflops = ours.least_tflop / ours.ms * 1000
    return {
        "benchmark": "step",
        "preset": config.preset,
        "ms": ours.ms,
        "reference_ms": reference_ms,
        "reference_tries_ms": beside.get("reference_tries_ms"),
        "reference_busy_ms": beside.get("reference_busy_ms"),
        "launch_us": beside.get("launch_us", launch_us(device)),
        "ratio": reference_ms / ours.ms if reference_ms else None,
        "independent_ms": independent_ms,
        "independent_ratio": reference_ms / independent_ms if reference_ms and independent_ms else None,
        "images_per_second": images_per_step(config) / ours.ms * 1000,
        "tflops": tflops,
        "least_tflop": ours.least_tflop,
        "matrix_tflops": rate,
        "share_of_matrix_rate": tflops / rate,
        "peak_memory_gib": ours.peak_memory_gib,
        "reserved_memory_gib": ours.reserved_memory_gib,
        "data_ms": ours.data_ms,
        "data_share": ours.data_ms / ours.ms,
        "steps": steps,
        "crop": list(ours.crop),
        "batch": [config.training.batch, unlabeled_batch(config)],
        "backbone": config.network.backbone,
        "precision": choose_precision(config.training.precision, device),
        "captured": ours.captured,
        "images": [LABELED, UNLABELED],
    }


def images_per_step(config: Config) -> int:
    return config.training.batch + unlabeled_batch(config)


def measure_session(config: Config, *, device: torch.device, steps: int, observer: Observer) -> Measured:
    """Time the session's own stepper, then its batches alone."""
    with deterministic(config.training.deterministic, device):
        return _measure_session(config, device=device, steps=steps, observer=observer)


def _measure_session(config: Config, *, device: torch.device, steps: int, observer: Observer) -> Measured:
    observer.say(f"{config.preset}: {steps} steps of {config.training.batch} + {unlabeled_batch(config)} images")
    session = benchmark_session(config, device=device, observer=observer)
    release(device)
    reset_peak(device)
    ms = median_ms(session.stepper, steps, device)
    peak, reserved = peak_memory_gib(device), peak_reserved(device) / 2**30
    data_ms = median_ms(batch_call(session), steps, device)
    crop = session.config.views.crop
    assert crop is not None
    batch = {"labeled": config.training.batch, "unlabeled": unlabeled_batch(config)}
    least = least_flop(session.method, crop, **batch) / 1e12
    return Measured(ms, data_ms, peak, reserved, least, crop, session.stepper.captures)


def batch_call(session: Session) -> Callable[[int], object]:
    """The making of batches alone, captured where the step is."""
    step = torch.zeros((), dtype=torch.int64, device=session.maker.labeled.values.device)

    def make(number: int) -> object:
        session.maker.stage(number)
        step.fill_(number)
        return session.maker(step)

    if not session.stepper.captures:
        return make
    session.maker.stage(0)
    session.maker.settle()
    replay = captured(lambda: session.maker(step))

    def replayed(number: int) -> None:
        session.maker.stage(number)
        step.fill_(number)
        replay()

    return replayed


def _beside(config: Config, *, device: torch.device, steps: int, observer: Observer) -> dict[str, Any]:
    """Our step at the reference's amount of teacher work, and the reference itself."""
    release(device)
    independent = measure_session(with_independent_pairs(config), device=device, steps=steps, observer=observer)
    release(device)
    observer.say(f"{config.preset}: {steps} steps as research code writes them, in processes of their own")
    return {"independent_ms": independent.ms, **measured_alone(config, device, steps)}
