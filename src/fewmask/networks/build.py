"""Networks from settings, the same for the same seed, and what the plan says about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fewmask.config import NetworkSettings
from fewmask.errors import ConfigError
from fewmask.networks.backbones import Backbone, create_backbone
from fewmask.networks.deeplab import deeplabv2, summed
from fewmask.networks.deeplab_plus import deeplabv3plus
from fewmask.networks.heads import AuxiliaryHeads, Head
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.networks.setr import setr_auxiliary, setr_naive
from fewmask.networks.weights import load_pretrained


def build_network(
    settings: NetworkSettings, *, num_classes: int, channels: int = 3, seed: int = 0
) -> SegmentationNetwork:
    """A network on the CPU with weights drawn from `seed`, then with the pretrained ones where they are asked for."""
    with seeded(seed):
        backbone = create_backbone(settings, channels)
    with seeded(seed + 1):  # the head starts the same whatever the backbone drew
        head = _head(settings, backbone, num_classes)
    with seeded(seed + 2):  # and both whether or not there are more
        auxiliary = _auxiliary(settings, backbone, num_classes)
    mean = _per_channel(settings.mean, backbone.timm_config["mean"], channels, "network.mean")
    std = _per_channel(settings.std, backbone.timm_config["std"], channels, "network.std")
    network = SegmentationNetwork(
        backbone,
        head,
        num_classes=num_classes,
        mean=mean,
        std=std,
        dropout=settings.dropout_kind,
        frozen_norm=settings.frozen_norm,
        auxiliary=auxiliary,
    )
    with seeded(seed):  # timm builds the model once more to fill it
        network.weights = load_pretrained(network, settings)
    return network


@dataclass(frozen=True)
class NetworkReport:
    """What the plan says about a network."""

    name: str
    parameters: int
    backbone_parameters: int
    stride: int
    feature_channels: int
    residual_blocks: int
    notes: tuple[str, ...]  # how the stride was had, and where the weights come from

    def text(self) -> str:
        size = f"{self.parameters / 1e6:.2f} M parameters ({self.backbone_parameters / 1e6:.2f} M in the backbone)"
        return "\n".join((f"{self.name}: {size}, stride {self.stride}, {self.feature_channels} features", *self.notes))


def network_report(network: SegmentationNetwork, settings: NetworkSettings) -> NetworkReport:
    """Parameters, the stride that was obtained, the feature size and the origin of the weights."""
    backbone = network.backbone
    return NetworkReport(
        name=f"{settings.head} on {settings.backbone}",
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        backbone_parameters=sum(parameter.numel() for parameter in network.backbone_parameters()),
        stride=network.stride,
        feature_channels=network.feature_channels,
        residual_blocks=backbone.residual_blocks,
        notes=(*_backbone_notes(backbone), network.weights.text(), *_norm_notes(network), *_auxiliary_notes(network)),
    )


def _backbone_notes(backbone: Backbone) -> Iterator[str]:
    if backbone.fine is not None:
        how = "joined in the head" if backbone.apart else "enlarged and joined"
        yield f"features at stride {backbone.deep_stride}, {how} with those at stride {backbone.stride}"
    if backbone.filling.multiple > 1:
        yield f"images are filled up to multiples of {backbone.filling.multiple} pixels, and their maps cut back"
    if backbone.only_size is not None:
        yield f"{backbone.name} takes images of {backbone.only_size} only"


def _norm_notes(network: SegmentationNetwork) -> Iterator[str]:
    if network.frozen_norm:
        yield f"{len(list(network.batch_norms()))} BatchNorm layers keep their statistics"


def _auxiliary_notes(network: SegmentationNetwork) -> Iterator[str]:
    heads = network.auxiliary
    if heads:
        layers = f"layers {', '.join(map(str, heads.layers))} of {network.backbone.depth}"
        yield f"auxiliary heads after {layers}, each with weight {heads.weight:g}, in training only"


def _head(settings: NetworkSettings, backbone: Backbone, num_classes: int) -> Head:
    channels = backbone.channels
    if settings.head == "deeplabv3plus":
        strides = (backbone.deep_stride, backbone.stride)
        return deeplabv3plus(backbone.level_channels, num_classes, width=settings.width, strides=strides)
    if settings.head == "deeplabv2":
        return deeplabv2(channels, num_classes, width=settings.width, stride=settings.stride)
    if settings.head == "setr_naive":
        return setr_naive(channels, num_classes, width=settings.width)
    branches = {"sum4": 4, "sum2": 2}[settings.head]
    return summed(channels, num_classes, stride=settings.stride, branches=branches)


def _auxiliary(settings: NetworkSettings, backbone: Backbone, num_classes: int) -> AuxiliaryHeads:
    weight, where = settings.auxiliary_weight, "network.auxiliary_weight"
    if weight == 0:
        return AuxiliaryHeads()
    if settings.head != "setr_naive":
        what = f"auxiliary heads belong to setr_naive, and the head is {settings.head}"
        raise ConfigError(what, where=where, fix="0, or network.head=setr_naive")
    if backbone.depth < 2:
        what = f"{backbone.name} has no earlier layers of the last one's form, which auxiliary heads would read"
        raise ConfigError(what, where=where, fix="0, or a plain vision transformer such as vit_base_patch16_384")
    return setr_auxiliary(backbone.channels, num_classes, width=settings.width, depth=backbone.depth, weight=weight)


def _per_channel(
    asked: tuple[float, ...] | None, own: tuple[float, ...], channels: int, where: str
) -> tuple[float, ...]:
    """One value per channel; the backbone's own are averaged where the images are not RGB."""
    if asked is None:
        return tuple(own) if len(own) == channels else (sum(own) / len(own),) * channels
    if len(asked) not in (1, channels):
        raise ConfigError(
            f"{len(asked)} values for images with {channels} channels", where=where, fix=f"1 or {channels} values"
        )
    return tuple(asked) * (channels if len(asked) == 1 else 1)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw initial weights from `seed` and leave the global generator as it was."""
    # torch.manual_seed would reseed the generators of every GPU, too; networks are born on the CPU.
    state = torch.random.get_rng_state()
    torch.random.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(state)
