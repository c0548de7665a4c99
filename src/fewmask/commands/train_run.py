"""A training run of the command line: what is said of it as it begins, where it is stopped, and at its end."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from fewmask.config import WEIGHT_WORDS, Config, NetworkSettings
from fewmask.console import ConsoleObserver
from fewmask.data.check_report import counted
from fewmask.errors import ConfigError, FewmaskError
from fewmask.methods.table import method_class
from fewmask.networks.timm_bodies import check_backbone
from fewmask.networks.weights import read_weights
from fewmask.report.tables import scores_table
from fewmask.training.distributed import launched_world
from fewmask.training.learners import baseline_config, learner_config
from fewmask.training.model_file import load_card
from fewmask.training.observer import Observer
from fewmask.training.run import Outcome, run_training
from fewmask.training.run_folder import RunFolder
from fewmask.training.signals import Interrupted


def run_watched(
    config: Config,
    out: Path,
    *,
    notes: Sequence[str],
    device: str | None,
    asked: bool,
    resume: bool,
    init: Path | None,
    baselines: Sequence[Path],
) -> int:
    """`asked`: the command says --resume, whether there is a run to `resume` or not."""
    if not resume:
        _require_networks(config, starts=bool(baselines) or init is not None)
    with ConsoleObserver() as console:
        observer = console if launched_world().main else Observer()  # of several processes the first one speaks
        for line in notes:
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


def _require_networks(config: Config, *, starts: bool) -> None:
    """What can be known of them before the data are read, which may take minutes."""
    kind = method_class(config.method)
    for name in (*kind.learners, *(name for name, each in kind.companions.items() if each.built)):
        own = name in config.learners or name in config.companions
        _require_network(learner_config(config, name).network, name if own else None)
    for name in kind.learners if kind.needs_baseline and not starts else ():
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
    if settings.pretrained not in WEIGHT_WORDS and not file.is_file():
        read_weights(file)  # refuses


def _go_on(out: Path, device: str | None, resumed: bool) -> str:
    """What a run that was to be resumed has changed may not be in its folder yet; its command has it all."""
    if resumed:
        return "go on with the same command"
    if launched_world().size > 1:
        return "go on with the same command and --resume"
    words = ["fewmask", "train", "--out", str(out), *(["--device", device] if device else []), "--resume"]
    return f"go on with: {shlex.join(words)}"


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
        steps, each = counted(pace.steps, "step"), 1000 * pace.seconds / pace.steps
        observer.say(f"{steps} in {pace.seconds:.0f} s ({each:.0f} ms per step)")
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
    """None where that run was not scored, or not as this one was."""
    try:
        comparable = _scoring(former) == _scoring(folder)
        found = former.read_json(former.evaluation.name)
        score = found["networks"][found["selected"]]["miou"]
        score = None if score is None else float(score)
    except (FewmaskError, ValueError, KeyError, TypeError):  # files of another version, or edited ones
        return None
    return score if comparable else None


def _scoring(run: RunFolder) -> tuple[object, ...]:
    """What scores depend on beside the networks."""
    config, card = run.read_config(), load_card(run.path)
    val, how = run.read_json(run.split.name)["val"], config.evaluation.model_dump(exclude={"batch"})
    return config.data.root, config.data.resize, how, card.classes.names, val["sha256"]
