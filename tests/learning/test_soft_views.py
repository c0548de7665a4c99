"""Soft labels from several views of an image, against views made by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from fewmask.learning.soft_views import view_probabilities


def ask(images: Tensor) -> Tensor:
    """Logits of two classes at stride 2: the red mean of each cell and of its left neighbor, so that sides matter."""
    cells = torch.nn.functional.avg_pool2d(images[:, :1], 2)
    left = torch.cat([cells[..., :1], cells[..., :-1]], dim=-1)
    return torch.cat([cells, left], dim=1)


def pictures() -> Tensor:
    return torch.rand(2, 3, 4, 8, generator=torch.Generator().manual_seed(0))


def test_one_plain_view_is_the_softmax_itself():
    images = pictures()
    (only,) = view_probabilities(ask, images, ask(images), scales=(1.0,), flip=False)
    assert torch.equal(only, ask(images).softmax(1))


def test_a_mirrored_view_is_mirrored_back():
    images = pictures()
    plain, mirrored = view_probabilities(ask, images, ask(images), scales=(1.0,), flip=True)
    cells = torch.nn.functional.avg_pool2d(images[:, :1], 2)
    right = torch.cat([cells[..., 1:], cells[..., -1:]], dim=-1)  # the left neighbor in the mirror
    torch.testing.assert_close(mirrored, torch.cat([cells, right], dim=1).softmax(1))
    assert not torch.allclose(plain, mirrored)


def test_an_enlarged_view_comes_back_to_the_images_own_cells():
    flat = torch.tensor([0.2, 0.9])[:, None, None, None].expand(2, 3, 4, 8)  # each image has one color everywhere
    asked: list[tuple[int, ...]] = []

    def noting(images: Tensor) -> Tensor:
        asked.append(tuple(images.shape[-2:]))
        return ask(images)

    views = list(view_probabilities(noting, flat, ask(flat), scales=(1.0, 1.5), flip=True))
    assert asked == [(4, 8), (6, 12), (6, 12)]  # the plain view is not asked for again
    assert len(views) == 4
    for view in views:
        torch.testing.assert_close(view, ask(flat).softmax(1))
