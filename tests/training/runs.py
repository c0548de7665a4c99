"""A tiny data folder, the command lines that train on it, and ways to compare what two runs left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fewmask.config import Config
from fewmask.data.opening import open_dataset
from fewmask.settings import resolve
from fewmask.training.checkpoint import list_checkpoints, load_checkpoint
from fewmask.training.distributed import World
from fewmask.training.loading import load_stores
from fewmask.training.observer import Observer
from fewmask.training.run import run_training
from fewmask.training.session import Session, build_session
from fewmask.training.stages import begin_stage

ROOT = Path(__file__).parents[2]
SIZE = (32, 48)
CLASSES = ("ground", "left", "right")
NETWORK = (  # all that a preset could change, so that runs by words and by `resolve` are the same
    "network.backbone=test_resnet",
    "network.head=deeplabv2",
    "network.stride=8",
    "network.width=16",
    "network.options={zero_init_last: false}",
)
SMALL = (*NETWORK, "views.crop=32x48", "training.batch=4", "optimizer.lr=0.01", "optimizer.head_lr=0.02")
REFINED = ("network.head=deeplabv3plus", "network.stride=4")  # the head of the preset that is taken where none is named
NOISY = ("settings.dropout=0.5", "settings.stochastic_depth=0.8", "settings.threshold=0.34")


def write_data(root: Path, labeled: int = 6, unlabeled: int = 7, val: int = 5) -> Path:
    """Noisy pictures of two colored blocks on a ground; every mask ignores another number of pixels."""
    root.mkdir(parents=True)
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    for number in range(labeled):
        _write_pair(root, f"a{number}", seed=number, ignored=5 * number)
    for number in range(unlabeled):
        _write(root / "unlabeled" / f"u{number}.png", _scene(100 + number)[0])
    for number in range(val):
        _write_pair(root / "val", f"v{number}", seed=200 + number, ignored=number)
    return root


def _scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    height, width = SIZE
    label = np.zeros(SIZE, np.uint8)
    top, middle = draw.integers(4, height // 2), draw.integers(width // 3, 2 * width // 3)
    label[top:, :middle], label[top + 3 :, middle:] = 1, 2
    colors = np.array([[40, 60, 80], [180, 90, 60], [70, 170, 90]]) + draw.integers(-20, 20, 3)
    image = colors[label] + draw.integers(-30, 30, (*SIZE, 3))
    return image.clip(0, 255).astype(np.uint8), label


def _write_pair(root: Path, name: str, *, seed: int, ignored: int) -> None:
    image, label = _scene(seed)
    label[:, :ignored] = 255
    _write(root / "images" / f"{name}.png", image)
    _write(root / "masks" / f"{name}.png", label)


def _write(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def words(data: Path, out: Path, *more: str, method: str = "mean_teacher") -> list[str]:
    """The arguments of `fewmask` that train a tiny network on `data`."""
    return ["train", str(data), "--out", str(out), "--method", method, "--device", "cpu", *SMALL, *more]


def environment() -> dict[str, str]:
    """One thread per process: tests share the machine, and sums do not depend on the number of cores."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "400", "NO_COLOR": "1"}


def start(arguments: list[str], log: Path, ranks: int = 1, module: str = "fewmask") -> subprocess.Popen[bytes]:
    """A real process, its words appended to `log`; several ranks come from torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", module, *arguments]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment())


def finish(arguments: list[str], log: Path, ranks: int = 1, module: str = "fewmask") -> int:
    """Run to the end; the exit code."""
    process = start(arguments, log, ranks, module)
    try:
        return process.wait(timeout=120)
    finally:
        process.kill()


def newest_state(run: Path) -> dict[str, Any]:
    return load_checkpoint(list_checkpoints(run / "checkpoints")[0])


def tensors(state: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Every number of a checkpoint, by its path; rates and counters become tensors."""
    if isinstance(state, dict):
        items = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    else:
        known = isinstance(state, (torch.Tensor, float, int)) and not isinstance(state, bool)
        return {prefix: torch.as_tensor(state)} if known else {}
    found: dict[str, torch.Tensor] = {}
    for key, value in items:
        found |= tensors(value, f"{prefix}/{key}")
    return found


def differing(one: Path, other: Path) -> list[str]:
    """The names of all numbers in which the newest checkpoints of two runs are not bit-equal."""
    first, second = tensors(newest_state(one)), tensors(newest_state(other))
    assert any("momentum_buffer" in key or "exp_avg" in key for key in first)
    assert any(key.startswith("/metrics.") for key in first)
    changed = [key for key in first.keys() & second.keys() if not torch.equal(first[key], second[key])]
    return sorted(changed + list(first.keys() ^ second.keys()))


def assert_same_run(one: Path, other: Path) -> None:
    """Equal checkpoints, equal metrics, equal model: byte for byte."""
    assert differing(one, other) == []
    for name in ("metrics.jsonl", "model.safetensors", "model.json", "evaluation.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


class Heard(Observer):
    """Remembers what a run said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def tiny_config(data: Path, *more: str, method: str = "mean_teacher") -> Config:
    return resolve({"data": {"root": str(data)}, "method": method}, words=[*SMALL, *more])


def train_here(
    data: Path, out: Path, *more: str, method: str = "mean_teacher", resume: bool = False, init: Path | None = None
) -> Heard:
    """The same run as `words`, in this process."""
    heard = Heard()
    config = tiny_config(data, *more, method=method)
    run_training(config, out, device="cpu", resume=resume, init=init, observer=heard)
    return heard


def tiny_session(
    data: Path, *more: str, method: str = "mean_teacher", world: World | None = None, device: str = "cpu"
) -> Session:
    config = tiny_config(data, *more, method=method)
    dataset = open_dataset(data, config.data, config.seed)
    stores, place = load_stores(config, dataset, Observer()), torch.device(device)
    return build_session(config, dataset, stores, device=place, world=world or World(), observer=Observer())


def started_session(data: Path, *more: str, method: str, device: str = "cpu") -> Session:
    """A session before its first step; a method that starts from a baseline gets random networks for it."""
    session = tiny_session(data, *more, method=method, device=device)
    return begin_stage(session, 0, Observer()) if session.method.needs_baseline else session


def step_metrics(session: Session, steps: int) -> list[dict[str, float]]:
    """All metrics of each step by itself, and the learning rates as the optimizers have them."""
    lines = []
    for step in range(steps):
        session.stepper(step)
        groups = [group for optimizer in session.engine.optimizers.values() for group in optimizer.param_groups]
        lines.append(session.engine.flush() | {f"lr/{place}": float(group["lr"]) for place, group in enumerate(groups)})
    return lines
