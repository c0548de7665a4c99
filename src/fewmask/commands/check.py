"""`fewmask check`."""

from __future__ import annotations

from pathlib import Path

import typer

from fewmask.cli import print_json
from fewmask.config import Config
from fewmask.data.check import check_folder, render


def run_check(config: Config, *, as_json: bool) -> int:
    report = check_folder(Path(config.data.root or "."), config.data, config.seed)
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo(render(report))
    return 0 if report.trainable else 1
