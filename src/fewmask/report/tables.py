"""Scores as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from fewmask.evaluation.confusion import Scores


def scores_table(scores: Mapping[str, Scores], title: str | None = None) -> Table:
    """A row per class and a column per network, in percent; the best of each row is bold."""
    table = Table(title=title, title_justify="left")
    table.add_column("IoU, %")
    for name in scores:
        table.add_column(name, justify="right")
    classes = next(iter(scores.values())).iou
    for each in classes:
        table.add_row(each, *_cells([one.iou[each] for one in scores.values()]))
    table.add_section()
    table.add_row("mean (mIoU)", *_cells([one.miou for one in scores.values()]))
    table.add_row("pixel accuracy", *_cells([one.pixel_accuracy for one in scores.values()]))
    return table


def _cells(values: list[float | None]) -> list[str]:
    best = max((value for value in values if value is not None), default=None)
    several = len(values) > 1
    return [_cell(value, bold=several and value == best) for value in values]


def _cell(value: float | None, bold: bool) -> str:
    if value is None:
        return "-"
    return f"[bold]{100 * value:.1f}[/bold]" if bold else f"{100 * value:.1f}"
