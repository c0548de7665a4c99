"""Random numbers that are addressed, not consumed.

Every number is a hash of (seed, stream name, step, global position of the sample, element), computed with integer
tensor operations: the same on CPU and GPU, eager and captured, whatever the number of ranks. Nothing here keeps
state, so a run resumes exactly from its step number.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_LARGEST_SORTED = 4096
_GRID_TURNS = 5


def _mix(x: Tensor) -> Tensor:
    """A 32-bit finalizer (two multiplications, three shifts) on int64 tensors that hold 32-bit values."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _MASK  # int64 wraps; the low 32 bits stay exact
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def _combine(key: Tensor, value: Tensor) -> Tensor:
    return _mix((key * 31 + value * _GOLDEN + 0x7F4A7C15) & _MASK)


@dataclass(frozen=True)
class Randomness:
    """The random numbers of one step."""

    seed: int
    step: Tensor  # [] int64

    def key(self, stream: str, position: Tensor) -> Tensor:
        """One 32-bit key per sample position, [N] int64."""
        start = (zlib.crc32(stream.encode()) ^ (self.seed * 0x85EBCA6B)) & _MASK
        return _combine(_combine(torch.full_like(position, start), self.step), position)

    def bits(self, stream: str, position: Tensor, *shape: int) -> Tensor:
        """32 random bits per element, [N, *shape] int64."""
        element = torch.arange(math.prod(shape), device=position.device)
        key = self.key(stream, position)
        return _mix(_combine(key[:, None], element)).reshape(len(position), *shape)

    def uniform(self, stream: str, position: Tensor, *shape: int) -> Tensor:
        """Uniform in [0, 1) on a grid of 2^-24, [N, *shape] float32."""
        return (self.bits(stream, position, *shape) >> 8).float() * 2.0**-24

    def integers(self, stream: str, position: Tensor, bound: int, *shape: int) -> Tensor:
        """Uniform integers in [0, bound), [N, *shape] int64."""
        return (self.bits(stream, position, *shape) * bound) >> 32


@dataclass(frozen=True)
class Noise:
    """The random numbers of one forward pass: dropout and drop path draw from here, one row per sample."""

    random: Randomness
    learner: str
    position: Tensor  # [N] int64, global positions of the samples in the batch
    dropout: float = 0.0  # probability that a feature before the classifier is switched off
    survival: float = 1.0  # probability that a residual block is kept (stochastic depth)

    def uniform(self, stream: str, *shape: int) -> Tensor:
        """[N, *shape] float32 in [0, 1); the same learner and stream always give the same numbers in a step."""
        return self.random.uniform(f"{self.learner}/{stream}", self.position, *shape)


def shuffled(seed: int, stream: str, place: Tensor, size: int) -> Tensor:
    """The item at each place of an endless sequence of shuffled passes over `size` items.

    place [N] int64 counts on from the start of the run, without gaps; every pass holds each item once. A large pool is
    not sorted as a whole, so a step's time does not grow with it.
    """
    return _by_sorting(seed, stream, place, size) if size <= _LARGEST_SORTED else _by_grid(seed, stream, place, size)


def _by_sorting(seed: int, stream: str, place: Tensor, size: int) -> Tensor:
    """All orders are equally likely; each call sorts the whole pass."""
    first = place[0] // size  # [] the pass that the first place lies in
    passes = first + torch.arange((len(place) - 1) // size + 2, device=place.device)  # all that the places can reach
    keys = Randomness(seed, torch.zeros_like(first)).bits(stream, passes, size)  # [passes, size]
    order = keys.argsort(dim=1, stable=True)  # stable: equal keys fall alike on every device
    return order[place // size - first, place % size]


def _by_grid(seed: int, stream: str, place: Tensor, size: int) -> Tensor:
    """The items stand in a grid whose rows and columns are shuffled by turns; only the lines of `place` are computed.

    Each turn moves cells within their lines, one to one, so a pass holds each item once whatever its size; the last row
    may be short. Rows, columns, rows already reach every order of a grid.
    """
    random = Randomness(seed, torch.zeros_like(place[0]))
    width = math.isqrt(size - 1) + 1
    height, rest = -(-size // width), (size - 1) % width + 1  # rest: cells in the last row
    number, cell = place // size, place % size  # [N] each
    row, column = cell // width, cell % width
    for turn in range(_GRID_TURNS):
        if turn % 2 == 0:
            keys = random.bits(f"{stream}/{turn}", number * height + row, width)  # [N, width]
            column = _rank(keys, column, width - (width - rest) * (row == height - 1))
        else:
            keys = random.bits(f"{stream}/{turn}", number * width + column, height)  # [N, height]
            row = _rank(keys, row, height - (column >= rest).long())
    return row * width + column


def _rank(keys: Tensor, place: Tensor, length: Tensor) -> Tensor:
    """Where the key at `place` [N] stands in the order of the first `length` [N] keys of each row, [N]."""
    own = keys.gather(1, place[:, None])  # [N, 1]
    other = torch.arange(keys.shape[1], device=keys.device)
    before = (keys < own) | ((keys == own) & (other < place[:, None]))
    return (before & (other < length[:, None])).sum(1)
