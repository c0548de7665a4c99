"""Stored maps under a window agree with warping the full-size map, and with the identity window they come back."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from fewmask.types import FlatImages, PixelMaps
from fewmask.views.geometry import Windows
from fewmask.views.soft_label_codes import CODES
from fewmask.views.soft_labels import sample_maps


def maps_of(*probabilities: torch.Tensor, code: str = "fp32") -> PixelMaps:
    """Each [K, h, w]."""
    height = torch.tensor([each.shape[1] for each in probabilities])
    width = torch.tensor([each.shape[2] for each in probabilities])
    cells = height * width
    values = torch.cat([each.permute(1, 2, 0).flatten(0, 1) for each in probabilities]).log()
    rows = CODES[code].encode(values)
    return PixelMaps(rows, cells.cumsum(0) - cells, height, width, code, classes=values.shape[1])


def pool(*sizes: tuple[int, int]) -> FlatImages:
    """Images of these sizes; nobody looks at their pixels."""
    height, width = torch.tensor(sizes).T
    return FlatImages(torch.zeros(0), torch.zeros(len(sizes)), height, width, 3)


def window(index: int, size: tuple[int, int], top: int = 0, left: int = 0, flip: bool = False) -> Windows:
    numbers = (torch.tensor([each]) for each in (index, *size, top, left))
    return Windows(*numbers, torch.tensor([flip]))


def soft(seed: int, size: tuple[int, int], classes: int = 3) -> torch.Tensor:
    return torch.randn(classes, *size, generator=torch.Generator().manual_seed(seed)).softmax(0)


def test_the_whole_image_gives_the_map_back():
    maps = maps_of(soft(0, (4, 6)), soft(1, (3, 5)))
    for index, size in ((0, (32, 48)), (1, (24, 40))):
        got = sample_maps(maps, pool((32, 48), (24, 40)), window(index, size), size, stride=8)[0].exp()
        torch.testing.assert_close(got, soft(index, (size[0] // 8, size[1] // 8)), atol=1e-6, rtol=0)


def test_a_flipped_window_mirrors_the_map():
    whole = window(0, (32, 48), flip=True)
    got = sample_maps(maps_of(soft(0, (4, 6))), pool((32, 48)), whole, (32, 48), stride=8)[0].exp()
    torch.testing.assert_close(got, soft(0, (4, 6)).flip(2), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("size", "top", "left"), [((32, 48), 8, 16), ((40, 60), 3, 11), ((24, 36), 1, 5)])
def test_agrees_with_enlarging_scaling_and_cropping(size, top, left):
    """Linear maps are reproduced exactly by bilinear interpolation, so every route must give the same values inside."""
    rows = torch.linspace(0.1, 0.4, 4)[:, None].expand(4, 6)
    columns = torch.linspace(0.05, 0.5, 6)[None].expand(4, 6)
    probability = torch.stack([rows, columns, 1 - rows - columns])
    crop = (16, 24)
    place = window(0, size, top, left)
    got = sample_maps(maps_of(probability), pool((32, 48)), place, crop, stride=8)[0].exp()  # [3, 2, 3]
    full = F.interpolate(probability[None], size=size, mode="bilinear", align_corners=False)[0]
    y, x = top + torch.tensor([4.0, 12.0]), left + torch.tensor([4.0, 12.0, 20.0])
    for i in range(2):
        for j in range(3):  # a cell center lies between four pixels of the scaled image
            near = full[:, int(y[i]) - 1 : int(y[i]) + 1, int(x[j]) - 1 : int(x[j]) + 1].mean((1, 2))
            torch.testing.assert_close(got[:, i, j], near, atol=1e-5, rtol=0)


SIZES = ((40, 55), (17, 44))  # of images whose cells at stride 8 are 5x7 and 3x6; the last may hang over


def warped(maps: PixelMaps, index: int, size: tuple[int, int], top: int, left: int, flip: bool) -> np.ndarray:
    """The warp cell by cell in float64, [K, h, w] for a crop of 21 x 30 at stride 8."""
    height, width, start = int(maps.height[index]), int(maps.width[index]), int(maps.offset[index])
    cells = CODES[maps.code].decode(maps.values, maps.classes).double().numpy()
    picture = cells[start : start + height * width].reshape(height, width, -1)
    result = np.zeros((maps.classes, 3, 4))
    for i, j in itertools.product(range(3), range(4)):
        y, x = (i + 0.5) * 8, (j + 0.5) * 8  # the cell's middle in the crop, from its edge
        y, x = y + top, (30 - x if flip else x) + left  # in the scaled image
        y, x = y / size[0] * SIZES[index][0], x / size[1] * SIZES[index][1]  # in the source image
        y, x = y / 8 - 0.5, x / 8 - 0.5  # in the map, from the first cell's middle
        y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
        above, before = int(y), int(x)
        below, after = min(above + 1, height - 1), min(before + 1, width - 1)
        down, along = y - above, x - before
        upper = picture[above, before] * (1 - along) + picture[above, after] * along
        lower = picture[below, before] * (1 - along) + picture[below, after] * along
        result[:, i, j] = upper * (1 - down) + lower * down
    return result


@pytest.mark.parametrize("code", CODES)
def test_one_warp_as_a_loop_has_it(code):
    """Ragged maps, any scale, place and flip, padding on both sides: every code is sampled alike."""
    maps = maps_of(soft(0, (5, 7), 12), soft(1, (3, 6), 12), code=code)
    places = [
        (0, (40, 56), 3, 9, False),
        (1, (31, 66), 5, 20, True),
        (1, (17, 40), -3, -2, True),
        (0, (63, 80), 40, 48, False),
    ]
    for index, size, top, left, flip in places:
        got = sample_maps(maps, pool(*SIZES), window(index, size, top, left, flip), (21, 30), stride=8)[0].exp()
        np.testing.assert_allclose(got.numpy(), warped(maps, index, size, top, left, flip), atol=2e-6)


@pytest.mark.parametrize("code", ["fp32", "fp16"])
def test_a_class_that_is_out_of_the_question_keeps_the_least_probability(code):
    certain = torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 4, 6)
    got = sample_maps(maps_of(certain, code=code), pool((32, 48)), window(0, (32, 48)), (32, 48), stride=8)
    torch.testing.assert_close(got[0, :, 1, 2], torch.tensor([0.0, np.log(1e-12), np.log(1e-12)]).float())


@pytest.mark.parametrize("code", CODES)
def test_sampling_never_asks_the_host(code):
    """Fake tensors hold no values: a host sync raises."""
    maps, place = maps_of(soft(0, (5, 7), 12), soft(1, (3, 6), 12), code=code), window(1, (31, 66), 5, 20, flip=True)
    with FakeTensorMode() as mode:
        fakes = {key: mode.from_tensor(each) for key, each in vars(maps).items() if isinstance(each, torch.Tensor)}
        faked = Windows(*(mode.from_tensor(each) for each in vars(place).values()))
        images = pool(*SIZES)
        sizes = {key: mode.from_tensor(getattr(images, key)) for key in ("height", "width")}
        got = sample_maps(replace(maps, **fakes), replace(images, **sizes), faked, (21, 30), stride=8)
        assert got.shape == (1, 12, 3, 4)
