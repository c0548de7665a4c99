"""SETR-Naive: a vision transformer's last tokens as a feature map, one 1x1 layer and a classifier.

In training, heads of the same form may read the tokens of earlier layers, too.

The backbone hands over [N, C, h, w] with h and w from the image's own height and width, so nothing here needs a square.
"""

from __future__ import annotations

from torch import Tensor, nn

from fewmask.networks.heads import AuxiliaryHeads, Head, small_normal


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each pixel of a map [N, C, h, w]."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features.movedim(1, -1)).movedim(-1, 1)


def setr_naive(channels: int, num_classes: int, *, width: int) -> Head:
    """LayerNorm, 1x1 convolution, BatchNorm, ReLU = the pixel feature; then the classifier."""
    layer = nn.Conv2d(channels, width, 1)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    embedding = nn.Sequential(ChannelNorm(channels, eps=1e-6), layer, nn.BatchNorm2d(width), nn.ReLU())
    return Head(embedding, small_normal(nn.Conv2d(width, num_classes, 1)), width)


def setr_auxiliary(channels: int, num_classes: int, *, width: int, depth: int, weight: float) -> AuxiliaryHeads:
    """Heads like the main one after each quarter of a transformer of `depth` layers, but for the last."""
    layers = quarters(depth)
    return AuxiliaryHeads([setr_naive(channels, num_classes, width=width) for _ in layers], layers, weight)


def quarters(depth: int) -> tuple[int, ...]:
    """The last layers of the first three quarters, counted from 1: 3, 6 and 9 of 12; fewer below a depth of four."""
    return tuple(sorted({depth * quarter // 4 for quarter in (1, 2, 3)} - {0}))
