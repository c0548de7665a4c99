"""The folder convention: which classes and coding of masks are decided on, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewmask.config import DataSettings
from fewmask.data.dataset import Classes, MaskCoding
from fewmask.data.folder import KnownClasses
from fewmask.data.masks import read_mask
from fewmask.data.opening import open_dataset
from fewmask.errors import ConfigError, DataError
from tests.data.small_folders import mask, names, opened, pairs, refused


def test_classes_are_inferred_from_the_values(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 1, 255)
    pairs(tmp_path / "val", "b", 0, 3)
    dataset = opened(tmp_path)
    assert dataset.classes.names == ("class_0", "class_1", "class_2", "class_3")
    assert "4 classes" in dataset.notes[0]


def test_hidden_masks_have_no_say_in_the_classes(tmp_path: Path) -> None:
    """Neither a value that is none of a class nor one more class: both would tell training of what it must not know."""
    pairs(tmp_path, "abcdefgh", 0, 1, 2)
    drawn = names(opened(tmp_path, labels="3").labeled)
    odd, more, *_ = sorted(set("abcdefgh") - set(drawn))
    mask(tmp_path / f"masks/{odd}.png", 0, 77)
    mask(tmp_path / f"masks/{more}.png", 3)
    (tmp_path / "split.txt").write_text("\n".join(drawn))
    for settings in ({"labels": "3"}, {"split": str(tmp_path / "split.txt")}):
        dataset = opened(tmp_path, **settings)
        assert names(dataset.labeled) == drawn
        assert dataset.classes.names == ("class_0", "class_1", "class_2")
        assert dataset.notes[0].startswith("no class file: the masks hold values up to 2")
    refused(tmp_path, "no-classes")
    pairs(tmp_path / "val", "v", 4)  # scored, and so known
    assert len(opened(tmp_path, labels="3").classes) == 5
    only = open_dataset(tmp_path, DataSettings(), shown=drawn)
    assert (len(only.classes), names(only.labeled)) == (5, list("abcdefgh"))


def test_masks_that_a_list_brings_say_which_classes_there_are(tmp_path: Path) -> None:
    pairs(tmp_path, "ab", 0, 1, 2)
    mask(tmp_path / "other/a.png", 0, 1)
    (tmp_path / "split.txt").write_text("a other/a.png\n")
    assert opened(tmp_path, split=str(tmp_path / "split.txt")).classes.names == ("class_0", "class_1")


def test_a_few_masks_of_two_classes_may_show_only_one_of_them(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0)
    pairs(tmp_path, "b", 255)
    pairs(tmp_path / "val", "v", 0, 255)
    assert opened(tmp_path, labels="1").coding.lookup == {0: 0, 255: 1}
    pairs(tmp_path / "val", "v", 0, 1, 255)
    assert opened(tmp_path, labels="1").coding.lookup == {0: 0, 1: 1}
    pairs(tmp_path / "val", "v", 0)
    (tmp_path / "split.txt").write_text("a\n")
    error = refused(tmp_path, "single-class", split=str(tmp_path / "split.txt"))
    assert "classes.txt" in error.fix


def test_values_that_are_no_indices_are_not_taken_for_classes(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 17, 128, 200)
    assert "0, 17, 128, 200" in refused(tmp_path, "no-classes").what
    pairs(tmp_path, "a", 0, 1, 5)  # half of the indices may be missing, not more
    assert len(opened(tmp_path).classes) == 6
    pairs(tmp_path, "a", 0, 1, 6)
    refused(tmp_path, "no-classes")


def test_two_values_that_are_no_indices_may_be_the_foreground(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 128)
    error = refused(tmp_path, "no-classes")
    assert "(0, 128)" in error.what
    assert error.fix.startswith("--foreground 128, if that value means class 1, or ")
    assert opened(tmp_path, foreground=128).coding.lookup == {0: 0, 128: 1}


def test_ignored_value_is_no_class(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 1, 9)
    dataset = opened(tmp_path, ignore=(9,))
    assert len(dataset.classes) == 2
    assert read_mask(tmp_path / "masks/a.png", dataset.coding)[0].tolist() == [0, 1, 255, 0, 1, 255]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("classes.txt", "sky \r\nroad\r\n", Classes(("sky", "road"), ())),
        ("classes.yaml", "- sky\n- road\n", Classes(("sky", "road"), ())),
        ("classes.yaml", "classes: [sky, road]", Classes(("sky", "road"), ())),
        (
            "classes.yaml",
            "classes: [{name: sky, color: [1, 2, 3]}, {name: road, color: '#ff0010'}]",
            Classes(("sky", "road"), ((1, 2, 3), (255, 0, 16))),
        ),
        ("classes.yml", "sky: [1, 2, 3]\nroad: [4, 5, 6]", Classes(("sky", "road"), ((1, 2, 3), (4, 5, 6)))),
    ],
)
def test_class_files(tmp_path: Path, name: str, text: str, expected: Classes) -> None:
    pairs(tmp_path, "a", 0, 1)
    (tmp_path / name).write_bytes(text.encode())
    classes = opened(tmp_path).classes
    assert classes.names == expected.names
    assert len(classes.colors) == 2
    assert not expected.colors or classes.colors == expected.colors


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("classes.txt", "sky\nroad\nsky\n", "bad-classes", "`sky` is named twice"),
        ("classes.txt", "sky\n\nroad\n", "bad-classes", "class 1 has an empty name"),
        ("classes.txt", "\n", "bad-classes", "no class"),
        ("classes.txt", "sky\n", "single-class", "one class, `sky`"),
        ("classes.txt", "\n".join(map(str, range(256))), "bad-classes", "256 classes are too many"),
        ("classes.yaml", "classes: [", "bad-classes", "not valid YAML"),
        ("classes.yaml", "classes: [a, b]\ncolours: 3", "bad-classes", "`colours`"),
        ("classes.yaml", "a: [1, 2, 300]\nb: [1, 2, 3]", "bad-classes", "not a color"),
        ("classes.yaml", "a: [1, 2, 3]\nb: [1, 2, 3]", "bad-classes", "used twice"),
        ("classes.yaml", "[{name: a, color: [1, 2, 3]}, {name: b}]", "bad-classes", "only 1 of 2"),
        ("classes.yaml", "!!python/object/apply:os.getcwd []", "bad-classes", "not valid YAML"),
    ],
)
def test_bad_class_files(tmp_path: Path, name: str, text: str, code: str, words: str) -> None:
    pairs(tmp_path, "a", 0, 1)
    (tmp_path / name).write_text(text)
    assert words in refused(tmp_path, code).what


def test_two_class_files_are_refused(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 1)
    for name in ("classes.txt", "classes.yaml"):
        (tmp_path / name).write_text("")
    assert refused(tmp_path, "bad-classes").code == "bad-classes"


# Two-class masks


@pytest.mark.parametrize(
    ("declared", "expected"),
    [(None, ("background", "foreground")), ("back\ncrack", ("back", "crack")), ("crack", ("background", "crack"))],
)
def test_binary_masks(tmp_path: Path, declared: str | None, expected: tuple[str, str]) -> None:
    pairs(tmp_path, "a", 0)
    pairs(tmp_path, "b", 0, 255)
    if declared:
        (tmp_path / "classes.txt").write_text(declared)
    dataset = opened(tmp_path)
    assert dataset.classes.names == expected
    assert "255 is read as class 1" in dataset.notes[0]
    assert read_mask(tmp_path / "masks/b.png", dataset.coding)[0].tolist() == [0, 1, 0, 1, 0, 1]


def test_one_other_value_makes_255_ignore(tmp_path: Path) -> None:
    pairs(tmp_path, "ab", 0, 255)
    pairs(tmp_path, "c", 0, 1, 255)
    dataset = opened(tmp_path)
    assert read_mask(tmp_path / "masks/c.png", dataset.coding)[0].tolist() == [0, 1, 255, 0, 1, 255]
    assert not any("class 1" in note for note in dataset.notes[:-1])


def test_more_classes_make_255_ignore(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 255)
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    assert 255 in opened(tmp_path).coding.ignore


def test_foreground_and_ignore_decide_otherwise(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 255, 128)
    dataset = opened(tmp_path, foreground=255, ignore=(128,))
    assert read_mask(tmp_path / "masks/a.png", dataset.coding)[0].tolist() == [0, 1, 255, 0, 1, 255]
    pairs(tmp_path, "a", 0, 255)
    (tmp_path / "classes.txt").write_text("back\ncrack")
    dataset = opened(tmp_path, ignore=(255,))
    assert read_mask(tmp_path / "masks/a.png", dataset.coding)[0].tolist() == [0, 255, 0, 255, 0, 255]
    with pytest.raises(ConfigError):
        opened(tmp_path, foreground=255, ignore=(255,))


def test_foreground_needs_two_classes(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 255)
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    with pytest.raises(ConfigError, match="3 are declared"):
        opened(tmp_path, foreground=255)


# Color-coded masks


def test_color_coded_masks(tmp_path: Path) -> None:
    pairs(tmp_path, "ab", 0)
    colors = np.array([[[0, 0, 0], [9, 8, 7], [224, 224, 192]]], np.uint8)
    Image.fromarray(np.repeat(colors, 4, axis=0)).save(tmp_path / "masks/b.png")
    (tmp_path / "classes.yaml").write_text("classes: {void: [0, 0, 0], car: [9, 8, 7]}\nignore: [[224, 224, 192]]\n")
    dataset = opened(tmp_path)
    assert dataset.coding.kind == "color"
    assert read_mask(tmp_path / "masks/b.png", dataset.coding)[0].tolist() == [0, 1, 255]
    assert read_mask(tmp_path / "masks/a.png", dataset.coding).max() == 0  # black, though stored as gray
    with pytest.raises(ConfigError, match="the masks are color-coded"):  # it had no effect, and nothing was said
        opened(tmp_path, ignore=(255,))
    (tmp_path / "classes.yaml").unlink()
    with pytest.raises(DataError, match="no classes are declared"):
        opened(tmp_path)


def test_index_masks_stay_index_where_colors_are_declared(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 1)
    (tmp_path / "classes.yaml").write_text("sky: [1, 2, 3]\nroad: [4, 5, 6]")
    assert opened(tmp_path).coding.kind == "index"


def test_damaged_mask_does_not_stop_the_opening(tmp_path: Path) -> None:
    pairs(tmp_path, "ab", 0, 255)
    (tmp_path / "masks/a.png").write_bytes(b"")
    assert opened(tmp_path).classes.names == ("background", "foreground")


# Holdout


KNOWN = Classes(("back", "front"), ((0, 0, 0), (9, 9, 9)))


@pytest.mark.parametrize(
    ("values", "coding", "label"),
    [
        ((0, 1, 255), MaskCoding("index", {0: 0, 1: 1}), [0, 1, 255]),
        ((0, 0), MaskCoding("index", {0: 0, 1: 1}), [0]),
        ((0, 255), MaskCoding("index", {0: 0, 255: 1}, ignore=frozenset()), [0, 1]),
    ],
)
def test_a_folder_without_a_class_file_is_read_as_a_run_read_its_own(tmp_path, values, coding, label) -> None:
    root = pairs(tmp_path / "data", "ab", *values)
    known = KnownClasses(Path("run/model.json"), KNOWN, coding)
    dataset = open_dataset(root, DataSettings(), known=known)
    assert (dataset.classes, dataset.coding) == (known.classes, coding)
    assert dataset.notes[0] == "there is no class file: masks are read as run/model.json says"
    assert np.unique(read_mask(dataset.labeled[0].mask, dataset.coding)).tolist() == label
    (root / "classes.txt").write_text("one\ntwo\n")  # its own word counts
    assert open_dataset(root, DataSettings(), known=known).classes.names == ("one", "two")


def test_masks_of_0_and_255_are_not_read_by_a_coding_that_ignores_255(tmp_path) -> None:
    """All that is foreground would be left out, and what is left would score 100 %."""
    root = pairs(tmp_path / "data", "ab", 0, 255)
    known = KnownClasses(Path("run/model.json"), KNOWN, MaskCoding("index", {0: 0, 1: 1}))
    with pytest.raises(DataError, match="only 0 and 255") as caught:
        open_dataset(root, DataSettings(), known=known)
    assert "classes.txt" in caught.value.fix
