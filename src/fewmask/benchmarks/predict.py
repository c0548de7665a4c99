"""`fewmask bench predict`: images per second through a preset's network, or through the model of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fewmask.benchmarks.timing import median_ms, peak_memory_gib
from fewmask.benchmarks.workloads import workload_of
from fewmask.commands.predict import tiled_settings
from fewmask.config import Config
from fewmask.evaluation.inference import predict
from fewmask.networks.build import build_network
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.device_memory import reset_peak
from fewmask.training.engine import choose_precision, set_tf32
from fewmask.training.networks import autocast_logits, load_network
from fewmask.training.run_folder import RunFolder

BATCHES = (1, 8)


def measure_predict(
    config: Config, *, model: Path | None, tile: int | None, device: torch.device, steps: int
) -> dict[str, Any]:
    """Labels and confidences of random images of the preset's size, from tensors that lie on the device."""
    set_tf32(config.training.tf32)
    size, settings = workload_of(config).size, tiled_settings(config.evaluation, tile)
    network, channels = _network(config, model)
    predictor = autocast_logits(network, device, config.training.precision)
    reset_peak(device)
    rows = []
    for count in BATCHES:
        images = torch.rand(count, channels, *size, generator=torch.Generator().manual_seed(0)).to(device)
        ms = median_ms(lambda _, images=images: predict([predictor], images, settings).max(dim=1), steps, device)  # type: ignore[misc]
        rows.append({"batch": count, "ms_per_image": ms / count, "images_per_second": 1000 * count / ms})
    return {
        "benchmark": "predict",
        "preset": config.preset,
        "ms": min(row["ms_per_image"] for row in rows),
        "model": "weights drawn at random" if model is None else model.name,
        "size": list(size),
        "mode": settings.mode if settings.mode == "whole" else f"tiles of {settings.tile[0]}x{settings.tile[1]}",
        "precision": choose_precision(config.training.precision, device),
        "backbone": config.network.backbone if model is None else network.backbone.name,
        "batches": rows,
        "peak_memory_gib": peak_memory_gib(device),
    }


def _network(config: Config, model: Path | None) -> tuple[SegmentationNetwork, int]:
    if model is not None:
        network, card = load_network(RunFolder(model), None)
        return network, card.channels
    return build_network(config.network, num_classes=workload_of(config).num_classes, seed=config.seed), 3
