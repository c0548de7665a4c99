"""A whole run, from a data folder to a run folder; the outer level contains only verbs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewmask.config import Config
from fewmask.data.check import check_folder
from fewmask.data.dataset import Dataset
from fewmask.data.opening import open_dataset
from fewmask.data.splits import split_record
from fewmask.errors import CheckpointError, ConfigError, DataError
from fewmask.evaluation.confusion import Scores
from fewmask.evaluation.scoring import evaluation_json, select
from fewmask.training.checkpoint import load_newest
from fewmask.training.distributed import join_world
from fewmask.training.engine import choose_device
from fewmask.training.initialize import initialize_from
from fewmask.training.loop import Pace, train
from fewmask.training.model_file import ModelCard, save_model
from fewmask.training.observer import Observer
from fewmask.training.plan import describe_plan
from fewmask.training.run_folder import RunFolder
from fewmask.training.scores import validate
from fewmask.training.session import Session, build_session, choose_crop, load_stores
from fewmask.training.state import restore_state

_MAY_CHANGE = ("preset", "training", "evaluation")  # settings a resumed run may change without becoming another run
_MAY_NOT_CHANGE = ("batch", "unlabeled_batch", "precision")


@dataclass(frozen=True)
class Outcome:
    folder: RunFolder
    session: Session
    scores: dict[str, Scores]
    selected: str
    pace: Pace


def run_training(
    config: Config, out: Path, *, device: str | None, resume: bool, init: Path | None, observer: Observer
) -> Outcome:
    folder = RunFolder(out)
    torch_device = choose_device(device)
    world = join_world(torch_device)
    try:
        dataset = open_checked(config, observer if world.main else Observer())
        stores = load_stores(config, dataset, observer if world.main else Observer())
        config = config.model_copy(
            update={"views": config.views.model_copy(update={"crop": choose_crop(config, stores.labeled)})}
        )
        session = build_session(config, dataset, stores, device=torch_device, world=world, observer=observer)
        start = _prepare(session, folder, resume=resume, init=init, observer=observer)
        if world.main:
            observer.say(describe_plan(session, start))
        pace = train(session, folder, observer if world.main else Observer(), start)
        return _finish(session, folder, pace, observer if world.main else Observer())
    finally:
        world.close()


def open_checked(config: Config, observer: Observer) -> Dataset:
    """The data set, after the same check that `fewmask check` runs."""
    if config.data.root is None:
        raise ConfigError("no data folder given", where="data.root", fix="fewmask train DATA --out RUN")
    root = Path(config.data.root)
    report = check_folder(root, config.data, config.seed)
    for finding in report.warnings:
        observer.warn(f"{finding.code}: {finding.path}: {finding.message}")
    if not report.trainable:
        first = report.errors[0]
        raise DataError(
            f"{first.message} ({first.code}; {len(report.errors)} errors in all)",
            where=first.path,
            fix=f"{first.fix}; `fewmask check {config.data.root}` lists everything",
        )
    return open_dataset(root, config.data, config.seed)


def _prepare(session: Session, folder: RunFolder, *, resume: bool, init: Path | None, observer: Observer) -> int:
    """Start or continue the run folder; the step to go on from."""
    if resume and folder.config.exists():
        return _continue(session, folder, observer)
    if session.world.main:
        folder.start(session.config, split_record(session.dataset))
    session.world.barrier()
    if init is not None:
        observer.say(initialize_from(session.method, init))
    return 0


def _continue(session: Session, folder: RunFolder, observer: Observer) -> int:
    _require_same(folder.read_config(), session.config)
    state = load_newest(folder.checkpoints, observer.warn)
    start = 0 if state is None else int(state["step"])
    if start > session.config.training.steps:
        raise CheckpointError(
            f"the run is at step {start}, beyond training.steps={session.config.training.steps}",
            where=str(folder.path),
            fix=f"training.steps={start} or more",
        )
    if state is not None:
        restore_state(session.engine, state, session.checksums)
    if session.world.main:
        folder.rewind_metrics(start)
        folder.write_config(session.config)
    session.world.barrier()
    observer.say(f"continuing {folder.path} after step {start}")
    return start


def _require_same(old: Config, new: Config) -> None:
    """A resumed run may be longer or log differently, but must compute the same steps."""

    def fixed(config: Config) -> dict[str, Any]:
        values = config.model_dump(mode="json", exclude=set(_MAY_CHANGE))
        values["data"].pop("root")  # the folder may have moved; its checksum may not have changed
        values["training"] = config.training.model_dump(include=set(_MAY_NOT_CHANGE))
        return values

    before, now = fixed(old), fixed(new)
    different = sorted(_differences(before, now))
    if different:
        raise ConfigError(
            f"a resumed run cannot change {', '.join(different)}",
            where="--resume",
            fix="the settings in the run's config.yaml, or a new --out with --init",
        )


def _differences(before: Any, now: Any, prefix: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [
            name for key in keys for name in _differences(before.get(key), now.get(key), f"{prefix}.{key}".strip("."))
        ]
    return [] if before == now else [prefix]


def _finish(session: Session, folder: RunFolder, pace: Pace, observer: Observer) -> Outcome:
    """Score every predictor, choose what ships on held-out labels, write the model."""
    scores = validate(session, observer)
    candidates = {name: each for name, each in scores.items() if name in session.method.predictors}
    selected = select(candidates, session.method.predictors) if candidates else session.method.predictors[0]
    chosen_on = "val" if candidates else None
    if session.world.main:
        folder.write_json(
            folder.evaluation.name, evaluation_json(scores, selected=selected, selected_on=chosen_on, split="val")
        )
        card = ModelCard(
            network=session.config.network,
            channels=session.stores.channels,
            classes=session.dataset.classes,
            predictor=selected,
            selected_on=chosen_on,
            miou=scores[selected].miou if candidates else None,
            method=session.config.method,
        )
        save_model(folder.path, session.method.networks()[selected], card)
    session.world.barrier()
    return Outcome(folder, session, scores, selected, pace)
