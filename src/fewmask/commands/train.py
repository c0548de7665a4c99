"""`fewmask train`."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewmask.config import Config, NetworkSettings, OptimizerSettings
from fewmask.console import ConsoleObserver
from fewmask.errors import ConfigError
from fewmask.layers import flat, layered, left_out
from fewmask.methods.table import METHODS, method_class, read_method_settings
from fewmask.networks.timm_bodies import check_backbone
from fewmask.networks.weights import read_weights
from fewmask.report.tables import scores_table
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
from fewmask.training.learners import baseline_config, check_learners, learner_config
from fewmask.training.run import Outcome, run_training
from fewmask.training.run_folder import RunFolder
from fewmask.training.signals import Interrupted

_OF_A_METHOD = ("settings.", "baseline.", "learners.")


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
    spoken = _layers(data, out, preset, config_file, flags, words, resume)
    method = resolve(*spoken).method
    layers = [_for_method(layer, method) for layer in spoken]
    config = _from_anywhere(resolve(*layers))
    _require_possible(config, out, resume, starts=bool(baselines) or init is not None)
    with ConsoleObserver() as observer:
        if asked and not resume:
            observer.say(f"there is no run in {out} yet, so one starts")
        for line in (*_of_another_method(spoken, method), *_of_another_optimizer(layers)):
            observer.say(line)
        try:
            outcome = run_training(
                config, out, device=device, resume=resume, init=init, observer=observer, baselines=baselines
            )
        except Interrupted as stopped:
            observer.say(f"{stopped}; a checkpoint is in {out}")
            observer.say(_go_on(out))
            return 128 + stopped.signal_number
        except KeyboardInterrupt:  # outside the loop: while reading, sweeping or scoring
            observer.say(f"stopped; {_go_on(out) if (out / 'config.yaml').is_file() else 'nothing was begun'}")
            return 128 + signal.SIGINT
        if outcome.session.world.main:
            _report(outcome, observer)
    return 0


def _go_on(out: Path) -> str:
    return f"go on with: fewmask train --out {shlex.quote(str(out))} --resume"


def _layers(
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
    return before, _for_method(named, method), file, root, flags, word_layer(words, keys)


def _require_same_method(before: str, method: str) -> None:
    """First of all: to another method, the run's own settings would be unknown ones."""
    if method != before:
        fix = "the settings in the run's config.yaml, or a new --out with --init"
        raise ConfigError("a resumed run cannot change method", where="--resume", fix=fix)


def _of_another_method(spoken: Sequence[dict[str, Any]], method: str) -> Iterator[str]:
    """What a file for another method than is used has that is not taken, and what becomes the run's own."""
    for layer in (each for each in spoken if each.get("method", method) != method):
        usual = method_class(layer["method"]).Settings().complete()  # a run's config.yaml has all of them
        before, after = flat(layer), flat(_for_method(layer, method))
        gone = {key: value for key, value in before.items() if key not in after and key.startswith(_OF_A_METHOD)}
        moved = [key for key in gone if key.removeprefix("baseline.") in after]
        left = [key for key in gone if key not in moved and gone[key] != usual.get(key.removeprefix("settings."))]
        if left:
            words = ", ".join(f"{key}={written(gone[key])}" for key in left)
            yield f"not taken, as it belongs to the method {layer['method']}: {words}"
        if moved:
            words = ", ".join(f"{key.removeprefix('baseline.')}={written(gone[key])}" for key in moved)
            yield f"taken from the baseline of {layer['method']}, for the run itself: {words}"


def _of_another_optimizer(layers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a preset or a file says of an optimizer that is not used is not taken, and that is said."""
    usual = OptimizerSettings().model_dump(mode="json", exclude={"lr"})  # what it would be anyway; a rate differs
    found = left_out(*layers).items()
    words = [f"{key}={written(value)}" for key, value in found if value != usual.get(key.rpartition(".")[2])]
    if words:
        yield f"not taken, as it belongs to another optimizer: {', '.join(words)}"


def _file_settings(path: Path) -> dict[str, Any]:
    """A preset in it is a label, as in a run's config.yaml, and says where its settings came from.

    It may serve another method than it was written for, so that a key without a section must be clear for all of them.
    """
    method_keys = {key for kind in METHODS.values() for key in kind.Settings.model_fields}
    values = spelled_out(read_settings_file(path), method_keys, str(path))
    if values.get("preset") is not None:
        require_preset(values["preset"], str(path))
    return values


def _for_method(values: dict[str, Any], method: str) -> dict[str, Any]:
    """A preset or a file for another method: without what is that one's, and as its baseline where none is needed.

    So `--preset camvid --method supervised` is the twin of what `--preset camvid` starts from. What names no method
    is for whichever is used.
    """
    if values.get("method", method) == method:
        return values
    own = resolve(values)  # what is wrong for its own method must not get lost here
    check_learners(own)
    read_method_settings(own.method, own.settings)
    kind, values = method_class(method), values | {"method": method}
    learners = {name: each for name, each in values.get("learners", {}).items() if name in kind.learners}
    if kind.needs_baseline:
        return values | {"settings": {}, "learners": learners}
    learners = {name: {key: each[key] for key in each if key != "baseline"} for name, each in learners.items()}
    baseline = values.get("baseline", {})
    settings = baseline.get("settings", {}) if method == "supervised" else {}
    return layered(values, baseline) | {"settings": settings, "baseline": {}, "learners": learners}


def _from_anywhere(config: Config) -> Config:
    """The data set's paths made absolute, so that other commands find it from any working folder."""
    paths = {"root": config.data.root, "split": config.data.split}
    absolute = {key: str(Path(value).resolve()) for key, value in paths.items() if value}
    return config.model_copy(update={"data": config.data.model_copy(update=absolute)})


def _has_run(out: Path, data: Path | None) -> bool:
    """Whether there is a run to go on with; a job that may be stopped before it begins has one command, with DATA."""
    there = RunFolder(out).config.is_file()
    if not there and data is None:
        fix = "the --out of the run, or DATA to start one"
        raise ConfigError(f"there is no run to resume in {out}", where="--resume", fix=fix)
    return there


def _require_possible(config: Config, out: Path, resume: bool, starts: bool) -> None:
    """What can be known before the data are read, which may take minutes."""
    read_method_settings(config.method, config.settings)
    if resume:
        return
    folder = RunFolder(out)
    if folder.config.exists():
        folder.claim()  # refuses
    if config.data.root and out.resolve() == Path(config.data.root):
        raise ConfigError("the run would lie among the data", where=f"--out {out}", fix="another folder for --out")
    check_learners(config)
    learners = method_class(config.method).learners
    for name in learners:
        _require_network(learner_config(config, name).network, name if name in config.learners else None)
    for name in learners if method_class(config.method).needs_baseline and not starts else ():
        _require_network(baseline_config(config, name, config.seed).network)


def _require_network(settings: NetworkSettings, learner: str | None = None) -> None:
    """A backbone that timm knows and a weight file that is there, said as when the network is built."""
    try:
        check_backbone(settings)
    except ConfigError as error:
        if learner is None:
            raise
        raise ConfigError(error.what, where=f"{error.where} of {learner}", fix=error.fix) from None
    file = Path(settings.pretrained).expanduser()
    if settings.pretrained not in ("none", "hub", "coco-voc-classes") and not file.is_file():
        read_weights(file)  # refuses


def _report(outcome: Outcome, observer: ConsoleObserver) -> None:
    from fewmask.commands.report import write_run_report

    page = write_run_report(outcome)
    if outcome.scores:
        observer.console.print(scores_table(outcome.scores))
        observer.say(_choice(outcome))
        for line in _gains(outcome):
            observer.say(line)
    else:
        observer.say(f"nothing was scored, there are no held-out labels: {outcome.selected} ships")
    pace = outcome.pace
    if pace.steps:
        observer.say(f"{pace.steps} steps in {pace.seconds:.0f} s ({1000 * pace.seconds / pace.steps:.0f} ms per step)")
    observer.say(f"model: {outcome.folder.path / 'model.safetensors'}   report: {page}")
    observer.say(f"next: fewmask predict {shlex.quote(str(outcome.folder.path))} IMAGES --out predictions")


def _choice(outcome: Outcome) -> str:
    if outcome.selected_on is None:
        return f"no network was selected, as no validation pixel has a label: {outcome.selected} ships"
    return f"selected {outcome.selected} on {outcome.selected_on}"


def _gains(outcome: Outcome) -> Iterator[str]:
    """How far the run got from the supervised baselines inside its folder, where it has any."""
    ours = outcome.scores[outcome.selected].to_json()["miou"]
    for path in sorted(outcome.folder.path.glob("baseline*/evaluation.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        before = found["networks"][found["selected"]]["miou"]
        if ours is not None and before is not None:
            points = f"{100 * (ours - before):+.1f} points"
            yield f"{path.parent.name} (labeled images only) had {100 * before:.1f} % mIoU: {points} since then"
