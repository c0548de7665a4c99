"""Renders a report as one HTML page that needs nothing else: style, pictures and curves are inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from fewmask.labels import IGNORE
from fewmask.report.charts import charts
from fewmask.report.contents import PictureRow, Report, Run, points
from fewmask.report.curves import PALETTE
from fewmask.report.pictures import colorize, to_data_uri
from fewmask.training.forecast import duration

_PICTURE_WIDTH = 480
_NOTHING = "–"  # noqa: RUF001


def write_report(path: Path, report: Report) -> None:
    """Writes the page; every text is escaped, so a file or class name cannot become markup."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    page = environment.get_template("page.html").render(
        report=report,
        style=Markup((Path(__file__).parent / "page.css").read_text(encoding="utf-8")),
        legend=[(name, f"rgb{tuple(map(int, color))}") for name, color in _legend(report)],
        ignored=any(cell.ndim == 2 and (cell == IGNORE).any() for row in report.pictures for cell in row.cells),
        pictures=[(row.name, _pictures(row, report)) for row in report.pictures],
        run_rows=[_run_row(run, report) for run in report.runs],
        class_rows=[_class_row(name, color, report) for name, color in _legend(report)],
        network_tables=[_networks(run) for run in report.runs if run.evaluation],
        charts=charts(report),
        settings=_settings(report.runs),
    )
    path.write_text(page, encoding="utf-8")


def percent(value: float | None) -> str:
    return _NOTHING if value is None else f"{value * 100:.1f}"


def signed(value: float | None, other: float | None) -> tuple[str, str]:
    """A difference in points, and whether it is better, worse or even."""
    if value is None or other is None:
        return _NOTHING, "even"
    difference = points(value - other)
    if difference == 0:
        return "0.0", "even"
    return (f"+{difference:.1f}", "better") if difference > 0 else (f"\u2212{-difference:.1f}", "worse")


def _legend(report: Report) -> list[tuple[str, tuple[int, int, int]]]:
    return list(zip(report.classes.names, report.classes.colors, strict=True))


def _pictures(row: PictureRow, report: Report) -> list[tuple[str, str, str]]:
    """Title, kind and picture of each cell."""
    cells = []
    for title, cell in zip(report.picture_titles, row.cells, strict=True):
        if cell.ndim == 2:
            crisp = _shrunk(colorize(cell, report.classes.colors), Image.Resampling.NEAREST)
            cells.append((title, "label", to_data_uri(crisp)))
        else:
            cells.append((title, "photo", to_data_uri(_shrunk(cell, Image.Resampling.BICUBIC), lossless=False)))
    return cells


def _shrunk(picture: NDArray[np.integer], how: Image.Resampling) -> NDArray[np.uint8]:
    height, width = picture.shape[:2]
    if width <= _PICTURE_WIDTH:
        return picture.astype(np.uint8)
    size = (_PICTURE_WIDTH, max(1, round(height * _PICTURE_WIDTH / width)))
    return np.asarray(Image.fromarray(picture.astype(np.uint8)).resize(size, how))


def _run_row(run: Run, report: Report) -> dict[str, Any]:
    best = max((other.miou for other in report.runs if other.miou is not None), default=None)
    return {
        "run": run,
        "color": PALETTE[list(report.runs).index(run) % len(PALETTE)],
        "best": len(report.runs) > 1 and run.miou is not None and points(run.miou - (best or 0)) == 0,
        "differences": [("", "even") if twin is run else signed(run.miou, twin.miou) for twin in report.twins],
        "time": _NOTHING if run.seconds is None else duration(run.seconds),
    }


def _class_row(name: str, color: tuple[int, int, int], report: Report) -> dict[str, Any]:
    """One class: a bar per run, the best one marked, and each method's distance from the strongest twin."""
    values = [run.iou(name) for run in report.runs]
    best = max((value for value in values if value is not None), default=None)
    bars = [
        {
            "value": value,
            "color": PALETTE[index % len(PALETTE)],
            "best": len(values) > 1 and value is not None and points(value - (best or 0)) == 0,
        }
        for index, value in enumerate(values)
    ]
    twin = report.twins[0] if report.twins else None
    differences = [signed(run.iou(name), twin.iou(name)) for run in report.methods] if twin else []
    return {"name": name, "color": f"rgb{tuple(map(int, color))}", "bars": bars, "differences": differences}


def _networks(run: Run) -> dict[str, Any]:
    """Every network that was scored, and on what the choice was made."""
    evaluation = run.evaluation or {}
    chosen_on = evaluation.get("selected_on")
    if len(evaluation["networks"]) == 1:
        choice = f"one network, {run.selected}"
    elif chosen_on is None:
        choice = f"{run.selected} was not chosen by any score"
    else:
        choice = f"{run.selected} was chosen on {chosen_on}"
        if chosen_on == evaluation.get("split"):
            choice += ", the split that is scored here, which flatters it a little"
    return {"run": run, "networks": evaluation["networks"], "split": evaluation.get("split"), "choice": choice}


def _settings(runs: Sequence[Run]) -> dict[str, list[tuple[str, list[str]]]]:
    """Settings by key with one value per run: those that differ, and those that do not."""
    flat = [_flat(run.config) for run in runs]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    rows = [(key, [settings.get(key, _NOTHING) for settings in flat]) for key in keys]
    return {
        "different": [row for row in rows if len(set(row[1])) > 1],
        "same": [(key, values[:1]) for key, values in rows if len(set(values)) == 1],
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + str(key)] = str(value)
    return flat
