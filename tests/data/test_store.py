"""The flat store against files decoded one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from fewmask.data.dataset import MaskCoding, Sample
from fewmask.data.resizing import resize_image, resize_mask
from fewmask.data.store import data_checksum, load_hidden_masks, load_images, load_masks
from fewmask.errors import DataError
from fewmask.labels import IGNORE

CODING = MaskCoding("index", {0: 0, 1: 1, 2: 2})


def written(folder: Path, *arrays_: np.ndarray) -> list[Sample]:
    found = []
    for index, array in enumerate(arrays_):
        path = folder / f"{index}.png"
        Image.fromarray(array).save(path)
        found.append(Sample(str(index), path, path))
    return found


def noise(*shape: int, top: int = 256, seed: int = 0, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, top, shape, dtype)


def test_ragged_images_come_back_exactly(tmp_path: Path) -> None:
    originals = [noise(3 + index, 9 - index, 3, seed=index) for index in range(6)]
    store = load_images(written(tmp_path, *originals))
    assert store.values.dtype == torch.uint8
    for index, array in enumerate(originals):
        np.testing.assert_array_equal(store.raw(index).numpy(), array.transpose(2, 0, 1))
    start, width = int(store.offset[2]), int(store.width[2])
    assert store.values[start + (4 * width + 5) * 3 + 1] == originals[2][4, 5, 1]  # the documented address


def test_gray_stays_one_channel_unless_there_is_color(tmp_path: Path) -> None:
    gray, color = noise(4, 5), noise(2, 3, 3)
    samples = written(tmp_path, gray, color)
    np.testing.assert_array_equal(load_images(samples[:1]).raw(0).numpy(), gray[None])
    np.testing.assert_array_equal(load_images(samples).raw(0).numpy(), np.stack([gray] * 3))
    np.testing.assert_array_equal(load_images(samples[:1], channels=3).raw(0).numpy(), np.stack([gray] * 3))
    with pytest.raises(DataError, match="gray"):
        load_images(samples, channels=1)


def test_16_bit_images_lift_the_others(tmp_path: Path) -> None:
    deep, flat = noise(4, 5, top=65536, dtype=np.uint16), noise(2, 3)
    store = load_images(written(tmp_path, deep, flat))
    assert store.values.dtype == torch.int16
    np.testing.assert_array_equal(store.raw(0).numpy(), deep[None])
    np.testing.assert_allclose(store.image(1).numpy(), flat[None] / 255, atol=1e-7)


def test_images_are_shown_as_exif_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    array = noise(2, 5, 3)
    Image.fromarray(array).save(tmp_path / "a.png", exif=exif)
    store = load_images([Sample("a", tmp_path / "a.png")])
    np.testing.assert_array_equal(store.raw(0).numpy(), np.rot90(array, -1).transpose(2, 0, 1))


def test_masks_are_decoded(tmp_path: Path) -> None:
    labels = [noise(3, 4, top=3), np.full((2, 2), IGNORE, np.uint8)]
    store = load_masks(written(tmp_path, *labels), CODING)
    assert store.channels == 1
    for index, label in enumerate(labels):
        np.testing.assert_array_equal(store.raw(index)[0].numpy(), label)


def test_first_bad_file_is_named(tmp_path: Path) -> None:
    samples = written(tmp_path, *(np.full((2, 2), value, np.uint8) for value in (0, 9, 8)))
    with pytest.raises(DataError) as caught:
        load_masks(samples, CODING)
    assert caught.value.where == str(samples[1].mask)
    with pytest.raises(DataError, match="`x` has no mask"):
        load_masks([Sample("x", samples[0].image)], CODING)


def test_progress_counts_every_file(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    load_images(written(tmp_path, *[noise(2, 2)] * 3), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_halving_averages_boxes(dtype: type) -> None:
    array = noise(6, 8, 3, top=np.iinfo(dtype).max, dtype=dtype)
    expected = array.reshape(3, 2, 4, 2, 3).mean(axis=(1, 3))
    assert np.abs(resize_image(array, (3, 4)) - expected).max() <= 0.5


def test_other_sizes_are_bilinear_with_antialiasing() -> None:
    array = noise(7, 9, 3)
    expected = np.asarray(Image.fromarray(array).resize((5, 4), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resize_image(array, (4, 5)), expected)
    deep = resize_image(array.astype(np.uint16) * 257, (4, 5))
    assert np.abs(deep / 257 - expected).max() <= 1.0


@given(label=arrays(np.uint8, (4, 6), elements=st.sampled_from([0, 1, 2, IGNORE])))
@settings(max_examples=60, deadline=None)
def test_halved_masks_are_majority_votes(label: np.ndarray) -> None:
    halved = resize_mask(label, (2, 3))
    for y in range(2):
        for x in range(3):
            votes = label[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].reshape(-1).tolist()
            assert halved[y, x] == max(votes, key=votes.count)  # max keeps the first of equals


def test_other_mask_sizes_take_the_nearest_pixel() -> None:
    label = np.arange(9, dtype=np.uint8).reshape(3, 3)
    np.testing.assert_array_equal(resize_mask(label, (6, 3)), np.repeat(label, 2, axis=0))
    np.testing.assert_array_equal(resize_mask(label, (1, 1)), [[4]])


def test_resize_applies_to_the_whole_store(tmp_path: Path) -> None:
    first, second = noise(4, 4, top=3), noise(5, 7, top=3, seed=1)
    samples = written(tmp_path, first, second)
    images, masks = load_images(samples, resize=(2, 2)), load_masks(samples, CODING, resize=(2, 2))
    np.testing.assert_array_equal(images.raw(1).numpy(), resize_image(second[:, :, None], (2, 2)).transpose(2, 0, 1))
    np.testing.assert_array_equal(masks.raw(0)[0].numpy(), resize_mask(first, (2, 2)))
    np.testing.assert_array_equal(masks.raw(1)[0].numpy(), resize_mask(second, (2, 2)))


def test_checksum_sees_names_and_bytes_but_not_order(tmp_path: Path) -> None:
    samples = written(tmp_path, noise(2, 2), noise(3, 3), noise(2, 2, seed=5))
    checksum = data_checksum(samples)
    assert data_checksum(samples[::-1]) == checksum
    assert data_checksum(samples[:2]) != checksum
    assert data_checksum([Sample("other", samples[0].image, samples[0].mask), *samples[1:]]) != checksum
    assert data_checksum([Sample("0", samples[0].image), *samples[1:]]) != checksum
    path = samples[2].image
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert data_checksum(samples) != checksum


def test_hidden_masks_that_do_not_fit_are_one_unknown_pixel(tmp_path: Path) -> None:
    """Good, none, unreadable, values outside the classes, another size than the image."""
    samples = written(tmp_path, noise(3, 4, top=3), *[noise(3, 4)] * 4)
    bad, strange, small = (tmp_path / f"{name}_mask.png" for name in ("bad", "strange", "small"))
    bad.write_bytes(b"no image")
    Image.fromarray(np.full((3, 4), 9, np.uint8)).save(strange)
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(small)
    masks = (samples[0].mask, None, bad, strange, small)
    samples = [sample.with_mask(mask) for sample, mask in zip(samples, masks, strict=True)]
    store = load_hidden_masks(samples, load_images(samples), CODING)
    np.testing.assert_array_equal(store.raw(0)[0].numpy(), load_masks(samples[:1], CODING).raw(0)[0].numpy())
    assert [store.raw(index).tolist() for index in (1, 2, 3, 4)] == [[[[IGNORE]]]] * 4
    halved = load_hidden_masks(samples, load_images(samples, resize=(2, 2)), CODING, resize=(2, 2))
    assert halved.raw(0).shape == halved.raw(4).shape == (1, 2, 2)
