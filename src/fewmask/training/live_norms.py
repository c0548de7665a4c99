"""BatchNorm that learns its statistics needs two values per channel; settings that give it one are told beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fewmask.config import Config, Size
from fewmask.errors import ConfigError
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.memory_advice import written_size


def check_live_norms(config: Config, network: SegmentationNetwork, images: int, *, section: str = "") -> None:
    """`images` go through the network together, in micro-batches where the settings ask for them.

    `section` is where the settings are said, if not for the run itself. One process is meant: several share the sums of
    their layers, and so have two values.
    """
    crop, accumulate = config.views.crop, config.training.accumulate
    assert crop is not None
    together = images // min(images, accumulate)  # the smallest part, see networks/recomputation.py
    if together > 1 or fewest_values(network, crop) > 1:
        return
    settings = ["training.batch", *(["training.accumulate"] if accumulate > 1 else []), "views.crop"]
    raise ConfigError(
        f"one crop of {written_size(crop)} alone gives a BatchNorm layer of {network.backbone.name} "
        "a single value per channel, which has no variance",
        where=", ".join(section + setting for setting in settings),
        fix=", or ".join(section + way for way in _ways_out(config, network, images)),
    )


@torch.no_grad()
def fewest_values(network: SegmentationNetwork, size: Size) -> int:
    """Values per channel that one image of this size leaves to the BatchNorm layer that gets fewest; 2 without any.

    Counted in a pass, as some networks have such layers behind a mean over the whole image.
    """
    counts: list[int] = []

    def note(_: Any, inputs: Any) -> None:
        counts.append(inputs[0].numel() // inputs[0].shape[1])

    parameter, training = next(network.parameters()), network.training
    image = torch.zeros(1, network.backbone.image_channels, *size, device=parameter.device, dtype=parameter.dtype)
    handles = [layer.register_forward_pre_hook(note) for layer in network.batch_norms()]
    try:
        network.eval()(image)
    finally:
        network.train(training)
        for handle in handles:
            handle.remove()
    return min(counts, default=2)


def _ways_out(config: Config, network: SegmentationNetwork, images: int) -> Iterator[str]:
    """Each by itself is enough."""
    training, pair = config.training, 2 * config.training.accumulate
    if images > 1:
        yield f"training.accumulate={images // 2}"
    elif training.batch == 1:
        yield f"training.batch={pair}"
    else:
        yield f"training.unlabeled_batch={pair}"
    larger = (network.backbone.deep_stride + 1,) * 2
    if network.backbone.only_size is None and fewest_values(network, larger) > 1:
        yield f"views.crop={written_size(larger)} or more"
    yield "network.frozen_norm=true"
