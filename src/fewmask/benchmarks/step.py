"""`fewmask bench step`: the real training step of a preset, and the same method as research code writes it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from fewmask.benchmarks.least_work import least_flop
from fewmask.benchmarks.reference_step import Learner, ReferenceStep
from fewmask.benchmarks.timing import busy_ms, captured, launch_us, matrix_tflops, median_ms, peak_memory_gib
from fewmask.benchmarks.workloads import LABELED, UNLABELED, benchmark_session, workload_of
from fewmask.config import Config, OptimizerSettings
from fewmask.determinism import deterministic
from fewmask.errors import ConfigError
from fewmask.learning.ema import teacher_of
from fewmask.methods.rml import P0, RMLSettings
from fewmask.networks.build import build_network
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.settings import read_section
from fewmask.training.device_memory import peak_reserved, release, reset_peak
from fewmask.training.engine import choose_precision
from fewmask.training.observer import Observer
from fewmask.training.optimizers import head_rate
from fewmask.training.session import Session
from fewmask.types import Batch

SETTLED = 10  # the batch that the reference step gets again and again
_PROFILED = 3  # steps of the reference whose kernels are recorded


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
    batch: Batch


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
        "reference_busy_ms": beside.get("reference_busy_ms"),
        "launch_us": launch_us(device),
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


def require_comparable(config: Config) -> None:
    """The reference is the paper's method; without its noise there is nothing to set beside it."""
    settings = read_section(RMLSettings, config.settings, where="settings of method rml")
    if not (settings.photometric and settings.cutmix) or config.training.precision == "fp64":
        raise ConfigError(
            "the reference step has strong views and mixed images, in bf16 or fp32",
            where="--reference",
            fix="photometric=true cutmix=true training.precision=fp32, or no --reference",
        )


def unlabeled_batch(config: Config) -> int:
    return config.training.unlabeled_batch or config.training.batch


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
    given = session.maker.at(SETTLED)
    return Measured(ms, data_ms, peak, reserved, least, crop, session.stepper.captures, given)


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


def _beside(config: Config, *, device: torch.device, steps: int, observer: Observer) -> dict[str, float | None]:
    """Our step at the reference's amount of teacher work, and the reference itself."""
    release(device)
    independent = measure_session(with_independent_pairs(config), device=device, steps=steps, observer=observer)
    release(device)
    observer.say(f"{config.preset}: {steps} steps as research code writes them")
    step = reference_call(config, independent.batch, device)
    with _uncollected():
        reference_ms = median_ms(step, steps, device)
        reference_busy_ms = busy_ms(step, _PROFILED, device)
    return {"independent_ms": independent.ms, "reference_ms": reference_ms, "reference_busy_ms": reference_busy_ms}


def with_independent_pairs(config: Config) -> Config:
    """Mixing partners are a second draw, as the reference wants them."""
    return config.model_copy(update={"settings": {**config.settings, "pairs": "independent"}})


def reference_call(config: Config, batch: Batch, device: torch.device) -> Callable[[int], object]:
    """The research-style step on one batch of independent pairs, again and again."""
    step, plain = build_reference(config, device), plain_batch(batch)
    return lambda number: step(plain, number)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Python's collector leaves alone what is there: research code has no objects of an earlier compilation to walk."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def build_reference(config: Config, device: torch.device) -> ReferenceStep:
    """Fresh networks in torch's default memory format, and prototypes drawn at random."""
    settings = read_section(RMLSettings, config.settings, where="settings of method rml")
    return ReferenceStep(
        [_learner(config, device, seed) for seed in (1, 2)],
        bf16=choose_precision(config.training.precision, device) == "bf16",
        decay=settings.decay,
        momentum=settings.momentum,
        labeled_every=settings.labeled_every,
        soft_label=P0,
    )


def _learner(config: Config, device: torch.device, seed: int) -> Learner:
    classes = workload_of(config).num_classes
    student = build_network(config.network, num_classes=classes, seed=seed).to(device).train()
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(classes, student.feature_channels, generator=generator).to(device)
    known = torch.ones(classes, dtype=torch.bool, device=device)
    return Learner(student, teacher_of(student), plain_optimizer(student, config.optimizer), prototypes, known)


def plain_optimizer(network: SegmentationNetwork, settings: OptimizerSettings) -> Optimizer:
    """torch's optimizer as it comes, with the head's own rate."""
    groups = [
        {"params": list(network.backbone_parameters()), "lr": settings.lr},
        {"params": list(network.head_parameters()), "lr": head_rate(settings)},
    ]
    if settings.name == "adamw":
        return AdamW(groups, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)
    return SGD(groups, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)


def plain_batch(batch: Batch) -> Batch:
    """The batch in torch's default memory format."""
    tensors = {
        each.name: value.contiguous()
        for each in fields(batch)
        if isinstance(value := getattr(batch, each.name), Tensor)
    }
    strong = tuple(view.contiguous() for view in batch.strong)
    stored = {name: value.contiguous() for name, value in batch.stored.items()}
    return replace(batch, **tensors, strong=strong, stored=stored)
