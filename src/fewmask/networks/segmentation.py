"""The network that methods see: images in [0, 1] go in, class scores and pixel features come out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor, nn

from fewmask.errors import ConfigError
from fewmask.networks.compilation import as_written
from fewmask.networks.heads import AuxiliaryHeads, Head
from fewmask.networks.model_noise import dropped_out
from fewmask.networks.weight_matching import DRAWN, WeightReport
from fewmask.randomness import Noise
from fewmask.types import Prediction

if TYPE_CHECKING:  # a method knows networks; timm, which takes longer to start than torch, only those who build them
    from fewmask.networks.backbones import Backbone


class Twin(Protocol):
    """Answers for a network in eval mode, without noise and gradients; never part of its state."""

    def __call__(self, images: Tensor) -> Prediction: ...


class SegmentationNetwork(nn.Module):
    """A backbone and a head. Only `noise` makes a pass random; train() and eval() govern BatchNorm alone.

    Auxiliary heads answer in passes that train and only there: in train mode and with gradients, as a teacher's pass
    may be in train mode, too.
    """

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]
    temperature: float | None = None  # of distances between its features; None where their scale must be measured
    frozen_norm: bool = False  # BatchNorm keeps its statistics, also in train mode
    compiled: bool = False  # its blocks went through torch.compile (networks/compilation.py)
    twin: Twin | None = None  # a faster way to the same answers, set where one is wanted (networks/folding.py)

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        *,
        num_classes: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        dropout: Literal["channel", "element"] = "channel",
        frozen_norm: bool = False,
        auxiliary: AuxiliaryHeads | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.auxiliary = auxiliary or AuxiliaryHeads()
        self.num_classes = num_classes
        self.temperature = head.temperature
        self.dropout = dropout
        self.frozen_norm = frozen_norm
        self.weights = WeightReport(DRAWN)
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))
        self.train()

    @property
    def stride(self) -> int:
        return self.backbone.stride

    @property
    def feature_channels(self) -> int:
        return self.head.feature_channels

    @property
    def supports_stochastic_depth(self) -> bool:
        return self.backbone.residual_blocks > 0

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        return self.backbone.parameters()

    def head_parameters(self) -> Iterator[nn.Parameter]:
        return chain(self.head.parameters(), self.auxiliary.parameters())

    def embeddings(self) -> list[nn.Module]:
        """Of all heads, the main one's first."""
        return [head.embedding for head in (self.head, *self.auxiliary)]

    def train(self, mode: bool = True) -> SegmentationNetwork:
        """Frozen BatchNorm stays in eval mode."""
        super().train(mode)
        for layer in self.batch_norms() if self.frozen_norm else ():
            layer.eval()
        return self

    def batch_norms(self) -> Iterator[nn.Module]:
        return (layer for layer in self.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm))

    def forward(self, images: Tensor, noise: Noise | None = None) -> Prediction:
        """images [N, C, H, W] in [0, 1]; one row of noise per image. Without noise the pass is deterministic."""
        self._check_noise(images, noise)
        if (self.compiled or self.twin is not None) and self._watched():
            with as_written():
                return self._predicted(images, noise)
        if self.twin is not None and noise is None and not (self.training or torch.is_grad_enabled()):
            return self.twin(images)
        return self._predicted(images, noise)

    def _watched(self) -> bool:
        """Whether someone listens to a norm: a twin may not have it, and compiled code would be made for each hook."""
        return any(layer._forward_hooks or layer._forward_pre_hooks for layer in self.batch_norms())

    def _predicted(self, images: Tensor, noise: Noise | None) -> Prediction:
        if self.auxiliary and self.training and torch.is_grad_enabled():
            return self._with_auxiliary(images, noise)
        maps = self.backbone((images - self.mean) / self.std, noise)  # [N, C', h, w], and a finer one for some heads
        return Prediction(*self._scored(self.head, maps, noise))

    def _with_auxiliary(self, images: Tensor, noise: Noise | None) -> Prediction:
        layers = self.auxiliary.layers
        last, *earlier = self.backbone((images - self.mean) / self.std, noise, layers)  # [N, C', h, w] each
        heads = zip(self.auxiliary, earlier, strict=True)
        auxiliary = tuple(self._scored(head, [maps])[0] for head, maps in heads)  # [N, K, h, w] each
        return Prediction(*self._scored(self.head, [last], noise), auxiliary, self.auxiliary.weight)

    def _scored(self, head: Head, maps: Sequence[Tensor], noise: Noise | None = None) -> tuple[Tensor, Tensor]:
        """A head's class scores [N, K, h, w] and the pixel features [N, D, h, w] that they are made of."""
        features = _full_precision(head.embedding(*maps))
        # Scores are compared with thresholds such as 0.95, which bfloat16 cannot tell from its neighbors.
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = head.classifier(dropped_out(features, noise, self.dropout))
        return logits, features

    def _check_noise(self, images: Tensor, noise: Noise | None) -> None:
        if noise is None:
            return
        if len(noise.position) != len(images):
            raise ValueError(f"{len(images)} images but noise for {len(noise.position)} positions")
        if not (0.0 <= noise.dropout < 1.0 and 0.0 < noise.survival <= 1.0):
            raise ConfigError(
                f"dropout {noise.dropout} with survival {noise.survival} leaves nothing of a feature or a block",
                where="model noise",
                fix="dropout from 0 to below 1, survival above 0 and up to 1",
            )
        if noise.survival < 1.0 and not self.supports_stochastic_depth:
            raise ConfigError(
                f"{self.backbone.name} has no residual blocks, so stochastic depth cannot be applied",
                where="network.backbone",
                fix="survival 1, or a backbone with residual blocks such as resnet50",
            )


def _full_precision(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
