"""A step that does not fit into memory: how much less would, from steps with smaller batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fewmask.config import Config, Size, TrainingSettings
from fewmask.errors import TrainingError
from fewmask.training.device_memory import available, held, is_out_of_memory, peak_allocated, release, reset_peak
from fewmask.training.engine import Engine
from fewmask.training.forecast import gibibytes
from fewmask.training.memory_advice import savings, step_size, untried, written_size
from fewmask.training.pixel_store import map_forms, uniform_maps
from fewmask.training.session import Session, build_engine, build_maker
from fewmask.training.stepper import Stepper
from fewmask.training.trial import on_trial

_USABLE = 0.95  # share of the memory that tensors can fill; the rest is lost between them
_CROP_MULTIPLE = 32
_LARGE = 2**20  # pixels of a step's images; fewer do not fill the memory of a machine
_SURELY = 1.1  # a line through two small steps may be off


@dataclass(frozen=True)
class MemoryLine:
    """Peak bytes of a step as a line over the batch: networks and images, and what each labeled image adds."""

    fixed: float
    per_image: float

    @classmethod
    def through(cls, one: tuple[int, int], other: tuple[int, int]) -> MemoryLine:
        """Points are (batch, bytes), of different batches."""
        slope = max(0.0, (one[1] - other[1]) / (one[0] - other[0]))
        return cls(other[1] - slope * other[0], slope)

    def at(self, batch: float) -> float:
        return self.fixed + self.per_image * batch

    def share(self, batch: int, room: float) -> float:
        """The part of what `batch` images add that has room."""
        return max(0.0, room - self.fixed) / (self.per_image * batch)


@dataclass(frozen=True)
class Misfit:
    """A batch that did not fit, and what was found out with smaller ones."""

    batch: int
    failed: int  # the smallest batch that did not fit
    unit: int  # batches are multiples of it
    fitted: int | None  # the largest batch that was tried and did fit
    line: MemoryLine | None
    room: float  # bytes that tensors can fill

    def largest_batch(self) -> int | None:
        """By the line, but less than what failed and no less than what was seen to fit."""
        if self.fitted is None:
            return None
        if self.line is None or self.line.per_image == 0:
            return self.fitted
        most = int(self.line.share(self.batch, self.room) * self.batch) // self.unit * self.unit
        return max(self.fitted, min(most, self.failed - self.unit))


def advice(misfit: Misfit, training: TrainingSettings, crop: Size) -> list[str]:
    """Changes of settings, each of which would do by the steps that were tried, first those that change least."""
    batch = misfit.largest_batch()
    found: list[str] = []
    if batch:
        possible = accumulations(training, batch // training.accumulate, misfit.unit // training.accumulate)
        found.extend(f"training.accumulate={parts}" for parts in possible)
        found.append(" ".join(smaller_batch(training, batch, misfit.unit)))
    if misfit.line is not None and misfit.line.per_image > 0:
        found.extend(f"views.crop={written_size(size)}" for size in smaller_crops(misfit, crop))
    return found


def accumulations(training: TrainingSettings, batch: int, unit: int) -> Iterator[int]:
    """The least number of equal parts of which none has more than `batch` labeled images, if there is one."""
    unlabeled = training.unlabeled_batch or training.batch
    for parts in range(2, training.batch + 1):
        even = training.batch % parts == 0 and unlabeled % (parts * unit) == 0
        if even and training.batch // parts <= batch:
            yield parts
            return


def smaller_batch(training: TrainingSettings, batch: int, unit: int) -> list[str]:
    """Labeled and unlabeled images shrink together."""
    words = [f"training.batch={batch}"]
    if training.unlabeled_batch is not None:
        words.append(f"training.unlabeled_batch={shrunk_unlabeled(training, batch, unit)}")
    return words


def shrunk_unlabeled(training: TrainingSettings, batch: int, unit: int) -> int:
    assert training.unlabeled_batch is not None
    return max(unit, training.unlabeled_batch * batch // training.batch // unit * unit)


def smaller_crops(misfit: Misfit, crop: Size) -> Iterator[Size]:
    """What an image adds goes by its pixels, so both sides shrink by the root of the share that fits."""
    assert misfit.line is not None
    factor = math.sqrt(misfit.line.share(misfit.batch, misfit.room))
    height, width = (int(side * factor) // _CROP_MULTIPLE * _CROP_MULTIPLE for side in crop)
    if height and width and (height, width) != crop and factor < 1:
        yield height, width


def does_not_fit(session: Session) -> TrainingError:
    """Tries smaller batches where there is one process, and says what would fit."""
    return _error(_explore(session), session)


def foreseen_misfit(session: Session) -> TrainingError | None:
    """On a CPU large steps are judged by two small ones first: a process that takes too much is killed there."""
    batch, unit = session.config.training.batch, _unit(session)
    if session.engine.device.type != "cpu" or session.world.size > 1 or not _is_large(session) or batch < 4 * unit:
        return None
    with on_trial(session.engine):
        one, other = ((size, _peak_of_one_step(session, size, unit)) for size in (unit, 2 * unit))
    if one[1] is None or other[1] is None:
        return None
    line, room = MemoryLine.through((other[0], other[1]), (one[0], one[1])), _room(session)
    if line.at(batch) <= _SURELY * room:
        return None
    return _error(Misfit(batch, batch, unit, other[0], line, room), session)


def _is_large(session: Session) -> bool:
    training, crop = session.config.training, session.config.views.crop
    assert crop is not None
    unlabeled = (training.unlabeled_batch or training.batch) if session.method.views.unlabeled else 0
    return (training.batch + unlabeled) * math.prod(crop) >= _LARGE


def _unit(session: Session) -> int:
    """Batches are multiples of it."""
    return session.config.training.accumulate * (2 if session.method.views.mixing != "none" else 1)


def _room(session: Session) -> float:
    device = session.engine.device
    release(device)
    return _USABLE * (available(device) + held(device))


def _error(misfit: Misfit, session: Session) -> TrainingError:
    excess = misfit.line.at(misfit.batch) - misfit.room if misfit.line is not None else 0.0
    over = f", about {gibibytes(excess)} too much" if excess > 0 else ""
    return TrainingError(
        f"a step does not fit into the memory of {session.engine.device}: {gibibytes(misfit.room)} can be used{over}",
        where=step_size(session.config),
        fix=_way_out(misfit, session.config, session.engine),
    )


def _way_out(misfit: Misfit, config: Config, engine: Engine) -> str:
    """What the tried steps speak for, apart from what nobody tried."""
    assert config.views.crop is not None
    known = advice(misfit, config.training, config.views.crop)
    if not known:
        return untried(config, engine.precision, engine.device)
    others = savings(config, engine.precision, engine.device)
    more = f"; not tried, but may be enough: {'; '.join(others)}" if others else ""
    return f"one of these, by steps that were tried: {'; '.join(known)}{more}"


def _explore(session: Session) -> Misfit:
    """Half of the batch, again and again, until two sizes fit; ranks would wait for each other, so only with one."""
    training = session.config.training
    unit, batch = _unit(session), training.batch
    failed, points = batch, list[tuple[int, int]]()
    tried = batch // 2 // unit * unit if session.world.size == 1 else 0
    while tried and len(points) < 2:
        peak = _peak_of_one_step(session, tried, unit)
        failed, points = (tried, points) if peak is None else (failed, [*points, (tried, peak)])
        tried = tried // 2 // unit * unit
    line = MemoryLine.through(*points) if len(points) == 2 else None
    return Misfit(batch, failed, unit, points[0][0] if points else None, line, _room(session))


def _peak_of_one_step(session: Session, batch: int, unit: int) -> int | None:
    """None where it does not fit, either."""
    device = session.engine.device
    release(device)
    reset_peak(device)
    try:
        _one_step(session, smaller_config(session.config, batch, unit))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return peak_allocated(device)


def smaller_config(config: Config, batch: int, unit: int) -> Config:
    """An eager step of the smaller batch."""
    training = config.training
    update = {"batch": batch, "capture": False}
    if training.unlabeled_batch is not None:
        update["unlabeled_batch"] = shrunk_unlabeled(training, batch, unit)
    return config.model_copy(update={"training": training.model_copy(update=update)})


def _one_step(session: Session, config: Config) -> None:
    engine = build_engine(config, session.method.train(), session.engine.device, session.world)
    pool = session.stores.unlabeled
    forms = map_forms(session.method, config.training.soft_labels) if pool is not None else {}
    host = session.stores.host
    maps = {name: uniform_maps(form, pool, host, name) for name, form in forms.items()} if pool is not None else {}
    maker = build_maker(config, session.stores, engine, maps)
    try:
        Stepper(config, engine, maker)(0)
    finally:
        maker.close()
        engine.retire()
