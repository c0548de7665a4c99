"""`fewmask reproduce NAME`: a table or figure of the paper."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from fewmask.cli import print_json
from fewmask.console import ConsoleObserver
from fewmask.errors import ConfigError
from fewmask.experiments.mnist import VARIANTS, Curve, Plan, run_experiment
from fewmask.experiments.mnist_data import read_digits
from fewmask.experiments.mnist_picture import draw
from fewmask.experiments.mnist_summary import summary
from fewmask.training.checkpoint import write_atomically
from fewmask.training.run_folder import describe_environment

NAMES = ("mnist",)
_NEXT = "fewmask train DATA --out RUN --method rml   # the same index, coupling/total_variation, in RUN/metrics.jsonl"


def run_reproduce(name: str, data: Path, out: Path, *, as_json: bool, changes: Mapping[str, Any]) -> int:
    """`changes` are fields of the experiment's plan; None leaves its own value."""
    if name not in NAMES:
        raise ConfigError(f"there is no experiment {name!r}", where="NAME", fix=", ".join(NAMES))
    given = {key: value for key, value in changes.items() if value is not None}
    return _mnist(data, out, replace(Plan(), **given), as_json)


def _mnist(data: Path, out: Path, plan: Plan, as_json: bool) -> int:
    train, test = read_digits(data, "train"), read_digits(data, "t10k")
    _claim(out)
    began = time.perf_counter()
    with ConsoleObserver() as observer:
        observer.say(_introduction(plan, len(train)))
        curves = run_experiment(train, test, plan, observer)
        seconds = round(time.perf_counter() - began, 1)
        content = {**summary(curves, plan), "seconds": seconds, "environment": describe_environment()}
        _write(out, content, curves)
        if not as_json:
            observer.console.print(_table(content))
            observer.say(_conclusion(content, out))
    if as_json:
        print_json(content)
    return 0


def _claim(out: Path) -> None:
    """Results are never overwritten; better to say so before the minutes than after."""
    if (out / "mnist.json").exists():
        raise ConfigError("the folder already holds this experiment", where=str(out), fix="another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder cannot be made: {error.strerror}"
        raise ConfigError(what, where=str(out), fix="another --out") from None


def _introduction(plan: Plan, images: int) -> str:
    titles = ", ".join(variant.title for variant in VARIANTS)
    return (
        f"two perceptrons of three layers, {images // plan.labels} labeled of {images} digits, "
        f"{plan.seeds} x {plan.steps} steps {_start(plan)} for each of: {titles}"
    )


def _start(plan: Plan) -> str:
    return f"after {plan.baseline_steps} supervised ones" if plan.baseline_steps else "from two initializations"


def _write(out: Path, content: dict[str, Any], curves: Sequence[Curve]) -> None:
    write_atomically(out / "mnist.png", lambda file: draw(curves, file))
    text = json.dumps(content, indent=1)
    write_atomically(out / "mnist.json", lambda file: file.write(text.encode()))


def _table(content: dict[str, Any]) -> Table:
    table = Table(title="total variation of the teachers' outputs, mean ± deviation over seeds", title_justify="left")
    for head in ("", "over training", "at the end", "test accuracy, %"):
        table.add_column(head, justify="right" if head else "left")
    for variant in VARIANTS:
        found = content["variants"][variant.name]
        apart = [f"{found[key]['mean']:.4f} ± {found[key]['deviation']:.4f}" for key in ("over_training", "at_end")]
        accuracy = found["test_accuracy"]
        table.add_row(variant.title, *apart, f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['deviation']:.1f}")
    return table


def _conclusion(content: dict[str, Any], out: Path) -> str:
    order, of = content["order"], content["order"]["seeds"]
    lines = [
        f"{when}: direct lowest in {order[key]['direct_lowest']} of {of} seeds, noise highest in "
        f"{order[key]['noise_highest']}, the paper's whole order in {order[key]['both']}"
        for when, key in (("over training", "over_training"), ("at the end", "at_end"))
    ]
    files = f"{content['seconds']:.0f} s. Picture: {out / 'mnist.png'}   Numbers: {out / 'mnist.json'}"
    return "\n".join([*lines, files, f"try next:\n  {_NEXT}"])
