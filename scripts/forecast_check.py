"""Holds forecasts against what comes: `python scripts/forecast_check.py --preset camvid --steps 200 [key=value ...]`.

For each preset, over synthetic images of its data set's size: 10 steps on trial, then one stage of `--steps` real ones
with its sweep, checkpoints and diagnostics. Prints one JSON object per preset with both and their errors in percent.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fewmask.benchmarks.timing import surroundings
from fewmask.benchmarks.workloads import benchmark_config, session_before_sweep
from fewmask.training.costs import MOST_STEPS
from fewmask.training.device_memory import peak_allocated, peak_reserved, release, reset_peak
from fewmask.training.engine import choose_device
from fewmask.training.forecast import Forecast, run_parts
from fewmask.training.foresight import own_costs
from fewmask.training.loop import train
from fewmask.training.observer import Observer
from fewmask.training.run_folder import RunFolder


def check(preset: str, words: list[str], *, steps: int, device: torch.device) -> dict[str, Any]:
    config = benchmark_config(preset, [*words, f"training.steps={steps}", "settings.stages=1"])
    session = session_before_sweep(config, device=device, observer=Observer())
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        began = time.perf_counter()
        costs = own_costs(session, 0, MOST_STEPS, Observer())
        looking_ahead = time.perf_counter() - began
        parts = run_parts(config.training, costs, start=0, total=steps, staged=True)
        reset_peak(device)
        began = time.perf_counter()
        session, _ = train(session, folder, Observer(), 0)
        seconds = time.perf_counter() - began
    foreseen = Forecast(parts, costs.peak, 0)
    return {
        "benchmark": "forecast",
        "preset": preset,
        "steps": steps,
        "predicted_seconds": foreseen.seconds,
        "seconds": seconds,
        "time_error_percent": percent(foreseen.seconds, seconds),
        "predicted_peak_gib": costs.peak / 2**30,
        "peak_gib": peak_reserved(device) / 2**30,
        "memory_error_percent": percent(costs.peak, peak_reserved(device)),
        "peak_allocated_gib": peak_allocated(device) / 2**30,
        "looking_ahead_seconds": looking_ahead,
        "parts": [{"what": part.what, "count": part.count, "each": part.each} for part in parts],
        "captured": session.stepper.captures,
    }


def percent(predicted: float, actual: float) -> float:
    return 100 * (predicted - actual) / actual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", action="append", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write all of them to this file, too")
    parser.add_argument("words", nargs="*", help="key=value settings")
    asked = parser.parse_args()
    device = choose_device(asked.device)
    results = []
    for preset in asked.preset:
        release(device)
        found = check(preset, asked.words, steps=asked.steps, device=device)
        results.append(found | surroundings(device, f"python {' '.join(sys.argv)}"))
        sys.stdout.write(json.dumps(results[-1]) + "\n")
        sys.stdout.flush()
        if asked.out:
            asked.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
