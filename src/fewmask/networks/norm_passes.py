"""The passes over memory that BatchNorm in training needs, on maps in channels-last order: what starts the kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from fewmask.networks import norm_kernels


class Tile(NamedTuple):
    """How much one program has before it at a time, and how many warps share that."""

    rows: int
    channels: int
    warps: int


# Of those tried on an H200 (scripts/norm_tiles.py has them) these took least for 102 of the 104 norms of paper-voc
SUMS = Tile(64, 64, 4)
MAPS = Tile(16, 128, 4)
STAGES = 1  # tiles of sums on their way at a time; from 2 on by way of shared memory
PROGRAMS = 1024  # that sum up side by side: some eight for each multiprocessor
_SETTLED = {"CHANNELS": 32, "SPLITS": 64, "enable_fp_fusion": True}  # channels, and parts of their sums at a time

Parts = tuple[int, int]


class Moments(NamedTuple):
    """What a batch's statistics make of a channel, [C] each."""

    mean: Tensor
    inverse: Tensor  # 1 / sqrt(variance + eps)
    scale: Tensor  # y = scale * x + shift
    shift: Tensor


class Gradients(NamedTuple):
    maps: Tensor
    weight: Tensor
    bias: Tensor
    shortcut: Tensor | None


def moments(
    maps: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor, Tensor],
    *,
    momentum: float,
    eps: float,
) -> Moments:
    """Of maps [N, C, h, w]; moves the running mean, variance and number of batches."""
    rows, channels = _matrix(maps)
    grid, turns = _shares(rows, channels)
    sums = maps.new_empty(2, grid[1], channels, dtype=torch.float32)
    norm_kernels.moment_sums[grid](maps, sums, rows, channels, turns, STAGES=STAGES, **_options(SUMS))
    found = maps.new_empty(4, channels, dtype=torch.float32)
    norm_kernels.settle_moments[_columns(channels)](
        maps, sums, weight, bias, *running, found, rows, channels, grid[1], momentum, eps, **_SETTLED
    )
    return Moments(*found)


def applied(maps: Tensor, found: Moments, relu: bool, shortcut: Tensor | None, keep: Tensor | None) -> Tensor:
    """relu(keep * (scale * maps + shift) + shortcut), with keep [N]."""
    rows, channels = _matrix(maps)
    answer = torch.empty_like(maps)
    norm_kernels.apply_moments[_tiles(rows, channels)](
        maps,
        found.scale,
        found.shift,
        _or(shortcut, maps),
        *_gate(keep, found.scale),
        answer,
        rows,
        channels,
        rows // len(maps),
        RELU=relu,
        ADDED=shortcut is not None,
        GATED=keep is not None,
        **_options(MAPS),
    )
    return answer


def gradients(
    pull: Tensor,
    more: Tensor | None,
    maps: Tensor,
    found: Moments,
    weight: Tensor,
    relu: bool,
    answer: Tensor | None,
    keep: Tensor | None,
) -> Gradients:
    """Of everything that went into `applied`; `answer` is what came out where a shortcut was added, else none.

    Then there may be `more` that pulls at it.
    """
    through = None if answer is None else torch.empty_like(answer)  # dz
    sums = _gradient_sums(pull, more, maps, found, relu, answer, keep, through)
    settled = maps.new_empty(5, maps.shape[1], dtype=torch.float32)
    norm_kernels.settle_gradients[_columns(maps.shape[1])](
        sums, weight, found.inverse, settled, *_matrix(maps), sums.shape[1], **_SETTLED
    )
    to_maps = torch.empty_like(maps)
    rows, channels = _matrix(maps)
    norm_kernels.apply_gradients[_tiles(rows, channels)](
        _or(through, pull),
        maps,
        found.mean,
        found.scale,
        found.shift,
        settled,
        *_gate(keep, found.scale),
        to_maps,
        rows,
        channels,
        rows // len(maps),
        RELU=relu and answer is None,
        GATED=keep is not None,
        **_options(MAPS),
    )
    return Gradients(to_maps, settled[3], settled[4], through)


def _gradient_sums(
    pull: Tensor,
    more: Tensor | None,
    maps: Tensor,
    found: Moments,
    relu: bool,
    answer: Tensor | None,
    keep: Tensor | None,
    through: Tensor | None,
) -> Tensor:
    """Sums of g and g * (x - m) of each part, [2, parts, C]; writes `through` where there is a shortcut."""
    rows, channels = _matrix(maps)
    grid, turns = _shares(rows, channels)
    sums = maps.new_empty(2, grid[1], channels, dtype=torch.float32)
    norm_kernels.gradient_sums[grid](
        pull,
        _or(more, pull),
        maps,
        _or(answer, maps),
        found.mean,
        found.scale,
        found.shift,
        *_gate(keep, found.scale),
        _or(through, maps),
        sums,
        rows,
        channels,
        rows // len(maps),
        turns,
        RELU=relu,
        ADDED=answer is not None,
        FORKED=more is not None,
        GATED=keep is not None,
        STAGES=STAGES,
        **_options(SUMS),
    )
    return sums


def _matrix(maps: Tensor) -> tuple[int, int]:
    """Rows and channels."""
    return maps.numel() // maps.shape[1], maps.shape[1]


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel wants a tensor also where it will not touch one."""
    return other if tensor is None else tensor


def _gate(keep: Tensor | None, other: Tensor) -> tuple[Tensor, int]:
    """With its step: the draws of all gates lie side by side."""
    return (other, 0) if keep is None else (keep, keep.stride(0))


def _options(tile: Tile) -> dict[str, int]:
    return {"ROWS": tile.rows, "CHANNELS": tile.channels, "num_warps": tile.warps, "enable_fp_fusion": True}


def _shares(rows: int, channels: int) -> tuple[Parts, int]:
    """The programs, side by side over channels and over parts of the rows, and how many tiles each of them sees."""
    columns, tiles = triton.cdiv(channels, SUMS.channels), triton.cdiv(rows, SUMS.rows)
    turns = triton.cdiv(tiles, max(1, PROGRAMS // columns))
    return (columns, triton.cdiv(tiles, turns)), turns


def _tiles(rows: int, channels: int) -> Parts:
    return triton.cdiv(rows, MAPS.rows), triton.cdiv(channels, MAPS.channels)


def _columns(channels: int) -> tuple[int]:
    return (triton.cdiv(channels, _SETTLED["CHANNELS"]),)
