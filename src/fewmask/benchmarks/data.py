"""`fewmask bench data`: how fast files become pixels in the store, and pixels in the store become views."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fewmask.benchmarks.step import batch_call
from fewmask.benchmarks.timing import median_ms
from fewmask.benchmarks.workloads import benchmark_config, benchmark_session, unlabeled_batch, workload_of
from fewmask.config import Config
from fewmask.data.dataset import Sample
from fewmask.data.store import load_images
from fewmask.training.observer import Observer

# Views depend on crop, stride and classes, not on what looks at them
SMALL_NETWORK = ("network.backbone=test_resnet", "network.width=16", "network.options={}")
_FORMATS = ("png", "jpg")


def measure_data(
    name: str, words: list[str], *, files: int, device: torch.device, steps: int, observer: Observer
) -> dict[str, Any]:
    config = benchmark_config(name, [*SMALL_NETWORK, *words])
    size = workload_of(config).size
    observer.say(f"{name}: decoding {files} files of {size[0]}x{size[1]} pixels in each format")
    with tempfile.TemporaryDirectory() as folder:
        decoding = [measure_decoding(Path(folder), size, suffix, files) for suffix in _FORMATS]
    return {
        "benchmark": "data",
        "preset": name,
        "size": list(size),
        "decoding": decoding,
        **measure_views(config, device=device, steps=steps, observer=observer),
    }


def measure_decoding(folder: Path, size: tuple[int, int], suffix: str, count: int) -> dict[str, Any]:
    """Files of one format into a flat buffer; megabytes are those of the pixels."""
    samples = write_images(folder / suffix, size, suffix, count)
    load_images(samples)  # the disk's cache is warm for all formats alike
    began = time.perf_counter()
    images = load_images(samples)
    seconds = time.perf_counter() - began
    return {
        "format": suffix,
        "files": count,
        "kilobytes_per_file": sum(sample.image.stat().st_size for sample in samples) / count / 1e3,
        "images_per_second": count / seconds,
        "megabytes_per_second": images.values.numel() / seconds / 1e6,
    }


def write_images(folder: Path, size: tuple[int, int], suffix: str, count: int, first: int = 0) -> list[Sample]:
    """Smooth colors with a little noise, about as hard to compress as photographs."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = []
    for index in range(first, first + count):
        draw = np.random.default_rng(index)
        coarse = draw.integers(0, 256, (max(2, size[0] // 32), max(2, size[1] // 32), 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BILINEAR))
        noisy = smooth.astype(np.int16) + draw.integers(-6, 7, smooth.shape, dtype=np.int16)
        path = folder / f"image_{index:06d}.{suffix}"
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)
        samples.append(Sample(path.stem, path))
    return samples


def measure_views(config: Config, *, device: torch.device, steps: int, observer: Observer) -> dict[str, Any]:
    """The batches of the preset: each crop, each color-distorted copy of it, and the soft labels under it."""
    session = benchmark_session(config, device=device, observer=observer)
    batch = session.maker.at(0)
    views = len(batch.image) + len(batch.weak) + sum(len(view) for view in batch.strong)
    ms = median_ms(batch_call(session), steps, device)
    return {
        "crop": list(batch.image.shape[-2:]),
        "batch": [config.training.batch, unlabeled_batch(config)],
        "views_per_batch": views,
        "batch_ms": ms,
        "views_per_second": 1000 * views / ms,
    }
