"""Looking ahead: a few real steps on trial before a long run, and an error with a way out where they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fewmask.training.baselines import Baseline, baseline_session
from fewmask.training.costs import Costs, measure, trial_steps
from fewmask.training.device_memory import capacity, is_out_of_memory, release, reset_peak
from fewmask.training.fitting import does_not_fit, foreseen_misfit
from fewmask.training.forecast import Forecast, Part, largest_peak, run_parts
from fewmask.training.observer import Observer
from fewmask.training.pixel_store import map_forms, uniform_maps
from fewmask.training.session import Session
from fewmask.training.stages import restarted, retire
from fewmask.training.trial import on_trial


def foresee(
    session: Session,
    start: int,
    observer: Observer,
    baselines: Sequence[Baseline] = (),
    known: Costs | None = None,
) -> Forecast | None:
    """What the rest of the run, its baselines included, will take; None where it is too short to look ahead.

    `known`: costs that were measured on a session like this one, which is then not measured again.
    """
    if not session.config.training.forecast:
        return None
    others = sum(each.config.training.steps - each.start for each in baselines)
    count = trial_steps(session.total_steps - start, session.stepper, others)
    if not count:
        return None
    costs = known or own_costs(session, start, count, observer)
    before = tuple(_baseline_costs(session, each, observer) for each in baselines)
    own = run_parts(
        session.config.training,
        costs,
        start=start,
        total=session.total_steps,
        staged=session.method.needs_baseline,
        dropped=known is not None,
        saved=not baselines,  # else what they lead to is saved after them
    )
    parts = (
        *(part for each, measured in zip(baselines, before, strict=True) for part in _before(each, measured)),
        *own,
    )
    device = session.engine.device
    return Forecast(parts, largest_peak([*before, costs]), capacity(device), before)


def _before(baseline: Baseline, costs: Costs | None) -> tuple[Part, ...]:
    if costs is None:
        return ()
    training = baseline.config.training
    start, total = baseline.start, training.steps
    return run_parts(training, costs, start=start, total=total, staged=False, dropped=True, prefix="baseline ")


def own_costs(session: Session, start: int, count: int, observer: Observer) -> Costs:
    """Measured in place, where the captured step can go on; before a stage's first sweep on a stage of its own."""
    before_sweep = session.method.needs_baseline and start % session.config.training.steps == 0

    def attempt(session: Session) -> Costs:
        tried = _with_uniform_maps(session) if before_sweep else session
        try:
            with on_trial(tried.engine):
                return measure(tried, start, count)
        finally:
            if before_sweep:
                retire(tried)
            else:
                tried.maker.close()

    observer.advance("trying steps", 0, count)
    misfit = foreseen_misfit(session)
    if misfit is not None:
        raise misfit
    costs = _measured(lambda: session, attempt, session.engine.device)
    observer.advance("trying steps", count, count)
    return costs


def _baseline_costs(session: Session, baseline: Baseline, observer: Observer) -> Costs | None:
    """Measured on a session that is dropped, as several baselines would not always fit side by side."""
    count = trial_steps(baseline.config.training.steps - baseline.start, session.stepper)
    if not count:
        return None

    def attempt(alone: Session) -> Costs:
        try:
            return measure(alone, baseline.start, count)
        finally:
            alone.maker.close()

    observer.advance("trying baseline steps", 0, count)
    costs = _measured(lambda: baseline_session(session, baseline, Observer()), attempt, session.engine.device)
    observer.advance("trying baseline steps", count, count)
    return costs


def _measured(build: Callable[[], Session], attempt: Callable[[Session], Costs], device: torch.device) -> Costs:
    release(device)
    reset_peak(device)
    costs = _unless_out_of_memory(lambda: attempt(build()))
    release(device)
    if costs is None:
        raise does_not_fit(build())
    return costs


def _unless_out_of_memory(call: Callable[[], Costs]) -> Costs | None:
    """None instead of the error, whose traceback would keep the step's tensors alive."""
    try:
        return call()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return None


def _with_uniform_maps(session: Session) -> Session:
    """A stage before its sweep, with soft labels of the right size; its metrics are its own."""
    forms, pool = map_forms(session.method, session.config.training.soft_labels), session.stores.unlabeled
    assert pool is not None, "stages have unlabeled images"
    host = session.stores.host
    tried = restarted(session, {name: uniform_maps(form, pool, host, name) for name, form in forms.items()})
    tried.engine.sums = {}
    return tried
