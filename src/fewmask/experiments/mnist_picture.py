"""The MNIST experiment as a picture: the paper's curve, and beside it how good the pseudo labels were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fewmask.experiments.mnist import VARIANTS, Curve
from fewmask.experiments.mnist_summary import band, of_variant
from fewmask.report.curves import PALETTE

_INK, _GRID = "#333333", "#dddddd"


def draw(curves: Sequence[Curve], file: BinaryIO) -> None:
    """Mean over the seeds with a band of one standard deviation, as PNG."""
    figure = Figure(figsize=(10.4, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, "How far the two learners are apart", "total variation of the teachers' outputs")
    _panel(right, "How good their labels are", "accuracy of the teachers on unlabeled digits")
    for variant, color in zip(VARIANTS, PALETTE, strict=False):
        own = of_variant(curves, variant)
        _line(left, own[0].steps, [curve.total_variation for curve in own], color, variant.title)
        _line(right, own[0].steps, [curve.label_accuracy for curve in own], color, variant.title)
    left.set_ylim(bottom=0)
    left.legend(frameon=False, labelcolor=_INK, title=_seeds(curves), title_fontsize="small", alignment="left")
    figure.savefig(file, format="png", dpi=150)


def _panel(axes: Axes, title: str, y_label: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    axes.set_xlabel("step", color=_INK)
    axes.set_ylabel(y_label, color=_INK)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.tick_params(colors=_INK, length=0)
    axes.margins(x=0.01)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _line(axes: Axes, steps: Sequence[int], series: Sequence[Sequence[float]], color: str, title: str) -> None:
    mean, deviation = band(series)
    low = [value - apart for value, apart in zip(mean, deviation, strict=True)]
    high = [value + apart for value, apart in zip(mean, deviation, strict=True)]
    axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(steps, mean, color=color, linewidth=2, label=title)


def _seeds(curves: Sequence[Curve]) -> str:
    count = len({curve.seed for curve in curves})
    return "one seed" if count == 1 else f"mean of {count} seeds, band: one standard deviation"
