"""The head of DeepLabv3+: a pyramid of dilated branches on coarse features, refined with fine ones.

Chen et al., ECCV 2018, as most of today's semi-supervised work uses it. Deviations: dilation rates are those of
networks/deeplab.py, which fit small crops, and no activation follows the last norm, so that the pixel feature is spread
around a mean, as in the paper's own head, and distances to class means say something.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewmask.networks.backbones import enlarged
from fewmask.networks.deeplab import dilations
from fewmask.networks.heads import Head, small_normal

_FINE_WIDTH = 48  # channels that are left of the fine features, so that they do not outweigh the deep ones
_BRANCHES = 3  # dilated ones


class ImageMean(nn.Module):
    """The image's mean over all pixels, seen from every pixel."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Conv2d(channels, width, 1), nn.ReLU(inplace=True))  # one pixel: nothing to norm

    def forward(self, maps: Tensor) -> Tensor:
        mean: Tensor = self.project(maps.mean((2, 3), keepdim=True))  # [N, width, 1, 1]
        return mean.expand(-1, -1, *maps.shape[2:])


class RefinedPyramid(nn.Module):
    """1x1, three dilated 3x3 branches and the image's mean, merged; enlarged, joined with fine features, refined."""

    def __init__(self, deep: int, fine: int, width: int, strides: tuple[int, int]) -> None:
        super().__init__()
        self.factor = strides[0] // strides[1]
        rates = dilations(strides[0])[:_BRANCHES]
        branches = [_activated(deep, width, 1), *(_activated(deep, width, 3, rate) for rate in rates)]
        self.branches = nn.ModuleList([*branches, ImageMean(deep, width)])
        self.merge = _activated(len(self.branches) * width, width, 1)
        self.reduce = _activated(fine, min(_FINE_WIDTH, width), 1)
        joined = width + min(_FINE_WIDTH, width)
        self.refine = nn.Sequential(_activated(joined, width, 3), _normalized(width, width, 3))

    def forward(self, deep: Tensor, fine: Tensor) -> Tensor:
        """deep [N, C, h, w] and fine [N, C', h', w'] to features [N, width, h', w']."""
        context = self.merge(torch.cat([branch(deep) for branch in self.branches], dim=1))  # [N, width, h, w]
        features: Tensor = self.refine(torch.cat([enlarged(context, self.factor, like=fine), self.reduce(fine)], dim=1))
        return features


def deeplabv3plus(channels: tuple[int, ...], num_classes: int, *, width: int, strides: tuple[int, int]) -> Head:
    """The head for deep and fine features; the scale of its own, and so the temperature of distances, is measured."""
    deep, fine = channels
    classifier = small_normal(nn.Conv2d(width, num_classes, 1))
    return Head(RefinedPyramid(deep, fine, width, strides), classifier, width)


def _normalized(channels: int, width: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(channels, width, kernel, padding=dilation * (kernel // 2), dilation=dilation, bias=False)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(width))


def _activated(channels: int, width: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    return nn.Sequential(*_normalized(channels, width, kernel, dilation), nn.ReLU(inplace=True))
