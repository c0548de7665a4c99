"""`fewmask demo`: rendered street scenes, two supervised twins and a semi-supervised method, side by side."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewmask.commands.report import data_summary, picture_rows, run_of
from fewmask.console import ConsoleObserver
from fewmask.data.synthetic import write_scenes
from fewmask.errors import ConfigError
from fewmask.report.contents import PictureRow, Report
from fewmask.report.page import write_report
from fewmask.report.pictures import picture_grid
from fewmask.report.tables import scores_table
from fewmask.settings import preset, resolve
from fewmask.training.checkpoint import write_atomically
from fewmask.training.networks import autocast_logits
from fewmask.training.run import Outcome, run_training
from fewmask.training.run_folder import describe_environment

_MARK = "demo.json"


@dataclass(frozen=True)
class Contestant:
    """One row of the demo's table."""

    name: str
    method: str
    sentence: str
    steps: int
    settings: Mapping[str, Any]


CONTESTANTS = (
    Contestant("supervised", "supervised", "labeled images only, weak augmentation (the paper's baseline)", 600, {}),
    Contestant(
        "supervised_strong",
        "supervised",
        "labeled images only, with the same color noise and as many steps as the method below",
        900,
        {"photometric": True},
    ),
    Contestant("mean_teacher", "mean_teacher", "labeled and unlabeled images", 900, {"labeled_photometric": True}),
)


def run_demo(out: Path, *, seed: int, device: str) -> int:
    began = time.perf_counter()
    _claim(out, seed)
    with ConsoleObserver() as observer:
        observer.say(_introduction(out))
        if not (out / "data").exists():
            write_scenes(out / "data", seed=seed, progress=lambda done, of: observer.advance("rendering", done, of))
    outcomes = {each.name: _train(each, out, seed, device) for each in CONTESTANTS}
    seconds = time.perf_counter() - began
    _conclude(out, outcomes, seconds)
    return 0


def _claim(out: Path, seed: int) -> None:
    """An unfinished demo of the same seed goes on; a finished one, or another seed's, starts over."""
    mark = out / _MARK
    if out.exists() and any(out.iterdir()) and not mark.exists():
        raise ConfigError(
            "the folder is not empty and holds no demo", where=str(out), fix="an empty or new folder for --out"
        )
    if mark.exists() and (json.loads(mark.read_text())["seed"] != seed or (out / "summary.json").exists()):
        for name in ("data", *(each.name for each in CONTESTANTS)):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "summary.json").unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(mark, lambda file: file.write(json.dumps({"seed": seed}).encode()))


def _introduction(out: Path) -> str:
    rows = "\n".join(f"  {each.name:<18} {each.sentence}, {each.steps} steps" for each in CONTESTANTS)
    return f"12 labeled and 300 unlabeled street scenes, three runs, about five minutes, all in {out}/\n{rows}"


def _train(contestant: Contestant, out: Path, seed: int, device: str) -> Outcome:
    config = resolve(
        preset("demo"),
        {
            "seed": seed,
            "method": contestant.method,
            "settings": dict(contestant.settings),
            "data": {"root": str(out / "data")},
            "training": {"steps": contestant.steps},
        },
    )
    with ConsoleObserver(contestant.name) as observer:
        outcome = run_training(
            config, out / contestant.name, device=device, resume=True, init=None, observer=_Quiet(observer)
        )
        miou = outcome.scores[outcome.selected].miou
        observer.say(f"{contestant.name:<18} mIoU {100 * miou:.1f} % after {outcome.pace.seconds:.0f} s")
    return outcome


class _Quiet(ConsoleObserver):
    """Shows the bar of another observer, but not the plan: the demo has said what it will do."""

    def __init__(self, shown: ConsoleObserver) -> None:
        self.__dict__.update(shown.__dict__)

    def say(self, text: str) -> None:
        """Nothing."""


def _conclude(out: Path, outcomes: Mapping[str, Outcome], seconds: float) -> None:
    rows = _pictures(outcomes)
    titles = ["image", "truth", *outcomes]
    last = list(outcomes.values())[-1]
    classes = last.session.dataset.classes
    picture_grid([row.cells for row in rows], titles, legend=classes, path=out / "pictures.png")
    report = Report(
        title="fewmask demo: street scenes, 12 masks",
        classes=classes,
        runs=[
            run_of(each.folder, name, seconds=each.pace.seconds, twin=name.startswith("supervised"))
            for name, each in outcomes.items()
        ],
        picture_titles=titles,
        pictures=rows,
        data=data_summary(last.session),
        next_commands=_next_commands(out),
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
        observer.say("try next:\n" + "\n".join(f"  {command}" for command in _next_commands(out)))


def _pictures(outcomes: Mapping[str, Outcome]) -> list[PictureRow]:
    session = next(iter(outcomes.values())).session
    predictors = {
        name: autocast_logits(each.session.method.networks()[each.selected], each.session.engine.device)
        for name, each in outcomes.items()
    }
    return picture_rows(session, predictors)


def _next_commands(out: Path) -> list[str]:
    best = CONTESTANTS[-1].name
    return [
        f"fewmask predict {out / best} {out / 'data/unlabeled'} --out {out / 'masks'} --confidence",
        f"fewmask check {out / 'data'}",
        "fewmask train YOUR_DATA --out runs/first",
    ]
