"""Pseudo label self-rectification (RML, Eqs. 6 to 10): frozen soft labels, re-weighted by what features say now.

Everything is float32 and at the network's stride; only the rectified probability is up-sampled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewmask.labels import IGNORE
from fewmask.learning.losses import upsample

_NEVER = -1e4  # log weight of a class without a prototype: finite, so that a sum of two of them stays a number


def prototype_distance(features: Tensor, center: Tensor) -> Tensor:
    """d_k = ||f - eta_k||, unsquared: [U, D, h, w] and [K, D] -> [U, K, h, w], by one matrix product."""
    flat = features.float().flatten(2)  # [U, D, hw]
    with torch.autocast(features.device.type, enabled=False):  # bfloat16 would flip labels where distances are close
        cross = center.float() @ flat  # [U, K, hw]
    squared = flat.square().sum(1, keepdim=True) + center.float().square().sum(1)[:, None] - 2 * cross
    return squared.clamp(min=0).sqrt().unflatten(2, features.shape[-2:])


def prototype_confidence(
    features: Tensor, center: Tensor, known: Tensor, *, temperature: float | Tensor, prior: Tensor | None = None
) -> Tensor:
    """log omega_k = log softmax_k(log pi_k - T * d_k) (Eq. 10), [U, K, h, w]; classes without a prototype get none."""
    scores = -temperature * prototype_distance(features, center)
    if prior is not None:
        scores = scores + prior.clamp(min=1e-12).log()[:, None, None]
    return scores.masked_fill(~known[:, None, None], _NEVER).log_softmax(1)


def rectified(log_soft_label: Tensor, log_confidence: Tensor) -> Tensor:
    """omega_k * p0_k, normalized over the classes (Eq. 6), [U, K, h, w]."""
    return (log_soft_label.float() + log_confidence.float()).softmax(1)


def hard_label(probability: Tensor, valid: Tensor, threshold: float = 0.0) -> Tensor:
    """argmax at crop resolution, [U, K, h, w] -> [U, H, W]; IGNORE on padding and below `threshold`."""
    value, label = upsample(probability, (valid.shape[-2], valid.shape[-1])).max(1)
    trusted = valid & (value >= threshold) if threshold > 0 else valid
    return label.where(trusted, IGNORE)


def total_variation(one: Tensor, other: Tensor) -> Tensor:
    """Half the L1 distance of two distributions over classes, per pixel: [U, K, h, w] twice -> [U, h, w].

    Maps of unlike networks are compared at the finer of the two strides.
    """
    size = max(one.shape[-2], other.shape[-2]), max(one.shape[-1], other.shape[-1])
    one, other = upsample(one, size), upsample(other, size)
    return 0.5 * (one - other).abs().sum(1)


def mean_log_probability(probabilities: list[Tensor]) -> Tensor:
    """log of the mean of softmax outputs, [U, K, h, w]."""
    return torch.stack(probabilities).mean(0).clamp(min=1e-12).log()
