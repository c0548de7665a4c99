"""What to change where a loss was not finite, by the keys that decide it: a learner's, the baseline's or the run's."""

from __future__ import annotations

from collections.abc import Iterator

from fewmask.config import OptimizerSettings
from fewmask.training.learners import optimizer_key
from fewmask.training.session import Session

_CLIP = 1.0


def steadier(session: Session) -> str:
    """Lower rates, a head's own too, which would not follow; clipping; and full precision. Nothing that is in use."""
    found = [_changes(session, learner, settings) for learner, settings in _optimizers(session)]
    rates = dict.fromkeys(key for lower, _ in found for key in lower)
    clips = dict.fromkeys(word for _, clip in found for word in clip)
    precise = ["training.precision=fp32"] if session.engine.precision == "bf16" else []
    return ", ".join([f"a lower {' and '.join(rates)}", *clips, *precise])


def _optimizers(session: Session) -> Iterator[tuple[str, OptimizerSettings]]:
    """Learners with the settings that they have in this session; a baseline's are those of all who start from it."""
    settings = session.stepper.optimizers
    if session.owner is None:
        yield from settings.items()
    else:
        yield from ((learner, each) for learner in session.owner.learners for each in settings.values())


def _changes(session: Session, learner: str, settings: OptimizerSettings) -> tuple[list[str], list[str]]:
    """Keys of rates to be lowered, and a word that clips."""

    def key(name: str) -> str:
        config = session.config if session.owner is None else session.owner.config
        return optimizer_key(config, learner, name, baseline=session.owner is not None)

    rates = ["lr", *(["head_lr"] if settings.head_lr is not None else [])]
    clipped = settings.clip is not None and settings.clip <= _CLIP
    return [key(name) for name in rates], [] if clipped else [f"{key('clip')}={_CLIP}"]
