"""`fewmask bench train`: the training loop, with its logging, diagnostics and checkpoints, beside the bare step."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fewmask.benchmarks.step import measure_session
from fewmask.benchmarks.workloads import benchmark_session
from fewmask.config import Config
from fewmask.determinism import deterministic
from fewmask.errors import ConfigError
from fewmask.methods.rml import RMLSettings
from fewmask.settings import read_section
from fewmask.training.checkpoint import CheckpointWriter, list_checkpoints
from fewmask.training.device_memory import release
from fewmask.training.loop import train
from fewmask.training.observer import Observer
from fewmask.training.run_folder import RunFolder

WARM_UP = 10  # steps: eager ones, the choice of kernels, the capture
_BARE_STEPS = 50


class Clock(Observer):
    """When the loop came to the end of each step. At the steps that are logged it has waited for the device."""

    def __init__(self, watched: Observer) -> None:
        self.watched = watched
        self.moments: dict[int, float] = {}

    def advance(self, task: str, done: int, total: int) -> None:
        if task == "training":
            self.moments[done] = time.perf_counter()
        self.watched.advance(task, done, total)


def measure_training(config: Config, *, device: torch.device, steps: int, observer: Observer) -> dict[str, Any]:
    """One object for the JSON: milliseconds per step in the loop and alone, and hours for all stages of the preset."""
    first = first_counted(config, steps)
    bare = measure_session(config, device=device, steps=min(steps, _BARE_STEPS), observer=observer)
    release(device)
    observer.say(f"{config.preset}: {steps} steps of training, {first} of them to warm up")
    seconds, written = _train(_one_stage(config, steps), first, device=device, observer=observer)
    ms = 1000 * seconds / (steps - first)
    stages = read_section(RMLSettings, config.settings, where="settings of method rml").stages
    return {
        "benchmark": "train",
        "preset": config.preset,
        "ms": ms,
        "step_ms": bare.ms,
        "overhead": ms / bare.ms - 1,
        "steps": steps - first,
        "seconds": seconds,
        "checkpoints": written,
        "diagnose_every": config.training.diagnose_every,
        "captured": bare.captured,
        "planned_steps": stages * config.training.steps,
        "planned_hours": stages * config.training.steps * ms / 3.6e6,
    }


def first_counted(config: Config, steps: int) -> int:
    """The first logged step after the warm-up."""
    every = config.training.log_every
    first = -(-WARM_UP // every) * every
    if steps <= first:
        what = f"{steps} steps are over before the clock starts, at step {first}"
        raise ConfigError(what, where="--steps", fix=f"{2 * first} or more, or a smaller training.log_every")
    return first


def _one_stage(config: Config, steps: int) -> Config:
    training = config.training.model_copy(update={"steps": steps, "evaluate_every": 0})
    return config.model_copy(update={"training": training, "settings": {**config.settings, "stages": 1}})


def _train(config: Config, first: int, *, device: torch.device, observer: Observer) -> tuple[float, int]:
    """Seconds from step `first` to the last, and how many checkpoints were written in between."""
    clock, training = Clock(observer), config.training
    with deterministic(training.deterministic, device), tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        folder.path.mkdir()
        session = benchmark_session(config, device=device, observer=observer)
        with CheckpointWriter() as writer:
            train(session, folder, clock, 0, writer)
        assert list_checkpoints(folder.checkpoints), "the end of a stage is always saved"
    between = (training.steps - 1) // training.checkpoint_every - first // training.checkpoint_every
    return clock.moments[training.steps] - clock.moments[first], between
