"""Networks that say the same faster: norms in fused kernels, gradients of heads as matrix products, folded teachers.

Where settings say `auto`, this is for compiled bf16 steps on CUDA, the ones that are tuned for speed; elsewhere plain
layers keep their rounding.
"""

from __future__ import annotations

from typing import Literal

import torch

from fewmask.config import TrainingSettings
from fewmask.errors import ConfigError
from fewmask.methods.method import Method
from fewmask.networks.deeplab import join_branches
from fewmask.networks.folding import FoldedTwin
from fewmask.networks.fused_norms import fuse_norms, fusing_problem
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.engine import choose_precision


def rewrite_networks(method: Method, settings: TrainingSettings, device: torch.device) -> list[SegmentationNetwork]:
    """Once networks have their place, precision and kinds of layers; returns the networks of the teachers' twins."""
    if _chosen_norms(settings, device) == "fused":
        for network in method.trained().values():
            _fuse_norms(network, settings)
    if _chosen_branches(settings, device) == "joined":
        for network in method.trained().values():
            join_branches(network)
    return _fold_teachers(method, settings, device)


def _fuse_norms(network: SegmentationNetwork, settings: TrainingSettings) -> None:
    """Where statistics are live; a head is compiled as a whole."""
    if not network.frozen_norm:
        fuse_norms(network.backbone if settings.compile else network, beside_compiled=settings.compile)


def _chosen_norms(settings: TrainingSettings, device: torch.device) -> Literal["plain", "fused"]:
    wanted = settings.norms == "fused" or (settings.norms == "auto" and _fast(settings, device))
    if device.type != "cuda" or not wanted:
        return "plain"
    problem = fusing_problem(device)
    if problem and settings.norms == "fused":
        raise ConfigError(f"Triton does not work here: {problem}", where="training.norms", fix="plain")
    return "plain" if problem else "fused"  # then torch.compile does not work either, which is said


def _fast(settings: TrainingSettings, device: torch.device) -> bool:
    return device.type == "cuda" and settings.compile and choose_precision(settings.precision, device) == "bf16"


def _chosen_branches(settings: TrainingSettings, device: torch.device) -> Literal["direct", "joined"]:
    if settings.branches != "auto":
        return settings.branches
    return "joined" if _fast(settings, device) else "direct"


def _chosen_folding(settings: TrainingSettings, device: torch.device) -> Literal["none", "folded", "fused"]:
    if settings.fold_teachers != "auto":
        return settings.fold_teachers
    return "fused" if _fast(settings, device) and not settings.deterministic else "none"


def _fold_teachers(method: Method, settings: TrainingSettings, device: torch.device) -> list[SegmentationNetwork]:
    """Give every network that does not train a twin; twins share tensors and copy what is there."""
    folding = _chosen_folding(settings, device)
    if folding == "none":
        return []
    if folding == "fused" and settings.deterministic:
        what = "torch lets cuDNN choose fused kernels that need not be deterministic"
        raise ConfigError(what, where="training.fold_teachers", fix="folded, or no training.deterministic")
    dtype = torch.bfloat16 if choose_precision(settings.precision, device) == "bf16" else None
    trained = [module for modules in method.updated().values() for module in modules]
    networks = [network for network in method.networks().values() if all(network is not each for each in trained)]
    twins = [FoldedTwin(network, dtype=dtype, fused=folding == "fused") for network in networks]
    for network, twin in zip(networks, twins, strict=True):
        network.twin = twin
    return [twin.network for twin in twins]
