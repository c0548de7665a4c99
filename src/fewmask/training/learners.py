"""What each learner has of its own: `learners.student_2` changes the run's network, optimizer and baseline for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fewmask.config import Config, LearnerSettings, OptimizerSettings
from fewmask.errors import ConfigError
from fewmask.layers import layered, merge
from fewmask.methods.method import Companion, Method
from fewmask.methods.table import method_class, read_method_settings
from fewmask.settings import SectionType, read_section, resolve

# A baseline has these from its run
_RUNS_OWN = ("preset", "method", "data", "baseline", "learners", "companions", "seed")


def learner_config(config: Config, learner: str) -> Config:
    """The run's settings as this learner has them.

    A part that names another backbone, or another optimizer, starts from the defaults instead of the run's settings:
    weight files and options belong to one backbone, rates to one optimizer.
    """
    own, where = _own(config, learner), _place(config, learner)
    parts = {
        "network": _joined(config.network, own.network, "backbone", f"{where}.network"),
        "optimizer": _joined(config.optimizer, own.optimizer, "name", f"{where}.optimizer"),
    }
    return config.model_copy(update=parts)


def optimizer_settings(config: Config, names: Iterable[str]) -> dict[str, OptimizerSettings]:
    """Of learners and companions."""
    companions = method_class(config.method).companions
    return {
        name: _companion_optimizer(config, name, companions[name])
        if name in companions
        else learner_config(config, name).optimizer
        for name in names
    }


def _companion_optimizer(config: Config, name: str, companion: Companion) -> OptimizerSettings:
    """What the paper says of it, then what the user says; the run's is the learners'."""
    papers = read_section(OptimizerSettings, companion.optimizer, where=f"companion {name}")
    return _joined(papers, _own(config, name).optimizer, "name", f"companions.{name}.optimizer")


def optimizer_key(config: Config, learner: str, key: str, *, baseline: bool) -> str:
    """The full key that changes `key` of this learner's optimizer, in the run or in its baseline.

    It is the learner's own where that says something of it, or names an optimizer, since this would win over others.
    """
    if learner in method_class(config.method).companions:
        return f"companions.{learner}.optimizer.{key}"
    own = _own(config, learner)
    spoken = [own.optimizer, *([own.baseline.get("optimizer", {})] if baseline else [])]
    section = "baseline.optimizer" if baseline else "optimizer"
    owned = any(key in each or "name" in each for each in spoken)
    return f"learners.{learner}.{section}.{key}" if owned else f"{section}.{key}"


def baseline_config(config: Config, learner: str, seed: int) -> Config:
    """A supervised run with the run's settings, its `baseline` section, the learner's settings, the learner's baseline.

    Later ones win: what is said for one learner is meant more than what is said for all.
    """
    values = config.model_dump(mode="json")
    values |= {"method": "supervised", "settings": {}, "seed": seed, "baseline": {}, "learners": {}, "companions": {}}
    shared = resolve(values, config.baseline, where="baseline").model_copy(update={"learners": config.learners})
    own = learner_config(shared, learner).model_copy(update={"learners": {}})
    return read_section(
        Config,
        layered(own.model_dump(mode="json"), _own(config, learner).baseline),
        where=f"learners.{learner}.baseline",
    )


def baseline_groups(config: Config, method: Method) -> list[tuple[str, ...]]:
    """Networks that start from one baseline: the method's groups, parted where learners have baselines of their own."""
    groups: dict[tuple[int, str], list[str]] = {}
    for index, names in enumerate(method.baseline_learners()):
        for name in names:
            settings = baseline_config(config, method.learner_of(name), config.seed).model_dump_json()
            groups.setdefault((index, settings), []).append(name)
    return [tuple(names) for names in groups.values()]


def check_learners(config: Config) -> None:
    """Learners that the method does not have, and settings that there are not, before anything is built or written."""
    kind = method_class(config.method)
    for section, there in (("learners", kind.learners), ("companions", kind.companions)):
        for name in getattr(config, section):
            if name not in there:
                what = f"the method {config.method} has no {section[:-1]} {name!r}"
                fix = ", ".join(there) or f"leave it out: {config.method} has no {section}"
                fix = f"companions.{name}" if section == "learners" and name in kind.companions else fix
                raise ConfigError(what, where=f"{section}.{name}", fix=fix)
    for name, companion in kind.companions.items():
        _check_companion(config, name, companion)
    _check_baseline(config.baseline, "baseline")
    for name in kind.learners if kind.needs_baseline else config.learners:
        _check_baseline(_own(config, name).baseline, f"learners.{name}.baseline")
        baseline = baseline_config(config, name, config.seed)
        read_method_settings(baseline.method, baseline.settings)


def _check_companion(config: Config, name: str, companion: Companion) -> None:
    """It starts from no baseline, and may be no network that settings could change."""
    allowed = ("optimizer", "network") if companion.built else ("optimizer",)
    for section in config.companions.get(name, {}):
        if section not in allowed:
            what = f"{name} has no {section} of its own"
            raise ConfigError(what, where=f"companions.{name}.{section}", fix=" or ".join(allowed))
    learner_config(config, name)  # what is wrong in it is said now
    optimizer_settings(config, [name])


def _check_baseline(section: Mapping[str, Any], where: str) -> None:
    for key in _RUNS_OWN:
        if key in section:
            what = f"a baseline cannot have a {key!r} of its own: it is a supervised run on the run's images"
            raise ConfigError(what, where=where, fix=f"{where} without {key}")


def _own(config: Config, name: str) -> LearnerSettings:
    """A learner's, or a companion's."""
    values = config.companions.get(name) or config.learners.get(name, {})
    return read_section(LearnerSettings, values, where=_place(config, name))


def _place(config: Config, name: str) -> str:
    return f"companions.{name}" if name in config.companions else f"learners.{name}"


def _joined(section: SectionType, own: Mapping[str, Any], kind: str, where: str) -> SectionType:
    """The section with the learner's own settings; `kind` names the setting that makes it another thing altogether."""
    other = own.get(kind, getattr(section, kind)) != getattr(section, kind)
    base = {} if other else section.model_dump(mode="json")
    return read_section(type(section), merge(base, own), where=where)
