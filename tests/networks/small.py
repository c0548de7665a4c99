"""Tiny networks and noise for the tests of this room."""

from __future__ import annotations

from typing import Any

import torch

from fewmask.config import NetworkSettings
from fewmask.networks.build import build_network
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.randomness import Noise, Randomness

NARROW = {"channels": (8, 8, 16, 24), "stem_width": 4, "stem_type": "deep", "zero_init_last": False}
TINY_VIT = {"embed_dim": 24, "depth": 3, "num_heads": 2, "img_size": 64}


def settings(**changes: Any) -> NetworkSettings:
    return NetworkSettings(**{"backbone": "resnet10t", "width": 16, "options": NARROW, **changes})


def vit_settings(**changes: Any) -> NetworkSettings:
    vit = {"backbone": "vit_tiny_patch16_224", "head": "setr_naive", "stride": 16, "options": TINY_VIT}
    return settings(**{**vit, **changes})


def network(classes: int = 5, channels: int = 3, **changes: Any) -> SegmentationNetwork:
    return build_network(settings(**changes), num_classes=classes, channels=channels).eval()


def noise(positions: list[int], step: int = 3, device: str = "cpu", **rates: float) -> Noise:
    random = Randomness(7, torch.tensor(step, device=device))
    return Noise(random, "student_1", torch.tensor(positions, device=device), **rates)


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
