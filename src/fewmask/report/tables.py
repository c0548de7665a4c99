"""Scores as a table for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from fewmask.evaluation.confusion import Scores


def scores_table(scores: Mapping[str, Scores], title: str | None = None) -> Table:
    """A row per class and a column per network, in percent; the best of each row is bold.

    Names are Text, so that no console reads `[red]car` as markup.
    """
    table = Table(title=Text(title) if title else None, title_justify="left")
    table.add_column("IoU, %")
    for name in scores:
        table.add_column(Text(name), justify="right")
    classes = next(iter(scores.values())).iou
    for each in classes:
        table.add_row(Text(each), *_cells([one.iou[each] for one in scores.values()]))
    table.add_section()
    table.add_row("mean (mIoU)", *_cells([one.miou for one in scores.values()]))
    table.add_row("pixel accuracy", *_cells([one.pixel_accuracy for one in scores.values()]))
    return table


def _cells(values: list[float | None]) -> list[Text]:
    values = [None if value is None or math.isnan(value) else value for value in values]  # nan: no pixel was scored
    known = [value for value in values if value is not None]
    best = max(known) if len(set(known)) > 1 else None  # of equals none is best
    return [_cell(value, bold=best is not None and value == best) for value in values]


def _cell(value: float | None, bold: bool) -> Text:
    return Text("-" if value is None else f"{100 * value:.1f}", style="bold" if bold else "")
