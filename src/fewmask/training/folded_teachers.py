"""Teachers that answer through folded twins, where `training.fold_teachers` asks for it."""

from __future__ import annotations

import torch

from fewmask.methods.method import Method
from fewmask.networks.folding import FoldedTwin
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.engine import Precision


def fold_teachers(method: Method, precision: Precision, *, fused: bool) -> list[SegmentationNetwork]:
    """Give every network that does not train a twin, and return the twins' networks.

    Only after networks have their place, precision and kinds of layers: twins share tensors and copy what is there.
    """
    trained = method.trained().values()
    twins = []
    for network in method.networks().values():
        if all(network is not each for each in trained):
            twin = FoldedTwin(network, dtype=torch.bfloat16 if precision == "bf16" else None, fused=fused)
            network.twin = twin
            twins.append(twin.network)
    return twins
