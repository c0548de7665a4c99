"""How long a run will take and how much memory it needs: measured costs times what the settings say will happen.

    seconds = steps * step + stages * (sweep + restart) + looks * diagnosis + saves * checkpoint + scorings * validation

A step includes everything from the choice of images to the teachers' update. What is left out (lines of metrics, files
that are waited for, sessions of baselines) took 5 of 140 s in a short run (benchmarks/README.md). Time that was spent
before the forecast is said, such as reading images and compiling, is not in it. Peak memory is what the tried steps,
sweep, validation and save needed: each of them was done once, on the largest images, in the order of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fewmask.config import TrainingSettings
from fewmask.training.clock import CHECKPOINTS, LOOKS, START, STARTS, STEPS, SWEEPS, VALIDATIONS, Clock
from fewmask.training.costs import Costs

_TOLD = 0.01  # parts that take a smaller share of the time are summed up


@dataclass(frozen=True)
class Part:
    """Something that happens `count` times."""

    what: str
    count: int
    each: float  # seconds

    @property
    def seconds(self) -> float:
        return self.count * self.each

    def __str__(self) -> str:
        return f"{self.what} {self.count} x {duration(self.each)}"


@dataclass(frozen=True)
class Forecast:
    parts: tuple[Part, ...]
    peak: int  # bytes
    capacity: int
    baselines: tuple[Costs | None, ...] = ()  # what was measured of each baseline that will be trained first

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    def time_line(self) -> str:
        told = [part for part in self.parts if part.seconds >= _TOLD * self.seconds]
        rest = self.seconds - sum(part.seconds for part in told)
        words = [*map(str, told), *([f"the rest {duration(rest)}"] if rest > 0 else [])]
        return f"{', '.join(words)}: about {duration(self.seconds)} in all"

    def memory_line(self, advice: str = "") -> str:
        """`advice` is said where the peak is more than there is."""
        if self.peak <= self.capacity:
            return f"peak about {gibibytes(self.peak)} of {gibibytes(self.capacity)}"
        missing = f"{gibibytes(self.peak - self.capacity)} more than the {gibibytes(self.capacity)} that there are"
        return f"peak about {gibibytes(self.peak)}, {missing}: the run will not fit; {advice}".rstrip("; ")


def run_parts(
    training: TrainingSettings,
    costs: Costs,
    *,
    start: int,
    total: int,
    staged: bool,
    dropped: bool = False,
    saved: bool = True,
    prefix: str = "",
) -> tuple[Part, ...]:
    """What happens from step `start` on.

    `dropped`: the session that was measured is not the one that will run. `saved`: the state at `start` is on the disk.
    """
    steps = training.steps
    stages = math.ceil(total / steps) - math.ceil(start / steps) if staged else 0  # those that have not begun
    stage_ends = happening(start, total, steps)
    regular = happening(start, total, training.checkpoint_every)
    both = happening(start, total, math.lcm(steps, training.checkpoint_every))
    parts = (
        Part(STEPS, total - start, costs.step),
        Part(SWEEPS, stages, costs.sweep),
        Part(STARTS if staged else START, stages or int(dropped), costs.restart),
        Part(LOOKS, happening(start, total, training.diagnose_every), costs.diagnosis),
        Part(CHECKPOINTS, regular + stage_ends - both + int(not saved), costs.checkpoint),
        Part(VALIDATIONS, happening(start, total, training.evaluate_every) + 1, costs.validation),
    )
    return tuple(Part(f"{prefix}{part.what}", part.count, part.each) for part in parts if part.count and part.each)


def happening(start: int, total: int, every: int) -> int:
    """How many of the steps after `start`, up to `total`, are multiples of `every`; 0 is never."""
    return total // every - start // every if every else 0


def comparison(
    forecast: Forecast | None, clock: Clock, *, seconds: float | None = None, peak: int | None = None
) -> dict[str, Any]:
    """What timing.json holds: what was foreseen, and what came; None is what nobody knows."""
    foreseen = {
        "seconds": forecast.seconds if forecast else None,
        "peak_bytes": forecast.peak if forecast else None,
        "parts": [{"what": part.what, "count": part.count, "each": part.each} for part in forecast.parts]
        if forecast
        else [],
    }
    return {
        "predicted": foreseen,
        "actual": {"seconds": seconds, "peak_bytes": peak, "parts": clock.parts() if seconds else []},
    }


def comparison_line(forecast: Forecast, *, seconds: float, peak: int) -> str:
    time = f"{duration(seconds)} (forecast {duration(forecast.seconds)})"
    return f"took {time}, peak {gibibytes(peak)} (forecast {gibibytes(forecast.peak)})"


def largest_peak(costs: Sequence[Costs | None]) -> int:
    return max((each.peak for each in costs if each is not None), default=0)


def duration(seconds: float) -> str:
    """In two units at most, and in no more digits than matter."""
    if seconds < 9.95:
        return f"{1000 * seconds:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 10:
        return f"{minutes} min {left} s" if minutes else f"{left} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def gibibytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
