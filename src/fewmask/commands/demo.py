"""`fewmask demo`: rendered street scenes, two supervised twins and a semi-supervised method, side by side."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fewmask.commands.report import data_summary, picture_rows, run_of
from fewmask.console import ConsoleObserver
from fewmask.data.synthetic import write_scenes
from fewmask.errors import ConfigError
from fewmask.report.contents import PictureRow, Report, Run
from fewmask.report.page import write_report
from fewmask.report.pictures import picture_grid
from fewmask.report.tables import scores_table
from fewmask.settings import preset, resolve
from fewmask.training.checkpoint import write_atomically
from fewmask.training.clock import STEPS
from fewmask.training.engine import choose_device
from fewmask.training.networks import autocast_logits
from fewmask.training.observer import Observer
from fewmask.training.run import Outcome, run_training
from fewmask.training.run_folder import RunFolder, describe_environment
from fewmask.training.signals import Interrupted

_MARK = "demo.json"


@dataclass(frozen=True)
class Contestant:
    """One row of the demo's table."""

    name: str
    method: str
    sentence: str
    steps: int
    settings: Mapping[str, Any] | None = None  # none: the preset's own method, settings, baseline and steps


# Rml takes a baseline of 500 steps and two stages of 250, as the preset says; the strong twin gets as many.
CONTESTANTS = (
    Contestant("supervised", "supervised", "labeled images only, weak augmentation (the paper's baseline)", 700, {}),
    Contestant(
        "supervised_strong",
        "supervised",
        "labeled images only, with the color noise and as many steps as rml in all",
        1000,
        {"photometric": True},
    ),
    Contestant("rml", "rml", "labeled and unlabeled images", 1000),
)


@dataclass(frozen=True)
class Scale:
    """How large the demo is; tests make it tiny."""

    labeled: int = 12
    unlabeled: int = 300
    val: int = 60
    size: tuple[int, int] = (96, 128)
    contestants: tuple[Contestant, ...] = CONTESTANTS
    settings: Mapping[str, Any] = field(default_factory=dict)  # on top of the preset


def run_demo(out: Path, *, seed: int, device: str, scale: Scale | None = None) -> int:
    """Go on with what is in the folder, or start; stopped by a signal, say how to go on."""
    resolve({"seed": seed})  # what cannot be is refused before anything in the folder is touched
    choose_device(device)
    try:
        return _run(out, seed, device, scale or Scale())
    except (Interrupted, KeyboardInterrupt) as stopped:
        number = stopped.signal_number if isinstance(stopped, Interrupted) else signal.SIGINT
        with ConsoleObserver() as observer:
            observer.say(f"stopped; go on with: {_command(out, seed, device)}")
        return 128 + number


def _command(out: Path, seed: int, device: str) -> str:
    """What goes on with this demo: with another seed it would start over."""
    words = ["fewmask", "demo", "--out", str(out)]
    words += ["--seed", str(seed)] if seed != 0 else []
    words += ["--device", device] if device != "cpu" else []
    return shlex.join(words)


def _run(out: Path, seed: int, device: str, scale: Scale) -> int:
    began = time.perf_counter()
    _claim(out, seed, scale)
    with ConsoleObserver() as observer:
        observer.say(_introduction(out, scale))
        if not (out / "data").exists():
            counts = {"labeled": scale.labeled, "unlabeled": scale.unlabeled, "val": scale.val}
            write_scenes(
                out / "data",
                seed=seed,
                **counts,
                size=scale.size,
                progress=lambda done, of: observer.advance("rendering", done, of),
            )
    outcomes = {each.name: _train(each, out, seed, device, scale) for each in scale.contestants}
    _conclude(out, outcomes, scale, time.perf_counter() - began)
    return 0


def _claim(out: Path, seed: int, scale: Scale) -> None:
    """An unfinished demo goes on; a finished one, or one of another seed or scale, starts over."""
    mark = {"seed": seed, "preset": preset("demo"), "scale": asdict(scale)}
    text = json.dumps(mark, indent=2)
    before = _read_mark(out)
    if before is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = "the folder is not empty and holds no demo" if out.is_dir() else "this is a file, not a folder"
        raise ConfigError(what, where=str(out), fix="an empty or new folder for --out")
    if before is not None and (before != json.loads(text) or (out / "summary.json").exists()):
        for name in ("data", *(each.name for each in (*CONTESTANTS, *scale.contestants))):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in ("summary.json", "report.html", "pictures.png"):
            (out / name).unlink(missing_ok=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder cannot be made: {error.strerror}"
        raise ConfigError(what, where=str(out), fix="another --out") from None
    write_atomically(out / _MARK, lambda file: file.write(text.encode()))


def _read_mark(out: Path) -> Any:
    """What an earlier demo said about itself; None where there was none."""
    try:
        content = json.loads((out / _MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "seed" in content else None


def _introduction(out: Path, scale: Scale) -> str:
    rows = "\n".join(f"  {each.name:<18} {each.sentence}, {each.steps} steps" for each in scale.contestants)
    images = f"{scale.labeled} labeled and {scale.unlabeled} unlabeled street scenes"
    return f"{images}, {len(scale.contestants)} runs, about five minutes, all in {out}/\n{rows}"


def _train(contestant: Contestant, out: Path, seed: int, device: str, scale: Scale) -> Outcome:
    place = {"seed": seed, "data": {"root": str((out / "data").resolve())}}
    config = resolve(_method_settings(contestant), scale.settings, place)
    with ConsoleObserver(contestant.name, looks=False) as observer:
        outcome = run_training(
            config, out / contestant.name, device=device, resume=True, init=None, observer=_WithoutPlan(observer)
        )
        miou, seconds = outcome.scores[outcome.selected].miou, _seconds(contestant, outcome.folder)
        took = "" if seconds is None else f" after {seconds:.0f} s"
        observer.say(f"{contestant.name:<18} mIoU {100 * miou:.1f} %{took}")
    return outcome


def _seconds(contestant: Contestant, folder: RunFolder) -> float | None:
    """Of all its steps, a baseline's included; nobody knows it where some were done before the demo was stopped."""
    actual = folder.read_json(folder.timing.name)["actual"]
    steps = sum(part["count"] for part in actual["parts"] if part["what"].endswith(STEPS))
    seconds: float | None = actual["seconds"] if steps == contestant.steps else None
    return seconds


def _method_settings(contestant: Contestant) -> dict[str, Any]:
    """The preset, with another method in it where the contestant has one; twins have the baseline's optimizer."""
    values = preset("demo")
    if contestant.settings is None:
        return values
    optimizer = values["optimizer"] | values["baseline"]["optimizer"]
    own = {"method": contestant.method, "settings": dict(contestant.settings), "baseline": {}, "optimizer": optimizer}
    return values | own | {"training": values["training"] | {"steps": contestant.steps}}


class _WithoutPlan(Observer):
    """Another observer's bar and warnings; the demo has said itself what it will do."""

    def __init__(self, shown: ConsoleObserver) -> None:
        self.warn, self.advance, self.metrics = shown.warn, shown.advance, shown.metrics  # type: ignore[method-assign]


def _conclude(out: Path, outcomes: Mapping[str, Outcome], scale: Scale, seconds: float) -> None:
    rows = _pictures(outcomes)
    titles = ["image", "truth", *outcomes]
    last = list(outcomes.values())[-1]
    classes = last.session.dataset.classes
    picture_grid([row.cells for row in rows], titles, legend=classes, path=out / "pictures.png")
    report = Report(
        title=f"fewmask demo: street scenes, {scale.labeled} masks",
        classes=classes,
        runs=[_row(each, outcomes[each.name].folder) for each in scale.contestants],
        picture_titles=titles,
        pictures=rows,
        data=data_summary(last.session),
        next_commands=_next_commands(out, last.folder.path),
        environment=describe_environment(),
    )
    write_report(out / "report.html", report)
    scores = {name: each.scores[each.selected] for name, each in outcomes.items()}
    summary = {name: {"miou": each.miou} for name, each in scores.items()} | {"seconds": round(seconds, 1)}
    write_atomically(out / "summary.json", lambda file: file.write(json.dumps(summary, indent=2).encode()))
    with ConsoleObserver() as observer:
        observer.console.print(scores_table(scores))
        observer.say(
            f"{report.verdict()}\n{seconds:.0f} s. Pictures: {out / 'pictures.png'}   Page: {out / 'report.html'}"
        )
        observer.say("try next:\n" + "\n".join(f"  {command}" for command in report.next_commands))


def _row(contestant: Contestant, folder: RunFolder) -> Run:
    twin = contestant.method == "supervised"
    return run_of(folder, contestant.name, seconds=_seconds(contestant, folder), twin=twin)


def _pictures(outcomes: Mapping[str, Outcome]) -> list[PictureRow]:
    session = next(iter(outcomes.values())).session
    predictors = {
        name: autocast_logits(each.session.method.networks()[each.selected], each.session.engine.device)
        for name, each in outcomes.items()
    }
    return picture_rows(session, predictors)


def _next_commands(out: Path, best: Path) -> list[str]:
    paths = [out / "data" / "unlabeled", out / "predictions", out / "data"]
    run, images, masks, data = (shlex.quote(str(path)) for path in (best, *paths))
    return [
        f"fewmask predict {run} {images} --out {masks} --confidence",
        f"fewmask check {data}",
        "fewmask train YOUR_DATA --out runs/first",
    ]
