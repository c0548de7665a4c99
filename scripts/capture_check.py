"""Do captured steps have the losses of computed ones, and what does deterministic mode cost? JSON on standard output.

    python scripts/capture_check.py --preset paper-voc --steps 50 training.compile=false

Each preset is trained over synthetic images with its true network, in fp32 (TF32 off) and bf16, deterministic and not:
computed step by step as the networks are written, captured (and compiled where the preset is), and captured once more.
The last tells what two equal runs differ by, since on a GPU that may add in any order none can come out smaller.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fewmask.benchmarks.timing import median_ms, surroundings
from fewmask.benchmarks.workloads import benchmark_config, benchmark_session
from fewmask.determinism import deterministic
from fewmask.training.device_memory import release
from fewmask.training.engine import choose_device
from fewmask.training.observer import Observer

Losses = list[dict[str, float]]  # of each step, by term
SPAN = 10  # steps that are summed up in one number


def check(
    preset: str, words: Sequence[str], *, precision: str, fixed: bool, device: torch.device, steps: int, timed: int
) -> dict[str, Any]:
    """One object: the largest relative differences, and the captured step's milliseconds."""
    settings = [*words, f"training.precision={precision}", "training.tf32=false", f"training.deterministic={fixed}"]

    def run(capture: bool) -> tuple[Losses, bool, float]:
        release(device)
        plain = [] if capture else ["training.compile=false"]
        config = benchmark_config(preset, [*settings, f"training.capture={capture}", *plain])
        with deterministic(fixed, device):
            session = benchmark_session(config, device=device, observer=Observer())
            losses = list(losses_of(session.stepper, session.engine.flush, steps))
            ms = median_ms(lambda number: session.stepper(steps + number), timed, device) if capture else 0.0
        return losses, session.stepper.graph is not None, ms

    computed, _, _ = run(capture=False)
    captured, really, ms = run(capture=True)
    again, _, _ = run(capture=True)
    return {
        "benchmark": "capture",
        "preset": preset,
        "precision": precision,
        "deterministic": fixed,
        "captured": really,
        "compiled": benchmark_config(preset, settings).training.compile,
        "ms": ms,
        "captured_from_computed": differences(computed, captured),
        "captured_from_itself": differences(captured, again),
    }


def losses_of(
    step: Callable[[int], None], flush: Callable[[], dict[str, float]], steps: int
) -> Iterator[dict[str, float]]:
    for number in range(steps):
        step(number)
        yield {name: value for name, value in flush().items() if name.startswith("loss/")}


def differences(one: Losses, other: Losses) -> list[float]:
    """The largest relative difference of any loss within each SPAN steps."""
    each = [
        max(abs(first[name] - second[name]) / max(abs(first[name]), 1e-12) for name in first)
        for first, second in zip(one, other, strict=True)
    ]
    return [max(each[start : start + SPAN]) for start in range(0, len(each), SPAN)]


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", action="append", required=True, help="may be repeated")
    parser.add_argument(
        "--precision", action="append", choices=("fp32", "bf16", "fp64"), help="fp32 and bf16 without it"
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--timed", type=int, default=20, help="steps whose time is measured")
    parser.add_argument("--device")
    parser.add_argument("words", nargs="*", help="key=value")
    return parser.parse_intermixed_args(given)


def main(given: Sequence[str]) -> list[dict[str, Any]]:
    asked = arguments(given)
    device = choose_device(asked.device)
    runs = {"device": device, "steps": asked.steps, "timed": asked.timed}
    return [
        check(preset, asked.words, precision=precision, fixed=fixed, **runs)
        | surroundings(device, f"python scripts/capture_check.py {' '.join(given)}")
        for fixed in (True, False)  # first the one that must come before anything else has used the GPU
        for preset in asked.preset
        for precision in asked.precision or ("fp32", "bf16")
    ]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:]), indent=2))  # noqa: T201
