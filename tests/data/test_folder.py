"""The folder convention: what is listed, which classes and coding are decided on, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewmask.config import DataSettings
from fewmask.data.dataset import Classes, Dataset, Sample
from fewmask.data.folder import list_folder
from fewmask.data.masks import read_mask
from fewmask.data.opening import open_dataset, outside_root
from fewmask.data.problem import DataProblem
from fewmask.errors import ConfigError, DataError

SHARED = Path(__file__).parents[2] / "../shared"


def image(path: Path, value: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(path)


def mask(path: Path, *values: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.resize(np.array(values, np.uint8), (4, 6))).save(path)


def pairs(root: Path, names: str, *values: int) -> Path:
    for name in names:
        image(root / f"images/{name}.jpg")
        mask(root / f"masks/{name}.png", *values)
    return root


def opened(root: Path, **settings: object) -> Dataset:
    return open_dataset(root, DataSettings(**settings))  # type: ignore[arg-type]


def names(samples: tuple) -> list[str]:
    return [sample.name for sample in samples]


def refused(root: Path, code: str, **settings: object) -> DataProblem:
    with pytest.raises(DataProblem) as caught:
        opened(root, **settings)
    assert caught.value.code == code
    assert caught.value.fix
    return caught.value


def test_all_parts_are_found(tmp_path: Path) -> None:
    pairs(tmp_path, "cab", 0, 1, 2)
    pairs(tmp_path / "val", "p", 0, 1)
    pairs(tmp_path / "test", "q", 0, 1)
    image(tmp_path / "unlabeled/x.png")
    image(tmp_path / "unlabeled/deep/a.webp")
    (tmp_path / "classes.txt").write_text("sky\nroad\ncar\n")
    dataset = opened(tmp_path)
    assert names(dataset.labeled) == ["a", "b", "c"]
    assert names(dataset.unlabeled) == ["unlabeled/deep/a", "unlabeled/x"]
    assert names(dataset.val) == ["p"]
    assert names(dataset.test) == ["q"]
    assert dataset.labeled[0].mask == tmp_path.resolve() / "masks/a.png"
    assert dataset.classes.names == ("sky", "road", "car")
    assert dataset.notes == ()


@pytest.mark.parametrize("form", ["train/{}", "{}/train"])
def test_train_folders_are_accepted(tmp_path: Path, form: str) -> None:
    for part, name in (("train", "a"), ("val", "b")):
        image(tmp_path / form.replace("train", part).format("images") / f"{name}.png")
        mask(tmp_path / form.replace("train", part).format("masks") / f"{name}.png", 0, 1)
    image(tmp_path / "train/unlabeled/u.png")
    dataset = opened(tmp_path)
    assert (names(dataset.labeled), names(dataset.val)) == (["a"], ["b"])
    assert names(dataset.unlabeled) == ["train/unlabeled/u"]


def test_nested_folders_pair_by_relative_stem(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        image(tmp_path / f"images/{folder}/a.png")
        mask(tmp_path / f"masks/{folder}/a.png", 0, 1)
    image(tmp_path / "images/.hidden.png")
    image(tmp_path / "images/.cache/a.png")
    dataset = opened(tmp_path)
    assert names(dataset.labeled) == ["one/a", "two/a"]
    assert dataset.labeled[1].mask == tmp_path.resolve() / "masks/two/a.png"


def test_odd_files_are_remembered(tmp_path: Path) -> None:
    pairs(tmp_path, "ab", 0, 1)
    (tmp_path / "masks/b.png").unlink()
    mask(tmp_path / "masks/stray.png", 0)
    (tmp_path / "images/notes.txt").write_text("hello")
    listing = list_folder(tmp_path)
    assert [sample.mask is None for sample in listing.labeled] == [False, True]
    assert listing.extra_masks == (tmp_path / "masks/stray.png",)
    assert listing.other_files == (tmp_path / "images/notes.txt",)
    assert any("1 files are not named like images" in note for note in opened(tmp_path).notes)


def test_two_images_with_one_stem_are_refused(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 1)
    image(tmp_path / "images/a.png")
    assert "images/a.jpg and images/a.png" in refused(tmp_path, "name-clash").what


def test_images_twice_is_ambiguous(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 1)
    pairs(tmp_path / "train", "b", 0, 1)
    assert "train/images" in refused(tmp_path, "unknown-layout").what


def test_nothing_there_shows_the_tree(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "nowhere", "unknown-layout").what
    (tmp_path / "readme.md").write_text("")
    error = refused(tmp_path, "unknown-layout")
    assert "readme.md" in error.what
    assert "masks/       photo_1.png" in error.fix
    assert "leftImg8bit" in error.fix
    assert "JPEGImages" in refused(tmp_path, "unknown-layout", layout="voc").fix
    image(tmp_path / "unlabeled/x.png")
    refused(tmp_path, "no-labeled")


def test_links_out_of_the_root_are_refused(tmp_path: Path) -> None:
    root = pairs(tmp_path / "data", "ab", 0, 1)
    image(tmp_path / "secret.png")
    (root / "images/b.jpg").unlink()
    (root / "images/b.jpg").symlink_to(tmp_path / "secret.png")
    assert "images/b.jpg" in refused(root, "outside-root").what
    (root / "images/b.jpg").unlink()
    (root / "images/b.jpg").symlink_to("a.jpg")
    assert len(opened(root).labeled) == 2
    assert outside_root(root, root / "../secret.png")
    assert outside_root(root, tmp_path / "data_2/x.png")
    assert not outside_root(root, root / "images/../masks/a.png")


def test_linked_folder_out_of_the_root_is_refused(tmp_path: Path) -> None:
    pairs(tmp_path / "elsewhere", "a", 0, 1)
    (tmp_path / "data").mkdir()
    for name in ("images", "masks"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "elsewhere" / name)
    assert refused(tmp_path / "data", "outside-root").code == "outside-root"


def test_link_loops_end(tmp_path: Path) -> None:
    pairs(tmp_path, "a", 0, 1)
    (tmp_path / "images/again").symlink_to(tmp_path / "images")
    assert names(opened(tmp_path).labeled) == ["a"]


# Classes


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


def test_holdout_moves_labeled_images_to_val(tmp_path: Path) -> None:
    pairs(tmp_path, "abcdefghij", 0, 1)
    dataset = opened(tmp_path, holdout=0.3)
    assert (len(dataset.labeled), len(dataset.val)) == (7, 3)
    assert sorted(names(dataset.labeled + dataset.val)) == list("abcdefghij")
    assert dataset == opened(tmp_path, holdout=0.3)
    others = {tuple(names(open_dataset(tmp_path, DataSettings(holdout=0.3), seed).val)) for seed in range(8)}
    assert len(others) > 4
    assert any("no validation images" in note for note in opened(tmp_path).notes)
    with pytest.raises(ConfigError, match="none of 10"):
        opened(tmp_path, holdout=1.0)


def test_holdout_is_not_used_beside_val(tmp_path: Path) -> None:
    pairs(tmp_path, "abc", 0, 1)
    pairs(tmp_path / "val", "d", 0, 1)
    dataset = opened(tmp_path, holdout=0.5)
    assert (names(dataset.labeled), names(dataset.val)) == (["a", "b", "c"], ["d"])
    assert any("holdout is not used" in note for note in dataset.notes)


@pytest.mark.parametrize(("name", "count", "val", "classes"), [("camvid", 367, 101, 11), ("pets", 1110, 296, 38)])
def test_shared_data_opens(name: str, count: int, val: int, classes: int) -> None:
    root = SHARED / "data" / name
    if not root.is_dir():
        pytest.skip("the shared data sets are not here")
    dataset = opened(root)
    assert (len(dataset.labeled), len(dataset.val), len(dataset.classes)) == (count, val, classes)
    label = read_mask(dataset.labeled[0].mask or Path(), dataset.coding)
    assert set(np.unique(label)) <= {*range(classes), 255}


@pytest.mark.parametrize("name", ["a", "unlabeled/a", "b/a", "elsewhere"])
def test_a_sample_knows_its_paths_wherever_its_name_stands_in_them(name: str):
    """`a` is in a folder and in the file's name; `elsewhere` in no path at all."""
    image, mask = Path("/data/unlabeled/a.tar/a.png"), Path("/data/b/a/a_L.png")
    sample = Sample(name, image, mask)
    assert (sample.name, sample.image, sample.mask) == (name, image, mask)
    assert sample.with_mask(None) == Sample(name, image) != sample


def test_samples_of_a_folder_share_what_their_paths_have_in_common():
    one, other = (Sample(f"u/{stem}", Path(f"/data/u/{stem}.png")) for stem in ("first", "second"))
    assert one.image_form is other.image_form
