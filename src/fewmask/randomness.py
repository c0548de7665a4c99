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

    place [N] int64 counts on from the start of the run, without gaps; every pass holds each item once.
    """
    first = place[0] // size  # [] the pass that the first place lies in
    passes = first + torch.arange((len(place) - 1) // size + 2, device=place.device)  # all that the places can reach
    keys = Randomness(seed, torch.zeros_like(first)).bits(stream, passes, size)  # [passes, size]
    order = keys.argsort(dim=1, stable=True)  # stable: equal keys fall alike on every device
    return order[place // size - first, place % size]
