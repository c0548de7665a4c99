"""Pretrained weights: timm's download, torchvision's COCO backbone, or a file, with a report of what matched."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import timm
import torch
from safetensors import SafetensorError
from torch import Tensor

from fewmask.config import NetworkSettings
from fewmask.errors import CheckpointError, ConfigError
from fewmask.networks.weight_matching import DRAWN, WeightReport, match_weights

if TYPE_CHECKING:
    from fewmask.networks.segmentation import SegmentationNetwork

_WRAPPERS = ("state_dict", "model_state_dict", "model", "network")


def load_pretrained(network: SegmentationNetwork, settings: NetworkSettings) -> WeightReport:
    """Put the weights that `settings.pretrained` names into the backbone."""
    if settings.pretrained == "none":
        return WeightReport(DRAWN)
    if settings.pretrained == "hub":
        return _install(network, _hub_weights(network), "timm hub", partial=False)
    if settings.pretrained == "coco-voc-classes":
        return _install(network, _coco_weights(network), "torchvision, COCO with the VOC classes", partial=False)
    path = Path(settings.pretrained).expanduser()
    return _install(network, read_weights(path), str(path), partial=settings.partial)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors of a safetensors file or of a state dict that torch saved; nothing in it is executed."""
    if not path.is_file():
        raise CheckpointError(
            f"no such weight file: {path}",
            where="network.pretrained",
            fix="none, hub, coco-voc-classes, or a .safetensors or .pt file",
        )
    try:
        if path.suffix == ".safetensors":
            content: Any = safetensors.torch.load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what is no pickle makes its reader fail in any way
        raise CheckpointError(
            f"cannot read weights: {_why_unreadable(error)}",
            where=str(path),
            fix="a .safetensors file, or a state dict saved with torch.save(model.state_dict(), ...)",
        ) from error
    return _unwrapped(content, path)


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, SafetensorError | OSError):
        return (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, pickle.UnpicklingError):
        return "the file is damaged, no weight file, or holds more than tensors, which would have to be executed"
    return "the file is damaged or no weight file"


def _unwrapped(content: Any, path: Path) -> dict[str, Tensor]:
    while isinstance(content, Mapping):
        inner = next((content[key] for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            break
        content = inner
    tensors = {}
    if isinstance(content, Mapping):
        tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError("there are no named tensors in the file", where=str(path), fix="a state dict")
    return tensors


def _hub_weights(network: SegmentationNetwork) -> dict[str, Tensor]:
    backbone = network.backbone
    try:
        body = timm.create_model(
            backbone.name, pretrained=True, features_only=True, in_chans=backbone.image_channels, **backbone.arguments
        )
    except Exception as error:  # the download libraries raise kinds of their own, and timm RuntimeError
        raise ConfigError(
            f"timm could not load its weights for {backbone.name}: {error}",
            where="network.pretrained",
            fix="a backbone with published weights and a connection, or a downloaded file (pretrained: FILE)",
        ) from error
    return dict(body.state_dict())


def _coco_weights(network: SegmentationNetwork) -> dict[str, Tensor]:
    if network.backbone.name.split(".")[0] != "resnet101":
        raise ConfigError(
            f"coco-voc-classes are weights of resnet101, not of {network.backbone.name}",
            where="network.pretrained",
            fix="backbone resnet101, or pretrained hub, none or a file",
        )
    from torchvision.models.segmentation import DeepLabV3_ResNet101_Weights

    try:
        weights = DeepLabV3_ResNet101_Weights.COCO_WITH_VOC_LABELS_V1.get_state_dict(progress=True, check_hash=True)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"torchvision could not download its weights: {error}",
            where="network.pretrained",
            fix="a connection, or the downloaded file: pretrained: deeplabv3_resnet101_coco.pth",
        ) from error
    return dict(weights)


def _install(
    network: SegmentationNetwork, tensors: Mapping[str, Tensor], source: str, *, partial: bool
) -> WeightReport:
    """Copy what fits by name and shape. Half of the backbone must, and a wrong shape means another architecture."""
    body = network.backbone.body
    fitting, report = match_weights(body.state_dict(), tensors, source)
    if not partial and (2 * len(report.matched) < report.total or report.wrong_shape):
        why = "has other shapes than" if report.wrong_shape else "fits less than half of"
        raise CheckpointError(
            f"the file {why} {network.backbone.name}; {report.text()}",
            where=source,
            fix="weights of the same backbone in timm's names, or network.partial: true to start the rest at random",
        )
    body.load_state_dict(fitting, strict=False)
    return report
