"""`fewmask check`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import typer

from fewmask.cli import print_json
from fewmask.config import Config, DataSettings
from fewmask.console import ConsoleObserver, printable
from fewmask.data.check import check_folder, render
from fewmask.errors import ConfigError
from fewmask.settings import all_keys, written


def run_check(config: Config, *, as_json: bool) -> int:
    if config.settings:  # where words go that no section knows; here no method will read them
        keys = ", ".join(key for key in all_keys() if key.startswith("data."))
        raise ConfigError(f"unknown setting {next(iter(config.settings))!r}", where="command line", fix=keys)
    root = Path(config.data.root or ".")
    with ConsoleObserver() as observer:
        report = check_folder(root, config.data, config.seed, partial(observer.advance, "checking"))
    if as_json:
        print_json(report.to_json())
    else:
        following = [_next(config, report.dataset["images"]["unlabeled"])] if report.trainable else []
        typer.echo(printable("\n".join([str(root.resolve()), render(report), *following])))
    return 0 if report.trainable else 1


def _next(config: Config, unlabeled: int) -> str:
    """Training on just what was checked; without unlabeled images only the supervised method makes sense."""
    usual = DataSettings(root=config.data.root)
    chosen = [f"data.{key}={written(value)}" for key, value in config.data if value != getattr(usual, key)]
    seed = ["--seed", str(config.seed)] if config.seed else []
    method = [] if unlabeled else ["--method", "supervised"]
    words = ["fewmask", "train", str(config.data.root), "--out", "runs/first", *method, *seed, *chosen]
    return f"next: {shlex.join(words)}"
