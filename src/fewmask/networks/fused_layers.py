"""Convolutions that add a shortcut and apply ReLU before they write their answer; for inference only.

On CUDA each is one cuDNN kernel, elsewhere the same in separate steps.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmask.networks.residual_blocks import plain_depth


class FusedConvolution(nn.Module):
    """relu(convolution(maps) [+ shortcut]), in the precision of its weights."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, maps: Tensor, shortcut: Tensor | None = None) -> Tensor:
        layer, bias = self.layer, self.layer.bias
        maps = maps.to(layer.weight.dtype)
        geometry: tuple[Any, ...] = (layer.stride, layer.padding, layer.dilation, layer.groups)
        if not maps.is_cuda:
            answer = F.conv2d(maps, layer.weight, bias, *geometry)
            return (answer if shortcut is None else answer.add_(shortcut)).relu_()
        if shortcut is None:
            return torch.cudnn_convolution_relu(maps, layer.weight, bias, *geometry)
        return torch.cudnn_convolution_add_relu(maps, layer.weight, shortcut.to(maps.dtype), 1.0, bias, *geometry)


class FusedBlock(nn.Module):
    """A residual block of timm's ResNets whose norms are folded: nothing but convolutions is left of it."""

    def __init__(self, first: nn.Sequential, last: nn.Conv2d, downsample: nn.Module | None) -> None:
        super().__init__()
        self.first = first
        self.last = FusedConvolution(last)
        self.downsample = downsample

    def forward(self, maps: Tensor) -> Tensor:
        shortcut = maps if self.downsample is None else self.downsample(maps)
        answer: Tensor = self.last(self.first(maps), shortcut)
        return answer


def fuse_blocks(network: nn.Module) -> None:
    """Replace every residual block of which only convolutions, ReLUs and the shortcut are left."""
    for name, module in list(network.named_modules()):
        fused = _fused(module)
        if fused is not None:
            network.set_submodule(name, fused)


def _fused(block: Any) -> FusedBlock | None:
    depth = plain_depth(block, folded=True)
    layers = [getattr(block, f"conv{number}") for number in range(1, depth + 1)]
    if not depth or type(layers[-1]) is not nn.Conv2d:
        return None
    if not all(isinstance(layer, FusedConvolution) for layer in layers[:-1]):
        return None
    return FusedBlock(nn.Sequential(*layers[:-1]), layers[-1], block.downsample)
