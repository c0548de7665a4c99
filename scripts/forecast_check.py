"""Holds forecasts against what comes: `python scripts/forecast_check.py --preset camvid --steps 200 [key=value ...]`.

For each preset, over synthetic images of its data set's size, a whole run: its plan, which looks ahead as it does for
every user, a baseline of `--steps` steps, one stage of as many with sweep, checkpoints and diagnostics, and the scores.
Prints one JSON object per preset with what was foreseen, what came, and the errors in percent.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fewmask.benchmarks.timing import surroundings
from fewmask.benchmarks.workloads import benchmark_config, session_before_sweep
from fewmask.config import Config
from fewmask.errors import ConfigError
from fewmask.training.device_memory import peak_allocated, release
from fewmask.training.engine import choose_device
from fewmask.training.observer import Observer
from fewmask.training.run import run_session
from fewmask.training.run_folder import RunFolder

VAL = 64  # images


class LookingAhead(Observer):
    """Notes how long the steps on trial took, with all that is measured beside them."""

    def __init__(self) -> None:
        self.began, self.seconds = 0.0, 0.0

    def advance(self, task: str, done: int, total: int) -> None:
        if task.startswith("trying") and done == 0:
            self.began = time.perf_counter()
        elif task.startswith("trying") and done == total:
            self.seconds += time.perf_counter() - self.began


def check(preset: str, words: Sequence[str], *, steps: int, device: torch.device, val: int = VAL) -> dict[str, Any]:
    config = short_config(preset, words, steps)
    session = session_before_sweep(config, device=device, observer=Observer(), val=val)
    ahead = LookingAhead()
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        outcome = run_session(session, folder, resume=False, starts={}, observer=ahead)
        timing = json.loads(folder.timing.read_text())
    foreseen, came = timing["predicted"], timing["actual"]
    if foreseen["seconds"] is None:
        raise ConfigError(f"a run of {steps} steps does not look ahead", where="--steps", fix="200")
    return {
        "benchmark": "forecast",
        "preset": preset,
        "steps": steps,
        "predicted_seconds": foreseen["seconds"],
        "seconds": came["seconds"],
        "time_error_percent": percent(foreseen["seconds"], came["seconds"]),
        "predicted_peak_gib": foreseen["peak_bytes"] / 2**30,
        "peak_gib": came["peak_bytes"] / 2**30,
        "memory_error_percent": percent(foreseen["peak_bytes"], came["peak_bytes"]),
        "peak_allocated_gib": peak_allocated(device) / 2**30,
        "looking_ahead_seconds": ahead.seconds,
        "parts": foreseen["parts"],
        "parts_that_came": came["parts"],
        "captured": outcome.session.stepper.captures,
    }


def short_config(preset: str, words: Sequence[str], steps: int) -> Config:
    """The preset with one stage of so many steps, unless words say otherwise, and a baseline as long."""
    config = benchmark_config(preset, [f"training.steps={steps}", "settings.stages=1", *words])
    baseline = {**config.baseline, "training": {**config.baseline.get("training", {}), "steps": steps}}
    return config.model_copy(update={"baseline": baseline})


def percent(predicted: float, actual: float) -> float:
    return 100 * (predicted - actual) / actual


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", action="append", required=True, help="may be repeated")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--val", type=int, default=VAL, help="validation images")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write all of them to this file, too")
    parser.add_argument("words", nargs="*", help="key=value settings")
    return parser.parse_intermixed_args(given)


def main(given: Sequence[str]) -> None:
    asked = arguments(given)
    device = choose_device(asked.device)
    results = []
    for preset in asked.preset:
        release(device)
        found = check(preset, asked.words, steps=asked.steps, device=device, val=asked.val)
        results.append(found | surroundings(device, f"python scripts/forecast_check.py {' '.join(given)}"))
        sys.stdout.write(json.dumps(results[-1]) + "\n")
        sys.stdout.flush()
        if asked.out:
            asked.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
