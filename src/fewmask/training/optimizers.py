"""Optimizers and their parameter groups: head and backbone rates, weight decay with or without norms and biases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fewmask.config import OptimizerSettings
from fewmask.learning.schedules import rate_factor
from fewmask.networks.segmentation import SegmentationNetwork

_HEAD_FACTOR = 10.0


def build_optimizer(modules: Sequence[nn.Module], settings: OptimizerSettings) -> Optimizer:
    """What stands on a backbone has the head's rate; without a backbone all have the one rate."""
    networks = [module for module in modules if isinstance(module, SegmentationNetwork)]
    beside = [parameter for module in modules if module not in networks for parameter in module.parameters()]
    groups = [group for network in networks for group in _groups(network.backbone_parameters(), settings.lr, settings)]
    heads = [parameter for network in networks for parameter in network.head_parameters()]
    groups += _groups([*heads, *beside], head_rate(settings) if networks else settings.lr, settings)
    # Fused kernels can skip an update on a device flag, which is how a non-finite loss is masked without a host sync.
    if settings.name == "adamw":
        on_gpu = groups[0]["params"][0].is_cuda
        return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True, capturable=on_gpu)
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=True)


def head_rate(settings: OptimizerSettings) -> float:
    """The head's learning rate at the start."""
    return settings.head_lr if settings.head_lr is not None else _HEAD_FACTOR * settings.lr


def set_rates(optimizer: Optimizer, settings: OptimizerSettings, step: int, steps: int) -> float:
    """Set the rates of `step` and return the first group's.

    On a GPU a rate is a tensor that is filled in place, so that a captured step reads the new value.
    """
    factor = rate_factor(settings, step, steps)
    for group in optimizer.param_groups:
        rate = group["base_lr"] * factor
        device = group["params"][0].device
        if isinstance(group["lr"], torch.Tensor) and group["lr"].device == device:
            group["lr"].fill_(rate)
        elif device.type == "cpu":
            group["lr"] = rate
        else:
            group["lr"] = torch.full((), rate, device=device)
    return float(optimizer.param_groups[0]["base_lr"] * factor)


def _groups(parameters: Iterable[nn.Parameter], lr: float, settings: OptimizerSettings) -> list[dict[str, Any]]:
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for parameter in parameters:
        if not parameter.requires_grad:  # timm's weights of a classifier that is not there
            continue
        # Norm weights and all biases are vectors; convolution and linear weights are not.
        (spared if parameter.ndim <= 1 and not settings.decay_norms else decayed).append(parameter)
    groups = [(decayed, settings.weight_decay), (spared, 0.0)]
    return [{"params": each, "lr": lr, "base_lr": lr, "weight_decay": decay} for each, decay in groups if each]
