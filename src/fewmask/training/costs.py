"""What the parts of a run cost on this machine, measured with the run's own session; see `forecast.py` for the sum."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fewmask.training.checkpoint import host_copy
from fewmask.training.device_memory import peak_reserved
from fewmask.training.observer import Observer
from fewmask.training.scores import validate
from fewmask.training.session import Session
from fewmask.training.stages import SWEEP_BATCH, sweep
from fewmask.training.state import collect_state
from fewmask.training.stepper import Stepper
from fewmask.types import FlatImages

MOST_STEPS = 10
SHARE = 50  # one step in so many may be spent on looking ahead


@dataclass(frozen=True)
class Costs:
    """Seconds, and bytes."""

    step: float  # once the pace is the lasting one
    restart: float = 0.0  # what the first steps of another stage take beyond that: warm-up and capture
    diagnosis: float = 0.0
    checkpoint: float = 0.0
    sweep: float = 0.0  # over all images
    validation: float = 0.0  # of all images
    peak: int = 0


def trial_steps(left: int, stepper: Stepper) -> int:
    """How many of the steps that are left may be tried; 0 where they would not reach the lasting pace."""
    count = min(MOST_STEPS, left // SHARE)
    return count if count > stepper.settled_after else 0


def measure(session: Session, first: int, steps: int) -> Costs:
    """Everything that the run will do, once, on its largest images; changes the session (see `on_trial`)."""
    device = session.engine.device
    warm_up, step = step_seconds(session.stepper, first, steps, device)
    return Costs(
        step=step,
        restart=restart_seconds(warm_up, step) if session.stepper.captures else 0.0,
        diagnosis=_diagnosis(session),
        sweep=_sweep(session),
        validation=_validation(session),
        checkpoint=_checkpoint(session),
        peak=peak_reserved(device),
    )


def step_seconds(stepper: Stepper, first: int, count: int, device: torch.device) -> tuple[list[float], float]:
    """Each step of the warm-up; and the mean of the others, which are queued without a wait, as in training."""
    settled = stepper.settled_after
    warm_up = [_seconds(lambda step=first + done: stepper(step), device) for done in range(settled)]  # type: ignore[misc]

    def others() -> None:
        for step in range(first + settled, first + count):
            stepper(step)

    return warm_up, _seconds(others, device) / (count - settled)


def restart_seconds(warm_up: list[float], step: float) -> float:
    """The warm-up over again; its first step takes what the second did, as nothing is compiled or chosen any more."""
    return max(0.0, warm_up[1] + sum(warm_up[1:]) - len(warm_up) * step)


def whole_pass(first: float, again: float, *, tried: FlatImages, images: FlatImages) -> float:
    """Seconds of a pass over all images, from two over some: time goes by pixels, and new sizes cost extra on CUDA."""
    extra = max(0.0, first - again) / _sizes(tried)
    return extra * _sizes(images) + again * _pixels(images) / _pixels(tried)


def _diagnosis(session: Session) -> float:
    diagnostics = session.diagnostics
    if diagnostics is None:
        return 0.0
    step = session.stepper.maker_step()
    return _twice(lambda: diagnostics(session.engine, session.maker, step), session.engine.device)[1]


def _sweep(session: Session) -> float:
    stores = session.stores
    if not session.method.needs_baseline or stores.unlabeled is None:
        return 0.0
    labeled, pool = _largest(stores.labeled, SWEEP_BATCH), _largest(stores.unlabeled, SWEEP_BATCH)
    few = replace(
        stores,
        labeled=_only(stores.labeled, labeled),
        labels=_only(stores.labels, labeled),
        unlabeled=_only(stores.unlabeled, pool),
    )
    part = replace(session, stores=few)
    first, again = _twice(lambda: sweep(part, Observer()), session.engine.device)
    assert few.unlabeled is not None
    tried, images = _joined(few.labeled, few.unlabeled), _joined(stores.labeled, stores.unlabeled)
    return whole_pass(first, again, tried=tried, images=images)


def _validation(session: Session) -> float:
    stores = session.stores
    if stores.val is None or stores.val_labels is None:
        return 0.0
    index = _largest(stores.val, session.config.evaluation.batch * session.world.size)
    val = _only(stores.val, index)
    part = replace(session, stores=replace(stores, val=val, val_labels=_only(stores.val_labels, index)))
    first, again = _twice(lambda: validate(part, Observer()), session.engine.device)
    return whole_pass(first, again, tried=val, images=stores.val)


def _checkpoint(session: Session) -> float:
    """What the loop waits for: the copy. The disk takes its time beside the next steps."""
    return _seconds(lambda: host_copy(collect_state(session.engine, session.checksums)), session.engine.device)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - began


def _twice(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """The first call and another one; only on CUDA, where kernels are chosen for new sizes, do they differ."""
    first = _seconds(call, device)
    return first, _seconds(call, device) if device.type == "cuda" else first


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _largest(images: FlatImages, count: int) -> torch.Tensor:
    """Indices of the largest images, [count]; of equals the first."""
    return (images.height * images.width).argsort(descending=True, stable=True)[:count]


def _only(images: FlatImages, index: torch.Tensor) -> FlatImages:
    return replace(images, offset=images.offset[index], height=images.height[index], width=images.width[index])


def _joined(one: FlatImages, other: FlatImages) -> FlatImages:
    """Sizes of both."""
    height, width = (torch.cat(pair) for pair in ((one.height, other.height), (one.width, other.width)))
    return replace(one, height=height, width=width)


def _pixels(images: FlatImages) -> int:
    return int((images.height * images.width).sum())


def _sizes(images: FlatImages) -> int:
    return len(set(zip(images.height.tolist(), images.width.tolist(), strict=True)))
