"""What every head is made of: an embedding that gives the pixel feature, and a classifier that reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn


class Head(nn.Module):
    """An embedding to [N, D, h, w] and a classifier to [N, K, h, w]; dropout acts in between."""

    def __init__(
        self, embedding: nn.Module, classifier: nn.Module, feature_channels: int, temperature: float | None = None
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.classifier = classifier
        self.feature_channels = feature_channels
        self.temperature = temperature  # T in softmax(-T * distance) where the feature's scale is known beforehand


class AuxiliaryHeads(nn.ModuleList):
    """Heads after earlier layers of a transformer, which bring these a gradient of their own.

    They answer in passes that train and only there, and only the loss on labeled images reads them (SETR has no other
    images, and RML is silent): predictions, pseudo labels, teachers and p0 are the last layer's. As in SETR they have
    no dropout.
    """

    def __init__(self, heads: Sequence[Head] = (), layers: Sequence[int] = (), weight: float = 0.0) -> None:
        super().__init__(heads)
        self.layers = tuple(layers)  # each head's, counted from 1
        self.weight = weight  # of the loss of each

    def __iter__(self) -> Iterator[Head]:
        return super().__iter__()  # type: ignore[return-value]


def small_normal(layer: nn.Conv2d) -> nn.Conv2d:
    """The classifier's start, N(0, 0.01) and no offset: all classes are about equally likely at first."""
    nn.init.normal_(layer.weight, std=0.01)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
