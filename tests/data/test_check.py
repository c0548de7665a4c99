"""The data check: every broken set gives its own finding and no other, and a healthy one gives none."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fewmask.config import Config, DataSettings
from fewmask.data.check import CODES, Finding, Report, check_dataset, check_folder, render
from fewmask.data.dataset import Sample
from fewmask.data.opening import open_dataset
from fewmask.training.loading import load_stores
from fewmask.training.observer import Observer
from tests.data.broken import BROKEN
from tests.data.healthy import Broken, blocks, healthy, write_image, write_mask


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return healthy(tmp_path / "data")


def codes(report: Report) -> list[tuple[str, str]]:
    return [(finding.code, finding.path) for finding in report.errors + report.warnings]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_a_broken_set_gives_its_finding_and_no_other(case: Broken, root: Path) -> None:
    case.build(root)
    chosen = {**case.settings, **({"split": str(root / "split.txt")} if "split" in case.settings else {})}
    report = check_folder(root, DataSettings.model_validate(chosen))
    assert codes(report) == [(case.code, case.path)]
    (finding,) = report.errors if case.level == "error" else report.warnings
    assert all(part in finding.message for part in case.message), finding.message
    assert case.fix in finding.fix


def test_the_broken_sets_are_many_and_cover_nearly_every_code() -> None:
    assert len(BROKEN) >= 22
    assert len({case.name for case in BROKEN}) == len(BROKEN)
    assert set(CODES) - {case.code for case in BROKEN} == {"no-classes", "unusable"}


def test_a_healthy_set_gives_no_finding(root: Path) -> None:
    assert codes(check_folder(root, DataSettings())) == []
    assert codes(check_dataset(open_dataset(root, DataSettings(), 0))) == []


def test_json_has_exactly_the_promised_shape(root: Path) -> None:
    (root / "masks/b.png").unlink()
    (root / "unlabeled/w.gif").write_bytes(b"GIF89a")
    content = json.loads(json.dumps(check_folder(root, DataSettings()).to_json()))
    assert list(content) == ["errors", "warnings", "dataset"]
    assert content["errors"] == [
        {
            "code": "missing-mask",
            "path": "images/b.png",
            "message": "the image has no mask",
            "fix": "add masks/b.png, or move the image to unlabeled/",
        }
    ]
    assert [set(warning) for warning in content["warnings"]] == [{"code", "path", "message", "fix"}]


def test_summary_of_a_tiny_set_is_as_counted_by_hand(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("sky\nland\nsea\n")
    for seed, size in enumerate([(2, 5), (4, 4), (6, 3)]):
        write_image(tmp_path / f"images/{seed}.png", seed, size=size)
        label = np.zeros(size, np.uint8)
        label[0, 0], label[1, :2] = seed, 255  # of 10, 16 and 18 pixels two are ignored each: 38 count
        write_mask(tmp_path / f"masks/{seed}.png", label)
    write_image(tmp_path / "unlabeled/u.png", 9, size=(8, 9))
    summary = check_folder(tmp_path, DataSettings()).dataset
    assert summary["images"] == {"labeled": 3, "unlabeled": 1, "val": 0, "test": 0}
    assert summary["size"] == {
        "height": {"min": 2, "median": 4, "max": 8},
        "width": {"min": 3, "median": 4, "max": 9},
    }
    assert (summary["layout"], summary["channels"], summary["depth"]) == ("folder", 3, 8)
    assert summary["classes"] == [
        {"name": "sky", "pixel_share": pytest.approx(36 / 38), "images": 3},
        {"name": "land", "pixel_share": pytest.approx(1 / 38), "images": 1},
        {"name": "sea", "pixel_share": pytest.approx(1 / 38), "images": 1},
    ]
    assert any("no validation images" in note for note in summary["notes"])


@pytest.mark.parametrize(("color", "channels"), [("images/a", 3), ("unlabeled/x", 3), ("val/images/p", 3), ("", 1)])
def test_the_check_says_how_many_channels_training_takes(root: Path, color: str, channels: int) -> None:
    for seed, path in enumerate(sorted([*root.glob("**/images/*.png"), *root.glob("unlabeled/*.png")])):
        write_image(path, 910 + seed, channels=3 if path.match(f"{color or 'none'}.png") else 1)
    report = check_folder(root, DataSettings())
    stores = load_stores(Config(), open_dataset(root, DataSettings()), Observer())
    assert (report.trainable, report.dataset["channels"], stores.labeled.channels) == (True, channels, channels)
    assert f"the network takes {channels} channel" in render(report)


def test_sixteen_bit_images_that_fill_an_eighth_of_their_range_give_no_finding(root: Path) -> None:
    for seed, path in enumerate(sorted([*root.glob("**/images/*.png"), *root.glob("unlabeled/*.png")])):
        deep = np.random.default_rng(seed).integers(0, 4096, blocks().shape, dtype=np.uint16)
        Image.fromarray(deep).save(path)
    assert codes(check_folder(root, DataSettings())) == [("narrow-range", "")]
    deep[3, 4] = 8192
    Image.fromarray(deep).save(path)
    assert codes(check_folder(root, DataSettings())) == []


def test_alpha_and_the_preview_of_a_tiff_are_not_missed(root: Path) -> None:
    preview = Image.new("RGB", (8, 6))
    for name, mode, pages in (("x", "RGBA", []), ("y", "RGB", [preview])):
        image = Image.open(root / f"unlabeled/{name}.png").convert(mode)
        image.save(root / f"unlabeled/{name}.tif", save_all=bool(pages), append_images=pages)
        (root / f"unlabeled/{name}.png").unlink()
    assert codes(check_folder(root, DataSettings())) == []


def test_many_alike_findings_are_counted_not_listed(root: Path) -> None:
    for seed in range(23):
        write_image(root / f"images/more_{seed:02}.png", 1000 + seed)
    report = check_folder(root, DataSettings())
    assert len(report.errors) == 23
    listed = report.to_json()["errors"]
    assert [entry["path"] for entry in listed[:20]] == [f"images/more_{seed:02}.png" for seed in range(20)]
    assert [entry["message"] for entry in listed[20:]] == ["… and 3 more"]
    text = render(report)
    assert "error missing-mask (23)" in text
    assert text.count("fix:") == 20
    assert text.endswith("not trainable: 23 errors")


def test_a_mask_under_a_labeling_tools_name_is_named(root: Path) -> None:
    (root / "masks/b.png").rename(root / "masks/b_mask.png")
    found = {finding.code: finding for finding in check_folder(root, DataSettings()).errors}
    assert found["missing-mask"].fix == "rename masks/b_mask.png to b.png, if it is the mask"
    for path in (root / "masks").glob("*.png"):
        path.rename(path.with_stem(f"{path.stem}_x"))
    (root / "classes.txt").unlink()
    shutil.rmtree(root / "val")
    shutil.rmtree(root / "test")
    found = {finding.code: finding for finding in check_folder(root, DataSettings()).errors}
    assert "no image has a mask" in found["no-classes"].message


def test_text_keeps_brackets_in_paths_and_ends_with_the_verdict(root: Path) -> None:
    assert render(check_folder(root, DataSettings())).splitlines()[-1] == "trainable"
    write_mask(root / "masks/[bold]x[1].png", blocks())
    text = render(check_folder(root, DataSettings()))
    assert "  masks/[bold]x[1].png: there is no image for this mask" in text
    assert text.splitlines()[-1] == "trainable"
    assert "folder layout: 4 labeled, 3 unlabeled, 2 val, 2 test" in text
    assert "  road: 44.21 % of the labeled pixels, in 4 labeled images" in text  # 12 * 32 - 6 * 8 of 24 * 32 - 2 * 4


def test_findings_are_the_same_every_time(root: Path) -> None:
    for case in BROKEN:
        if case.name in ("mask_deleted", "mask_truncated", "image_is_text", "image_twice_in_unlabeled"):
            case.build(root)
    reports = [check_folder(root, DataSettings()) for _ in range(3)]
    assert len(codes(reports[0])) == 4
    assert reports[0] == reports[1] == reports[2]


def test_smoothed_masks_are_named_even_when_the_classes_are_unknown(root: Path) -> None:
    (root / "classes.txt").unlink()
    sharp = Image.fromarray((blocks() == 1).astype(np.uint8) * 255)
    for path in sorted(root.glob("**/masks/*.png")):
        sharp.rotate(17, resample=Image.Resampling.BICUBIC).save(path)
    found = codes(check_folder(root, DataSettings()))
    assert found[0] == ("no-classes", "")
    assert {code for code, _ in found[1:]} == {"gray-edges"}
    assert len(found) == 1 + 8


def test_a_folder_that_cannot_be_opened_still_has_its_files_checked(root: Path) -> None:
    (root / "classes.txt").write_text("road\nroad\n")
    (root / "unlabeled/x.png").write_bytes(b"")
    (root / "masks/a.png").unlink()
    assert codes(check_folder(root, DataSettings())) == [
        ("bad-classes", "classes.txt"),
        ("missing-mask", "images/a.png"),
        ("zero-size", "unlabeled/x.png"),
    ]


def test_small_objects_of_undeclared_classes_are_no_gray_edges(root: Path) -> None:
    label = blocks()
    for value in range(3, 9):
        label[2:8, 4 * (value - 3) : 4 * (value - 3) + 6] = value
    write_mask(root / "masks/a.png", label)
    assert codes(check_folder(root, DataSettings())) == [("label-outside-classes", "masks/a.png")]


def test_a_set_whose_masks_all_hold_only_ignore_cannot_be_trained_on(root: Path) -> None:
    for path in sorted((root / "masks").glob("*.png")):
        write_mask(path, np.full_like(blocks(), 255))
    report = check_folder(root, DataSettings())
    assert [(error.code, error.message) for error in report.errors] == [
        ("no-labeled", "every labeled mask holds only ignore")
    ]
    assert [warning.path for warning in report.warnings] == [f"masks/{name}.png" for name in "abcd"]


def test_a_data_set_made_by_hand_may_not_leave_its_root_either(root: Path) -> None:
    write_image(root / "../secret.png", 77)
    dataset = open_dataset(root, DataSettings(), 0)
    secret = Sample("secret", dataset.root / "../secret.png")
    (error,) = check_dataset(replace(dataset, unlabeled=(secret,))).errors
    assert (error.code, error.path) == ("outside-root", "../secret.png")


def test_the_hidden_truth_of_an_unlabeled_image_only_warns(root: Path) -> None:
    write_mask(root / "masks/b.png", np.full_like(blocks(), 9))
    (root / "split.txt").write_text("a\nc\nd\n")
    report = check_folder(root, DataSettings(split=str(root / "split.txt")))
    assert report.trainable
    assert codes(report) == [("label-outside-classes", "masks/b.png")]


def test_zero_and_255_are_accepted_once_the_user_decided(root: Path) -> None:
    for path in sorted(root.glob("**/masks/*.png")):
        write_mask(path, (blocks() == 1).astype(np.uint8) * 255)
    assert codes(check_folder(root, DataSettings())) == [("binary-ambiguous", "masks")]
    assert codes(check_folder(root, DataSettings(ignore=(255,)))) == [("single-class", "masks")]
    (root / "classes.txt").write_text("background\nroad\n")
    assert codes(check_folder(root, DataSettings())) == []


def test_a_foreground_that_few_labels_do_not_show_only_warns_if_val_or_test_show_it(root: Path) -> None:
    (root / "classes.txt").write_text("road\n")
    for path in sorted(root.glob("**/masks/*.png")):
        write_mask(path, (blocks() == 1).astype(np.uint8) * (9 if "test" in path.parts else 0))
    report = check_folder(root, DataSettings(foreground=9))
    assert (report.trainable, codes(report)) == (True, [("single-class", "masks")])
    (root / "test").rename(root / "elsewhere")
    (error,) = check_folder(root, DataSettings(foreground=9)).errors
    assert error.message.endswith("which --foreground names, occurs in no labeled mask: they hold 0")
    assert error.fix.startswith("label images")


def test_the_mistyped_foreground_comes_before_what_follows_from_it(root: Path) -> None:
    """Training shows the first error: not that the true foreground is outside the classes."""
    (root / "classes.txt").unlink()
    for path in sorted(root.glob("**/masks/*.png")):
        write_mask(path, blocks())
    first, *others = check_folder(root, DataSettings(foreground=12)).errors
    assert (first.code, {each.code for each in others}) == ("foreground-absent", {"label-outside-classes"})
    assert "they hold 0, 1, 2 and 255; 255 was read as ignore" in first.message
    assert first.fix == "--foreground with one of the values that occur, if that value means class 1"


def test_paths_are_relative_to_the_folder_the_user_named(tmp_path: Path) -> None:
    inner = tmp_path / "VOCdevkit/VOC2012"
    for seed, name in enumerate("ab"):
        (inner / "JPEGImages").mkdir(parents=True, exist_ok=True)
        write_image(inner / f"JPEGImages/{name}.jpg", seed)
        write_mask(inner / f"SegmentationClass/{name}.png", blocks())
    (inner / "ImageSets/Segmentation").mkdir(parents=True)
    (inner / "ImageSets/Segmentation/train.txt").write_text("a\n")
    (inner / "ImageSets/Segmentation/val.txt").write_text("b\n")
    write_mask(inner / "SegmentationClass/b.png", np.full_like(blocks(), 77))
    (error,) = check_folder(tmp_path, DataSettings()).errors
    assert (error.code, error.path) == ("label-outside-classes", "VOCdevkit/VOC2012/SegmentationClass/b.png")


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_healthy_random_set_never_gives_errors(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6), label="classes")
    channels = data.draw(st.sampled_from([1, 3]), label="channels")
    suffix = data.draw(st.sampled_from([".png", ".bmp", ".tif", ".webp"]), label="suffix")
    random = np.random.default_rng(data.draw(st.integers(0, 2**32), label="seed"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "classes.txt").write_text("".join(f"class {index}\n" for index in range(count)))
        for index in range(data.draw(st.integers(1, 4), label="labeled")):
            size = (int(random.integers(8, 40)), int(random.integers(8, 40)))
            write_image(root / f"images/{index}{suffix}", int(random.integers(1 << 30)), size=size, channels=channels)
            label = random.choice([*range(count), 255], size).astype(np.uint8)
            label.reshape(-1)[:count] = np.arange(count)
            write_mask(root / f"masks/{index}.png", label)
        write_image(root / f"unlabeled/u{suffix}", int(random.integers(1 << 30)), channels=channels)
        report = check_folder(root, DataSettings())
        assert report.errors == ()
        assert {warning.code for warning in report.warnings} == {"no-val"}
        shares = [entry["pixel_share"] for entry in report.dataset["classes"]]
        assert sum(shares) == pytest.approx(1.0)


def test_every_finding_has_a_documented_code() -> None:
    with pytest.raises(AssertionError, match="undocumented"):
        Finding("no-such-code", "", "", "")
