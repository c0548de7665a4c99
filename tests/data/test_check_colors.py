"""What the check makes of colors: palettes in another order, mixtures, and areas of colors that nobody declared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewmask.config import DataSettings
from fewmask.data.check import Report, check_folder
from tests.data.broken_masks import write_palette_mask
from tests.data.healthy import blocks, healthy, write_mask

COLORS = {"background": [0, 0, 0], "road": [192, 0, 0], "car": [0, 192, 0]}
TURNED = [COLORS["background"], COLORS["car"], COLORS["road"]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = healthy(tmp_path / "data")
    (root / "classes.txt").unlink()
    declare(root, COLORS)
    return root


def declare(root: Path, colors: dict[str, list[int]]) -> None:
    (root / "classes.yaml").write_text("".join(f"{name}: {color}\n" for name, color in colors.items()))


def codes(report: Report) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    errors, warnings = (
        [(each.code, each.path) for each in found if each.code != "class-absent"]
        for found in (report.errors, report.warnings)
    )
    return errors, warnings


def test_palettes_of_hidden_masks_only_warn(root: Path) -> None:
    (root / "split.txt").write_text("a\n")
    for name in "bcd":
        write_palette_mask(root / f"masks/{name}.png", blocks(), TURNED)
    report = check_folder(root, DataSettings(split=str(root / "split.txt")))
    assert codes(report) == ([], [("palette-order", "masks/b.png")])  # one palette, one finding


def test_masks_with_one_palette_are_judged_together(root: Path) -> None:
    """Each shows one class beside the ignored corner: alone its color might be there by chance."""
    for name, value in (("a", 0), ("b", 1), ("c", 2)):
        label = np.full_like(blocks(), value)
        write_palette_mask(root / f"masks/{name}.png", label, TURNED)
    assert codes(check_folder(root, DataSettings()))[0] == [("palette-order", "masks/b.png")]  # of a, 0 is right


def test_hidden_masks_neither_make_an_error_nor_take_one_away(root: Path) -> None:
    (root / "split.txt").write_text("a\n")
    settings = DataSettings(split=str(root / "split.txt"))
    write_palette_mask(root / "masks/a.png", np.zeros_like(blocks()), TURNED)  # right by itself
    for name in "bcd":
        write_palette_mask(root / f"masks/{name}.png", np.maximum(blocks(), 1), TURNED)
    only = [("palette-order", "masks/b.png"), ("single-class", "masks")]
    assert codes(check_folder(root, settings)) == ([], only)
    declare(root, COLORS | {"other": [7, 7, 7]})
    turned = [*TURNED, [1, 2, 3]]
    write_palette_mask(root / "masks/a.png", blocks(), turned)
    write_palette_mask(root / "masks/d.png", np.where(blocks() == 2, 3, blocks()).astype(np.uint8), turned)
    assert codes(check_folder(root, settings))[0] == [("palette-order", "masks/a.png")]


def test_a_palette_that_repeats_a_color_says_nothing(root: Path) -> None:
    for name in "abcd":
        write_palette_mask(root / f"masks/{name}.png", blocks(), [[0, 0, 0]] * 256)
    assert codes(check_folder(root, DataSettings()))[0] == []


@pytest.mark.parametrize("label", [np.zeros_like(blocks()), blocks()], ids=["one class", "all"])
def test_a_palette_of_grays_says_nothing(root: Path, label: np.ndarray) -> None:
    """Its first color is black, as that of some class is by chance."""
    declare(root, {"road": [192, 0, 0], "car": [0, 192, 0], "other": [0, 0, 0]})
    for name in "abcd":
        write_palette_mask(root / f"masks/{name}.png", label, [[value] * 3 for value in range(256)])
    assert codes(check_folder(root, DataSettings()))[0] == []


def colored(label: np.ndarray) -> np.ndarray:
    table = np.zeros((256, 3), np.uint8)
    table[:3] = list(COLORS.values())
    return table[label]


def test_areas_of_colors_between_two_others_are_no_smoothing(root: Path) -> None:
    """(96, 0, 0) lies between background and road, and may be a class that was forgotten all the same."""
    for name in "abcd":
        write_mask(root / f"masks/{name}.png", colored(np.minimum(blocks(), 2)))
    mask = colored(np.minimum(blocks(), 2))
    for place, color in enumerate([(64, 0, 0), (128, 0, 0), (0, 64, 0), (0, 128, 0)]):
        mask[2:9, 7 * place : 7 * place + 6] = color
    write_mask(root / "masks/b.png", mask)
    report = check_folder(root, DataSettings(ignore=()))
    assert ("label-outside-classes", "masks/b.png") in codes(report)[0]
    assert "gray-edges" not in [code for code, _ in codes(report)[0]]


def test_a_photo_among_color_masks_is_no_smoothing(root: Path) -> None:
    """Nearly every pixel has a color of its own, and with many classes each lies near a line between two of theirs."""
    draw = np.random.default_rng(5)
    declare(root, {f"class {index}": draw.integers(0, 256, 3).tolist() for index in range(60)} | COLORS)
    for name in "abcd":
        write_mask(root / f"masks/{name}.png", colored(np.minimum(blocks(), 2)))
    write_mask(root / "masks/b.png", draw.integers(0, 256, (400, 500, 3), dtype=np.uint8))
    report = check_folder(root, DataSettings())
    assert ("label-outside-classes", "masks/b.png") in codes(report)[0]
