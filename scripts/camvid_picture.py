"""The picture of CamVid's comparison: what each run reaches, for each draw of labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fewmask.report.curves import PALETTE

_INK, _QUIET, _GRID = "#333333", "#8a8a8a", "#dddddd"
_MARKS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (  # label, columns, how they are drawn
    ("supervised, two seeds", ("weak_twin", "weak_twin,_seed_1"), {"marker": "o", "mfc": "white", "color": _QUIET}),
    ("supervised with color noise", ("strong_twin",), {"marker": "x", "color": _QUIET}),
    ("rml, teacher 1", ("teacher_1",), {"marker": "o", "color": PALETTE[0]}),
    ("rml, both teachers", ("ensemble",), {"marker": "D", "color": PALETTE[1]}),
)


def draw(content: Mapping[str, Any], path: Path) -> None:
    """A row for each draw of labels, a mark for each run, as PNG."""
    figure = Figure(figsize=(8.6, 3.3), layout="constrained")
    axes = figure.subplots()
    for place, run in enumerate(content["runs"]):
        _row(axes, place, run)
    labels = [_label(run["draw"]) for run in content["runs"]]
    axes.set_yticks(range(len(labels)), labels, color=_INK)
    axes.invert_yaxis()
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel("val mIoU, %", color=_INK)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.tick_params(colors=_INK, length=0)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    handles = [Line2D([], [], linestyle="", label=label, **style) for label, _, style in _MARKS]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=len(handles), frameon=False, labelcolor=_INK, fontsize=9
    )
    figure.savefig(path, dpi=150, metadata={"Description": source(content)})


def source(content: Mapping[str, Any]) -> str:
    """What the picture shows, for a test that it is still that."""
    return hashlib.sha256(json.dumps(content["runs"]).encode()).hexdigest()


def _row(axes: Axes, place: int, run: Mapping[str, Any]) -> None:
    """From the supervised runs' mean to what ships, a line."""
    weak = _values(run, _MARKS[0][1])
    axes.plot([sum(weak) / len(weak), run["teacher_1"]], [place, place], color=PALETTE[0], linewidth=2, alpha=0.35)
    for _, columns, style in _MARKS:
        values = _values(run, columns)
        axes.plot(values, [place] * len(values), linestyle="", markersize=7, **style)


def _label(draw: str) -> str:
    return f"46 masks, draw {draw}" if draw.isdigit() else {"mean": "mean of the three draws"}.get(draw, draw)


def _values(run: Mapping[str, Any], columns: Sequence[str]) -> list[float]:
    return [float(run[column]) for column in columns if run[column] != ""]
