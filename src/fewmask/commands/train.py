"""`fewmask train`."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewmask.commands.train_layers import for_method, of_another_method, of_another_optimizer, spoken_layers
from fewmask.config import WEIGHT_WORDS, Config, NetworkSettings
from fewmask.console import ConsoleObserver
from fewmask.errors import ConfigError, DataError
from fewmask.methods.table import method_class, read_method_settings
from fewmask.networks.timm_bodies import check_backbone
from fewmask.networks.weights import read_weights
from fewmask.report.tables import scores_table
from fewmask.settings import resolve
from fewmask.training.distributed import launched_world
from fewmask.training.learners import baseline_config, check_learners, learner_config
from fewmask.training.observer import Observer
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
    asked, resume = resume, resume and _has_run(out, data)
    spoken = spoken_layers(data, out, preset, config_file, flags, words, resume)
    method = resolve(*spoken).method
    layers = [for_method(layer, method) for layer in spoken]
    config = _from_anywhere(resolve(*layers))
    _require_possible(config, out, resume, starts=bool(baselines) or init is not None)
    with ConsoleObserver() as console:
        observer = console if launched_world().main else Observer()  # of several processes the first one speaks
        if asked and not resume:
            observer.say(f"there is no run in {out} yet, so one starts")
        for line in (*of_another_method(spoken, method), *of_another_optimizer(layers)):
            observer.say(line)
        try:
            outcome = run_training(
                config, out, device=device, resume=resume, init=init, observer=observer, baselines=baselines
            )
        except Interrupted as stopped:
            observer.say(f"{stopped}; a checkpoint is in {out}")
            observer.say(_go_on(out, device, asked))
            return 128 + stopped.signal_number
        except KeyboardInterrupt:  # outside the loop: while reading, sweeping or scoring
            begun = (out / "config.yaml").is_file()
            observer.say(f"stopped; {_go_on(out, device, asked) if begun else 'nothing was begun'}")
            return 128 + signal.SIGINT
        if outcome.session.world.main:
            _report(outcome, console)
    return 0


def _go_on(out: Path, device: str | None, resumed: bool) -> str:
    """What a run that was to be resumed has changed may not be in its folder yet; its command has it all."""
    if resumed:
        return "go on with the same command"
    if launched_world().size > 1:
        return "go on with the same command and --resume"
    words = ["fewmask", "train", "--out", str(out), *(["--device", device] if device else []), "--resume"]
    return f"go on with: {shlex.join(words)}"


def _from_anywhere(config: Config) -> Config:
    """Paths made absolute, so that other commands and a resumed run find them from any working folder."""
    paths = {"root": config.data.root, "split": config.data.split}
    absolute = {key: str(Path(value).resolve()) for key, value in paths.items() if value}
    parts = {
        "data": config.data.model_copy(update=absolute),
        "network": config.network.model_copy(update=_found_weights({"pretrained": config.network.pretrained})),
        "baseline": _found_weights(config.baseline),
        "learners": _found_weights(config.learners),
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


def _require_possible(config: Config, out: Path, resume: bool, starts: bool) -> None:
    """What can be known before the data are read, which may take minutes."""
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
    learners = method_class(config.method).learners
    for name in learners:
        _require_network(learner_config(config, name).network, name if name in config.learners else None)
    for name in learners if method_class(config.method).needs_baseline and not starts else ():
        _require_network(baseline_config(config, name, config.seed).network)


def _require_data(config: Config, out: Path) -> None:
    """A folder that has moved is a matter of where it is now, not of how it is laid out."""
    if config.data.root and not Path(config.data.root).is_dir():
        fix = f"fewmask train NEW --out {shlex.quote(str(out))} --resume, if they have moved to NEW"
        raise DataError("the run's data are not there", where=config.data.root, fix=fix)


def _require_network(settings: NetworkSettings, learner: str | None = None) -> None:
    """A backbone that timm knows and a weight file that is there, said as when the network is built."""
    try:
        check_backbone(settings)
    except ConfigError as error:
        if learner is None:
            raise
        raise ConfigError(error.what, where=f"{error.where} of {learner}", fix=error.fix) from None
    file = Path(settings.pretrained).expanduser()
    if settings.pretrained not in WEIGHT_WORDS and not file.is_file():
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
    """How far the run got from what it started from, by the same validation images."""
    folder, ours = outcome.folder, outcome.scores[outcome.selected].to_json()["miou"]
    for path in folder.forebears:
        before = _former_score(RunFolder(path), folder)
        if ours is not None and before is not None:
            points = f"{100 * (ours - before):+.1f} points"
            name = f"{path.name} (labeled images only)" if path.parent == folder.path else str(path)
            yield f"{name} had {100 * before:.1f} % mIoU: {points} since then"


def _former_score(former: RunFolder, folder: RunFolder) -> float | None:
    """None where that run was not scored, or on other images."""
    if not (former.evaluation.is_file() and former.split.is_file()):
        return None
    val = [each.read_json(each.split.name)["val"]["sha256"] for each in (former, folder)]
    found = former.read_json(former.evaluation.name)
    score: float | None = found["networks"][found["selected"]]["miou"]
    return score if val[0] == val[1] else None
