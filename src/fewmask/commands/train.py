"""`fewmask train`, up to the settings of the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewmask.commands.train_layers import for_method, of_another_method, of_another_optimizer, spoken_layers
from fewmask.config import WEIGHT_WORDS, Config
from fewmask.errors import ConfigError, DataError
from fewmask.methods.table import read_method_settings
from fewmask.settings import resolve
from fewmask.training.learners import check_learners
from fewmask.training.run_folder import RunFolder


def run_train(
    data: Path | None,
    out: Path | None,
    *,
    preset: str | None,
    config_file: Path | None,
    flags: dict[str, Any],
    words: list[str],
    device: str | None,
    init: Path | None,
    baselines: Sequence[Path],
    resume: bool,
) -> int:
    if out is None:
        raise ConfigError("no run folder given", where="--out", fix="fewmask train DATA --out RUN")
    asked, resume = resume, resume and _has_run(out, data)
    spoken = spoken_layers(data, out, preset, config_file, flags, words, resume)
    method = resolve(*spoken).method
    layers = [for_method(layer, method) for layer in spoken]
    config = _from_anywhere(resolve(*layers))
    _require_possible(config, out, resume)
    new = [f"there is no run in {out} yet, so one starts"] if asked and not resume else []
    notes = [*new, *of_another_method(spoken, method), *of_another_optimizer(layers)]
    from fewmask.commands.train_run import run_watched  # wrong settings are answered before timm is loaded

    return run_watched(
        config, out, notes=notes, device=device, asked=asked, resume=resume, init=init, baselines=baselines
    )


def _from_anywhere(config: Config) -> Config:
    """Paths made absolute, so that other commands and a resumed run find them from any working folder."""
    paths = {"root": config.data.root, "split": config.data.split}
    absolute = {key: str(Path(value).resolve()) for key, value in paths.items() if value}
    parts = {
        "data": config.data.model_copy(update=absolute),
        "network": config.network.model_copy(update=_found_weights({"pretrained": config.network.pretrained})),
        "baseline": _found_weights(config.baseline),
        "learners": _found_weights(config.learners),
        "companions": _found_weights(config.companions),
    }
    return config.model_copy(update=parts)


def _found_weights(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, sections in sections, with the absolute paths of weight files."""
    found = dict(values)
    for key, value in values.items():
        if isinstance(value, Mapping):
            found[key] = _found_weights(value)
        elif key == "pretrained" and isinstance(value, str) and value not in WEIGHT_WORDS:
            file = Path(value).expanduser()
            found[key] = str(file.absolute()) if file.is_file() else value  # refused later, as it was spelled
    return found


def _has_run(out: Path, data: Path | None) -> bool:
    """Whether there is a run to go on with; a job that may be stopped before it begins has one command, with DATA."""
    there = RunFolder(out).config.is_file()
    if not there and data is None:
        fix = "the --out of the run, or DATA to start one"
        raise ConfigError(f"there is no run to resume in {out}", where="--resume", fix=fix)
    return there


def _require_possible(config: Config, out: Path, resume: bool) -> None:
    """What the settings and the folder say before anything else is looked at."""
    read_method_settings(config.method, config.settings)
    if resume:
        _require_data(config, out)
        return
    folder = RunFolder(out)
    if folder.config.exists():
        folder.claim()  # refuses
    if config.data.root and out.resolve() == Path(config.data.root):
        raise ConfigError("the run would lie among the data", where=f"--out {out}", fix="another folder for --out")
    check_learners(config)


def _require_data(config: Config, out: Path) -> None:
    """A folder that has moved is a matter of where it is now, not of how it is laid out."""
    if config.data.root and not Path(config.data.root).is_dir():
        fix = f"fewmask train NEW --out {shlex.quote(str(out))} --resume, if they have moved to NEW"
        raise DataError("the run's data are not there", where=config.data.root, fix=fix)
