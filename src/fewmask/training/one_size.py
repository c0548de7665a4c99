"""Networks that take images of one size only, held against all that a run would show them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fewmask.config import Config, EvaluationSettings, Size
from fewmask.errors import ConfigError
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.memory_advice import written_size
from fewmask.training.placement import Stores
from fewmask.types import FlatImages


def check_one_size(config: Config, network: SegmentationNetwork, stores: Stores, *, swept: bool) -> None:
    """Crops, what validation shows, and what a sweep shows, where there is one."""
    only, crop = network.backbone.only_size, config.views.crop
    if only is None:
        return
    assert crop is not None
    size = written_size(only)
    _require(network, [crop], "views.crop", f"views.crop={size}")
    shown = [_in_evaluation(each, config.evaluation) for each in _sizes(stores.val)]
    way = f"evaluation.mode=tiled evaluation.tile={size} where all are as large, or data.resize={size}"
    _require(network, shown, "evaluation", way)
    if swept:
        pixels = config.training.sweep_pixels
        images = _sizes(stores.labeled) | _sizes(stores.unlabeled)
        _require(network, [_in_sweep(each, network.stride, pixels) for each in images], "images", f"data.resize={size}")


def _require(network: SegmentationNetwork, sizes: Iterable[Size], where: str, fix: str) -> None:
    backbone = network.backbone
    other = next((size for size in sizes if size != backbone.only_size), None)
    if other is not None:
        assert backbone.only_size is not None
        raise ConfigError(
            f"{backbone.name} takes images of {written_size(backbone.only_size)} only, not {written_size(other)}",
            where=f"network.backbone, {where}",
            fix=f"{fix}; or another backbone",
        )


def _sizes(images: FlatImages | None) -> set[Size]:
    return set() if images is None else set(zip(images.height.tolist(), images.width.tolist(), strict=True))


def _in_evaluation(size: Size, settings: EvaluationSettings) -> Size:
    """As evaluation/inference.py cuts it."""
    if settings.mode == "whole":
        return size
    return min(size[0], settings.tile[0]), min(size[1], settings.tile[1])


def _in_sweep(size: Size, stride: int, pixels: int) -> Size:
    """As evaluation/cells.py cuts it: tiles of whole cells, the last of which hangs over where the image ends."""
    if math.prod(size) <= pixels:
        return size
    tile = max(1, math.isqrt(pixels) // stride) * stride
    height, width = (min(side, tile - -side % stride) for side in size)
    return height, width
