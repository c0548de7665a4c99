"""The training loop: sample, step, look, log, save; the last step takes the same path as any other."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from fewmask.errors import TrainingError
from fewmask.learning.schedules import rate_factor
from fewmask.training.checkpoint import CheckpointWriter
from fewmask.training.clock import CHECKPOINTS, LOOKS, START, STARTS, STEPS, VALIDATIONS, wait_for
from fewmask.training.device_memory import is_out_of_memory
from fewmask.training.memory_advice import allocation, step_size, untried
from fewmask.training.observer import Observer
from fewmask.training.rate_advice import steadier
from fewmask.training.run_folder import RunFolder
from fewmask.training.scores import validate
from fewmask.training.session import Session
from fewmask.training.signals import Interrupted, StopRequest
from fewmask.training.stages import begin_stage
from fewmask.training.state import collect_state


@dataclass(frozen=True)
class Pace:
    """How long the loop took, evaluations within it included, and whether a signal came too late to stop it."""

    steps: int
    seconds: float
    signal_number: int | None = None


def train(
    session: Session, folder: RunFolder, observer: Observer, start: int, writer: CheckpointWriter
) -> tuple[Session, Pace]:
    """Run the steps from `start` on, stage after stage; the session of the last stage is returned.

    The last checkpoint may still be on its way to the disk then: the writer knows.
    """
    total = session.total_steps
    began, other = time.perf_counter(), session.clock.seconds
    try:
        with StopRequest() as stop:
            for step in range(start, total):
                if session.method.needs_baseline and step % session.config.training.steps == 0:
                    session = begin_stage(session, step // session.config.training.steps, observer)
                with _memory_explained(session, step), _warm_up_timed(session):
                    session.stepper(step)
                _after_step(session, folder, observer, stop, writer, step + 1)
            wait_for(session.engine.device)
    finally:
        session.maker.close()
    session.world.barrier()
    pace = Pace(max(total - start, 0), time.perf_counter() - began, stop.signal_number)
    session.clock.add(STEPS, pace.seconds - (session.clock.seconds - other), pace.steps)
    return session, pace


def _warm_up_timed(session: Session) -> AbstractContextManager[None]:
    """A step that is not yet at the lasting pace, because it will be captured, belongs to the start of its stage."""
    stepper = session.stepper
    if not stepper.captures or stepper.done >= stepper.settled_after:
        return nullcontext()
    if session.method.needs_baseline:
        return session.timed(STARTS, count=0)  # counted with what came before its sweep
    return session.timed(START, count=int(stepper.done == 0))


@contextmanager
def _memory_explained(session: Session, step: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"out of memory in step {step}: {allocation(error)}",
            where=step_size(session.config),
            fix=untried(session.config, session.engine.precision, session.engine.device),
        ) from None


def _after_step(
    session: Session, folder: RunFolder, observer: Observer, stop: StopRequest, writer: CheckpointWriter, done: int
) -> None:
    """What is due after a step; a signal in the last one does not stop the run, which is nearly done (see `Pace`)."""
    training = session.config.training
    last = done == session.total_steps
    stopping = _stop_agreed(session, stop, done)
    saving = stopping or done % training.checkpoint_every == 0 or done % training.steps == 0  # a stage's end
    logging = last or done % training.log_every == 0
    diagnosing = training.diagnose_every > 0 and done % training.diagnose_every == 0
    if saving or logging or diagnosing or done % training.check_every == 0:
        _raise_if_not_finite(session, folder)
        writer.look()
    if logging or diagnosing:
        values = _losses(session, done) if logging else {}
        values |= _diagnosed(session, done) if diagnosing else {}
        _write(session, folder, observer, done, values)
    observer.advance("training", done, session.total_steps)
    if training.evaluate_every and done % training.evaluate_every == 0:
        _validate(session, folder, observer, done)
    if saving:
        save(session, folder, writer, done)
    if stopping and not last:
        writer.wait()
        session.world.barrier()  # a rank that is gone would have the others ended before the disk is done
        raise Interrupted(stop.signal_number or signal.SIGTERM, done)  # another rank may have had the signal


def save(session: Session, folder: RunFolder, writer: CheckpointWriter, done: int) -> None:
    """Of stages also what they have started from: were one interrupted, its soft labels are made from that."""
    training = session.config.training
    stage = training.steps if session.method.needs_baseline else None
    with session.timed(CHECKPOINTS):
        state = collect_state(session.engine, session.checksums)
        if session.world.main:
            writer.save(folder.checkpoints, done, state, training.keep, stage)


def _stop_agreed(session: Session, stop: StopRequest, done: int) -> bool:
    """All ranks must stop after the same step, so with several they agree every check_every steps."""
    if session.world.size == 1:
        return stop.signal_number is not None
    if done % session.config.training.check_every and done != session.total_steps:
        return False
    return session.world.any(stop.signal_number is not None, session.engine.device)


def _raise_if_not_finite(session: Session, folder: RunFolder) -> None:
    step = int(session.engine.bad_step)
    if step < 0:
        return
    batch = session.maker.at(step)
    labeled = [session.dataset.labeled[index].name for index in batch.image_index.tolist()]
    unlabeled = [session.dataset.unlabeled[index].name for index in batch.weak_index.tolist()]
    elsewhere = f"with another --out{_finished_baselines(folder)}"
    raise TrainingError(
        f"the loss was not finite in step {step}; the last good checkpoint is untouched",
        where=f"labeled images {', '.join(labeled)}" + (f"; unlabeled {', '.join(unlabeled)}" if unlabeled else ""),
        fix=f"{steadier(session)}; {elsewhere}; `fewmask check` looks at the images",
    )


def _finished_baselines(folder: RunFolder) -> str:
    """Other settings of the stages do not ask for other baselines."""
    there = "".join(f" --baseline {shlex.quote(str(path))}" for path in folder.baselines)
    return f" and{there}" if there else ""


def _losses(session: Session, done: int) -> dict[str, float]:
    return session.engine.flush() | _rates(session, done - 1)


def _diagnosed(session: Session, done: int) -> dict[str, float]:
    """What the batch of the last step gets for pseudo labels now."""
    if session.diagnostics is None:
        return {}
    with _memory_explained(session, done - 1), session.timed(LOOKS):
        return session.diagnostics(session.engine, session.maker, session.stepper.maker_step())


def _rates(session: Session, step: int) -> dict[str, float]:
    """The backbone's learning rate at `step`; a column per learner where their optimizers differ."""
    steps, settings = session.config.training.steps, session.stepper.optimizers
    rates = {name: each.lr * rate_factor(each, step % steps, steps) for name, each in settings.items()}
    first, *others = settings
    if all(settings[name] == settings[first] for name in others):
        return {"lr": rates[first]}
    return {f"{name}/lr": rate for name, rate in rates.items()}


def _validate(session: Session, folder: RunFolder, observer: Observer, done: int) -> None:
    with session.timed(VALIDATIONS):
        scores = validate(session, observer)
        session.method.train()
    _write(session, folder, observer, done, {f"val_miou/{name}": each.miou for name, each in scores.items()})


def _write(session: Session, folder: RunFolder, observer: Observer, done: int, values: Mapping[str, float]) -> None:
    if session.world.main and values:
        folder.append_metrics({"step": done, **values})
        observer.metrics(done, session.total_steps, values)
