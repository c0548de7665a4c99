"""Going on with a run: from its newest checkpoint, or from the beginning where nothing was saved yet."""

from __future__ import annotations

from fewmask.data.splits import split_record
from fewmask.errors import CheckpointError
from fewmask.training.baselines import Baseline, baselines_of
from fewmask.training.checkpoint import load_newest
from fewmask.training.observer import Observer
from fewmask.training.run_folder import RunFolder
from fewmask.training.same_run import require_same
from fewmask.training.session import Session, with_all_settings
from fewmask.training.stages import rejoin_stage
from fewmask.training.state import restore_state


def continued(session: Session, folder: RunFolder, observer: Observer) -> tuple[Session, int, list[Baseline]]:
    """The session, the step to go on from, and the baselines that are not finished before the first one."""
    require_same(with_all_settings(folder.read_config()), session.config)
    state = load_newest(folder.checkpoints, observer.warn)
    if state is None:
        return _begin_again(session, folder, observer)
    start = int(state["step"])
    if start > session.total_steps:
        raise CheckpointError(
            f"the run is at step {start}, beyond training.steps={session.config.training.steps}",
            where=str(folder.path),
            fix=f"training.steps={start} or more",
        )
    stage, within = divmod(start, session.config.training.steps)
    if session.method.needs_baseline and within:
        session = rejoin_stage(session, folder, stage, observer)
    restore_state(session.engine, state, session.checksums)
    _rewind(session, folder, start)
    observer.say(f"continuing {folder.path} after step {start}")
    return session, start, []


def _begin_again(session: Session, folder: RunFolder, observer: Observer) -> tuple[Session, int, list[Baseline]]:
    """Nothing of the networks was saved yet, at most of their baselines, which look after themselves."""
    _rewind(session, folder, 0)
    if session.world.main:  # images may have come since
        folder.write_json(folder.split.name, folder.read_json(folder.split.name) | split_record(session.dataset))
    if session.method.needs_baseline:
        return session, 0, baselines_of(session, folder)
    observer.say(f"nothing was saved yet: {folder.path} begins again")
    return session, 0, []


def _rewind(session: Session, folder: RunFolder, start: int) -> None:
    """Clear away what was left of the steps after the one that the run goes on from."""
    if session.world.main:
        folder.clear_temporaries()
        folder.rewind_metrics(start)
        folder.write_config(session.config)
    session.world.barrier()
