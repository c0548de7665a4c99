"""timm models that return feature maps: found by name, created, and measured with a real forward pass."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import timm
import torch
from timm.layers import Format
from torch import Tensor, nn

from fewmask.config import NetworkSettings
from fewmask.errors import ConfigError

_DILATED = (8, 16, 32)  # stride 4 would make every deep layer four times as expensive
_PROBE_SIZE = (64, 96)  # not square, and divisible by every stride
_DECIDED_ELSEWHERE = {
    "features_only": "it is always on",
    "pretrained": "use network.pretrained",
    "in_chans": "the images decide",
    "num_classes": "the classes decide",
    "output_stride": "use network.stride",
    "drop_path_rate": "use the method's survival rate",
    "drop_rate": "use the method's dropout",
    "patch_drop_rate": "use the method's dropout: a map needs all of its patches",
}
# How timm says that a model does not know an argument or an image size.
REFUSALS = (TypeError, ValueError, AssertionError, RuntimeError, KeyError, IndexError)


class Level(NamedTuple):
    """One feature map that a model gives."""

    channels: int
    stride: float  # a fraction where the map does not divide the image


@dataclass(frozen=True)
class Body:
    """A timm model, what it was created with and what it was seen to return."""

    module: nn.Module
    arguments: dict[str, Any]
    levels: tuple[Level, ...]
    only_size: tuple[int, int] | None = None  # the one image size it takes, where timm fixes it

    @property
    def depth(self) -> int:
        """Layers of a plain transformer, up to the one whose map is the last; 0 where maps differ in form."""
        module: Any = self.module
        if not hasattr(getattr(module, "model", None), "forward_intermediates"):
            return 0
        info = module.feature_info
        forms = {(each["num_chs"], each["reduction"]) for each in info.info}
        return max(range(len(info))[place] for place in info.out_indices) + 1 if len(forms) == 1 else 0

    def probe(self, channels: int) -> Tensor:
        return torch.zeros(2, channels, *(self.only_size or _PROBE_SIZE))


def feature_maps(module: nn.Module, images: Tensor) -> list[Tensor]:
    """All feature maps, finest first, each [N, D, h, w] whatever the model's own layout."""
    maps: list[Tensor] = module(images)
    if getattr(module, "output_fmt", None) == Format.NHWC:
        maps = [values.permute(0, 3, 1, 2) for values in maps]
    return maps


def layer_maps(module: Any, images: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """The maps after these layers of a plain transformer, counted from 1 and in their order, each [N, D, h, w]."""
    maps: list[Tensor] = module.model.forward_intermediates(
        images,
        indices=[layer - 1 for layer in layers],
        norm=module.norm,
        output_fmt=module.output_fmt,
        intermediates_only=True,
    )
    return maps


def bodies(settings: NetworkSettings, channels: int, stride: int) -> Iterator[Body]:
    """The ways in which timm can build the backbone, the one dilated to the asked stride first."""
    check_backbone(settings)
    dilated: list[dict[str, Any]] = [{"output_stride": value} for value in _DILATED if value >= stride]
    refusal: Exception | None = None
    for size in _size_arguments(settings.backbone):
        found = False
        for output_stride in (*dilated, {}):
            try:
                body = _create(settings, {**size, **output_stride}, channels, one_size=not size)
            except REFUSALS as error:
                refusal = error
                continue
            found = True
            yield body
        if found:
            return
    raise ConfigError(
        f"timm cannot build {settings.backbone} as a feature extractor: {refusal}",
        where="network.backbone, network.options",
        fix="a timm model that supports features_only, and options that its constructor knows",
    )


def check_backbone(settings: NetworkSettings) -> None:
    """Unknown names and options that other settings decide are errors."""
    if not timm.is_model(settings.backbone):
        close = difflib.get_close_matches(settings.backbone, timm.list_models(), n=5)
        raise ConfigError(
            f"there is no timm model called {settings.backbone!r}",
            where="network.backbone",
            fix=", ".join(close) if close else "see `fewmask networks`",
        )
    for name in settings.options:
        if name in _DECIDED_ELSEWHERE:
            raise ConfigError(
                f"{name} is not a free option", where=f"network.options.{name}", fix=_DECIDED_ELSEWHERE[name]
            )


def _size_arguments(name: str) -> list[dict[str, Any]]:
    """Transformers are asked to take images of any size first, in both of timm's ways."""
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.fixed_input_size:
        return [{}]
    return [{"dynamic_img_size": True, "dynamic_img_pad": True}, {"strict_img_size": False}, {}]


def _create(settings: NetworkSettings, arguments: dict[str, Any], channels: int, *, one_size: bool) -> Body:
    """One body; `one_size` accepts a model that refuses all sizes but its own."""
    arguments = {**arguments, **settings.options}
    module: Any = timm.create_model(settings.backbone, features_only=True, in_chans=channels, **arguments)
    try:
        levels = _measured(module, channels, _PROBE_SIZE)
        if one_size and module.pretrained_cfg.get("fixed_input_size"):
            longer = 2 * _own_side(settings, module)  # a table of positions may end at the model's own size
            _measured(module, channels, (_PROBE_SIZE[0], longer))
        return Body(module, arguments, levels)
    except REFUSALS:
        if not one_size:
            raise
    size = (_own_side(settings, module),) * 2
    return Body(module, arguments, _measured(module, channels, size), only_size=size)


def _own_side(settings: NetworkSettings, module: Any) -> int:
    """Height and width of the images that a model was made for."""
    return int(settings.options.get("img_size") or module.pretrained_cfg["input_size"][1])


@torch.no_grad()
def _measured(module: nn.Module, channels: int, size: tuple[int, int]) -> tuple[Level, ...]:
    module.eval()  # BatchNorm keeps its statistics
    maps = feature_maps(module, torch.zeros(2, channels, *size))
    module.train()
    levels = []
    for values in maps:
        down, across = size[0] / values.shape[2], size[1] / values.shape[3]
        levels.append(Level(values.shape[1], down if down == across else float("nan")))
    return tuple(levels)
