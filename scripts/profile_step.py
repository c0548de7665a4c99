"""What kernels a step spends its time on: `python scripts/profile_step.py --preset paper-voc [key=value ...]`.

The session is that of `fewmask bench step`, or with `--reference` the step as research code writes it. Prints one JSON
object per preset: the step's milliseconds, and for each group of kernels the milliseconds that they ran and how many
they are, of one step. Learners run side by side, so the groups add up to more than the step takes. `--out FILE` under
benchmarks/results/speed is for the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from fewmask.benchmarks.reference import reference_call, require_comparable
from fewmask.benchmarks.timing import Kernel, kernels, median_ms, surroundings
from fewmask.benchmarks.workloads import benchmark_config, benchmark_session
from fewmask.config import Config
from fewmask.training.device_memory import release
from fewmask.training.engine import choose_device
from fewmask.training.observer import Observer

_STEPS = 3
# The first group with one of the words in a kernel's name has it. Inductor's kernels are named after what they fuse,
# but for those that it joined from several.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("convolutions, forward", ("fprop", "convolve_common", "mkldnn_convolution", "cudnn_convolution_")),
    ("convolutions, backward to maps", ("dgrad",)),
    ("convolutions, backward to weights", ("wgrad", "Wgrad", "convolution_backward (")),
    ("norms of teachers", ("no_training", "batch_norm_transform_input")),
    ("norms and activations, backward", ("norm_backward", "threshold_backward", "gradient_sums", "_gradients")),
    ("norms and activations, forward", ("batch_norm", "group_norm", "moment_sums", "_moments")),
    ("matrix products", ("nvjet", "gemm", "splitKreduce", "aten::mm", "aten::addmm")),
    ("optimizers and averages", ("multi_tensor_apply",)),
    ("losses", ("SoftMax", "nll_loss")),
    ("pooling", ("max_pool",)),
    ("changes of layout", ("nchwToNhwc", "nhwcToNchw")),
    ("up-sampling", ("upsample_",)),
    ("copies and casts", ("Memcpy", "memcpy", "Memset", "direct_copy", "fused__to_copy_", "aten::copy_")),
    ("compiled kernels, joined from several", ("triton_poi_fused_", "triton_red_fused_", "triton_per_fused_")),
)
REST = "views, masks and all else"


def group_of(name: str) -> str:
    return next((group for group, words in GROUPS if any(word in name for word in words)), REST)


def grouped(found: Iterable[Kernel]) -> list[dict[str, Any]]:
    """The longest first."""
    sums: dict[str, tuple[float, int]] = {}
    for name, ms, calls in found:
        before = sums.get(group_of(name), (0.0, 0))
        sums[group_of(name)] = (before[0] + ms, before[1] + calls)
    ordered = sorted(sums.items(), key=lambda item: -item[1][0])
    return [{"group": group, "ms": round(ms, 3), "kernels": calls} for group, (ms, calls) in ordered]


def profiled(asked: argparse.Namespace, preset: str, device: torch.device) -> dict[str, Any]:
    release(device)
    config = benchmark_config(preset, [*asked.words, "training.forecast=false"])
    step = _step(config, device, asked.reference)
    ms = median_ms(step, asked.steps, device)
    found = kernels(lambda number: step(asked.steps + number), _STEPS, device)
    return {
        "benchmark": "profile",
        "preset": preset,
        "state": asked.state,
        "ms": round(ms, 2),
        "groups": grouped(found),
    }


def _step(config: Config, device: torch.device, reference: bool) -> Callable[[int], object]:
    if not reference:
        return benchmark_session(config, device=device, observer=Observer()).stepper
    require_comparable(config)
    return reference_call(config, device)


def arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", action="append", required=True, help="may be repeated")
    parser.add_argument("--reference", action="store_true", help="the step as research code writes it")
    parser.add_argument("--state", default="as it is", help="what the page calls this profile")
    parser.add_argument("--steps", type=int, default=20, help="steps whose median is the step's time")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path)
    parser.add_argument("words", nargs="*", help="key=value")
    return parser.parse_intermixed_args(given)


def main(given: Sequence[str]) -> list[dict[str, Any]]:
    asked = arguments(given)
    device, rows = choose_device(asked.device), []
    for preset in asked.preset:
        found = profiled(asked, preset, device)
        rows.append(found | surroundings(device, f"python scripts/profile_step.py {' '.join(given)}"))
        if asked.out:
            asked.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:]), indent=1))  # noqa: T201
