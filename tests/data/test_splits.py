"""Which images are labeled: the published draw, lists of names, and what lists must not do."""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from test_folder import SHARED, image, mask, names, opened, pairs

from fewmask.data.dataset import Sample
from fewmask.data.problem import DataProblem
from fewmask.data.splits import choose_labeled, hold_out, label_count, names_checksum, split_record
from fewmask.errors import ConfigError, DataError


def samples(count: int) -> list[Sample]:
    return [Sample(f"city_{index:06d}", Path(f"/data/{index:06d}.png"), Path("m.png")) for index in range(count)]


@pytest.mark.parametrize(("labels", "count"), [("1/30", 100), ("1/8", 372), ("1/4", 744), ("1/1", 2975), ("186", 186)])
def test_shares_of_cityscapes_give_the_published_counts(labels: str, count: int) -> None:
    assert label_count(labels, 2975) == count


@pytest.mark.parametrize(("labels", "count"), [("1/16", 92), ("1/8", 183), ("1/4", 366), ("1/2", 732)])
def test_shares_of_voc_train_give_the_published_counts(labels: str, count: int) -> None:
    assert label_count(labels, 1464) == count


@pytest.mark.parametrize("seed", [12345, 56789])
def test_draw_is_numpys_permutation_of_the_sorted_names(seed: int) -> None:
    pool = samples(2975)
    labeled, rest = choose_labeled(pool[::-1], labels="1/30", seed=seed)
    expected = {pool[index].name for index in np.random.RandomState(seed).permutation(2975)[:100]}
    assert {sample.name for sample in labeled} == expected
    assert len(labeled) + len(rest) == 2975
    assert not expected & set(names(rest))


def test_draws_with_one_seed_are_nested() -> None:
    small, _ = choose_labeled(samples(50), labels="5", seed=3)
    large, _ = choose_labeled(samples(50), labels="20", seed=3)
    assert set(small) < set(large)


@pytest.mark.parametrize("labels", ["0", "51", "-3", "many", "1/0", "3/2", "0.5", ""])
def test_bad_label_counts(labels: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_labeled(samples(50), labels=labels)
    assert caught.value.where == "data.labels"


def test_labels_and_split_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="both"):
        choose_labeled(samples(5), labels="1", split=tmp_path / "x.txt")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pairs(tmp_path / "data", "abc", 0, 1)
    image(tmp_path / "data/images/sub/d.jpg")
    mask(tmp_path / "data/masks/sub/d.png", 0, 1)
    image(tmp_path / "data/unlabeled/u.png")
    mask(tmp_path / "data/corrected/b.png", 1, 1)
    return tmp_path / "data"


def split(root: Path, text: str) -> dict[str, str]:
    path = root.parent / "labeled.txt"
    path.write_text(text)
    return {"split": str(path)}


@pytest.mark.parametrize(
    "text",
    [
        "b\nsub/d\n",
        "sub/d.jpg\n\nb.jpg".replace("sub/d.jpg", "images/sub/d.jpg"),
        "images/b.jpg\r\nd\r\n",
        "images/b.jpg masks/b.png\nimages/sub/d.jpg masks/sub/d.png\n",
        "\ufeffimages\\b.jpg\nimages/sub/d",
    ],
)
def test_every_way_to_name_images(root: Path, text: str) -> None:
    dataset = opened(root, **split(root, text))
    assert names(dataset.labeled) == ["b", "sub/d"]
    assert names(dataset.unlabeled) == ["a", "c", "unlabeled/u"]
    hidden = [sample.mask for sample in dataset.unlabeled]
    assert hidden == [root.resolve() / "masks/a.png", root.resolve() / "masks/c.png", None]
    assert any("2 of 4" in note for note in dataset.notes)


def test_listed_mask_is_used(root: Path) -> None:
    dataset = opened(root, **split(root, "images/b.jpg corrected/b.png\n"))
    assert dataset.labeled[0].mask == root.resolve() / "corrected/b.png"


def test_names_with_spaces(root: Path) -> None:
    image(root / "images/left side.jpg")
    mask(root / "masks/left side.png", 0, 1)
    assert names(opened(root, **split(root, "left side\n")).labeled) == ["left side"]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("b\nnowhere\nnothing", "bad-split", "not in the data set, 2 in all: nowhere, nothing"),
        ("", "bad-split", "names no image"),
        ("b\nimages/b.jpg", "bad-split", "listed twice"),
        ("../data/images/b.jpg", "outside-root", "points outside"),
        ("/etc/passwd", "outside-root", "points outside"),
        ("C:\\images\\b.jpg", "outside-root", "points outside"),
        ("images/b.jpg ../secret.png", "outside-root", "points outside"),
        ("images/b.jpg linked.png", "outside-root", "leads outside"),
        ("images/b.jpg masks/none.png", "missing-mask", "does not exist"),
    ],
)
def test_bad_lists(root: Path, text: str, code: str, words: str) -> None:
    mask(root.parent / "secret.png", 0)
    (root / "linked.png").symlink_to(root.parent / "secret.png")
    with pytest.raises(DataProblem, match=words) as caught:
        opened(root, **split(root, text))
    assert caught.value.code == code


def test_unknown_names_show_what_names_look_like(root: Path) -> None:
    with pytest.raises(DataError) as caught:
        opened(root, **split(root, "frame_17\n"))
    assert caught.value.fix.startswith("names such as a, b, c, sub/d")


def test_ambiguous_names_are_refused(root: Path) -> None:
    image(root / "images/other/d.jpg")
    mask(root / "masks/other/d.png", 0, 1)
    with pytest.raises(DataError, match="more than one"):
        opened(root, **split(root, "d\n"))


def test_missing_list(root: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        opened(root, split=str(root / "none.txt"))


def test_drawn_labels_leave_the_rest_unlabeled_with_hidden_truth(root: Path) -> None:
    (root / "masks/a.png").unlink()
    dataset = opened(root, labels="2")
    assert len(dataset.labeled) == 2
    assert sorted(names(dataset.labeled + dataset.unlabeled)) == ["a", "b", "c", "sub/d", "unlabeled/u"]
    assert "a" in names(dataset.unlabeled)  # no mask, so it cannot be drawn
    assert sum(sample.mask is not None for sample in dataset.unlabeled) == 1


@pytest.mark.parametrize(("share", "count"), [(0.2, 10), (0.01, 1), (0.11, 6), (0.97, 48)])
def test_the_holdout_is_another_permutation_than_the_draw_of_labels(share: float, count: int) -> None:
    pool = samples(50)
    rest, held = hold_out(pool, share, seed=3)
    order = np.random.RandomState([3, 1]).permutation(50)
    drawn, _ = choose_labeled(pool, labels=str(count), seed=3)
    assert set(held) == {pool[index] for index in order[:count]} != set(drawn)
    assert sorted([*rest, *held], key=lambda sample: sample.name) == pool


def test_split_record(root: Path) -> None:
    record = split_record(opened(root, **split(root, "sub/d\nb")))
    assert record["labeled"] == {
        "count": 2,
        "sha256": hashlib.sha256(b"b\nsub/d\n").hexdigest(),
        "names": ["b", "sub/d"],
    }
    assert record["unlabeled"]["count"] == 3
    same = split_record(opened(root, **split(root, "b\nsub/d")))
    other = split_record(opened(root, **split(root, "a\nsub/d")))
    assert record["sha256"] == same["sha256"] != other["sha256"]
    assert names_checksum(["x", "y"]) == names_checksum(["y", "x"]) != names_checksum(["xy"])


def test_shared_camvid_split() -> None:
    path = SHARED / "splits/camvid/labeled_46_draw0.txt"
    if not path.is_file() or not (SHARED / "data/camvid").is_dir():
        pytest.skip("the shared data sets are not here")
    dataset = opened(SHARED / "data/camvid", split=str(path))
    assert (len(dataset.labeled), len(dataset.unlabeled), len(dataset.val)) == (46, 321, 101)
    assert set(names(dataset.labeled)) == set(path.read_text().split())
    assert all(sample.mask for sample in dataset.unlabeled)


def test_the_pool_may_hold_the_labeled_images_too(root: Path) -> None:
    """As French et al. have it: they come without their masks, so that diagnostics know nothing of them."""
    plain, whole = opened(root, labels="2"), opened(root, labels="2", pool="all")
    assert whole.labeled == plain.labeled
    assert whole.unlabeled[: len(plain.unlabeled)] == plain.unlabeled
    again = whole.unlabeled[len(plain.unlabeled) :]
    assert [(sample.name, sample.image) for sample in again] == [(each.name, each.image) for each in plain.labeled]
    assert all(sample.mask is None for sample in again)
    assert any("2 labeled images are in the unlabeled pool, too" in note for note in whole.notes)


@pytest.mark.parametrize("listed", ["NFC", "NFD"])
def test_accents_are_one_letter_however_they_are_stored(tmp_path: Path, listed: Literal["NFC", "NFD"]) -> None:
    """macOS stores an accent apart from its letter, labeling tools do not."""
    pairs(tmp_path, "ab", 0, 1)
    image(tmp_path / "images" / f"{unicodedata.normalize('NFD', 'café')}.jpg")
    mask(tmp_path / "masks" / f"{unicodedata.normalize('NFC', 'café')}.png", 0, 1)
    assert names(opened(tmp_path).labeled) == ["a", "b", "café"]
    (tmp_path / "split.txt").write_text(unicodedata.normalize(listed, "café") + "\n", encoding="utf-8")
    (chosen,) = opened(tmp_path, split=str(tmp_path / "split.txt")).labeled
    assert chosen.mask is not None
    assert chosen.mask.is_file()
