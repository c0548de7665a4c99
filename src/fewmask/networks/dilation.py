"""Several dilated convolutions of the same maps, whose gradients are two matrix products for all of them.

A convolution is the sum, over the taps of its kernel, of one matrix product per tap at a shifted place. Going back, the
taps of all branches are the columns of one large product, which GPUs are better at than at the gradients of dilated
convolutions: what reaches a branch's answer is shifted to where each tap looked, and one product gives the gradient of
the maps, another those of all weights. Answers are the library's own; gradients are, up to the order of additions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Window = tuple[slice, slice]


def joined(maps: Tensor, layers: Sequence[nn.Conv2d]) -> list[Tensor]:
    """What each layer makes of the maps [N, C, h, w]; padding must keep their size."""
    dilations = tuple(layer.dilation[0] for layer in layers)
    answers = _Branches.apply(maps, dilations, *(layer.weight for layer in layers))
    biases = [layer.bias for layer in layers]
    return [
        answer if bias is None else answer + bias.to(answer.dtype)[:, None, None]
        for answer, bias in zip(answers, biases, strict=True)
    ]


class _Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, dilations: tuple[int, ...], *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dilations = dilations
        ctx.save_for_backward(maps, *weights)
        paddings = [_same(weight, dilation) for weight, dilation in zip(weights, dilations, strict=True)]
        return tuple(
            F.conv2d(maps, weight, padding=padding, dilation=dilation)
            for weight, padding, dilation in zip(weights, paddings, dilations, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, *weights = ctx.saved_tensors
        pulls = [
            pull
            for gradient, weight, dilation in zip(gradients, weights, ctx.dilations, strict=True)
            for pull in tap_gradients(gradient.permute(0, 2, 3, 1), (weight.shape[2], weight.shape[3]), dilation)
        ]
        columns = torch.cat(pulls, dim=-1).flatten(0, 2)  # [N * h * w, all taps * O]
        pixels = maps.to(columns.dtype).permute(0, 2, 3, 1).flatten(0, 2)  # [N * h * w, C]
        rows = torch.cat([weight.permute(2, 3, 0, 1).flatten(0, 2) for weight in weights])  # [all taps * O, C]
        count, channels, height, width = maps.shape
        to_maps = (columns @ rows.to(columns.dtype)).reshape(count, height, width, channels).permute(0, 3, 1, 2)
        to_rows = (columns.t() @ pixels).split([weight[:, 0].numel() for weight in weights])
        return to_maps, None, *(_as_kernel(rows, weight) for rows, weight in zip(to_rows, weights, strict=True))


def tap_gradients(gradient: Tensor, kernel: tuple[int, int], dilation: int) -> Iterator[Tensor]:
    """For each tap what reaches a convolution's answer [N, h, w, O], at the place that the tap took its input from."""
    size = (gradient.shape[1], gradient.shape[2])
    rows, columns = (list(_spans(*each, dilation)) for each in zip(size, kernel, strict=True))
    for row, column in product(rows, columns):
        if row is None or column is None:
            yield torch.zeros_like(gradient)  # the tap never met the map
        else:
            yield _moved(gradient, (row[0], column[0]), (row[1], column[1]))


def _moved(maps: Tensor, source: Window, target: Window) -> Tensor:
    """A window of [N, h, w, O] at another place, with zeros around it."""
    (top, left), (height, width) = target, maps.shape[1:3]
    around = (0, 0, left.start, width - left.stop, top.start, height - top.stop)
    return F.pad(maps[:, source[0], source[1]], around)


def _spans(length: int, kernel: int, dilation: int) -> Iterator[Window | None]:
    """Along one axis, for each tap: places of the answer that it serves, and where it looks for them, if inside."""
    for tap in range(kernel):
        offset = (tap - kernel // 2) * dilation
        served = slice(max(0, -offset), length + min(0, -offset))
        inside = abs(offset) < length
        yield (served, slice(served.start + offset, served.stop + offset)) if inside else None


def _same(weight: Tensor, dilation: int) -> tuple[int, int]:
    """The padding that keeps the size of a map."""
    return dilation * (weight.shape[2] // 2), dilation * (weight.shape[3] // 2)


def _as_kernel(rows: Tensor, weight: Tensor) -> Tensor:
    """[taps * O, C] as the layer's [O, C, rows, columns]."""
    outs, channels, height, width = weight.shape
    return rows.to(weight.dtype).reshape(height, width, outs, channels).permute(2, 3, 0, 1)
