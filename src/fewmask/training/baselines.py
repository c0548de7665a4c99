"""The supervised runs that a method starts from: which there are, where they lie, and the session of one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fewmask.config import SEEDS, Config
from fewmask.training.checkpoint import list_checkpoints
from fewmask.training.learners import baseline_config, baseline_groups
from fewmask.training.observer import Observer
from fewmask.training.run_folder import RunFolder
from fewmask.training.session import Owner, Session, build_session


@dataclass(frozen=True)
class Baseline:
    names: tuple[str, ...]  # networks that start from it
    config: Config
    folder: RunFolder

    @property
    def start(self) -> int:
        """The step that it will go on from."""
        there = list_checkpoints(self.folder.checkpoints)
        return int(there[0].stem[5:]) if there else 0


def baselines_of(session: Session, folder: RunFolder) -> list[Baseline]:
    """One for all learners or one for each, inside the run folder."""
    groups = baseline_groups(session.config, session.method)
    return [
        Baseline(
            names,
            baseline_config(
                session.config, session.method.learner_of(names[0]), seed=(session.config.seed + index) % SEEDS
            ),
            RunFolder(folder.path / (f"baseline_{index + 1}" if index else "baseline")),
        )
        for index, names in enumerate(groups)
    ]


def baseline_session(session: Session, baseline: Baseline, observer: Observer) -> Session:
    """On the images that the session has read."""
    alone = build_session(
        baseline.config,
        session.dataset,
        session.stores,
        device=session.engine.device,
        world=session.world,
        observer=observer,
        known_checksums=session.checksums,
    )
    learners = dict.fromkeys(session.method.learner_of(name) for name in baseline.names)
    return replace(alone, owner=Owner(session.config, tuple(learners)))
