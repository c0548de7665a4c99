"""A three-layer perceptron in the form of a segmentation network: one 28x28 digit is one pixel of class scores."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from fewmask.experiments.mnist_data import CLASSES, SIDE
from fewmask.networks.backbones import Backbone
from fewmask.networks.build import seeded
from fewmask.networks.heads import Head
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.randomness import Noise

_MEAN, _STD = 0.1307, 0.3081  # of MNIST's training pixels


class FirstLayer(nn.Module):
    """What the network uses of a backbone: one fully connected layer over the whole digit. It has no residual block."""

    name = "three-layer perceptron"
    stride = SIDE
    residual_blocks = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE * SIDE, width)

    def forward(self, images: Tensor, noise: Noise | None = None) -> tuple[Tensor, ...]:  # noqa: ARG002
        return (self.layer(images.flatten(1)).relu()[:, :, None, None],)  # [N, D, 1, 1]


def digit_network(width: int, seed: int) -> SegmentationNetwork:
    """784 - width - width - 10 with ReLU; dropout acts before the classifier. The same weights for the same seed."""
    with seeded(seed):
        first = FirstLayer(width)
        second = nn.Sequential(nn.Conv2d(width, width, kernel_size=1), nn.ReLU())
        head = Head(second, nn.Conv2d(width, CLASSES, kernel_size=1), feature_channels=width)
    return SegmentationNetwork(
        cast(Backbone, first), head, num_classes=CLASSES, mean=(_MEAN,), std=(_STD,), dropout="element"
    )
