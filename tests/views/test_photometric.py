"""Color operations against torchvision's functional ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from pictures import noise_images
from torch import Tensor

from fewmask.config import ViewSettings
from fewmask.randomness import Randomness
from fewmask.views import photometric
from fewmask.views.photometric import OPERATIONS, apply_operations, color_noise

MAGNITUDES = torch.arange(1, 10)  # [9]
Oracle = Callable[[Tensor, int], Tensor]


def factor(magnitude: int) -> float:
    return 0.05 + 0.09 * magnitude


def eight_bit(operation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Run an operation on 8-bit integers and return to [0, 1]."""
    return lambda image: operation((image * 255).round().to(torch.uint8)).float() / 255


ORACLES: dict[str, Oracle] = {
    "identity": lambda image, _: image,
    "autocontrast": lambda image, _: TF.autocontrast(image),
    "brightness": lambda image, v: TF.adjust_brightness(image, factor(v)),
    "color": lambda image, v: TF.adjust_saturation(image, factor(v)),
    "contrast": lambda image, v: TF.adjust_contrast(image, factor(v)),
    "equalize": lambda image, _: eight_bit(TF.equalize)(image),
    "posterize": lambda image, v: eight_bit(lambda pixels: TF.posterize(pixels, 4 + int(0.4 * v)))(image),
    "sharpness": lambda image, v: TF.adjust_sharpness(image, factor(v)),
    "solarize": lambda image, v: TF.solarize(image, (256 - 25.6 * v) / 255),
}


def pictures(channels: int, size: tuple[int, int] = (40, 52)) -> Tensor:
    """Nine 8-bit images with uneven histograms: dark, narrow, skewed, one of a single value."""
    images = torch.stack(noise_images([size] * 9, channels, seed=channels)).double() / 255
    exponent = torch.linspace(0.3, 3.0, 9, dtype=torch.double)[:, None, None, None]
    low = torch.linspace(0.0, 0.4, 9, dtype=torch.double)[:, None, None, None]
    images = low + (0.9 - low) * images**exponent
    images[4] = 0.4
    images[5, :, : size[0] // 2] = 1.0
    return (images * 255).round().float() / 255


def oracle(name: str, images: Tensor, magnitudes: Tensor) -> Tensor:
    pairs = zip(images, magnitudes.tolist(), strict=True)
    return torch.stack([ORACLES[name](image, magnitude) for image, magnitude in pairs])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_equals_torchvision(name: str, channels: int) -> None:
    images = pictures(channels)
    ours = getattr(photometric, name)(images, MAGNITUDES)
    expected = images if (name, channels) == ("color", 1) else oracle(name, images, MAGNITUDES)
    torch.testing.assert_close(ours, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("size", [(40, 52), (2, 9), (3, 3), (1, 1)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_folded_round_equals_the_operations_one_by_one(channels: int, size: tuple[int, int]) -> None:
    """Nine samples, each under its own operation, in all nine assignments of operations to samples."""
    images = pictures(channels, size)
    magnitude = (MAGNITUDES * 5) % 10
    for turn in range(len(OPERATIONS)):
        chosen = (torch.arange(len(OPERATIONS)) + turn) % len(OPERATIONS)
        ours = apply_operations(images, chosen, magnitude)
        for sample, place in enumerate(chosen.tolist()):
            alone = getattr(photometric, OPERATIONS[place])(images[sample, None], magnitude[sample, None])[0]
            torch.testing.assert_close(ours[sample], alone, atol=2e-6, rtol=0)
            if OPERATIONS[place] == "identity":
                assert torch.equal(ours[sample], images[sample])


def test_hand_computed_values() -> None:
    image = torch.tensor([[[[0.0, 0.2], [0.4, 1.0]]]])
    five = torch.tensor([5])  # factor 0.5, 6 bits, threshold 128 / 255
    torch.testing.assert_close(photometric.brightness(image, five), image / 2)
    torch.testing.assert_close(photometric.contrast(image, five), 0.2 + image / 2)  # the mean is 0.4
    solarized = torch.tensor([[[[0.0, 0.2], [0.4, 0.0]]]])
    torch.testing.assert_close(photometric.solarize(image, five), solarized)
    posterized = torch.tensor([[[[0, 48], [100, 252]]]]) / 255  # of 0, 51, 102, 255
    torch.testing.assert_close(photometric.posterize(image, five), posterized)


def test_noise_applies_each_operation_and_magnitude_equally_often() -> None:
    """One image 4,000 times; each result is recognized among the 81 that the operations can give."""
    image = pictures(3, (20, 22))[:1]
    nine = image.expand(9, -1, -1, -1)
    possible = torch.cat([getattr(photometric, name)(nine, MAGNITUDES) for name in OPERATIONS]).flatten(1)  # [81, ...]
    settings = ViewSettings(color_probability=1.0, color_operations=1)
    random, position = Randomness(0, torch.tensor(1)), torch.arange(4000)
    noisy = color_noise(random, "s", position, image.expand(4000, -1, -1, -1), settings).flatten(1)
    distance, found = torch.cdist(noisy, possible, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    assert float(distance.max()) < 1e-4
    share = torch.bincount(found // 9, minlength=9) / len(position)
    assert float((share - 1 / 9).abs().max()) < 0.02
    brightness = found[found // 9 == OPERATIONS.index("brightness")] % 9
    share = torch.bincount(brightness, minlength=9) / len(brightness)
    assert float((share - 1 / 9).abs().max()) < 0.05


def test_rounds_of_noise_by_a_loop() -> None:
    """Each sample draws its operation, its magnitude and whether it is applied anew in every round, and each apart."""
    images = pictures(3)
    random, position = Randomness(0, torch.tensor(1)), torch.arange(9)
    settings = ViewSettings(color_probability=0.4, color_operations=3, color_magnitude=(2, 7))
    which, how_much, whether = (random.bits("s", position, 3, 3) / 2**32).double().unbind(1)  # [9, 3] in [0, 1) each
    noisy = color_noise(random, "s", position, images, settings)
    for sample in range(9):
        image = images[sample, None]
        for turn in range(3):
            operation = getattr(photometric, OPERATIONS[int(which[sample, turn] * 9)])
            if whether[sample, turn] < 0.4:
                image = operation(image, 2 + (how_much[sample, turn, None] * 6).long())
        torch.testing.assert_close(noisy[sample], image[0], atol=1e-5, rtol=0)


def test_probability_bounds_and_half() -> None:
    images = torch.stack(noise_images([(6, 6)], seed=3)).float() / 255
    images = images.expand(4000, -1, -1, -1)
    random, position = Randomness(0, torch.tensor(1)), torch.arange(4000)

    def changed(probability: float) -> float:
        settings = ViewSettings(color_probability=probability, color_operations=1)
        noisy = color_noise(random, "s", position, images, settings)
        return float((noisy != images).flatten(1).any(1).float().mean())

    assert changed(0.0) == 0
    # Identity never shows, and equalize leaves the 36 pixels of an image alone
    assert 7 / 9 - 0.03 < changed(1.0) < 8 / 9 + 0.03
    assert abs(changed(0.5) - changed(1.0) / 2) < 0.03


def test_noise_of_a_sample_depends_on_its_position_only() -> None:
    images = pictures(3)
    random, settings = Randomness(4, torch.tensor(7)), ViewSettings(color_probability=1.0)
    position = torch.arange(9) + 20
    whole = color_noise(random, "strong/1", position, images, settings)
    part = color_noise(random, "strong/1", position[3:5], images[3:5], settings)
    assert torch.equal(whole[3:5], part)
    assert not torch.equal(whole, color_noise(random, "strong/2", position, images, settings))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("operation", [torch.arange(9), torch.full((9,), OPERATIONS.index("contrast"))])
def test_result_does_not_depend_on_batch_size_or_threads(operation: Tensor) -> None:
    """To the last bit, or else two processes would not train like one; a contrast from a float mean fails this."""
    images = pictures(3, (257, 321))
    together = apply_operations(images, operation, MAGNITUDES)
    alone = [apply_operations(images[i : i + 1], operation[i : i + 1], MAGNITUDES[i : i + 1]) for i in range(9)]
    assert torch.equal(together, torch.cat(alone))
    torch.set_num_threads(1)
    assert torch.equal(together, apply_operations(images, operation, MAGNITUDES))


def test_noise_stays_in_range_under_many_rounds() -> None:
    images = pictures(3)
    random, settings = Randomness(4, torch.tensor(7)), ViewSettings(color_probability=1.0, color_operations=12)
    noisy = color_noise(random, "strong/1", torch.arange(9), images, settings)
    assert float(noisy.min()) >= 0
    assert float(noisy.max()) <= 1
    assert bool(torch.isfinite(noisy).all())
