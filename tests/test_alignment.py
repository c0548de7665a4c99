"""Cells lie one stride apart whatever the image's size: seen with real networks, in crops and in whole images."""

import numpy as np
import pytest
import torch

from fewmask.alignment import pitch
from fewmask.evaluation.inference import predict_whole
from fewmask.labels import IGNORE
from fewmask.learning.losses import upsample
from fewmask.learning.prototypes import coarse_label
from fewmask.learning.soft_views import view_probabilities
from fewmask.types import PixelMaps
from fewmask.views.soft_label_codes import CODES
from fewmask.views.soft_labels import sample_maps
from tests.networks.small import images, network, vit_settings
from tests.views.test_soft_labels import pool, window


@pytest.mark.parametrize(
    ("size", "cells", "expected"),
    [(320, 40, 8), (321, 41, 8), (375, 47, 8), (353, 23, 16), (41, 21, 2), (28, 28, 1), (100, 30, 100 / 30), (1, 1, 1)],
)
def test_the_pitch_is_the_stride_that_gives_so_many_cells(size: int, cells: int, expected: float):
    assert pitch(size, cells) == expected


def test_every_stride_is_found_again():
    sizes = [(size, stride, -(-size // stride)) for size in range(2, 600) for stride in (1, 2, 4, 8, 16, 32)]
    assert not [each for each in sizes if each[2] > 1 and pitch(each[0], each[2]) != each[1]]


@pytest.mark.parametrize("crop", [(88, 96), (89, 101), (95, 97)])
def test_a_window_that_begins_at_a_cell_has_the_cells_of_the_whole_image(crop: tuple[int, int]):
    net, size = network(stride=8), (149, 187)
    picture = images(1, 3, *size)
    top, left, height, width = 24, 32, *crop
    with torch.no_grad():
        whole = net(picture).logits.softmax(1)  # [1, K, 19, 24]
        own = net(picture[..., top : top + height, left : left + width]).logits.softmax(1)
    rows = CODES["fp32"].encode(whole[0].permute(1, 2, 0).flatten(0, 1).log())
    numbers = (torch.tensor([each]) for each in (0, *whole.shape[-2:]))
    maps = PixelMaps(rows, *numbers, "fp32", classes=whole.shape[1])
    got = sample_maps(maps, pool(size), window(0, size, top, left), crop, stride=8).exp()
    assert got.shape == own.shape
    torch.testing.assert_close(got, whole[..., 3 : 3 + own.shape[-2], 4 : 4 + own.shape[-1]], atol=1e-6, rtol=0)


def test_an_image_scored_with_as_many_pixels_as_cells_is_scored_where_it_is():
    """81 pixels have 11 cells of 8, the last of which hangs over by 7: 11 pixels of the score do not."""
    middle = (torch.arange(11) + 0.5) * 8
    ramp = upsample(middle.expand(1, 1, 11, 11), (11, 11), (81, 81))[0, 0, 5]
    expected = (torch.arange(11) + 0.5) * 81 / 11
    torch.testing.assert_close(ramp[1:], expected[1:])  # before the first middle nothing is known
    even = torch.rand(1, 2, 11, 11)
    assert upsample(even, (11, 11), (88, 88)) is upsample(even, (11, 11)) is even


@pytest.mark.parametrize("kind", ["convolutions", "patches"])
def test_an_image_grown_by_a_few_pixels_is_scored_where_it_was(kind: str):
    """Pixels far from the new edge keep their probabilities, though the image has another row and column of cells."""
    net = network(stride=8) if kind == "convolutions" else network(**vit_settings(width=12).model_dump())
    cells = torch.randn(1, 5, 21, 26, generator=torch.Generator().manual_seed(0))
    stride = net.stride

    def says(shown: torch.Tensor) -> torch.Tensor:
        return cells[..., : -(-shown.shape[-2] // stride), : -(-shown.shape[-1] // stride)]

    even, odd = (images(1, 3, 8 * stride + more, 10 * stride + more) for more in (0, 3))
    plain, grown = (predict_whole([says], each) for each in (even, odd))
    near = (slice(None), slice(None), slice(0, 7 * stride), slice(0, 9 * stride))
    torch.testing.assert_close(grown[near], plain[near])


def test_up_sampling_to_another_size_than_the_images_own_goes_by_the_image():
    """97 rows at stride 8 are 13 cells, the last of which hangs over by 7 pixels; asked for at three times the size."""
    column = torch.arange(13.0)[None, None, :, None].expand(1, 1, 13, 1)
    got = upsample(column, (291, 1), (97, 1))[0, 0, :, 0].numpy()
    place = (np.arange(291) + 0.5) / 3 / 8 - 0.5
    np.testing.assert_allclose(got, np.clip(place, 0, 12), atol=1e-5)


def test_labels_of_cells_are_those_of_the_pixel_in_their_middle():
    label = torch.randint(0, 5, (2, 21, 30), generator=torch.Generator().manual_seed(0))
    label[0, 20] = IGNORE
    expected = np.array([[[each[4 + 8 * i if i < 2 else 20, min(4 + 8 * j, 29)] for j in range(4)] for i in range(3)]
                         for each in label.numpy()])  # fmt: skip
    assert np.array_equal(coarse_label(label, (3, 4)).numpy(), expected)


def test_a_mirrored_view_lies_on_the_images_own_cells_at_any_width():
    """Each cell says the number of its middle column; the mirror of a filled-up image has its cells where they were."""

    def ask(shown: torch.Tensor) -> torch.Tensor:
        count = -(-shown.shape[-1] // 8)
        middle = (8 * torch.arange(count) + 4).clamp(max=shown.shape[-1] - 1)
        value = shown[:, :1, :: shown.shape[-2], :].index_select(-1, middle)  # [N, 1, 1, w]
        return torch.cat([value, -value], dim=1)

    ramp = torch.arange(45.0)[None, None, None].expand(1, 3, 8, 45) / 45
    plain, mirrored = view_probabilities(ask, ramp, ask(ramp), scales=(1.0,), flip=True)
    # the mirrored middle of a cell of 8 is one pixel further left
    torch.testing.assert_close(mirrored[..., 0, :-1], ask(ramp - 1 / 45).softmax(1)[..., 0, :-1])
    assert plain.shape == mirrored.shape
