"""A whole run, from a data folder to a run folder; the outer level contains only verbs."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from fewmask.config import Config
from fewmask.data.splits import split_record
from fewmask.determinism import deterministic
from fewmask.errors import ConfigError
from fewmask.evaluation.confusion import Scores
from fewmask.evaluation.scoring import evaluation_json, select
from fewmask.methods.table import method_class
from fewmask.training.baselines import Baseline, baseline_session, baselines_of
from fewmask.training.checkpoint import CheckpointWriter
from fewmask.training.clock import FILES, REST, VALIDATIONS
from fewmask.training.costs import Costs
from fewmask.training.device_memory import peak_reserved, release, reset_peak
from fewmask.training.distributed import join_world
from fewmask.training.engine import choose_device
from fewmask.training.forecast import Forecast, comparison, comparison_line
from fewmask.training.foresight import foresee
from fewmask.training.initialize import check_starts, initialize_from, initialize_learners
from fewmask.training.learners import check_learners, learner_config
from fewmask.training.loading import choose_crop, load_data
from fewmask.training.loop import Pace, save, train
from fewmask.training.model_file import ModelCard, save_model
from fewmask.training.observer import Observer
from fewmask.training.plan import describe_baseline, describe_plan
from fewmask.training.refusals import check_baseline
from fewmask.training.resuming import continued
from fewmask.training.run_folder import RunFolder
from fewmask.training.scores import validate
from fewmask.training.session import Session, build_session
from fewmask.training.signals import Interrupted, breaking_off
from fewmask.training.start_notes import start_notes


@dataclass(frozen=True)
class Outcome:
    folder: RunFolder
    session: Session
    scores: dict[str, Scores]
    selected: str
    selected_on: str | None  # None: nothing could choose, and the method's first predictor ships
    pace: Pace
    peak: int  # most bytes of memory after the plan was printed, baselines included


def run_training(
    config: Config,
    out: Path,
    *,
    device: str | None,
    resume: bool,
    init: Path | None,
    observer: Observer,
    baselines: Sequence[Path] = (),
) -> Outcome:
    """`init` is a run that all networks start from; `baselines` are one such run, or one for each learner."""
    if init and baselines:
        raise ConfigError("networks start from one thing only", where="--init, --baseline", fix="one of the two")
    torch_device = choose_device(device)
    check_learners(config)
    starts = check_starts(config, [*baselines] or ([init] if init else []))
    with deterministic(config.training.deterministic, torch_device):
        return _run_on(torch_device, config, out, resume=resume, starts=starts, observer=observer)


def _run_on(
    torch_device: torch.device,
    config: Config,
    out: Path,
    *,
    resume: bool,
    starts: Mapping[str, Path],
    observer: Observer,
) -> Outcome:
    world = join_world(torch_device)
    observer = observer if world.main else Observer()
    try:
        dataset, stores = load_data(config, observer, cache=out)
        for note in start_notes(dataset, starts, same_classes=method_class(config.method).needs_baseline):
            observer.warn(note)
        config = config.model_copy(
            update={"views": config.views.model_copy(update={"crop": choose_crop(config, stores.labeled)})}
        )
        folder = RunFolder(out)
        saved = resume and folder.saved
        session = build_session(
            config, dataset, stores, device=torch_device, world=world, observer=observer, saved=saved
        )
        del stores  # the session's may lie on a GPU, and then the host needs none
        return run_session(session, folder, resume=resume, starts=starts, observer=observer)
    finally:
        world.close()


def run_session(
    session: Session,
    folder: RunFolder,
    *,
    resume: bool,
    starts: Mapping[str, Path],
    observer: Observer,
    known: Costs | None = None,
    part: bool = False,
) -> Outcome:
    """Look ahead, train and score, the baselines before.

    `known` are the costs of such a session, where they were measured already; `part`: it belongs to another run.
    """
    fresh = not folder.config.exists()
    with folder.held() if session.world.main else nullcontext(), CheckpointWriter() as writer:
        session, start, baselines = _prepare(session, folder, writer, resume=resume, starts=starts, observer=observer)
        with folder.given_back() if fresh and session.world.main else nullcontext():
            forecast = foresee(session, start, observer, baselines, known)
        observer.say(describe_baseline(session, start) if part else describe_plan(session, start, forecast, baselines))
        session.clock.reset()
        began, peak = time.perf_counter(), 0
        if baselines:
            peak = _train_baselines(session, folder, writer, baselines, forecast, observer)
        reset_peak(session.engine.device)
        with breaking_off(session.total_steps):
            session, pace = train(session, folder, observer, start, writer)
            outcome = _finish(session, folder, writer, pace, peak, observer)
        seconds = time.perf_counter() - began
        session.clock.add(REST, seconds - session.clock.seconds)
    _compare(outcome, forecast, seconds, observer)
    return outcome


def _compare(outcome: Outcome, forecast: Forecast | None, seconds: float, observer: Observer) -> None:
    """Keep what was foreseen beside what came, and say it; a run that was finished already keeps what it has.

    If it was killed before it wrote that, nobody knows how long it took, but the file still says that it is done.
    """
    timing, took = outcome.folder.timing, outcome.pace.steps > 0
    if outcome.session.world.main and (took or not timing.exists()):
        clock = outcome.session.clock
        content = comparison(forecast, clock, seconds=seconds if took else None, peak=outcome.peak if took else None)
        outcome.folder.write_json(timing.name, content)
    if forecast is not None:
        observer.say(comparison_line(forecast, seconds=seconds, peak=outcome.peak))


def _prepare(
    session: Session,
    folder: RunFolder,
    writer: CheckpointWriter,
    *,
    resume: bool,
    starts: Mapping[str, Path],
    observer: Observer,
) -> tuple[Session, int, list[Baseline]]:
    """Start or continue the run folder; the session, the step to go on from, and the baselines to train before."""
    main = session.world.main
    if resume and session.world.any(main and folder.config.exists(), session.engine.device):
        if starts:
            names = ", ".join(map(str, dict.fromkeys(starts.values())))
            observer.say(f"not used, as the run has begun already: {names}")
        return continued(session, folder, observer)
    notes = start_notes(session.dataset, starts, same_classes=session.method.needs_baseline)
    split = {**split_record(session.dataset), "notes": notes}
    baselines = baselines_of(session, folder) if session.method.needs_baseline and not starts else []
    for each in baselines:
        network = session.method.networks()[each.names[0]]
        check_baseline(each.config, network, session.stores, session.world)
    if main:
        folder.claim()
    if baselines:
        if main:
            folder.start(session.config, split, starts)
        return session, 0, baselines
    for line in initialize_learners(session.method, starts):
        observer.say(line)
    session.method.check_start()
    save(session, folder, writer, 0)
    if main:
        if starts:
            writer.wait()  # nothing else knows what the run starts from, were it killed before its first save
        folder.start(session.config, split, starts)
    session.world.barrier()
    return session, 0, []


def _train_baselines(
    session: Session,
    folder: RunFolder,
    writer: CheckpointWriter,
    baselines: Sequence[Baseline],
    forecast: Forecast | None,
    observer: Observer,
) -> int:
    """Supervised runs inside the run folder, from which the networks then start; the most bytes they needed."""
    measured = forecast.baselines if forecast else (None,) * len(baselines)
    peaks = []
    for index, (each, costs) in enumerate(zip(baselines, measured, strict=True)):
        observer.say(f"baseline {index + 1}: {each.config.training.steps} supervised steps")
        peaks.append(_train_baseline(session, each, costs, observer))
        release(session.engine.device)  # its captured step's memory, before the next one takes its own
    save(session, folder, writer, 0)
    return max(peaks)


def _train_baseline(session: Session, baseline: Baseline, costs: Costs | None, observer: Observer) -> int:
    """One of them; when it is done nobody has its session any more."""
    alone = baseline_session(session, baseline, observer)
    outcome = run_session(alone, baseline.folder, resume=True, starts={}, observer=observer, known=costs, part=True)
    session.clock.join(outcome.session.clock, "baseline ")
    _stop_if_asked(session, outcome.pace, observer)
    with session.timed(FILES):
        observer.say(initialize_from(session.method, outcome.folder.path, baseline.names))
    return outcome.peak


def _stop_if_asked(session: Session, pace: Pace, observer: Observer) -> None:
    """A signal in a baseline's last step found that baseline finished, but not the run that it belongs to."""
    if session.world.any(pace.signal_number is not None, session.engine.device):
        observer.say("the baseline is finished")
        raise Interrupted(pace.signal_number or signal.SIGTERM, pace.steps)


def _finish(
    session: Session, folder: RunFolder, writer: CheckpointWriter, pace: Pace, peak: int, observer: Observer
) -> Outcome:
    """Score every predictor while the last checkpoint is written, choose what ships on held-out labels, write it."""
    with session.timed(VALIDATIONS):
        scores = validate(session, observer)
    with session.timed(FILES):
        writer.wait()
        if session.world.main and pace.steps:
            folder.withdraw()
        selected, chosen_on = _ship(session, folder, scores)
    session.world.barrier()
    peak = max(peak, peak_reserved(session.engine.device))
    return Outcome(folder, session, scores, selected, chosen_on, pace, peak)


def _ship(session: Session, folder: RunFolder, scores: Mapping[str, Scores]) -> tuple[str, str | None]:
    """Write the scores and the model; which network that is, and what it was chosen on."""
    predictors = session.method.predictors
    best = select({name: each for name, each in scores.items() if name in predictors}, predictors)
    selected, chosen_on = (best, "val") if best else (predictors[0], None)
    if session.world.main:
        folder.write_json(
            folder.evaluation.name, evaluation_json(scores, selected=selected, selected_on=chosen_on, split="val")
        )
        card = ModelCard(
            network=learner_config(session.config, session.method.learner_of(selected)).network,
            channels=session.stores.channels,
            classes=session.dataset.classes,
            predictor=selected,
            selected_on=chosen_on,
            miou=scores[selected].miou if best else None,
            method=session.config.method,
            resize=session.config.data.resize,
            coding=session.dataset.coding,
        )
        save_model(folder.path, session.method.networks()[selected], card)
    return selected, chosen_on
