"""Teachers that answer through folded twins, where `training.fold_teachers` asks for it."""

from __future__ import annotations

import torch

from fewmask.config import TrainingSettings
from fewmask.errors import ConfigError
from fewmask.methods.method import Method
from fewmask.networks.folding import FoldedTwin
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.engine import choose_precision


def fold_teachers(method: Method, settings: TrainingSettings, device: torch.device) -> list[SegmentationNetwork]:
    """Give every network that does not train a twin, and return the twins' networks; none where none are wanted.

    Only after networks have their place, precision and kinds of layers: twins share tensors and copy what is there.
    """
    if settings.fold_teachers == "none":
        return []
    fused = settings.fold_teachers == "fused"
    if fused and settings.deterministic:
        what = "torch lets cuDNN choose fused kernels that need not be deterministic"
        raise ConfigError(what, where="training.fold_teachers", fix="folded, or no training.deterministic")
    dtype = torch.bfloat16 if choose_precision(settings.precision, device) == "bf16" else None
    trained = method.trained().values()
    networks = [network for network in method.networks().values() if all(network is not each for each in trained)]
    twins = [FoldedTwin(network, dtype=dtype, fused=fused) for network in networks]
    for network, twin in zip(networks, twins, strict=True):
        network.twin = twin
    return [twin.network for twin in twins]
