"""`fewmask train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewmask.config import Config
from fewmask.console import ConsoleObserver
from fewmask.errors import ConfigError
from fewmask.report.tables import scores_table
from fewmask.settings import preset as read_preset
from fewmask.settings import read_settings_file, resolve
from fewmask.training.run import Outcome, run_training
from fewmask.training.run_folder import RunFolder
from fewmask.training.signals import Interrupted


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
    resume: bool,
) -> int:
    if out is None:
        raise ConfigError("no run folder given", where="--out", fix="fewmask train DATA --out RUN")
    config = _config(data, out, preset, config_file, flags, words, resume)
    with ConsoleObserver() as observer:
        try:
            outcome = run_training(config, out, device=device, resume=resume, init=init, observer=observer)
        except Interrupted as stopped:
            observer.say(f"{stopped}; a checkpoint is in {out}")
            observer.say(f"go on with: fewmask train --out {out} --resume")
            return 128 + stopped.signal_number
        if outcome.session.world.main:
            _report(outcome, observer)
    return 0


def _config(
    data: Path | None,
    out: Path,
    preset: str | None,
    config_file: Path | None,
    flags: dict[str, Any],
    words: list[str],
    resume: bool,
) -> Config:
    """Preset, then file, then options, then key=value words; a resumed run starts from its own settings."""
    root = {"data": {"root": str(data)}} if data is not None else {}
    layers: list[dict[str, Any]] = []
    if resume and (out / "config.yaml").is_file():
        layers.append(RunFolder(out).read_config().model_dump(mode="json"))
    if preset is not None:
        layers.append(read_preset(preset))
    if config_file is not None:
        layers.append(read_settings_file(config_file))
    return resolve(*layers, root, flags, words=words)


def _report(outcome: Outcome, observer: ConsoleObserver) -> None:
    from fewmask.commands.report import write_run_report

    page = write_run_report(outcome)
    if outcome.scores:
        observer.console.print(scores_table(outcome.scores))
        observer.say(f"selected {outcome.selected} on val")
    pace = outcome.pace
    if pace.steps:
        observer.say(f"{pace.steps} steps in {pace.seconds:.0f} s ({1000 * pace.seconds / pace.steps:.0f} ms per step)")
    observer.say(f"model: {outcome.folder.path / 'model.safetensors'}   report: {page}")
    observer.say(f"next: fewmask predict {outcome.folder.path} IMAGES --out masks")
