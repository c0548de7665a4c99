"""Masks: what is written as index, palette, color or 16-bit comes back as the same classes, or is refused by name."""

from __future__ import annotations

import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageOps
from test_reading import ORIENTATION, png

from fewmask.data.classes import default_colors
from fewmask.data.dataset import MaskCoding
from fewmask.data.layouts.voc import palette_color
from fewmask.data.masks import decode_mask, read_mask, read_raw_mask
from fewmask.data.problem import DataProblem
from fewmask.errors import DataError
from fewmask.labels import IGNORE

CLASSES = 21
INDEX = MaskCoding("index", {index: index for index in range(CLASSES)})
VOID = (224, 224, 192)
COLOR = MaskCoding(
    "color",
    color_lookup={palette_color(index): index for index in range(CLASSES)},
    ignore_colors=frozenset({VOID}),
)
LABELS = arrays(
    np.uint8,
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    elements=st.one_of(st.integers(0, CLASSES - 1), st.just(IGNORE)),
)


def palette_image(label: np.ndarray) -> Image.Image:
    image = Image.fromarray(label, "P")
    image.putpalette([part for index in range(256) for part in palette_color(index)])
    return image


def color_image(label: np.ndarray) -> Image.Image:
    table = np.array([palette_color(index) for index in range(255)] + [VOID], np.uint8)
    return Image.fromarray(table[label])


FORMS = {
    "index": (Image.fromarray, INDEX),
    "palette": (palette_image, INDEX),
    "16-bit": (lambda label: Image.fromarray(label.astype(np.uint16)), INDEX),
    "gray in RGB": (lambda label: Image.fromarray(np.repeat(label[:, :, None], 3, axis=2)), INDEX),
    "color": (color_image, COLOR),
    "color with alpha": (lambda label: color_image(label).convert("RGBA"), COLOR),
}


@pytest.mark.parametrize("form", FORMS)
@given(label=LABELS)
@settings(max_examples=25, deadline=None)
def test_round_trip(form: str, label: np.ndarray) -> None:
    write, coding = FORMS[form]
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("png", "tif"):
            path = Path(folder) / f"mask.{suffix}"
            write(label).save(path)
            np.testing.assert_array_equal(read_mask(path, coding), label)


@given(raw=arrays(np.int32, (3, 4), elements=st.integers(0, 300)))
@settings(max_examples=50, deadline=None)
def test_decoding_equals_a_loop_or_names_what_is_unknown(raw: np.ndarray) -> None:
    coding = MaskCoding("index", {7: 0, 8: 1, 300: 2}, ignore=frozenset({0, 255}))
    unknown = sorted({int(value) for value in raw.flat} - {0, 7, 8, 255, 300})
    if unknown:
        with pytest.raises(DataError) as caught:
            decode_mask(raw, coding, "mask.png")
        assert f"{unknown[0]} ({(raw == unknown[0]).sum()} pixels)" in caught.value.what
        assert caught.value.fix == "7 to 8, 300; 0, 255 = ignore"
    else:
        expected = [[{7: 0, 8: 1, 300: 2}.get(int(value), IGNORE) for value in row] for row in raw]
        np.testing.assert_array_equal(decode_mask(raw, coding, "mask.png"), expected)


def test_palette_files_give_indices_or_colors_as_asked(tmp_path: Path) -> None:
    label = np.array([[0, 1, 15], [255, 20, 2]], np.uint8)
    image = palette_image(label)
    image.save(tmp_path / "mask.png")
    np.testing.assert_array_equal(read_raw_mask(tmp_path / "mask.png"), label)
    np.testing.assert_array_equal(read_raw_mask(tmp_path / "mask.png", colors=True), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize(("depth", "packed"), [(1, 0b01100000), (2, 0b00111001), (4, 0x3F)])
def test_gray_png_below_8_bits_is_not_stretched(tmp_path: Path, depth: int, packed: int) -> None:
    (tmp_path / "mask.png").write_bytes(png(np.array([[packed]], np.uint8), depth, 0))
    expected = {1: [0, 1, 1, 0, 0, 0, 0, 0], 2: [0, 3, 2, 1], 4: [3, 15]}[depth]
    np.testing.assert_array_equal(read_raw_mask(tmp_path / "mask.png"), [expected])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_masks_are_turned_by_their_own_tag(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = tmp_path / f"mask.{suffix}"
    Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3)).save(path, exif=exif)
    with Image.open(path) as image:
        np.testing.assert_array_equal(read_mask(path, INDEX), np.asarray(ImageOps.exif_transpose(image)))


def test_unknown_value_names_values_counts_and_what_is_valid() -> None:
    raw = np.array([[0, 20, 21], [21, 99, 255]], np.uint8)
    with pytest.raises(DataProblem) as caught:
        decode_mask(raw, INDEX, "masks/a.png")
    error = caught.value
    assert (error.code, error.where) == ("label-outside-classes", "masks/a.png")
    assert "21 (2 pixels), 99 (1 pixels)" in error.what
    assert error.fix == "0 to 20; 255 = ignore"


def test_unknown_color_is_named() -> None:
    raw = np.array([[[0, 0, 0], [128, 0, 0], [1, 2, 3], [1, 2, 3]]], np.uint8)
    with pytest.raises(DataProblem, match=r"\(1, 2, 3\) \(2 pixels\)"):
        decode_mask(raw, COLOR, "a.png")


def test_negative_values_are_refused() -> None:
    with pytest.raises(DataError, match=r"-1 \(1 pixels\)"):
        decode_mask(np.array([[-1, 0]], np.int32), INDEX, "a.tif")


def test_32_bit_masks_may_hold_any_values(tmp_path: Path) -> None:
    """A table up to the largest would take 4 GiB for these four pixels."""
    values = np.array([[0, 1], [-1, 2**31 - 1]], np.int32)
    Image.fromarray(values).save(tmp_path / "mask.tif")
    coding = MaskCoding("index", {0: 0, 1: 1}, ignore=frozenset({-1, 255, 2**31 - 1}))
    np.testing.assert_array_equal(read_mask(tmp_path / "mask.tif", coding), [[0, 1], [IGNORE, IGNORE]])
    tracemalloc.start()
    with pytest.raises(DataProblem, match=r"outside the classes: 2147483647 \(1 pixels\)"):
        read_mask(tmp_path / "mask.tif", replace(coding, ignore=frozenset({-1})))
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_color_mask_without_a_color_table(tmp_path: Path) -> None:
    color_image(np.array([[0, 1]], np.uint8)).save(tmp_path / "mask.png")
    with pytest.raises(DataProblem, match=r"\(0, 0, 0\), \(128, 0, 0\)") as caught:
        read_mask(tmp_path / "mask.png", INDEX)
    assert caught.value.code == "no-color-table"


def test_float_mask_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "mask.tif")
    with pytest.raises(DataError, match="name no classes"):
        read_mask(tmp_path / "mask.tif", INDEX)


@pytest.mark.parametrize("count", [2, 19, 255])
def test_default_colors_differ_and_stay(count: int) -> None:
    colors = default_colors(count)
    assert len(set(colors)) == count
    assert colors == default_colors(255)[:count]
    assert all(0 <= part <= 255 for color in colors for part in color)
