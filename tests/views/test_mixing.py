"""Boxes and pasting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewmask.errors import ConfigError
from fewmask.randomness import Randomness
from fewmask.views.mixing import box_mask, partners, paste


def boxes(count: int, crop: tuple[int, int], seed: int = 0, step: int = 0) -> torch.Tensor:
    return box_mask(Randomness(seed, torch.tensor(step)), "box", torch.arange(count), crop)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(1, 20), st.integers(1, 20), st.integers(0, 10**6))
def test_each_pixel_comes_from_one_source_and_all_tensors_from_the_same(
    count: int, height: int, width: int, seed: int
) -> None:
    """Every pixel carries its own number, so the result tells where it was taken from."""
    crop = (height, width)
    numbers = torch.arange(count * height * width).reshape(count, height, width)
    partner, box = partners(count), boxes(count, crop, seed)
    label = paste(numbers, partner, box)
    image = paste(torch.stack([numbers.float(), numbers.float() + 0.5], dim=1), partner, box)
    valid = paste(numbers % 3 == 0, partner, box)
    for i, y, x in np.ndindex(count, *crop):
        source = partner[i] if box[i, y, x] else i
        assert label[i, y, x] == numbers[source, y, x]
        assert image[i, :, y, x].tolist() == [numbers[source, y, x], numbers[source, y, x] + 0.5]
        assert valid[i, y, x] == (numbers[source, y, x] % 3 == 0)


def test_a_box_is_one_rectangle_of_half_the_area() -> None:
    crop = (96, 128)
    for box in boxes(300, crop):
        rows, columns = box.any(1), box.any(0)
        assert torch.equal(box, rows[:, None] & columns)
        for line in (rows, columns):
            at = line.nonzero().flatten()
            assert len(at) == at[-1] - at[0] + 1
        tall, wide = int(rows.sum()), int(columns.sum())
        assert tall >= crop[0] // 2
        assert wide >= crop[1] // 2
        # Rounding moves each side by half a pixel at most
        assert abs(tall * wide - crop[0] * crop[1] / 2) <= (tall + wide) / 2 + 0.25


def test_box_height_is_log_uniform_and_its_place_uniform() -> None:
    box = boxes(3000, (100, 100))
    rows = box.any(2)
    share = -(rows.sum(1) / 100).log2()  # u of 0.5 ** u
    quantiles = torch.quantile(share, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    torch.testing.assert_close(quantiles, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), atol=0.03, rtol=0)
    room = 100 - rows.sum(1)
    top = rows.int().argmax(1)
    where = (top / room.clamp(min=1))[room > 20]
    assert abs(float(where.mean()) - 0.5) < 0.03
    assert float(where.min()) == 0
    assert float(where.max()) == 1
    # Seen from afar a pixel and its mirror image are covered equally often
    cover = box.float().mean(0)
    torch.testing.assert_close(cover, cover.flip(0, 1), atol=0.06, rtol=0)


def test_shape_and_place_of_a_box_are_drawn_apart() -> None:
    """Where a box lies in its height says nothing of where it lies in its width, nor does its shape."""
    box = boxes(4000, (101, 101))
    rows, columns = box.any(2), box.any(1)
    room = [101 - each.sum(1) for each in (rows, columns)]
    place = [each.int().argmax(1) / left.clamp(min=1) for each, left in zip((rows, columns), room, strict=True)]
    drawn = torch.stack([rows.sum(1).float(), *place])[:, (room[0] > 10) & (room[1] > 10)]
    related = torch.corrcoef(drawn) - torch.eye(3)
    assert float(related.abs().max()) < 0.08


@pytest.mark.parametrize(("count", "expected"), [(2, [1, 0]), (4, [1, 0, 3, 2]), (3, [1, 0, 1]), (5, [1, 0, 3, 2, 3])])
def test_partners(count: int, expected: list[int]) -> None:
    assert partners(count).tolist() == expected


@pytest.mark.parametrize("count", [0, 1])
def test_one_image_has_no_partner(count: int) -> None:
    with pytest.raises(ConfigError, match="at least 2 unlabeled images"):
        partners(count)
