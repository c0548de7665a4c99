"""What the parts of a run cost on this machine, measured with the run's own session; see `forecast.py` for the sum."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fewmask.training.checkpoint import HostCopies
from fewmask.training.clock import wait_for
from fewmask.training.device_memory import peak_reserved
from fewmask.training.observer import Observer
from fewmask.training.placement import Stores
from fewmask.training.scores import validate
from fewmask.training.session import Session
from fewmask.training.stages import most_at_once, sweep
from fewmask.training.state import collect_state
from fewmask.training.stepper import Stepper
from fewmask.types import FlatImages

MOST_STEPS = 10
LEAST_TIMED = 3  # fewer steps at the lasting pace would say too little of it
SHARE = 20  # one step in so many may be spent on looking ahead


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


def trial_steps(left: int, stepper: Stepper, before: int = 0) -> int:
    """How many of the steps that are left may be tried, where others come before; 0: too few for the lasting pace."""
    count = min(MOST_STEPS, left, (before + left) // SHARE)
    return count if count >= stepper.settled_after + LEAST_TIMED else 0


def measure(session: Session, first: int, steps: int) -> Costs:
    """Everything that the run will do, once, on its largest images; changes the session (see `on_trial`).

    Some of the timed steps come before all else and some after it: a longer while says more of a busy machine.
    """
    device, stepper = session.engine.device, session.stepper
    timed, end = first + stepper.settled_after, first + steps
    middle = (timed + end) // 2
    warm_up = [step_seconds(stepper, range(step, step + 1), device) for step in range(first, timed)]
    before = step_seconds(stepper, range(timed, middle), device)
    others = {
        "diagnosis": _diagnosis(session),
        "sweep": _sweep(session),
        "validation": _validation(session),
        "checkpoint": _checkpoint(session),
    }
    session.method.train()  # a validation leaves the networks in eval mode
    step = (before + step_seconds(stepper, range(middle, end), device)) / (end - timed)
    restart = restart_seconds(warm_up, step) if stepper.captures else 0.0
    return Costs(step=step, restart=restart, **others, peak=peak_reserved(device))


def step_seconds(stepper: Stepper, steps: range, device: torch.device) -> float:
    """Of all these steps together, which are queued without a wait, as in training."""

    def run() -> None:
        for step in steps:
            stepper(step)

    return _seconds(run, device)


def restart_seconds(warm_up: list[float], step: float) -> float:
    """The warm-up over again; its first step takes what the second did, as nothing is compiled or chosen any more."""
    return max(0.0, warm_up[1] + sum(warm_up[1:]) - len(warm_up) * step)


def whole_pass(
    first: float, again: float, short: float, *, many: FlatImages, few: FlatImages, images: FlatImages
) -> float:
    """Seconds of a pass over all images, from two over many of them and a short one over a few of those.

    A pass has a fixed part (networks are folded), the rest goes by pixels, and sizes that were not seen yet cost extra.
    """
    more = _pixels(many) - _pixels(few)
    pace = max(0.0, min((again - short) / more, again / _pixels(many))) if more else 0.0
    known = _sizes(many)
    extra = max(0.0, first - again) / len(known)
    return again + pace * (_pixels(images) - _pixels(many)) + extra * len(_sizes(images) - known)


def _diagnosis(session: Session) -> float:
    diagnostics = session.diagnostics
    if diagnostics is None:
        return 0.0
    step = session.stepper.maker_step()
    first, again = (
        _seconds(lambda: diagnostics(session.engine, session.maker, step), session.engine.device) for _ in range(2)
    )
    return min(first, again)  # kernels are chosen in the first


def _sweep(session: Session) -> float:
    stores = session.stores
    if not session.method.needs_baseline or stores.unlabeled is None:
        return 0.0
    labeled, labels, pool = stores.labeled, stores.labels, stores.unlabeled
    first = _largest(labeled, _sweep_batch(session, labeled))  # for all: they are few, and nothing of them is stored

    def part(batches: int) -> Stores:
        index = _largest(pool, batches * _sweep_batch(session, pool))
        return replace(stores, labeled=labeled.only(first), labels=labels.only(first), unlabeled=pool.only(index))

    return _pass(session, sweep, part, _pool)


def _validation(session: Session) -> float:
    stores = session.stores
    if stores.val is None or stores.val_labels is None:
        return 0.0
    val, labels, batch = stores.val, stores.val_labels, session.config.evaluation.batch * session.world.size

    def part(batches: int) -> Stores:
        index = _largest(val, batches * batch)
        return replace(stores, val=val.only(index), val_labels=labels.only(index))

    return _pass(session, validate, part, _validated)


def _pass(
    session: Session,
    run: Callable[[Session, Observer], object],
    part: Callable[[int], Stores],
    seen: Callable[[Stores], FlatImages],
) -> float:
    """Seconds of `run` over all images, of which `part` is so many batches and `seen` says which ones it looks at."""
    few, many = part(1), part(2)

    def tried(stores: Stores) -> float:
        return _seconds(lambda: run(replace(session, stores=stores), Observer()), session.engine.device)

    first, short, again = tried(many), tried(few), tried(many)
    return whole_pass(first, again, short, many=seen(many), few=seen(few), images=seen(session.stores))


def _checkpoint(session: Session) -> float:
    """What the loop waits for: the copy, into memory that the first one has taken. The disk writes beside the steps."""
    copies, device = HostCopies(), session.engine.device
    first, again = (
        _seconds(lambda: copies(collect_state(session.engine, session.checksums)), device) for _ in range(2)
    )
    return min(first, again)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    wait_for(device)
    began = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - began


def _largest(images: FlatImages, count: int) -> torch.Tensor:
    """Indices of the largest images, [count]; of equals the first."""
    return (images.height * images.width).argsort(descending=True, stable=True)[:count]


def _sweep_batch(session: Session, images: FlatImages) -> int:
    return most_at_once(int((images.height * images.width).max()), session.config.training)


def _pool(stores: Stores) -> FlatImages:
    assert stores.unlabeled is not None
    return stores.unlabeled


def _validated(stores: Stores) -> FlatImages:
    assert stores.val is not None
    return stores.val


def _pixels(images: FlatImages) -> int:
    return int((images.height * images.width).sum())


def _sizes(images: FlatImages) -> set[tuple[int, int]]:
    return set(zip(images.height.tolist(), images.width.tolist(), strict=True))
