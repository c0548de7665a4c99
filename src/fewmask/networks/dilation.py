"""Several dilated convolutions of the same maps as one matrix product, whose answers are shifted and added up.

A convolution's answer is the sum, over the taps of its kernel, of one matrix product per tap at a shifted place. All
taps of all branches are one large product, which GPUs are best at, whatever the dilation. The numbers are those of
`nn.Conv2d` up to the order of additions; in bfloat16 each tap's answer is rounded before they are added in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Kernel(NamedTuple):
    """What shifting needs to know about a layer."""

    rows: int
    columns: int
    dilation: int
    channels: int  # that come out


def joined(maps: Tensor, layers: Sequence[nn.Conv2d]) -> list[Tensor]:
    """What each layer makes of the maps [N, C, h, w]; padding must keep their size."""
    pixels = maps.permute(0, 2, 3, 1)  # [N, h, w, C], no copy of channels-last maps
    weight = torch.cat([layer.weight.permute(2, 3, 0, 1).flatten(0, 2) for layer in layers])  # [all taps * O, C]
    totals = shifted_sums(F.linear(pixels, weight), [_kernel(layer) for layer in layers])
    return [_finished(total, layer) for total, layer in zip(totals, layers, strict=True)]


def _kernel(layer: nn.Conv2d) -> Kernel:
    rows, columns = layer.kernel_size
    return Kernel(rows, columns, layer.dilation[0], layer.out_channels)


def shifted_sums(taps: Tensor, kernels: Sequence[Kernel]) -> Sequence[Tensor]:
    """Every tap's answers [N, h, w, all taps * O], moved to where they count and added up: [N, h, w, O] a kernel."""
    totals: Sequence[Tensor] = _ShiftedSums.apply(taps, tuple(kernels))
    return totals


class _ShiftedSums(torch.autograd.Function):
    """Autograd would fill a tensor of all taps for each of them."""

    @staticmethod
    def forward(ctx: Any, taps: Tensor, kernels: tuple[Kernel, ...]) -> tuple[Tensor, ...]:
        ctx.kernels, ctx.dtype = kernels, taps.dtype
        wide = torch.float32 if taps.dtype in (torch.bfloat16, torch.float16) else taps.dtype
        size, first, totals = (taps.shape[1], taps.shape[2]), 0, []
        for kernel in kernels:
            total = taps.new_zeros((len(taps), *size, kernel.channels), dtype=wide)
            for number, source, target in _reaching(size, kernel):
                start = first + number * kernel.channels
                total = total + _moved(taps[..., start : start + kernel.channels], size, source, target).to(wide)
            totals.append(total)
            first += kernel.rows * kernel.columns * kernel.channels
        return tuple(totals)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        size = (gradients[0].shape[1], gradients[0].shape[2])
        parts: list[Tensor] = []
        for kernel, gradient in zip(ctx.kernels, gradients, strict=True):
            narrow = gradient.to(ctx.dtype)
            moved = [torch.zeros_like(narrow)] * (kernel.rows * kernel.columns)  # what taps outside the map get
            for number, source, target in _reaching(size, kernel):
                moved[number] = _moved(narrow, size, target, source)
            parts += moved
        return torch.cat(parts, dim=-1), None


Window = tuple[slice, slice]


def _moved(maps: Tensor, size: tuple[int, int], source: Window, target: Window) -> Tensor:
    """A window of [N, h, w, O] at another place, with zeros around it."""
    (top, left), (height, width) = target, size
    around = (0, 0, left.start, width - left.stop, top.start, height - top.stop)
    return F.pad(maps[:, source[0], source[1]], around)


def _finished(total: Tensor, layer: nn.Conv2d) -> Tensor:
    """With bias, in the precision that the layer itself would answer in, as [N, O, h, w]."""
    total = total if layer.bias is None else total + layer.bias
    device = total.device.type
    if torch.is_autocast_enabled(device):
        total = total.to(torch.get_autocast_dtype(device))
    return total.permute(0, 3, 1, 2)


def _reaching(size: tuple[int, int], kernel: Kernel) -> Iterator[tuple[int, Window, Window]]:
    """For each tap that reaches the map at all: its number, where its answers stand, and where they count."""
    rows = list(_spans(size[0], kernel.rows, kernel.dilation))
    columns = list(_spans(size[1], kernel.columns, kernel.dilation))
    for (row, (top, to_top)), (column, (left, to_left)) in product(rows, columns):
        yield row * kernel.columns + column, (top, left), (to_top, to_left)


def _spans(length: int, kernel: int, dilation: int) -> Iterator[tuple[int, tuple[slice, slice]]]:
    """Along one axis: place t of the answer takes tap k from t + (k - kernel // 2) * dilation, if that is inside."""
    for tap in range(kernel):
        offset = (tap - kernel // 2) * dilation
        if abs(offset) < length:
            source = slice(max(0, offset), length + min(0, offset))
            yield tap, (source, slice(source.start - offset, source.stop - offset))
