"""The least arithmetic of a step: what convolutions and linear layers must compute, whoever writes the step."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fewmask.methods.method import Method
from fewmask.networks.compilation import as_written

_TRAINED = 3  # a forward pass, and a backward pass of twice its work


def forward_flop(network: nn.Module, size: tuple[int, int], channels: int = 3) -> int:
    """Operations of one image's forward pass; a multiplication and its addition are two."""
    parameter = next(network.parameters())
    image = torch.zeros(1, channels, *size, device=parameter.device, dtype=parameter.dtype)
    training = network.training
    with as_written(), FlopCounterMode(display=False) as counter:  # with gradients: no folded twin answers instead
        network.eval()(image)
    network.train(training)
    return int(counter.get_total_flops())


def least_flop(method: Method, size: tuple[int, int], *, labeled: int, unlabeled: int) -> int:
    """Students learn from labeled and mixed images; the other networks look once at each unlabeled image.

    One that is neither trained nor scored only keeps weights, as the baselines of `rml` do, and looks at nothing.
    """
    trained = method.trained()
    flop = 0
    for name in {**trained, **dict.fromkeys(method.predictors)}:
        passes = _TRAINED * (labeled + unlabeled) if name in trained else unlabeled
        flop += passes * forward_flop(method.networks()[name], size)
    return flop
