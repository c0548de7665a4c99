"""`fewmask check`."""

from __future__ import annotations

from pathlib import Path

import typer

from fewmask.cli import print_json
from fewmask.config import Config
from fewmask.console import printable
from fewmask.data.check import check_folder, render
from fewmask.errors import ConfigError
from fewmask.settings import all_keys


def run_check(config: Config, *, as_json: bool) -> int:
    if config.settings:  # where words go that no section knows; here no method will read them
        keys = ", ".join(key for key in all_keys() if key.startswith("data."))
        raise ConfigError(f"unknown setting {next(iter(config.settings))!r}", where="command line", fix=keys)
    root = Path(config.data.root or ".")
    report = check_folder(root, config.data, config.seed)
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo(printable(f"{root.resolve()}\n{render(report)}"))
    return 0 if report.trainable else 1
