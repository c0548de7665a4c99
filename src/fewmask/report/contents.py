"""What a report says: runs side by side, and the verdict in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewmask.data.dataset import Classes
from fewmask.report.curves import Point


@dataclass(frozen=True)
class Run:
    """One trained method. `evaluation` is what evaluation.json holds, None when there was nothing to score on."""

    name: str  # unique on the page
    evaluation: Mapping[str, Any] | None = None
    metrics: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    twin: bool = False  # a supervised baseline that the other runs are measured against
    note: str = ""

    @property
    def selected(self) -> str:
        return str(self.evaluation["selected"]) if self.evaluation else ""

    @property
    def scores(self) -> Mapping[str, Any]:
        """The entry of the selected network: miou, iou, pixel_accuracy, frequency_weighted_iou."""
        return self.evaluation["networks"][self.selected] if self.evaluation else {}

    @property
    def miou(self) -> float | None:
        return self.scores.get("miou")

    def iou(self, class_name: str) -> float | None:
        found: float | None = self.scores.get("iou", {}).get(class_name)
        return found


@dataclass(frozen=True)
class PictureRow:
    """One image and what was made of it: pictures [H, W, 3] uint8 or label maps [H, W], one per column."""

    name: str
    cells: Sequence[NDArray[np.integer]]


@dataclass(frozen=True)
class Report:
    """Everything on the page; texts may hold anything, the page escapes them."""

    title: str
    classes: Classes
    runs: Sequence[Run]
    picture_titles: Sequence[str] = ()
    pictures: Sequence[PictureRow] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    next_commands: Sequence[str] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def twins(self) -> list[Run]:
        """The scored twins, strongest first: the first one is what the unlabeled images have to beat."""
        return _best_first(run for run in self.runs if run.twin)

    @property
    def methods(self) -> list[Run]:
        """The other scored runs, best first."""
        return _best_first(run for run in self.runs if not run.twin)

    def verdict(self) -> str:
        """The outcome in one sentence."""
        best = _best_first(self.runs)
        if not best:
            return "There were no held-out labels to score on."
        if self.methods and self.twins:
            return _against_twins(self.methods[0], self.twins, self.classes.names)
        if len(best) > 1:
            return f"{best[0].name} is best: {_distance(best[0], best[1])}."
        return _alone(best[0], self.classes.names)


def points(difference: float) -> float:
    """A difference of fractions in points, rounded as it is shown."""
    return round(difference * 100, 1)


def _best_first(runs: Iterable[Run]) -> list[Run]:
    return sorted((run for run in runs if run.miou is not None), key=lambda run: run.miou or 0.0, reverse=True)


def _against_twins(method: Run, twins: Sequence[Run], class_names: Sequence[str]) -> str:
    distances = " and ".join(_distance(method, twin) for twin in twins)
    strongest = twins[0]
    above = points((method.miou or 0) - (strongest.miou or 0))
    named = strongest.name if len(twins) > 1 else ""
    if above <= 0:
        better = _changed(method, strongest, class_names, +1)
        detail = f"the unlabeled images did not help here; {_on(better, 'better', named)}"
    else:
        detail = _on(_changed(method, strongest, class_names, -1), "worse", named)
    return f"{method.name} is {distances}; {detail}."


def _on(classes: str, how: str, other: str) -> str:
    if not classes:
        return f"no class is {how}" + (f" than with {other}" if other else "")
    return f"it is {how}" + (f" than {other}" if other else "") + f" on: {classes}"


def _distance(run: Run, other: Run) -> str:
    difference = points((run.miou or 0) - (other.miou or 0))
    if difference == 0:
        return f"level with {other.name}"
    return f"{abs(difference):.1f} points {'above' if difference > 0 else 'below'} {other.name}"


def _changed(run: Run, other: Run, class_names: Sequence[str], sign: int) -> str:
    """Classes on which the run differs in that direction, the largest difference first."""
    changes = []
    for name in class_names:
        mine, theirs = run.iou(name), other.iou(name)
        if mine is not None and theirs is not None and points(mine - theirs) * sign > 0:
            changes.append((abs(mine - theirs), name))
    return ", ".join(name for _, name in sorted(changes, reverse=True))


def _alone(run: Run, class_names: Sequence[str]) -> str:
    scored = [(value, name) for name in class_names if (value := run.iou(name)) is not None]
    reached = f"{run.name} reaches {(run.miou or 0) * 100:.1f} % mean IoU"
    if len(scored) < 2:
        return f"{reached}."
    (low, weakest), (high, strongest) = min(scored), max(scored)
    return f"{reached}; best on {strongest} ({high * 100:.1f} %), weakest on {weakest} ({low * 100:.1f} %)."
