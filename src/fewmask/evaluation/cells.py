"""Predictions at the network's stride, of images of any size: in one pass, or from tiles that blend into one grid."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from fewmask.evaluation.inference import add_tile, windows
from fewmask.methods.method import Forward
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.types import Prediction

_OVERLAP = 0.25  # share of a tile that its neighbor sees, too


def bounded_forward(pixels: int) -> Forward:
    """Passes that never show a network more than `pixels` at once, of all their images together.

    As many images share a pass as may; one that is too large by itself goes through in square tiles.
    """

    def forward(network: SegmentationNetwork, images: Tensor) -> Prediction:
        most = pixels // (images.shape[-2] * images.shape[-1])
        if not most:
            tiled = [predict_cells(network, image, tile=math.isqrt(pixels)) for image in images]
            return Prediction.joined(tiled, torch.stack)
        parts: list[Prediction] = [network(part) for part in images.split(most)]
        return parts[0] if len(parts) == 1 else Prediction.joined(parts, torch.cat)

    return forward


@torch.no_grad()
def predict_cells(network: SegmentationNetwork, image: Tensor, *, tile: int) -> Prediction:
    """Logits [K, h, w] and features [D, h, w] of an image [C, H, W] from overlapping tiles, `tile` pixels a side.

    Tiles start at multiples of the stride, so their cells are those of the whole image. As in tiled inference their
    probabilities are blended; the logits are such that their softmax is the blend. Features are blended by the same
    shares, so every cell counts once.
    """
    stride, classes = network.stride, network.num_classes
    height, width = (-(-side // stride) for side in image.shape[-2:])
    rows, columns = (windows(cells, max(1, tile // stride), _OVERLAP) for cells in (height, width))
    total: Tensor | None = None
    for row, column in product(rows, columns):
        (top, bottom), (left, right) = (_pixels(window, stride) for window in (row, column))
        prediction = network(image[None, :, top:bottom, left:right])
        values = torch.cat([prediction.logits.softmax(1), prediction.features], dim=1)[0]  # [K + D, h, w]
        if total is None:
            total = values.new_zeros(len(values), height, width)
        add_tile(total, values, row, column)
    assert total is not None, "every image has at least one window"
    probability, features = total[:classes], total[classes:]
    return Prediction(probability.clamp(min=torch.finfo(total.dtype).tiny).log(), features)


def _pixels(window: tuple[int, Tensor], stride: int) -> tuple[int, int]:
    """First and last pixel of a window of cells; a slice ends at the image's border, where the last cell may be cut."""
    start, share = window
    return start * stride, (start + len(share)) * stride
