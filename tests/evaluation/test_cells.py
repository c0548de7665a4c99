"""Tiles at the network's stride give the grid of one pass, show the network a tile at most, and count cells once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fewmask.evaluation.cells import bounded_forward, predict_cells
from fewmask.evaluation.inference import windows
from fewmask.types import Prediction

STRIDE, CLASSES, CHANNELS = 4, 3, 5


class Local(nn.Module):
    """A small real network: two strided convolutions, so that a cell sees a few pixels around it; zeros beyond."""

    stride, num_classes = STRIDE, CLASSES

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, CHANNELS, 3, stride=2, padding=1)
        )
        self.classifier = nn.Conv2d(CHANNELS, CLASSES, 1)
        self.seen: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> Prediction:
        self.seen.append(tuple(images.shape))
        features = self.body(images * 4 - 2)
        return Prediction(self.classifier(features) * 3, features)


def picture(height: int, width: int) -> Tensor:
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(height * 1000 + width))


@given(height=st.integers(1, 90), width=st.integers(1, 90), tile=st.integers(4, 60))
@settings(max_examples=40, deadline=None)
def test_tiles_have_the_grid_of_one_pass(height: int, width: int, tile: int) -> None:
    """Ragged sizes too: a tile's border cells see zeros instead of the image, all others are those of one pass."""
    network, image = Local(), picture(height, width)
    with torch.no_grad():
        whole = network(image[None])
    network.seen.clear()
    tiled = predict_cells(network, image, tile=tile)
    assert max(shape[2] for shape in network.seen) <= max(STRIDE, tile)
    assert max(shape[3] for shape in network.seen) <= max(STRIDE, tile)
    assert tiled.logits.shape == whole.logits[0].shape
    assert tiled.features.shape == whole.features[0].shape
    assert tiled.logits.exp().sum(0).flatten().tolist() == pytest.approx([1.0] * tiled.logits[0].numel(), abs=1e-5)
    inner = _far_from_tile_borders(height, width, tile)
    got, wanted = tiled.logits.softmax(0), whole.logits[0].softmax(0)
    torch.testing.assert_close(got[:, inner], wanted[:, inner], atol=1e-5, rtol=0)
    torch.testing.assert_close(tiled.features[:, inner], whole.features[0][:, inner], atol=1e-4, rtol=0)


def _far_from_tile_borders(height: int, width: int, tile: int) -> Tensor:
    """Cells [h, w] that lie on no tile's first or last row or column, but for the image's own border."""
    masks = []
    for side in (height, width):
        cells = -(-side // STRIDE)
        inner = torch.ones(cells, dtype=torch.bool)
        for start, share in windows(cells, max(1, tile // STRIDE), 0.25):
            if start > 0:
                inner[start] = False
            if start + len(share) < cells:
                inner[start + len(share) - 1] = False
        masks.append(inner)
    return masks[0][:, None] & masks[1]


def test_most_cells_of_a_large_image_are_those_of_one_pass() -> None:
    """The test above would pass with no inner cell at all; here nine out of ten are."""
    network, image = Local(), picture(203, 331)
    inner = _far_from_tile_borders(203, 331, 128)
    assert inner.float().mean() > 0.85
    tiled = predict_cells(network, image, tile=128)
    with torch.no_grad():
        whole = network(image[None]).logits[0]
    agree = tiled.logits.argmax(0) == whole.argmax(0)
    assert agree[inner].all()
    assert agree.float().mean() > 0.98


def test_only_larger_images_are_tiled() -> None:
    network = Local()
    forward = bounded_forward(32 * 32)
    whole = picture(32, 32)[None]
    assert torch.equal(forward(network, whole).logits, network(whole).logits)
    assert network.seen[0] == (1, 3, 32, 32)
    network.seen.clear()
    result = forward(network, picture(33, 70)[None].repeat(2, 1, 1, 1))
    assert all(shape[0] == 1 and shape[2] * shape[3] <= 32 * 32 for shape in network.seen)
    assert result.logits.shape == (2, CLASSES, 9, 18)
    assert result.features.shape == (2, CHANNELS, 9, 18)
    assert torch.equal(result.logits[0], result.logits[1])


@given(count=st.integers(1, 9), height=st.integers(1, 40), width=st.integers(1, 40), pixels=st.integers(16, 4000))
@settings(max_examples=40, deadline=None)
def test_the_images_of_a_pass_count_together(count: int, height: int, width: int, pixels: int) -> None:
    """No pass is above the limit, and where images are not tiled none but the last could have taken one more."""
    network = Local()
    images = torch.stack([picture(height, width).roll(index, 1) for index in range(count)])
    with torch.no_grad():
        result = bounded_forward(pixels)(network, images)
        passes = [*network.seen]
        assert max(shape[0] * shape[2] * shape[3] for shape in passes) <= pixels
        if height * width <= pixels:
            assert all((shape[0] + 1) * height * width > pixels for shape in passes[:-1])
            torch.testing.assert_close(result.logits, network(images).logits, atol=1e-5, rtol=0)
            torch.testing.assert_close(result.features, network(images).features, atol=1e-5, rtol=0)
    assert sum(shape[0] for shape in passes) >= len(result.logits) == count


def test_double_precision_stays_double() -> None:
    network = Local().double()
    tiled = predict_cells(network, picture(50, 40).double(), tile=16)
    assert tiled.logits.dtype == tiled.features.dtype == torch.float64
