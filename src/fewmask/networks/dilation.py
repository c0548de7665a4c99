"""Other ways to compute dilated convolutions: matrix products whose answers are shifted and added up.

A convolution's answer is the sum, over the taps of its kernel, of one matrix product per tap at a shifted place. All
taps of all branches can be one large product, which GPUs are best at, whatever the dilation. The numbers are those of
`nn.Conv2d` up to the order of additions; in bfloat16 each tap's answer is rounded before they are added in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Algorithm = Literal["direct", "product", "joined", "rows"]


def convolved(maps: Tensor, layers: Sequence[nn.Conv2d], algorithm: Algorithm) -> list[Tensor]:
    """What each layer makes of the maps [N, C, h, w]; padding must keep their size.

    direct: the library's own convolution. product: one matrix product for each layer. joined: one for all of them.
    rows: one for each row of a kernel, which leaves out the rows of the map that this row's shift pushes outside.
    """
    if algorithm == "direct":
        return [layer(maps) for layer in layers]
    if algorithm == "joined":
        return tap_products(maps, layers)
    if algorithm == "product":
        return [tap_products(maps, [layer])[0] for layer in layers]
    return [row_products(maps, layer) for layer in layers]


def tap_products(maps: Tensor, layers: Sequence[nn.Conv2d]) -> list[Tensor]:
    """All taps of all layers in one product."""
    pixels = maps.permute(0, 2, 3, 1)  # [N, h, w, C], no copy of channels-last maps
    weights = [layer.weight.permute(2, 3, 0, 1).flatten(0, 2) for layer in layers]  # [taps * O, C] each
    answers = F.linear(pixels, torch.cat(weights)).split([len(weight) for weight in weights], dim=-1)
    return [
        _finished(shifted_sum(answer.unflatten(-1, (*layer.kernel_size, -1)), layer.dilation[0]), layer)
        for answer, layer in zip(answers, layers, strict=True)
    ]


def row_products(maps: Tensor, layer: nn.Conv2d) -> Tensor:
    """A product for each row of the kernel, over the rows of the map that it can reach."""
    pixels = maps.permute(0, 2, 3, 1)  # [N, h, w, C]
    count, height, width, _ = pixels.shape
    total: Tensor | None = None
    for row, (source, target) in _spans(height, layer.kernel_size[0], layer.dilation[0]):
        weight = layer.weight[:, :, row].permute(2, 0, 1).flatten(0, 1)  # [columns * O, C]
        seen = pixels[:, source].flatten(1, 2)  # [N, rows * w, C]
        answer = torch.bmm(seen, weight.t().expand(count, -1, -1))
        taps = answer.reshape(count, -1, width, 1, layer.kernel_size[1], layer.out_channels)
        part = shifted_sum(taps, layer.dilation[0])
        part = F.pad(part, (0, 0, 0, 0, target.start, height - target.stop))  # [N, h, w, O]
        total = part if total is None else total + part
    assert total is not None, "a kernel's middle row reaches every row"
    return _finished(total, layer)


def shifted_sum(taps: Tensor, dilation: int) -> Tensor:
    """Every tap's answers [N, h, w, rows, columns, O], moved to where they count and added up: [N, h, w, O]."""
    total: Tensor = _ShiftedSum.apply(taps, dilation)
    return total


class _ShiftedSum(torch.autograd.Function):
    """Autograd would fill a tensor of all taps for each of them."""

    @staticmethod
    def forward(ctx: Any, taps: Tensor, dilation: int) -> Tensor:
        ctx.dilation, ctx.kernel = dilation, taps.shape[3:5]
        ctx.dtype = taps.dtype
        count, height, width, _, _, channels = taps.shape
        wide = torch.float32 if taps.dtype in (torch.bfloat16, torch.float16) else taps.dtype
        total = taps.new_zeros((count, height, width, channels), dtype=wide)
        for tap, source, target in _shifts((height, width), ctx.kernel, dilation):
            total[:, target[0], target[1]] += taps[:, source[0], source[1], tap[0], tap[1]]
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0]
        count, height, width, channels = total.shape
        taps = total.new_zeros((count, height, width, *ctx.kernel, channels), dtype=ctx.dtype)
        for tap, source, target in _shifts((height, width), ctx.kernel, ctx.dilation):
            taps[:, source[0], source[1], tap[0], tap[1]] = total[:, target[0], target[1]].to(ctx.dtype)
        return taps, None


def _finished(total: Tensor, layer: nn.Conv2d) -> Tensor:
    """With bias, in the precision that the layer itself would answer in, as [N, O, h, w]."""
    total = total if layer.bias is None else total + layer.bias
    device = total.device.type
    if torch.is_autocast_enabled(device):
        total = total.to(torch.get_autocast_dtype(device))
    return total.permute(0, 3, 1, 2)


def _shifts(
    size: tuple[int, int], kernel: Sequence[int], dilation: int
) -> Iterator[tuple[tuple[int, int], tuple[slice, slice], tuple[slice, slice]]]:
    """For each tap that reaches the map at all: where its answers stand, and where they count."""
    rows, columns = (list(_spans(*each, dilation)) for each in zip(size, kernel, strict=True))
    for (row, (top, to_top)), (column, (left, to_left)) in product(rows, columns):
        yield (row, column), (top, left), (to_top, to_left)


def _spans(length: int, kernel: int, dilation: int) -> Iterator[tuple[int, tuple[slice, slice]]]:
    """Along one axis: place t of the answer takes tap k from t + (k - kernel // 2) * dilation, if that is inside."""
    for tap in range(kernel):
        offset = (tap - kernel // 2) * dilation
        if abs(offset) < length:
            source = slice(max(0, offset), length + min(0, offset))
            yield tap, (source, slice(source.start - offset, source.stop - offset))
