"""The methods there are, in one explicit table."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from fewmask.errors import ConfigError
from fewmask.learning.losses import LabeledLoss
from fewmask.methods.mean_teacher import MeanTeacher
from fewmask.methods.method import BuildNetwork, Method, MethodSettings
from fewmask.methods.rml import RobustMutualLearning
from fewmask.methods.supervised import Supervised
from fewmask.settings import read_section

METHODS: dict[str, type[Method]] = {
    "supervised": Supervised,
    "mean_teacher": MeanTeacher,
    "rml": RobustMutualLearning,
}


def method_class(name: str) -> type[Method]:
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}", where="method", fix=", ".join(METHODS))
    return METHODS[name]


def create_method(name: str, settings: Mapping[str, Any], build: BuildNetwork, labeled_loss: LabeledLoss) -> Method:
    return method_class(name)(read_method_settings(name, settings), build, labeled_loss)  # type: ignore[call-arg, arg-type]


def read_method_settings(name: str, settings: Mapping[str, Any]) -> MethodSettings:
    return read_section(method_class(name).Settings, settings, where=f"settings of method {name}")


def describe_methods() -> list[dict[str, Any]]:
    """Name, one sentence, paper, and every switch: its default, what the paper sets (None: silent), its meaning."""
    return [
        {
            "name": name,
            "summary": (sys.modules[kind.__module__].__doc__ or "").strip().splitlines()[0],
            "loss": (kind.__doc__ or "").strip().splitlines()[0],
            "paper": kind.paper,
            "predictors": list(kind.predictors),
            "settings": {
                key: {"default": field.default, "paper": kind.paper_settings.get(key), "meaning": field.description}
                for key, field in kind.Settings.model_fields.items()
            },
        }
        for name, kind in METHODS.items()
    ]
