"""Tiles cover exactly and blend without seams; the ensemble is the mean of the probabilities."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fewmask.config import EvaluationSettings
from fewmask.evaluation.inference import (
    Predictor,
    predict,
    predict_tiled,
    predict_whole,
    probabilities,
    segment,
    windows,
)


def per_pixel(seed: int, classes: int = 4) -> Predictor:
    """A network that sees one pixel at a time, so that tiling cannot change what it says."""
    weight = torch.randn(classes, 3, 1, 1, generator=torch.Generator().manual_seed(seed))
    return lambda images: F.conv2d(images * 4 - 2, weight)


def coarse(images: Tensor) -> Tensor:
    """Logits at a quarter of the resolution, as real heads give them."""
    return torch.cat([F.avg_pool2d(images, 4), F.avg_pool2d(1 - images[:, :1], 4)], dim=1) * 3


def picture(height: int, width: int, seed: int = 0) -> Tensor:
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


@given(length=st.integers(1, 200), tile=st.integers(1, 90), overlap=st.floats(0, 0.95))
@settings(max_examples=150, deadline=None)
def test_windows_cover_and_share_every_position(length: int, tile: int, overlap: float) -> None:
    found = windows(length, tile, overlap)
    total = torch.zeros(length)
    for start, share in found:
        assert 0 <= start <= length - len(share)
        assert len(share) == min(tile, length)
        assert (share > 0).all()
        total[start : start + len(share)] += share
    assert total.tolist() == pytest.approx([1.0] * length, abs=1e-6)
    starts = [start for start, _ in found]
    assert starts == sorted(set(starts))
    assert starts[-1] == length - min(tile, length)


def test_windows_by_hand() -> None:
    assert [start for start, _ in windows(10, 4, 0.5)] == [0, 2, 4, 6]
    assert [start for start, _ in windows(11, 4, 0.5)] == [0, 2, 4, 6, 7]  # the last one is shifted inside
    assert [start for start, _ in windows(10, 4, 0.0)] == [0, 4, 6]
    assert [(start, share.tolist()) for start, share in windows(3, 8, 0.5)] == [(0, [1.0, 1.0, 1.0])]


def test_share_fades_towards_a_border_that_a_neighbor_sees_better() -> None:
    (_, first), (start, second) = windows(96, 64, 0.5)
    assert start == 32
    assert (first[:32] == 1).all()  # nobody else sees these
    assert (first[32:].diff() < 0).all()  # then the neighbor takes over, without a step
    assert first[32] > 0.999
    assert second[0] < 0.001
    assert first[32:].diff().abs().max() < 0.06


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    tile=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    overlap=st.sampled_from([0.0, 0.25, 0.5, 0.8]),
    batch=st.integers(1, 7),
)
@settings(max_examples=60, deadline=None)
def test_tiling_does_not_change_a_per_pixel_network(
    height: int, width: int, tile: tuple[int, int], overlap: float, batch: int
) -> None:
    networks, image = [per_pixel(1), per_pixel(2)], picture(height, width)
    whole = predict_whole(networks, image[None])[0]
    tiled = predict_tiled(networks, image, tile=tile, overlap=overlap, batch=batch)
    torch.testing.assert_close(tiled, whole, atol=1e-6, rtol=0)


def test_constant_network_leaves_no_seams() -> None:
    constant = torch.tensor([0.3, -1.0, 2.0])

    def network(images: Tensor) -> Tensor:
        return constant[:, None, None].expand(len(images), 3, 5, 5)

    tiled = predict_tiled([network], picture(45, 61), tile=(16, 24), overlap=0.3, batch=4)
    torch.testing.assert_close(tiled, constant.softmax(0)[:, None, None].expand(3, 45, 61), atol=1e-6, rtol=0)


def test_tiles_of_a_smooth_image_blend_into_a_smooth_map() -> None:
    ramp = torch.linspace(0, 1, 96).expand(3, 96, 96).contiguous()

    def relative(images: Tensor) -> Tensor:  # what it says depends on the tile, the worst case for seams
        difference = (images - images.mean(dim=(2, 3), keepdim=True)) * 4
        return torch.stack([difference[:, 0], -difference[:, 0]], dim=1)

    blended = predict_tiled([relative], ramp, tile=(32, 32), overlap=0.5, batch=8)[0]
    abrupt = predict_tiled([relative], ramp, tile=(32, 32), overlap=0.0, batch=8)[0]
    assert blended.diff(dim=1).abs().max() < 0.06
    assert abrupt.diff(dim=1).abs().max() > 0.5


def test_small_image_is_one_tile_without_padding() -> None:
    seen: list[tuple[int, ...]] = []

    def network(images: Tensor) -> Tensor:
        seen.append(tuple(images.shape))
        return coarse(images)

    image = picture(20, 28)
    tiled = predict_tiled([network], image, tile=(64, 16), overlap=0.5, batch=16)
    assert seen == [(3, 3, 20, 16)]
    assert tiled.sum(0).flatten().tolist() == pytest.approx([1.0] * (20 * 28), abs=1e-5)
    alone = predict_tiled([coarse], image, tile=(64, 64), overlap=0.5, batch=16)
    torch.testing.assert_close(alone, predict_whole([coarse], image[None])[0])


def test_probabilities_are_upsampled_then_softmaxed_then_averaged() -> None:
    images = torch.stack([picture(16, 24, seed) for seed in (0, 1)])
    result = probabilities([coarse, per_pixel(3)], images, size=(32, 40))
    parts = [F.interpolate(network(images).double(), (32, 40), mode="bilinear") for network in (coarse, per_pixel(3))]
    expected = (parts[0].softmax(1) + parts[1].softmax(1)) / 2
    torch.testing.assert_close(result, expected.float(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", ["whole", "tiled"])
def test_segment_gives_the_likeliest_class_and_its_probability(mode: str) -> None:
    options = EvaluationSettings(mode=mode, tile=(16, 16), overlap=0.5, batch=3)
    images, network = torch.stack([picture(30, 44, seed) for seed in (0, 1)]), per_pixel(5)
    label, confidence = segment([network], images, options)
    expected = network(images).softmax(1)
    assert label.dtype == torch.uint8
    assert torch.equal(label.long(), expected.argmax(1))
    torch.testing.assert_close(confidence, expected.amax(1), atol=1e-6, rtol=0)
    striped = torch.eye(3)[None, :, :, None].expand(1, 3, 3, 8)
    halved, _ = segment([lambda images: images.flip(1)], striped, options, size=(6, 4))
    assert halved[0, :, 0].tolist() == [2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize("mode", ["whole", "tiled"])
def test_a_resized_image_is_answered_at_the_files_own_size(mode: str) -> None:
    """Between the centers of two pixels that are certain of one class each; in tiles the two must be blended."""

    def network(images: Tensor) -> Tensor:
        return torch.cat([1 - images[:, :1], images[:, :1]], dim=1) * 100

    options = EvaluationSettings(mode=mode, tile=(16, 16))
    image = torch.tensor([0.0, 1.0]).expand(1, 3, 3, 2)
    found = predict([network], image, options, (3, 4))[0, 1]  # [3, 4]
    wanted = {"tiled": [0.0, 0.25, 0.75, 1.0], "whole": [0.0, 0.0, 1.0, 1.0]}[mode]
    torch.testing.assert_close(found, torch.tensor(wanted).expand(3, 4), atol=1e-6, rtol=0)


def test_networks_get_no_gradient_tape() -> None:
    weight = torch.ones(2, 3, 1, 1, requires_grad=True)
    result = predict_whole([lambda images: F.conv2d(images, weight)], picture(4, 4)[None])
    assert not result.requires_grad


def test_tiles_are_counted_while_an_image_goes_through() -> None:
    """One large image took a minute in which nothing moved."""
    told: list[tuple[int, int]] = []
    settings = EvaluationSettings(mode="tiled", tile=(16, 16), overlap=0.5, batch=4)
    images = torch.stack([picture(20, 40), picture(20, 40, seed=1)])
    segment([per_pixel(0)], images, settings, progress=lambda done, total: told.append((done, total)))
    assert told == [(4, 8), (8, 8), (4, 8), (8, 8)]  # 2 x 4 tiles of each image, four at a time
