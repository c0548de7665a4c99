"""Learning rates as functions of the step, so that resuming needs nothing but the step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fewmask.config import OptimizerSettings


def ramped(fraction: Tensor, share: float) -> Tensor:
    """A weight that rises to 1 over the first `share` of training, exp(-5 (1 - t)^2) (Laine and Aila). [] float32."""
    if share == 0:
        return torch.ones_like(fraction)
    left = (1 - fraction / share).clamp(min=0)
    return torch.exp(-5 * left.square())


def rate_factor(settings: OptimizerSettings, step: int, steps: int) -> float:
    """What the learning rates are multiplied by at `step` (from 0) out of `steps`."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    fraction = min(step / steps, 1.0)
    if settings.schedule == "poly":
        return float((1 - fraction) ** settings.power)
    if settings.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * fraction))
    if settings.schedule == "step":
        return float(settings.gamma ** sum(fraction >= milestone for milestone in settings.milestones))
    return 1.0
