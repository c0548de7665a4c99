"""timm backbones as one feature map at exactly the stride that was asked for, or as two for heads that join them.

timm dilates many convolutional networks down to stride 8. Where the deepest features are still coarser than asked
(always at stride 4, and in networks that timm cannot dilate) they are enlarged and joined with the network's own
features at the asked stride. A head that refines coarse features with fine ones gets both as they are. Whatever the
network, a level has ceil(size / stride) cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewmask.alignment import resampled
from fewmask.config import NetworkSettings
from fewmask.errors import ConfigError
from fewmask.networks.gates import install_gates, settle_gates
from fewmask.networks.model_noise import DepthRule, PassNoise, ResidualGate
from fewmask.networks.timm_bodies import Body, bodies, feature_maps, layer_maps
from fewmask.networks.whole_cells import Filling, cut_to_cells, find_filling
from fewmask.randomness import Noise

STRIDES = (4, 8, 16, 32)


class Backbone(nn.Module):
    """A timm network whose deepest level, joined with a finer one where needed, is the feature map."""

    def __init__(self, body: Body, settings: NetworkSettings, image_channels: int, *, apart: bool = False) -> None:
        super().__init__()
        stride = settings.stride
        self.name = settings.backbone
        self.body = body.module
        self.arguments = body.arguments
        self.only_size = body.only_size
        self.image_channels = image_channels
        self.stride = stride
        self.depth = body.depth  # layers of a plain transformer; 0 for other networks
        self.deep_stride = int(body.levels[-1].stride)
        self.fine = _fine_level(body, stride)  # the level that the deepest one is joined with, if any
        self.apart = apart  # hand both levels over as they are
        self.level_channels = tuple(body.levels[level].channels for level in (-1, self.fine) if level is not None)
        self.filling = _filling(body, self.fine, image_channels, self.name)
        self.noise = PassNoise()
        self.residual_blocks = _gated_blocks(body, self.noise, image_channels, settings.stochastic_depth_rule)

    @property
    def channels(self) -> int:
        return sum(self.level_channels)

    @property
    def timm_config(self) -> dict[str, Any]:
        """timm's description of the model and its published weights."""
        config: Any = self.body.pretrained_cfg
        return dict(config)

    def forward(self, images: Tensor, noise: Noise | None = None, after: Sequence[int] = ()) -> tuple[Tensor, ...]:
        """Normalized images [N, C, H, W] to features [N, D, h, w], h = H / stride rounded up; apart, the deep first.

        A plain transformer may be asked for the maps after some of its layers, too, which follow that of the last one.
        """
        if self.only_size is not None and tuple(images.shape[2:]) != self.only_size:
            raise ConfigError(
                f"{self.name} takes images of {self.only_size} only, not {tuple(images.shape[2:])}",
                where="network.backbone",
                fix="that size for crops and tiles, or another backbone",
            )
        filled = self.filling.filled(images)
        with self.noise.set_to(noise):
            if after:
                layers = layer_maps(self.body, filled, (*after, self.depth))
                *earlier, last = (cut_to_cells(maps, images.shape[2:], self.deep_stride) for maps in layers)
                return last, *earlier
            maps = feature_maps(self.body, filled)
        deep = cut_to_cells(maps[-1], images.shape[2:], self.deep_stride)
        if self.fine is None:
            return (deep,)
        fine = cut_to_cells(maps[self.fine], images.shape[2:], self.stride)
        if self.apart:
            return deep, fine
        return (torch.cat([enlarged(deep, self.deep_stride // self.stride, like=fine), fine], dim=1),)


def enlarged(maps: Tensor, factor: int, *, like: Tensor) -> Tensor:
    """Maps [N, D, h, w] at the cells of others that lie `factor` times as dense.

    Cells of both begin at the image's edge (alignment.py); what hangs over the end of the others is cut off.
    """
    rows, columns = like.shape[2:]
    if torch.are_deterministic_algorithms_enabled():
        # What torch takes there instead of interpolation on CUDA has a gradient that sorts all addresses
        maps = resampled(maps, (rows, columns), (1 / factor, 1 / factor))
        return maps.contiguous(memory_format=torch.channels_last)
    return F.interpolate(maps, scale_factor=factor, mode="bilinear")[:, :, :rows, :columns]


def create_backbone(settings: NetworkSettings, image_channels: int) -> Backbone:
    """The backbone at the asked stride, or an error that lists the strides that can be had."""
    apart = settings.head == "deeplabv3plus"
    body = _body_with_stride(settings, image_channels, apart)
    if body is not None:
        return Backbone(body, settings, image_channels, apart=apart)
    raise _no_stride(settings, available_strides(settings, image_channels), apart)


def _no_stride(settings: NetworkSettings, strides: list[int], apart: bool) -> ConfigError:
    """What the backbone can give instead; a plain vision transformer has one stride, and a head of its own."""
    name, stride = settings.backbone, settings.stride
    if not apart:
        fix = ", ".join(map(str, strides)) if strides else f"another backbone; this one has none of {STRIDES}"
        return ConfigError(f"{name} cannot give features at stride {stride}", where="network.stride", fix=fix)
    what = f"{name} has no features at stride {stride} beside coarser ones, which {settings.head} joins"
    if len(strides) > 1:
        return ConfigError(what, where="network.stride", fix=", ".join(map(str, strides[:-1])))
    alone = f"network.head=setr_naive network.stride={strides[-1]}" if strides else "another backbone"
    return ConfigError(what, where="network.backbone, network.head", fix=alone)


def available_strides(settings: NetworkSettings, image_channels: int = 3) -> list[int]:
    """Every stride that the backbone can give, found by trying."""
    found = {
        level.stride
        for body in bodies(settings, image_channels, STRIDES[0])
        for level in body.levels
        if level.stride <= body.levels[-1].stride in STRIDES
    }
    return [stride for stride in STRIDES if stride in found]


def _body_with_stride(settings: NetworkSettings, image_channels: int, apart: bool) -> Body | None:
    """The first way to build it that has the asked stride; where levels stay apart, as the finer of two."""
    stride = settings.stride
    for body in bodies(settings, image_channels, settings.deep_stride if apart else stride):
        if _fine_level(body, stride) is not None or (not apart and body.levels[-1].stride == stride):
            return body
    return None


def _fine_level(body: Body, stride: int) -> int | None:
    """The deepest level at the asked stride, if the network goes on to a coarser one that can be enlarged to it."""
    found = [index for index, level in enumerate(body.levels) if level.stride == stride]
    return found[-1] if found and stride < body.levels[-1].stride in STRIDES else None


def _filling(body: Body, fine: int | None, image_channels: int, name: str) -> Filling:
    """How images of any size are made to fit; a body that takes one size only is left to say so."""
    if body.only_size is not None:
        return Filling()
    strides = {place: int(body.levels[place].stride) for place in (-1, fine) if place is not None}
    filling = find_filling(body.module, strides, image_channels)
    if filling is None:
        raise ConfigError(
            f"{name} has no cell every {max(strides.values())} pixels in images of any size, as segmentation needs it",
            where="network.backbone, network.options",
            fix="another backbone, see `fewmask networks`",
        )
    return filling


@torch.no_grad()
def _gated_blocks(body: Body, shared: PassNoise, image_channels: int, rule: DepthRule) -> int:
    """Gate the residual blocks and find by a forward pass which gates are in use, and in which order."""
    called: list[ResidualGate] = []
    handles = []
    for gate in install_gates(body.module):
        handles.append(gate.register_forward_hook(lambda module, *_: called.append(module)))
    body.module.eval()
    feature_maps(body.module, body.probe(image_channels))
    body.module.train()
    for handle in handles:
        handle.remove()
    shared.gates = list(dict.fromkeys(called))
    return settle_gates(body.module, called, rule)
