"""BatchNorm statistics of a network that never trains, taken from the images that it sees.

A layer keeps answering with its running statistics, so an image's answer depends on no other image of its batch and is
the one that evaluation would get. What the layer is fed moves the running statistics afterwards, by its own momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_MOMENTUM = 0.1  # torch's own, where a layer would average over all batches


def tracking_layers(network: nn.Module) -> list[_BatchNorm]:
    """The layers with running statistics, in the order of their names."""
    return [layer for layer in network.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]


@contextmanager
def watched_inputs(network: nn.Module, wanted: bool = True, rows: int | None = None) -> Iterator[list[Tensor]]:
    """Within it, a pass leaves the moments of each layer's input in the list, each [2 D + 1]; no list if not wanted.

    Only the first `rows` images that pass through count, where that is given, in however many parts they come.
    """
    layers = tracking_layers(network) if wanted else []
    moments = [_running(layer)[0].new_zeros(2 * layer.num_features + 1) for layer in layers]
    places = {layer: place for place, layer in enumerate(layers)}
    seen = dict.fromkeys(layers, 0)

    def note(layer: nn.Module, inputs: Sequence[Any], output: Any) -> None:  # noqa: ARG001
        assert isinstance(layer, _BatchNorm)
        counted = inputs[0] if rows is None else inputs[0][: max(rows - seen[layer], 0)]
        seen[layer] += len(inputs[0])
        if len(counted):
            moments[places[layer]] = moments[places[layer]] + _moments(layer, counted)

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield moments
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Within it, layers answer with the statistics of the batch they see, and leave the running ones as they are."""
    layers, training = tracking_layers(network), network.training
    network.train()
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
        network.train(training)


@torch.no_grad()
def move_statistics(network: nn.Module, moments: Tensor) -> None:
    """Running statistics <- (1 - m) * themselves + m * those of the inputs; `moments` is flat and summed over ranks."""
    layers = tracking_layers(network)
    for layer, part in zip(layers, moments.split([2 * layer.num_features + 1 for layer in layers]), strict=True):
        mean, variance = _running(layer)
        first, second, count = part[: len(mean)], part[len(mean) : -1], part[-1]
        shift = first / count.clamp(min=1)  # [D] from the running mean to the inputs' mean
        spread = (second - count * shift.square()) / (count - 1).clamp(min=1)  # [D] unbiased, as torch tracks it
        momentum = _MOMENTUM if layer.momentum is None else layer.momentum
        momentum = momentum * count.clamp(max=1)  # nothing seen, nothing moves
        variance.add_(momentum * (spread - variance))
        mean.add_(momentum * shift)


def _moments(layer: _BatchNorm, values: Tensor) -> Tensor:
    """Sums over pixels of the distance to the running mean and of its square, and their number: [2 D + 1].

    Distances stay small, so that the difference of squares keeps its digits in float32.
    """
    mean, _ = _running(layer)
    wide = values.detach().to(mean.dtype)  # [N, D, ...]
    others = [axis for axis in range(wide.ndim) if axis != 1]
    spread, center = torch.var_mean(wide, dim=others, correction=0)  # [D] each
    count = wide.numel() / wide.shape[1]
    shift = center - mean
    return torch.cat([count * shift, count * (spread + shift.square()), mean.new_full((1,), count)])


def _running(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    assert layer.running_mean is not None and layer.running_var is not None  # noqa: PT018
    return layer.running_mean, layer.running_var
