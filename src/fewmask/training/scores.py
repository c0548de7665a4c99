"""Scoring a session's networks on its validation images, sharded over ranks."""

from __future__ import annotations

from fewmask.evaluation.confusion import Scores
from fewmask.evaluation.scoring import score_networks
from fewmask.training.networks import autocast_logits
from fewmask.training.observer import Observer
from fewmask.training.session import Session


def validate(session: Session, observer: Observer) -> dict[str, Scores]:
    """Every predictor on the validation images; empty where there are none. Leaves the networks in eval mode."""
    if session.stores.val is None or session.stores.val_labels is None:
        return {}
    networks, engine = session.method.networks(), session.engine

    def advance(done: int, total: int) -> None:
        session.stores.host.release()
        observer.advance("validating", done, total)

    return score_networks(
        {name: autocast_logits(networks[name], engine.device, engine.precision) for name in session.method.predictors},
        session.method.ensemble,
        session.stores.val,
        session.stores.val_labels,
        session.config.evaluation,
        session.dataset.classes.names,
        shard=(session.world.rank, session.world.size),
        device=engine.device,
        reduce=session.world.sum,
        progress=advance,
    )
