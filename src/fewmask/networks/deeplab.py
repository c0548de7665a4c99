"""DeepLabv2 heads: the paper's, with concatenated branches, and the classic ones that add up class scores.

Dilation rates are given at stride 8 and scaled with the stride, so that a branch always sees the same image region.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fewmask.networks.dilation import joined
from fewmask.networks.heads import Head, small_normal

RATES = (6, 12, 18, 24)
_RATES_STRIDE = 8
_SQUEEZE = 16


def dilations(stride: int) -> tuple[int, ...]:
    """6, 12, 18, 24 at stride 8, halved at stride 16, doubled at stride 4."""
    return tuple(max(1, rate * _RATES_STRIDE // stride) for rate in RATES)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from the image's mean over all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(1, channels // _SQUEEZE)
        self.gate = nn.Sequential(
            nn.Linear(channels, squeezed), nn.ReLU(inplace=True), nn.Linear(squeezed, channels), nn.Sigmoid()
        )

    def forward(self, features: Tensor) -> Tensor:
        return features * self.gate(features.mean(dim=(2, 3)))[:, :, None, None]


class ConcatenatedBranches(nn.Module):
    """One 1x1 and four dilated 3x3 branches, concatenated, gated per channel and merged by a 3x3 convolution."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        branches = [_normalized(_convolution(channels, width, 1))]
        branches += [_normalized(_convolution(channels, width, 3, rate)) for rate in dilations(stride)]
        self.branches = nn.ModuleList(nn.Sequential(*branch, nn.ReLU(inplace=True)) for branch in branches)
        self.excitation = SqueezeExcitation(len(branches) * width)
        self.merge = nn.Sequential(*_normalized(_convolution(len(branches) * width, width, 3)))  # no activation
        self.joined = False  # gradients of all branches as two matrix products (networks/dilation.py)

    def forward(self, features: Tensor) -> Tensor:
        parts: list[Any] = [tuple(branch.children()) for branch in self.branches]  # convolution, GroupNorm, ReLU
        layers = [layer for layer, _, _ in parts]
        wide = joined(features, layers) if self.joined else [layer(features) for layer in layers]
        followed = [relu(norm(maps)) for (_, norm, relu), maps in zip(parts, wide, strict=True)]
        stacked = torch.cat(followed, dim=1)  # [N, 5 * width, h, w]
        return self.merge(self.excitation(stacked))  # [N, width, h, w]


def join_branches(network: nn.Module) -> None:
    """Let the paper's head compute the gradients of its branches at once; other heads stay as they are."""
    for module in network.modules():
        if isinstance(module, ConcatenatedBranches):
            module.joined = True


class SummedBranches(nn.Module):
    """Dilated 3x3 convolutions straight to class scores, added up."""

    def __init__(self, channels: int, num_classes: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(small_normal(_convolution(channels, num_classes, 3, rate)) for rate in rates)

    def forward(self, features: Tensor) -> Tensor:
        return torch.stack([branch(features) for branch in self.branches]).sum(dim=0)


def deeplabv2(channels: int, num_classes: int, *, width: int, stride: int) -> Head:
    """The paper's head, as ProDA builds it, but for the start of its convolutions; distances have temperature 1.

    ProDA draws all of them from N(0, 0.01). Before a GroupNorm the scale only sets how fast directions change:
    Kaiming's is the same 0.01 at 2048 channels, and unlike a constant it fits narrow backbones as well.
    """
    classifier = small_normal(nn.Conv2d(width, num_classes, 1, bias=False))
    return Head(ConcatenatedBranches(channels, width, stride), classifier, width, temperature=1.0)


def summed(channels: int, num_classes: int, *, stride: int, branches: int) -> Head:
    """The classic heads: four rates, or only the first two, as in code where a misplaced return cut the sum short.

    The pixel feature is the backbone's own. The two rates left out have no weights, so that every weight is trained.
    """
    return Head(nn.Identity(), SummedBranches(channels, num_classes, dilations(stride)[:branches]), channels)


def _convolution(channels: int, width: int, kernel: int, dilation: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(channels, width, kernel, padding=dilation * (kernel // 2), dilation=dilation)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _normalized(layer: nn.Conv2d) -> tuple[nn.Module, ...]:
    # 32 groups of 8 in the paper's width; eight channels per group in others, as single ones would lose their bias.
    groups = math.gcd(layer.out_channels, max(1, layer.out_channels // 8))
    return layer, nn.GroupNorm(groups, layer.out_channels)
