"""`fewmask bench data --growth`: what a larger pool of unlabeled images costs, from its files to the step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fewmask.benchmarks.data import SMALL_NETWORK
from fewmask.benchmarks.step import batch_call
from fewmask.benchmarks.timing import median_ms, resident_mib
from fewmask.config import Config
from fewmask.data.host_memory import available_memory
from fewmask.settings import resolve
from fewmask.training.device_memory import release
from fewmask.training.distributed import World
from fewmask.training.loading import load_data
from fewmask.training.observer import Observer
from fewmask.training.pixel_store import map_forms, stored_bytes
from fewmask.training.session import Session, build_session
from fewmask.training.stages import begin_stage

SIDE = 32
_LABELED, _CLASSES, _BLOCK = 8, 4, 8
_SMALLEST = 100
_WORDS = ("views.crop=32x32", "training.batch=8", "optimizer.lr=0.001", "training.diagnose_every=0")


@dataclass(frozen=True)
class Row:
    """One size of the pool."""

    unlabeled_images: int
    reading_ms_per_image: float  # check, decoding and checksum
    sweep_ms_per_image: float  # the pass before a stage, which fills the store of soft labels
    store_mib: float  # decoded unlabeled images and their soft labels
    resident_mib: float  # main memory of the process while it trains
    staged: bool  # they lie in a mapped file, or beside the GPU
    batch_ms: float
    step_ms: float


def pool_sizes(largest: int) -> list[int]:
    """100, 1,000, ... up to `largest`."""
    sizes = [_SMALLEST]
    while sizes[-1] * 10 <= largest:
        sizes.append(sizes[-1] * 10)
    return sizes


def measure_growth(
    sizes: Sequence[int], *, budget: float, device: torch.device, steps: int, observer: Observer
) -> dict[str, Any]:
    """Files of 32x32 pixels in one folder that grows, and a training session over it at each size.

    Pixels and soft labels may take `budget` MiB of the memory of host and device; so it is seen what comes after.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        _write_labeled(root)
        for _ in growing(root / "unlabeled", sizes):
            rows.append(_measure(root, Path(folder) / "run", budget=budget, device=device, steps=steps))
            observer.say(", ".join(f"{name} {value:.6g}" for name, value in asdict(rows[-1]).items()))
            release(device)
    return {
        "benchmark": "growth",
        "size": [SIDE, SIDE],
        "labeled_images": _LABELED,
        "steps": steps,
        "budget_mib": budget,
        "rows": [asdict(row) for row in rows],
    }


def growing(folder: Path, sizes: Sequence[int]) -> Iterator[int]:
    """Fill the folder up to each size in turn."""
    folder.mkdir(parents=True)
    there = 0
    for size in sizes:
        for index in range(there, size):
            _save(folder / f"image_{index:07d}.png", _colors(index))
        there = size
        yield size


def _measure(root: Path, out: Path, *, budget: float, device: torch.device, steps: int) -> Row:
    config, observer = _config(root, budget, device), Observer()  # nobody needs to hear about the miniature
    began = time.perf_counter()
    session = _read(config, out, device, observer)
    read = time.perf_counter()
    count = len(session.dataset.unlabeled)
    session = begin_stage(session, 0, observer)
    swept = time.perf_counter()
    step_ms = median_ms(session.stepper, steps, device)
    batch_ms = median_ms(batch_call(session), steps, device)
    session.maker.close()
    return Row(
        unlabeled_images=count,
        reading_ms_per_image=1000 * (read - began) / count,
        sweep_ms_per_image=1000 * (swept - read) / count,
        store_mib=_store_bytes(session) / 2**20,
        resident_mib=resident_mib(),
        staged="unlabeled" in session.maker.stages,
        batch_ms=batch_ms,
        step_ms=step_ms,
    )


def _store_bytes(session: Session) -> int:
    pool = session.stores.unlabeled
    assert pool is not None
    return pool.values.nbytes + stored_bytes(map_forms(session.method, session.config.training.soft_labels), pool)


def _read(config: Config, out: Path, device: torch.device, observer: Observer) -> Session:
    """As `fewmask train` starts: check, decode, build, and the checksum of what was read."""
    dataset, stores = load_data(config, observer, cache=out)
    return build_session(config, dataset, stores, device=device, world=World(), observer=observer)


def _config(root: Path, budget: float, device: torch.device) -> Config:
    shares = [f"training.host_share={min(1.0, budget * 2**20 / available_memory())}"]
    if device.type == "cuda":
        shares.append(f"training.store_share={min(1.0, budget * 2**20 / torch.cuda.mem_get_info(device)[0])}")
    return resolve({"method": "rml", "data": {"root": str(root)}}, words=[*SMALL_NETWORK, *_WORDS, *shares])


def _write_labeled(root: Path) -> None:
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    (root / "classes.txt").write_text("".join(f"class_{index}\n" for index in range(_CLASSES)))
    for index in range(_LABELED):
        name = f"image_{index}.png"
        _save(root / "images" / name, _colors(10**9 + index))
        blocks = np.random.default_rng(index).integers(0, _CLASSES, (SIDE // _BLOCK, SIDE // _BLOCK), dtype=np.uint8)
        _save(root / "masks" / name, blocks.repeat(_BLOCK, 0).repeat(_BLOCK, 1))


def _colors(seed: int) -> np.ndarray:
    """Squares of random colors, [H, W, 3]; no two images are alike."""
    blocks = np.random.default_rng(seed).integers(0, 256, (SIDE // _BLOCK, SIDE // _BLOCK, 3), dtype=np.uint8)
    return blocks.repeat(_BLOCK, 0).repeat(_BLOCK, 1)


def _save(path: Path, array: np.ndarray) -> None:
    Image.fromarray(array).save(path, compress_level=1)
