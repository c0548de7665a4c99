"""The folder convention: what is listed, what is held out, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewmask.config import DataSettings
from fewmask.data.dataset import Sample
from fewmask.data.folder import list_folder
from fewmask.data.masks import read_mask
from fewmask.data.opening import open_dataset, outside_root
from fewmask.errors import ConfigError
from tests.data.small_folders import image, mask, names, opened, pairs, refused

SHARED = Path(__file__).parents[2] / "../shared"


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
    assert any("left out, as not named like images: 1 (" in note for note in opened(tmp_path).notes)


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
