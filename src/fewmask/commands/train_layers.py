"""From options, files and words to the layers of a run's settings, and what of them is not taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewmask.config import OptimizerSettings
from fewmask.errors import ConfigError
from fewmask.layers import flat, layered, left_out
from fewmask.methods.table import METHODS, method_class, read_method_settings
from fewmask.settings import (
    DEFAULT_PRESET,
    read_settings_file,
    require_preset,
    resolve,
    spelled_out,
    word_layer,
    written,
)
from fewmask.settings import preset as read_preset
from fewmask.training.learners import check_learners
from fewmask.training.run_folder import RunFolder

_OF_A_METHOD = ("settings.", "baseline.", "learners.", "companions.")


def spoken_layers(
    data: Path | None,
    out: Path,
    preset: str | None,
    config_file: Path | None,
    flags: dict[str, Any],
    words: list[str],
    resume: bool,
) -> tuple[dict[str, Any], ...]:
    """Preset, then file, then options, then key=value words; a resumed run starts from its own settings.

    A file is all that its user wants changed, so a preset that nobody named would only stand in its way.
    """
    root = {"data": {"root": str(data)}} if data is not None else {}
    before = RunFolder(out).read_config().model_dump(mode="json") if resume else {}
    if preset is None and config_file is None and not resume:
        preset = DEFAULT_PRESET
    named = read_preset(preset) if preset is not None else {}
    file = _file_settings(config_file) if config_file is not None else {}
    chosen = [word for word in words if word.startswith("method=")]
    method = resolve(before, named, file, flags, words=chosen).method
    keys = method_class(method).Settings.model_fields.keys()
    if resume:
        _require_same_method(before["method"], method)
    return before, for_method(named, method), file, root, flags, word_layer(words, keys)


def _require_same_method(before: str, method: str) -> None:
    """First of all: to another method, the run's own settings would be unknown ones."""
    if method != before:
        fix = "the settings in the run's config.yaml, or a new --out with --init"
        raise ConfigError("a resumed run cannot change method", where="--resume", fix=fix)


def _file_settings(path: Path) -> dict[str, Any]:
    """A preset in it is a label, as in a run's config.yaml, and says where its settings came from.

    It may serve another method than it was written for, so that a key without a section must be clear for all of them.
    """
    method_keys = {key for kind in METHODS.values() for key in kind.Settings.model_fields}
    values = spelled_out(read_settings_file(path), method_keys, str(path))
    if values.get("preset") is not None:
        require_preset(values["preset"], str(path))
    return values


def for_method(values: dict[str, Any], method: str) -> dict[str, Any]:
    """A preset or a file for another method: without what is that one's, and as its baseline where none is needed.

    So `--preset camvid --method supervised` is the twin of what `--preset camvid` starts from. What names no method
    is for whichever is used.
    """
    if values.get("method", method) == method:
        return values
    own = resolve(values)  # what is wrong for its own method must not get lost here
    check_learners(own)
    read_method_settings(own.method, own.settings)
    kind = method_class(method)
    companions = {name: each for name, each in values.get("companions", {}).items() if name in kind.companions}
    values = values | {"method": method, "companions": companions}
    learners = {name: each for name, each in values.get("learners", {}).items() if name in kind.learners}
    if kind.needs_baseline:
        return values | {"settings": {}, "learners": learners}
    learners = {name: {key: each[key] for key in each if key != "baseline"} for name, each in learners.items()}
    baseline = values.get("baseline", {})
    settings = baseline.get("settings", {}) if method == "supervised" else {}
    return layered(values, baseline) | {"settings": settings, "baseline": {}, "learners": learners}


def of_another_method(spoken: Sequence[dict[str, Any]], method: str) -> Iterator[str]:
    """What a file for another method than is used has that is not taken, and what becomes the run's own."""
    for layer in (each for each in spoken if each.get("method", method) != method):
        usual = method_class(layer["method"]).Settings().complete()  # a run's config.yaml has all of them
        before, after = flat(layer), flat(for_method(layer, method))
        gone = {key: value for key, value in before.items() if key not in after and key.startswith(_OF_A_METHOD)}
        moved = [key for key in gone if key.removeprefix("baseline.") in after]
        left = [key for key in gone if key not in moved and gone[key] != usual.get(key.removeprefix("settings."))]
        if left:
            words = ", ".join(f"{key}={written(gone[key])}" for key in left)
            yield f"not taken, as it belongs to the method {layer['method']}: {words}"
        if moved:
            words = ", ".join(f"{key.removeprefix('baseline.')}={written(gone[key])}" for key in moved)
            yield f"taken from the baseline of {layer['method']}, for the run itself: {words}"


def of_another_optimizer(layers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a preset or a file says of an optimizer that is not used is not taken, and that is said."""
    usual = OptimizerSettings().model_dump(mode="json", exclude={"lr"})  # what it would be anyway; a rate differs
    found = left_out(*layers).items()
    words = [f"{key}={written(value)}" for key, value in found if value != usual.get(key.rpartition(".")[2])]
    if words:
        yield f"not taken, as it belongs to another optimizer: {', '.join(words)}"
