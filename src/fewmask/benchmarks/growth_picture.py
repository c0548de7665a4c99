"""The picture of `fewmask bench data --growth`: start-up, memory and step time over the number of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewmask.report.curves import PALETTE

_PANELS = (  # title, unit, and the lines of each panel
    ("Start-up per image", "ms", (("reading_ms_per_image", "check and read"), ("sweep_ms_per_image", "sweep"))),
    ("Host memory", "MiB", (("resident_mib", "process"), ("store_mib", "decoded images, soft labels"))),
    ("Step", "ms", (("step_ms", "whole step"), ("batch_ms", "its batch alone"))),
)


def draw_growth(result: Mapping[str, Any], path: Path) -> None:
    """PNG, SVG or PDF, as the name ends; the form is that of the report's curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for axes, (title, unit, lines) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        _draw_panel(axes, result["rows"], lines)
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.set_title(unit, loc="right", fontsize=9, alpha=0.75)
    budget = f"the store may take {result['budget_mib']:g} MiB of memory"
    figure.suptitle(f"{result['machine']}, {result['date']}; {budget}", fontsize=9, alpha=0.75)
    figure.savefig(path, dpi=150)


def _draw_panel(axes: Any, rows: Sequence[Mapping[str, float]], lines: Sequence[tuple[str, str]]) -> None:
    sizes = [row["unlabeled_images"] for row in rows]
    for (key, label), color in zip(lines, PALETTE, strict=False):
        axes.plot(sizes, [row[key] for row in rows], color=color, linewidth=2, marker="o", markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("unlabeled images", fontsize=9, alpha=0.75)
    axes.grid(axis="y", alpha=0.15)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=8, length=0)
    axes.legend(frameon=False, fontsize=8)
