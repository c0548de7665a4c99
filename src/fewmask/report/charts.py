"""Which curves a page shows: scores and losses, what the pseudo labels are worth, and the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from fewmask.data.dataset import Classes
from fewmask.report.contents import Report, Run
from fewmask.report.curves import PALETTE, Point, curve_svg

_SCORE = re.compile(r"(^|[/_.])m?iou")
# Title -> metric -> its name in the chart; all are shares, drawn in percent
_PSEUDO_LABELS: Mapping[str, Mapping[str, str]] = {
    "pseudo labels against hidden masks": {
        "pseudo/accuracy": "accuracy",
        "pseudo/miou": "mean IoU",
        "rectification/miou_before": "mean IoU of p0 alone",
    },
    "coupling: total variation of the teachers": {"coupling/total_variation": "total variation"},
    "rectification: labels it flips": {"rectification/flipped": "flipped"},
    "flipped labels that are right": {
        "rectification/flips_right": "after the flip",
        "rectification/flips_from_right": "before it",
    },
}
_CLASS_IOU, _CLASS_SHARE, _CLASS_PRIOR = "pseudo_iou/", "pseudo_share/", "prior_share/"


def charts(report: Report) -> dict[str, list[Markup]]:
    """Charts by section; those of single metrics have a line per run."""
    runs = report.runs
    found: dict[str, list[Markup]] = {"scores": [], "losses": [], "pseudo_labels": [], "others": []}
    for title, metrics in _PSEUDO_LABELS.items():
        if lines := _lines(runs, metrics):
            found["pseudo_labels"].append(Markup(curve_svg(_percent(lines), title, "percent")))
    taken = {name for metrics in _PSEUDO_LABELS.values() for name in metrics}
    colors = {run.name: PALETTE[index % len(PALETTE)] for index, run in enumerate(runs)}
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        if name in taken or name.startswith((_CLASS_IOU, _CLASS_SHARE, _CLASS_PRIOR)):
            continue
        lines = {run.name: run.metrics[name] for run in runs if name in run.metrics}
        in_percent = _SCORE.search(name) is not None
        chart = curve_svg(_percent(lines) if in_percent else lines, name, "percent" if in_percent else "", colors)
        found[_section(name)].append(Markup(chart))
    found["others"] += [chart for run in runs for chart in _class_charts(run, report.classes, alone=len(runs) == 1)]
    return found


def _section(name: str) -> str:
    if name.startswith("pseudo"):
        return "others"
    return "scores" if _SCORE.search(name) else "losses" if "loss" in name else "others"


def _lines(runs: Iterable[Run], metrics: Mapping[str, str]) -> dict[str, Sequence[Point]]:
    """The named metrics of all runs that have them; with several such runs, the run stands before the name."""
    having = [run for run in runs if any(metric in run.metrics for metric in metrics)]
    return {
        name if len(having) == 1 else f"{run.name}: {name}": run.metrics[metric]
        for run in having
        for metric, name in metrics.items()
        if metric in run.metrics
    }


def _class_charts(run: Run, classes: Classes, *, alone: bool) -> Iterable[Markup]:
    """A line per class: IoU of the pseudo labels, and how often each is taught, dashed what the labeled pixels say."""
    before = "" if alone else f"{run.name}: "
    colors = {
        name: "#{:02x}{:02x}{:02x}".format(*color) for name, color in zip(classes.names, classes.colors, strict=True)
    }
    iou, share, prior = (_by_class(run, prefix, classes) for prefix in (_CLASS_IOU, _CLASS_SHARE, _CLASS_PRIOR))
    if iou:
        yield Markup(curve_svg(_percent(iou), f"{before}IoU of pseudo labels", "percent", colors))
    if share:
        levels = {name: 100 * line[-1][1] for name, line in prior.items()}
        title = f"{before}share of pseudo labels (dashed: of labeled pixels)"
        yield Markup(curve_svg(_percent(share), title, "percent", colors, levels))


def _by_class(run: Run, prefix: str, classes: Classes) -> dict[str, Sequence[Point]]:
    return {name: run.metrics[prefix + name] for name in classes.names if prefix + name in run.metrics}


def _percent(lines: Mapping[str, Sequence[Point]]) -> dict[str, list[Point]]:
    return {name: [(step, value * 100) for step, value in line] for name, line in lines.items()}
