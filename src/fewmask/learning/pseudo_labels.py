"""What a teacher says about unlabeled pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from fewmask.labels import IGNORE
from fewmask.learning.losses import upsample


@torch.no_grad()
def pseudo_label(logits: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely class of each pixel and its probability, both [U, H, W]; padding becomes IGNORE.

    logits [U, K, h, w] are up-sampled to the size of valid [U, H, W].
    """
    size = (valid.shape[-2], valid.shape[-1])
    confidence, label = upsample(logits, size).softmax(1).max(1)
    return label.where(valid, IGNORE), confidence
