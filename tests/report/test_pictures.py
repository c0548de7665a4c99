"""Label maps come out in the right colors, and files hold the numbers that went in."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewmask.data.dataset import Classes
from fewmask.labels import IGNORE
from fewmask.report.pictures import (
    IGNORE_COLOR,
    colorize,
    picture_grid,
    to_data_uri,
    write_confidence_png,
    write_index_png,
)

COLORS = ((10, 20, 30), (200, 0, 0), (0, 200, 50))
LABEL = np.array([[0, 1, 2], [2, IGNORE, 0]], dtype=np.uint8)


def test_colors_by_hand() -> None:
    picture = colorize(LABEL, COLORS)
    assert picture[0].tolist() == [list(color) for color in COLORS]
    assert picture[1, 2].tolist() == list(COLORS[0])


def test_ignored_pixels_are_hatched_in_grays() -> None:
    picture = colorize(np.full((16, 16), IGNORE), COLORS)
    shades = {tuple(pixel) for pixel in picture.reshape(-1, 3).tolist()}
    assert IGNORE_COLOR in shades
    assert len(shades) == 2
    assert all(red == green == blue < 128 for red, green, blue in shades)


def test_label_without_a_color_is_an_error() -> None:
    with pytest.raises(IndexError):
        colorize(np.array([[3]]), COLORS)


def test_index_png_keeps_indices_and_shows_colors(tmp_path: Path) -> None:
    path = tmp_path / "label.png"
    write_index_png(path, LABEL, COLORS)
    with Image.open(path) as read:
        assert read.mode == "P"
        assert np.asarray(read).tolist() == LABEL.tolist()
        shown = np.asarray(read.convert("RGB"))
    assert shown[0].tolist() == [list(color) for color in COLORS]
    assert shown[1, 1].tolist() == list(IGNORE_COLOR)


def test_confidence_png_is_gray_from_0_to_255(tmp_path: Path) -> None:
    path = tmp_path / "confidence.png"
    write_confidence_png(path, np.array([[0.0, 0.5, 1.0]], dtype=np.float32))
    with Image.open(path) as read:
        assert read.mode == "L"
        assert np.asarray(read).tolist() == [[0, 128, 255]]


def test_data_uri_holds_the_picture(tmp_path: Path) -> None:
    picture = colorize(LABEL, COLORS)
    path = tmp_path / "picture.png"
    Image.fromarray(picture).save(path)
    for uri in (to_data_uri(picture), to_data_uri(path)):
        head, data = uri.split(",")
        assert head == "data:image/png;base64"
        assert np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))).tolist() == picture.tolist()
    assert to_data_uri(picture, lossless=False).startswith("data:image/jpeg;base64,/9j/")


def test_grid_holds_every_picture_and_the_legend(tmp_path: Path) -> None:
    path = tmp_path / "grid.png"
    photo = np.full((48, 64, 3), (1, 2, 250), dtype=np.uint8)
    label = np.zeros((48, 64), dtype=np.uint8)
    label[:, 32:] = 1
    classes = Classes(("sky", "road", "only in the legend"), COLORS)
    picture_grid([[photo, label], [photo, label[:, ::-1]]], ["image", "truth"], legend=classes, path=path)
    grid = np.asarray(Image.open(path).convert("RGB"))

    def count(color: tuple[int, int, int]) -> int:
        return int((grid == color).all(axis=2).sum())

    cell = 5 * 48 * 5 * 64  # 64 pixels grow by a factor of five, to about 320
    assert count((1, 2, 250)) == 2 * cell  # two photographs, unchanged
    assert abs(count(COLORS[0]) - cell) < 300  # half of two label maps, crisp, and a swatch
    assert abs(count(COLORS[1]) - cell) < 300
    assert 100 < count(COLORS[2]) < 300  # a swatch alone


def test_grid_says_what_the_ignored_pixels_are(tmp_path: Path) -> None:
    heights = []
    for value in (0, IGNORE):
        label = np.full((64, 320), value, dtype=np.uint8)
        picture_grid([[label]], ["truth"], legend=Classes(("sky",), COLORS[:1]), path=tmp_path / "g.png")
        with Image.open(tmp_path / "g.png") as grid:
            shown = np.asarray(grid.convert("RGB"))
        heights.append(int((shown[96:] == IGNORE_COLOR).all(axis=2).sum()))  # below the pictures
    assert heights[0] == 0
    assert heights[1] > 100


def test_grid_shrinks_large_pictures_and_wraps_a_long_legend(tmp_path: Path) -> None:
    names = tuple(f"class number {index}" for index in range(40))
    colors = tuple((index * 6, 255 - index * 6, 128) for index in range(40))
    picture_grid(
        [[np.zeros((1000, 2000), dtype=np.uint8)]],
        ["prediction"],
        legend=Classes(names, colors),
        path=tmp_path / "g.png",
    )
    with Image.open(tmp_path / "g.png") as grid:
        assert grid.width < 700
        shown = {tuple(pixel) for pixel in np.asarray(grid.convert("RGB")).reshape(-1, 3).tolist()}
    assert set(colors) <= shown  # no class fell off the edge
