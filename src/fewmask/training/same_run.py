"""What a resumed run may change, and what would make another run of it."""

from __future__ import annotations

from typing import Any

from fewmask.config import Config
from fewmask.errors import ConfigError
from fewmask.methods.table import method_class

_MAY_CHANGE = ("preset", "training", "evaluation")  # settings a resumed run may change without becoming another run
_MAY_NOT_CHANGE = ("batch", "unlabeled_batch", "accumulate", "precision", "tf32", "soft_labels", "sweep_pixels")


def require_same(old: Config, new: Config) -> None:
    """A resumed run may be longer or log differently, but must compute the same steps."""

    def fixed(config: Config) -> dict[str, Any]:
        values = config.model_dump(mode="json", exclude=set(_MAY_CHANGE))
        values["data"].pop("root")  # the folder may have moved; its checksum may not have changed
        values["training"] = config.training.model_dump(include=set(_MAY_NOT_CHANGE))
        if method_class(config.method).needs_baseline:
            values["training"]["steps"] = config.training.steps  # a stage begins where the last one ended
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
