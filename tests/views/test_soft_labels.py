"""Stored maps under a window agree with warping the full-size map, and with the identity window they come back."""

import pytest
import torch
from torch.nn import functional as F

from fewmask.types import PixelMaps
from fewmask.views.geometry import Windows
from fewmask.views.soft_labels import sample_maps


def maps_of(*probabilities: torch.Tensor) -> PixelMaps:
    """Each [K, h, w]."""
    height = torch.tensor([each.shape[1] for each in probabilities])
    width = torch.tensor([each.shape[2] for each in probabilities])
    cells = height * width
    values = torch.cat([each.permute(1, 2, 0).flatten(0, 1) for each in probabilities]).log()
    return PixelMaps(values, cells.cumsum(0) - cells, height, width)


def window(index: int, size: tuple[int, int], top: int = 0, left: int = 0, flip: bool = False) -> Windows:
    numbers = (torch.tensor([each]) for each in (index, *size, top, left))
    return Windows(*numbers, torch.tensor([flip]))


def soft(seed: int, size: tuple[int, int], classes: int = 3) -> torch.Tensor:
    return torch.randn(classes, *size, generator=torch.Generator().manual_seed(seed)).softmax(0)


def test_the_whole_image_gives_the_map_back():
    maps = maps_of(soft(0, (4, 6)), soft(1, (3, 5)))
    for index, size in ((0, (32, 48)), (1, (24, 40))):
        got = sample_maps(maps, window(index, size), size, stride=8)[0].exp()
        torch.testing.assert_close(got, soft(index, (size[0] // 8, size[1] // 8)), atol=1e-6, rtol=0)


def test_a_flipped_window_mirrors_the_map():
    got = sample_maps(maps_of(soft(0, (4, 6))), window(0, (32, 48), flip=True), (32, 48), stride=8)[0].exp()
    torch.testing.assert_close(got, soft(0, (4, 6)).flip(2), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("size", "top", "left"), [((32, 48), 8, 16), ((40, 60), 3, 11), ((24, 36), 1, 5)])
def test_agrees_with_enlarging_scaling_and_cropping(size, top, left):
    """Linear maps are reproduced exactly by bilinear interpolation, so every route must give the same values inside."""
    rows = torch.linspace(0.1, 0.4, 4)[:, None].expand(4, 6)
    columns = torch.linspace(0.05, 0.5, 6)[None].expand(4, 6)
    probability = torch.stack([rows, columns, 1 - rows - columns])
    crop = (16, 24)
    got = sample_maps(maps_of(probability), window(0, size, top, left), crop, stride=8)[0].exp()  # [3, 2, 3]
    full = F.interpolate(probability[None], size=size, mode="bilinear", align_corners=False)[0]
    y, x = top + torch.tensor([4.0, 12.0]), left + torch.tensor([4.0, 12.0, 20.0])
    for i in range(2):
        for j in range(3):  # a cell center lies between four pixels of the scaled image
            near = full[:, int(y[i]) - 1 : int(y[i]) + 1, int(x[j]) - 1 : int(x[j]) + 1].mean((1, 2))
            torch.testing.assert_close(got[:, i, j], near, atol=1e-5, rtol=0)
