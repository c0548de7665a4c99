"""Windows against torchvision's resize, crop, pad and flip."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from pictures import Size, flat_images, noise_images, random_sizes
from torch import Tensor
from torchvision.transforms import InterpolationMode

from fewmask.labels import IGNORE
from fewmask.randomness import Randomness
from fewmask.types import FlatImages
from fewmask.views.geometry import Center, Windows, draw_windows, inside, sample_images, sample_labels

COUNT = 40
CROP = (24, 37)


def drawn(images: FlatImages, *, crop: Size = CROP, scale: tuple[float, float] = (0.5, 1.5), step: int = 3) -> Windows:
    index = torch.arange(len(images))
    return draw_windows(
        Randomness(1, torch.tensor(step)), "test", index, images, index, crop=crop, scale=scale, flip=True
    )


def cut(image: Tensor, windows: Windows, sample: int, crop: Size, fill: float) -> Tensor:
    """Crop one scaled [C, h, w] image, `fill` outside of it, and mirror the result if asked."""
    height, width = crop
    padded = TF.pad(image, [width, height, width, height], fill=fill)
    cropped = TF.crop(padded, int(windows.top[sample]) + height, int(windows.left[sample]) + width, height, width)
    return TF.horizontal_flip(cropped) if windows.flip[sample] else cropped


def scaled_size(windows: Windows, sample: int) -> list[int]:
    return [int(windows.scaled_height[sample]), int(windows.scaled_width[sample])]


def bilinear(image: Tensor, size: list[int]) -> Tensor:
    return TF.resize(image, size, InterpolationMode.BILINEAR, antialias=False)


@pytest.mark.parametrize(
    ("channels", "high", "gap"),
    [(3, 256, 0), (1, 256, 0), (3, 65536, 0), (4, 65536, 5), (3, 256, 2)],
)
def test_images_equal_torchvision(channels: int, high: int, gap: int) -> None:
    sources = noise_images(random_sizes(COUNT, seed=channels + gap), channels, high=high)
    images = flat_images(sources, gap)
    windows = drawn(images)
    ours = sample_images(images, windows, CROP)
    for sample, source in enumerate(sources):
        scaled = bilinear(source.float() / (high - 1), scaled_size(windows, sample))
        torch.testing.assert_close(ours[sample], cut(scaled, windows, sample, CROP, 0.5), atol=1e-5, rtol=0)


def test_images_stay_exact_far_from_the_origin() -> None:
    """Float32 coordinates would be off by 1e-3 at this width, exact ratios are not."""
    source = noise_images([(2, 9000)])[0]
    images = flat_images([source])
    zero = torch.zeros(1, dtype=torch.int64)
    left = torch.tensor([8990])
    windows = Windows(zero, torch.tensor([2]), torch.tensor([9007]), zero, left, torch.tensor([False]))
    ours = sample_images(images, windows, (2, 12))
    oracle = bilinear(source.double() / 255, [2, 9007])[..., 8990:9002]
    torch.testing.assert_close(ours[0].double(), oracle, atol=1e-5, rtol=0)


@pytest.mark.parametrize("high", [200, 60000])
def test_labels_equal_torchvision(high: int) -> None:
    sources = noise_images(random_sizes(COUNT, seed=5), 1, high=high)
    labels = flat_images(sources)
    windows = drawn(labels)
    ours = sample_labels(labels, windows, CROP)
    for sample, source in enumerate(sources):
        size = scaled_size(windows, sample)
        scaled = TF.resize(source.double(), size, InterpolationMode.NEAREST_EXACT).long()
        # Where the center of a pixel lies exactly between two source pixels, torch's float32 may round either way
        tie = (between(source.shape[1], size[0])[:, None] | between(source.shape[2], size[1]))[None]
        oracle = cut(torch.where(tie, -1, scaled), windows, sample, CROP, IGNORE)[0]
        torch.testing.assert_close(torch.where(oracle == -1, -1, ours[sample]), oracle, atol=0, rtol=0)


def between(size: int, scaled: int) -> Tensor:
    return (2 * torch.arange(scaled) + 1) * size % (2 * scaled) == 0


def test_ties_take_the_later_pixel() -> None:
    labels = flat_images([torch.arange(4, dtype=torch.uint8).reshape(1, 1, 4)])
    zero = torch.zeros(1, dtype=torch.int64)
    windows = Windows(zero, torch.tensor([1]), torch.tensor([2]), zero, zero, torch.tensor([False]))
    assert sample_labels(labels, windows, (1, 2)).tolist() == [[[1, 3]]]


def test_scale_one_returns_the_stored_pixels_and_flips_them() -> None:
    source = noise_images([(5, 7)])[0]
    zero = torch.zeros(2, dtype=torch.int64)
    windows = Windows(zero, zero + 5, zero + 7, zero, zero, torch.tensor([False, True]))
    images = sample_images(flat_images([source]), windows, (5, 7))
    assert torch.equal(images[0], source.float() / 255)
    assert torch.equal(images[1], source.flip(2).float() / 255)


def test_padding_is_gray_ignored_and_outside() -> None:
    image, label = noise_images([(2, 2)])[0], noise_images([(2, 2)], 1, high=5)[0]
    zero = torch.zeros(1, dtype=torch.int64)
    windows = Windows(zero, zero + 2, zero + 2, torch.tensor([-1]), torch.tensor([-2]), torch.tensor([True]))
    within = torch.zeros(4, 5, dtype=torch.bool)
    within[1:3, 1:3] = True  # two columns of padding on the left become two on the right, one stays
    assert torch.equal(inside(windows, (4, 5))[0], within)
    pixels = sample_images(flat_images([image]), windows, (4, 5))[0]
    assert torch.equal(pixels[:, 1:3, 1:3], image.flip(2).float() / 255)
    assert bool((pixels[:, ~within] == 0.5).all())
    labels = sample_labels(flat_images([label]), windows, (4, 5))[0]
    assert torch.equal(labels[1:3, 1:3], label[0].flip(1).long())
    assert bool((labels[~within] == IGNORE).all())


def test_image_label_and_inside_share_one_geometry() -> None:
    """A store whose pixels are its labels shows the same blocks in all three, up to the blending of edges."""
    blocks = [torch.full((1, *size), 100, dtype=torch.uint8) for size in random_sizes(COUNT, seed=8)]
    store = flat_images(blocks)
    windows = drawn(store)
    within = inside(windows, CROP)
    assert torch.equal(sample_labels(store, windows, CROP) == 100, within)
    assert torch.equal(sample_images(store, windows, CROP)[:, 0] == 100 / 255, within)
    assert 0 < int(within.sum()) < within.numel()


def test_windows_lie_inside_where_they_can_and_scales_keep_their_range() -> None:
    images = flat_images([torch.zeros(1, 100, 80, dtype=torch.uint8)])
    position = torch.arange(4000)
    random = Randomness(0, torch.tensor(0))
    crop = (60, 90)
    windows = draw_windows(
        random, "a", position, images, torch.zeros_like(position), crop=crop, scale=(0.5, 1.5), flip=True
    )
    assert windows.scaled_height.min() == 50
    assert windows.scaled_height.max() == 150
    assert (windows.scaled_height * 0.8 - windows.scaled_width).abs().max() <= 1
    for begin, scaled, size in (
        (windows.top, windows.scaled_height, crop[0]),
        (windows.left, windows.scaled_width, crop[1]),
    ):
        large = scaled >= size
        assert bool(((begin >= 0) & (begin + size <= scaled))[large].all())
        assert bool(((begin <= 0) & (begin + size >= scaled))[~large].all())
        share = ((begin - (scaled - size).clamp(max=0)) / (scaled - size).abs().clamp(min=1))[
            (scaled - size).abs() > 20
        ]
        assert abs(float(share.mean()) - 0.5) < 0.03
        assert share.min() == 0
        assert share.max() == 1
    assert abs(float(windows.flip.float().mean()) - 0.5) < 0.03
    unflipped = draw_windows(random, "a", position, images, position * 0, crop=crop, scale=(1, 1), flip=False)
    assert not bool(unflipped.flip.any())
    assert bool((unflipped.scaled_height == 100).all())


@pytest.mark.parametrize("centered", [False, True])
def test_scale_place_and_flip_of_a_window_are_drawn_apart(centered: bool) -> None:
    images = flat_images([torch.zeros(1, 200, 200, dtype=torch.uint8)])
    position = torch.arange(4000)
    middle = torch.full_like(position, 100)
    center = Center(middle, middle, torch.ones_like(position, dtype=torch.bool)) if centered else None
    options = {"crop": (40, 40), "scale": (1.0, 1.5), "flip": True, "center": center}
    windows = draw_windows(Randomness(0, torch.tensor(0)), "a", position, images, position * 0, **options)
    size = windows.scaled_height
    place = [begin - size / 2 if centered else begin / (size - 40) for begin in (windows.top, windows.left)]
    related = torch.corrcoef(torch.stack([size.float(), *place, windows.flip.float()])) - torch.eye(4)
    assert float(related.abs().max()) < 0.08  # five standard errors


@pytest.mark.parametrize("crop", [(1, 1), (2, 3), (20, 25), (64, 64)])
def test_centered_windows_hold_their_pixel(crop: Size) -> None:
    """A source with one marked pixel: every enlarged crop around it shows the mark, and the others stay as drawn."""
    size = (41, 53)
    random = Randomness(2, torch.tensor(9))
    position = torch.arange(200)
    y, x = random.integers("y", position, size[0]), random.integers("x", position, size[1])
    marked = torch.zeros(200, 1, *size, dtype=torch.uint8)
    marked[position, 0, y, x] = 1
    labels = flat_images(list(marked))
    center = Center(y, x, position % 2 == 0)
    options = {"crop": crop, "scale": (1.0, 2.0), "flip": True}
    windows = draw_windows(random, "a", position, labels, position, **options, center=center)
    seen = (sample_labels(labels, windows, crop) == 1).flatten(1).any(1)
    assert bool(seen[::2].all())
    plain = draw_windows(random, "a", position, labels, position, **options)
    assert torch.equal(windows.top[1::2], plain.top[1::2])
    assert torch.equal(windows.left[1::2], plain.left[1::2])
    room = windows.scaled_height - crop[0]
    assert bool(((windows.top >= room.clamp(max=0)) & (windows.top <= room.clamp(min=0))).all())


def test_a_centered_pixel_far_from_the_border_lies_about_the_middle() -> None:
    labels = flat_images([torch.zeros(1, 200, 200, dtype=torch.uint8)])
    position = torch.arange(500)
    hundred = torch.full_like(position, 100)
    center = Center(hundred, hundred, torch.ones(500, dtype=torch.bool))
    random, options = Randomness(0, torch.tensor(0)), {"crop": (40, 40), "scale": (1, 1), "flip": False}
    windows = draw_windows(random, "a", position, labels, position * 0, **options, center=center)
    assert sorted(set((100 - windows.top).tolist())) == list(range(10, 31))
