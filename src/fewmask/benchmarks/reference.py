"""The research-style step of a preset, built and timed as `fewmask bench step --reference` sets it beside ours.

It has a process of its own, as research code does: in one that has compiled, captured or profiled before, the host
starts kernels more slowly, and this step mostly waits for the host. Its backward pass runs in the thread that runs the
forward pass: with torch's own thread for it steps of `paper-cityscapes` took 256 to 322 ms, without 204. Even so
processes differ, so on CUDA several are tried and the fastest counts; a slow yardstick would flatter us.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from fewmask.benchmarks.reference_step import Learner, ReferenceStep
from fewmask.benchmarks.timing import busy_ms, launch_us, median_ms
from fewmask.benchmarks.workloads import benchmark_session, workload_of
from fewmask.config import Config, OptimizerSettings
from fewmask.errors import ConfigError
from fewmask.learning.ema import teacher_of
from fewmask.methods.rml import P0, RMLSettings
from fewmask.networks.build import build_network
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.settings import read_section
from fewmask.training.device_memory import release
from fewmask.training.engine import choose_precision
from fewmask.training.observer import Observer
from fewmask.training.optimizers import head_rate
from fewmask.types import Batch

_SETTLED = 10  # the batch that the step gets again and again
_PROFILED = 3  # steps whose kernels are recorded
_PROCESSES = 3
Timed = dict[str, float | None]


def require_comparable(config: Config) -> None:
    """The reference mixes its images, as the paper does; color noise and precision are the preset's choice."""
    settings = read_section(RMLSettings, config.settings, where="settings of method rml")
    if not settings.cutmix or config.training.precision == "fp64":
        raise ConfigError(
            "the reference step has mixed images, in bf16 or fp32",
            where="--reference",
            fix="cutmix=true training.precision=fp32, or no --reference",
        )
    if config.network.auxiliary_weight > 0:
        what = "the reference step has no auxiliary heads"
        raise ConfigError(what, where="--reference", fix="network.auxiliary_weight=0, or no --reference")


def with_independent_pairs(config: Config) -> Config:
    """Mixing partners are a second draw, as the reference wants them."""
    return config.model_copy(update={"settings": {**config.settings, "pairs": "independent"}})


def measured_alone(config: Config, device: torch.device, steps: int) -> dict[str, Any]:
    """`measured` in new processes: the fastest, and the milliseconds of each. A CPU waits for no host: one will do."""
    tried = [_measured_once(config, device, steps) for _ in range(_PROCESSES if device.type == "cuda" else 1)]
    fastest = min(tried, key=lambda each: each["reference_ms"] or 0.0)
    return {**fastest, "reference_tries_ms": [each["reference_ms"] for each in tried]}


def _measured_once(config: Config, device: torch.device, steps: int) -> Timed:
    context = multiprocessing.get_context("spawn")  # CUDA cannot be used in a forked one
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(measured, config, str(device), steps, torch.get_num_threads()).result()


def measured(config: Config, device_name: str, steps: int, threads: int) -> Timed:
    """Milliseconds by the clock, and how long the GPU works in them; profiled last, since that slows all launches."""
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    step = reference_call(config, device)
    gc.collect()
    gc.disable()  # as timeit does
    with torch.autograd.set_multithreading_enabled(False):
        return {
            "launch_us": launch_us(device),
            "reference_ms": median_ms(step, steps, device),
            "reference_busy_ms": busy_ms(step, _PROFILED, device),
        }


def reference_call(config: Config, device: torch.device) -> Callable[[int], object]:
    """The research-style step on one batch of independent pairs, again and again."""
    batch = _plain_batch(_batch(config, device))
    release(device)
    step = build_reference(config, device)
    return lambda number: step(batch, number)


def _batch(config: Config, device: torch.device) -> Batch:
    """A batch of our own session, which is not needed any more."""
    plain = {"compile": False, "capture": False, "deterministic": False}
    config = with_independent_pairs(config)
    config = config.model_copy(update={"training": config.training.model_copy(update=plain)})
    return benchmark_session(config, device=device, observer=Observer(), few=True).maker.at(_SETTLED)


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


def _plain_batch(batch: Batch) -> Batch:
    """The batch in torch's default memory format."""
    tensors = {
        each.name: value.contiguous()
        for each in fields(batch)
        if isinstance(value := getattr(batch, each.name), Tensor)
    }
    strong = tuple(view.contiguous() for view in batch.strong)
    stored = {name: value.contiguous() for name, value in batch.stored.items()}
    return replace(batch, **tensors, strong=strong, stored=stored)
