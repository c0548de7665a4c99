"""`fewmask train`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewmask.config import Config
from fewmask.console import ConsoleObserver
from fewmask.errors import ConfigError
from fewmask.methods.table import method_class, read_method_settings
from fewmask.report.tables import scores_table
from fewmask.settings import DEFAULT_PRESET, merge, read_settings_file, resolve
from fewmask.settings import preset as read_preset
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
    baselines: Sequence[Path],
    resume: bool,
) -> int:
    if out is None:
        raise ConfigError("no run folder given", where="--out", fix="fewmask train DATA --out RUN")
    if resume:
        _require_run(out)
    config = _config(data, out, preset, config_file, flags, words, resume)
    _require_possible(config, out, resume)
    with ConsoleObserver() as observer:
        try:
            outcome = run_training(
                config, out, device=device, resume=resume, init=init, observer=observer, baselines=baselines
            )
        except Interrupted as stopped:
            observer.say(f"{stopped}; a checkpoint is in {out}")
            observer.say(f"go on with: fewmask train --out {shlex.quote(str(out))} --resume")
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
    """Preset, then file, then options, then key=value words; a resumed run starts from its own settings.

    A file is all that its user wants changed, so a preset that nobody named would only stand in its way.
    """
    root = {"data": {"root": str(data)}} if data is not None else {}
    before = RunFolder(out).read_config().model_dump(mode="json") if resume else {}
    if preset is None and config_file is None and not resume:
        preset = DEFAULT_PRESET
    named = read_preset(preset) if preset is not None else {}
    file = read_settings_file(config_file) if config_file is not None else {}
    chosen = [word for word in words if word.startswith("method=")]
    method = resolve(before, named, file, flags, words=chosen).method
    keys = method_class(method).Settings.model_fields.keys()
    named = _for_method(named, method) if named else {}
    return _from_anywhere(resolve(before, named, file, root, flags, words=words, method_keys=keys))


def _for_method(preset: dict[str, Any], method: str) -> dict[str, Any]:
    """A preset for another method than its own: without what is that one's, and as its baseline where none is needed.

    So `--preset camvid --method supervised` is the twin of what `--preset camvid` starts from.
    """
    if preset["method"] == method:
        return preset
    kind = method_class(method)
    learners = {name: own for name, own in preset.get("learners", {}).items() if name in kind.learners}
    preset = preset | {"learners": learners}
    if kind.needs_baseline:
        return preset | {"settings": {}}
    baseline = preset.get("baseline", {})
    own = baseline.get("settings", {}) if method == "supervised" else {}
    return merge(preset, baseline) | {"settings": own, "baseline": {}}


def _from_anywhere(config: Config) -> Config:
    """The data set's paths made absolute, so that other commands find it from any working folder."""
    paths = {"root": config.data.root, "split": config.data.split}
    absolute = {key: str(Path(value).resolve()) for key, value in paths.items() if value}
    return config.model_copy(update={"data": config.data.model_copy(update=absolute)})


def _require_run(out: Path) -> None:
    """Whoever goes on with a run must not get a new one because of a typing error."""
    if not RunFolder(out).config.is_file():
        fix = "the --out of the run, or leave --resume away to start one"
        raise ConfigError(f"there is no run to resume in {out}", where="--resume", fix=fix)


def _require_possible(config: Config, out: Path, resume: bool) -> None:
    """What can be known before the data are read, which may take minutes."""
    read_method_settings(config.method, config.settings)
    if resume:
        return
    folder = RunFolder(out)
    if folder.config.exists():
        folder.claim()  # refuses
    if config.data.root and out.resolve() == Path(config.data.root):
        raise ConfigError("the run would lie among the data", where=f"--out {out}", fix="another folder for --out")


def _report(outcome: Outcome, observer: ConsoleObserver) -> None:
    from fewmask.commands.report import write_run_report

    page = write_run_report(outcome)
    if outcome.scores:
        observer.console.print(scores_table(outcome.scores))
        observer.say(f"selected {outcome.selected} on val")
    else:
        observer.say(f"nothing was scored, there are no held-out labels: {outcome.selected} ships")
    pace = outcome.pace
    if pace.steps:
        observer.say(f"{pace.steps} steps in {pace.seconds:.0f} s ({1000 * pace.seconds / pace.steps:.0f} ms per step)")
    observer.say(f"model: {outcome.folder.path / 'model.safetensors'}   report: {page}")
    observer.say(f"next: fewmask predict {shlex.quote(str(outcome.folder.path))} IMAGES --out predictions")
