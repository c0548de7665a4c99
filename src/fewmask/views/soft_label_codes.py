"""How soft labels are kept: codes that turn the log-probabilities of feature cells into rows of a buffer and back.

Rectification compares the classes of a cell, so the 8-bit codes keep how far each class is behind the likeliest one,
on a scale whose steps grow with that distance: close classes, which a weight may turn around, are told apart finely,
and no class is ever cut off. Probabilities come back normalized, since neighboring cells are mixed as probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fewmask.determinism import any_order

LEAST = 1e-12  # soft labels are kept above this
TOP = 12  # classes that `topk` keeps one by one, so it is smaller than `uint8` from 25 classes on
SAFE = "fp16"  # keeps rectified labels as float32 has them for every network that was measured (docs/training.md)
_STEP = math.log1p(-math.log(LEAST)) / 255  # 255 steps of log(1 + distance) reach the least probability


class Code(Protocol):
    """Rows have one dtype and one width for all cells, so that a batch picks them by index."""

    def bytes_per_cell(self, classes: int) -> int: ...

    def encode(self, log_probability: Tensor) -> Tensor:
        """[n, K] -> [n, *]"""
        ...

    def decode(self, rows: Tensor, classes: int) -> Tensor:
        """[n, *] -> probabilities [n, K] float32"""
        ...


@dataclass(frozen=True)
class Plain:
    """Log-probabilities as they are, in some floating-point type."""

    dtype: torch.dtype

    def bytes_per_cell(self, classes: int) -> int:
        return classes * self.dtype.itemsize

    def encode(self, log_probability: Tensor) -> Tensor:
        return log_probability.to(self.dtype)

    def decode(self, rows: Tensor, classes: int) -> Tensor:  # noqa: ARG002, every code is told
        return rows.float().exp()


class Distances:
    """One byte for each class: its distance to the likeliest class."""

    def bytes_per_cell(self, classes: int) -> int:
        return classes

    def encode(self, log_probability: Tensor) -> Tensor:
        return _bytes(log_probability.amax(1, keepdim=True) - log_probability)

    def decode(self, rows: Tensor, classes: int) -> Tensor:  # noqa: ARG002
        return _normalized(_ratios(rows))


class Largest:
    """The likeliest classes with their distances, one more distance for the mean of all others: two bytes for each."""

    def bytes_per_cell(self, classes: int) -> int:
        return 2 * _kept(classes)

    def encode(self, log_probability: Tensor) -> Tensor:
        classes = log_probability.shape[1]
        values, index = log_probability.topk(_kept(classes), dim=1)  # [n, k] each, likeliest first
        others = log_probability.exp().scatter(1, index, 0.0).sum(1, keepdim=True) / max(1, classes - index.shape[1])
        behind = values[:, :1] - torch.cat([values[:, 1:], others.clamp(min=LEAST).log()], dim=1)  # [n, k]
        return torch.cat([index.to(torch.uint8), _bytes(behind)], dim=1)

    def decode(self, rows: Tensor, classes: int) -> Tensor:
        index, behind = rows.chunk(2, dim=1)  # [n, k] each
        ratios = _ratios(behind)
        likeliest = torch.ones_like(ratios[:, :1])
        every = ratios[:, -1:].expand(-1, classes)
        with any_order():  # the classes of a row differ
            kept = every.scatter(1, index.long(), torch.cat([likeliest, ratios[:, :-1]], dim=1))
        return _normalized(kept)


CODES: dict[str, Code] = {
    "fp32": Plain(torch.float32),
    "fp16": Plain(torch.float16),
    "uint8": Distances(),
    "topk": Largest(),
}


def _kept(classes: int) -> int:
    return max(1, min(TOP, classes - 1))


def _bytes(behind: Tensor) -> Tensor:
    """Distances of log-probabilities, 0 or more, as uint8."""
    return (behind.float().log1p() / _STEP).round().clamp(0, 255).to(torch.uint8)


def _ratios(rows: Tensor) -> Tensor:
    """What the bytes say about p / p of the likeliest class, float32."""
    steps = torch.arange(256, dtype=torch.float32, device=rows.device) * _STEP
    table = (1 - steps.exp()).exp()  # [256], a byte's distance being exp(byte * step) - 1
    return table.index_select(0, rows.flatten().int()).view(rows.shape)  # faster than computing each one


def _normalized(ratios: Tensor) -> Tensor:
    return ratios / ratios.sum(1, keepdim=True)
