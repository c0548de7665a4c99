"""`fewmask check`: exit codes, text and JSON."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from PIL import Image

from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, road_or_not, same, write_folder


def test_a_trainable_set(fewmask: Fewmask, scenes: Path) -> None:
    result = fewmask("check", scenes)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:2] == [str(scenes), "folder layout: 6 labeled, 5 unlabeled, 3 val, 2 test"]
    assert lines[-2:] == ["trainable", f"next: fewmask train {scenes} --out runs/first"]
    content = json.loads(fewmask("check", scenes, "--json").out)
    assert list(content) == ["errors", "warnings", "dataset"]
    assert (content["errors"], content["dataset"]["images"]["labeled"]) == ([], 6)


@pytest.mark.parametrize(
    ("unlabeled", "words", "follows"),
    [
        (0, [], ["--method", "supervised"]),
        (3, ["--foreground", "255", "data.resize=32,48"], ["data.foreground=255", "data.resize=32,48"]),
        (0, ["--labels", "3", "--seed", "4", "data.holdout=0.2"], ["--seed", "4", "data.labels=3", "data.holdout=0.2"]),
    ],
)
def test_the_next_command_trains_on_what_was_checked(
    fewmask: Fewmask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unlabeled: int,
    words: list[str],
    follows: list[str],
) -> None:
    data = write_folder(tmp_path / "my data", unlabeled=unlabeled, mask=road_or_not if "255" in words else same)
    checked = json.loads(fewmask("check", data, *words, "--json").out)["dataset"]["images"]
    line = fewmask("check", data, *words).out.splitlines()[-1]
    command = shlex.split(line.removeprefix("next: fewmask "))
    assert command == ["train", str(data), "--out", "runs/first", *follows]
    monkeypatch.chdir(tmp_path)
    assert fewmask(*command, *TINY, "training.forecast=false", "baseline.training.steps=1").code == 0
    split = json.loads((tmp_path / "runs/first/split.json").read_text())
    for name in ("labeled", "unlabeled", "val"):
        assert split[name]["count"] == checked[name], name


def test_warnings_leave_the_json_whole(fewmask: Fewmask, tmp_path: Path) -> None:
    result = fewmask("check", write_folder(tmp_path / "data", unlabeled=0), "--json")
    assert (result.code, result.err) == (0, "")
    assert [each["code"] for each in json.loads(result.out)["warnings"]] == ["no-unlabeled", "no-val"]


@pytest.mark.parametrize("layout", ["folder", "camvid"])
def test_advice_for_splits_that_are_empty_works_in_this_layout(fewmask: Fewmask, tmp_path: Path, layout: str) -> None:
    data = write_folder(tmp_path / "data", unlabeled=0)
    if layout == "camvid":  # which reads neither unlabeled/ nor val/images
        (data / "images").rename(data / "train")
        (data / "masks").rename(data / "trainannot")
    warnings = json.loads(fewmask("check", data, "--json").out)["warnings"]
    fixes = {each["code"]: each["fix"] for each in warnings}
    named = ("unlabeled/" in fixes["no-unlabeled"], "val/images" in fixes["no-val"])
    assert named == ((True, True) if layout == "folder" else (False, False))
    refused = fewmask("train", data, "--out", tmp_path / "run", *TINY)
    assert (refused.code, "images in unlabeled/" in refused.err) == (2, layout == "folder")
    content = json.loads(fewmask("check", data, "--labels", "4", "--seed", "3", "data.holdout=0.25", "--json").out)
    assert content["dataset"]["images"] == {"labeled": 3, "unlabeled": 1, "val": 1, "test": 0}
    assert not {"no-unlabeled", "no-val"} & {each["code"] for each in content["warnings"]}


def test_a_list_of_labeled_images_is_checked_before_training_takes_it(fewmask: Fewmask, tmp_path: Path) -> None:
    data, split = write_folder(tmp_path / "data"), tmp_path / "labeled.txt"
    split.write_text("photo 1\n")
    content = json.loads(fewmask("check", data, "--split", split, "--json").out)
    assert content["dataset"]["images"]["labeled"] == 1
    split.write_text("photo 100\n")
    result = fewmask("check", data, "--split", split)
    assert (result.code, "bad-split" in result.out) == (1, True)


def test_a_set_that_cannot_be_trained_on(fewmask: Fewmask, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", val=1)
    (data / "masks" / "photo 2.png").unlink()
    result = fewmask("check", data)
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines()[-1] == "not trainable: 1 error"
    result = fewmask("check", data, "--json")
    (error,) = json.loads(result.out)["errors"]
    assert (result.code, error["code"], error["path"]) == (1, "missing-mask", "images/photo 2.png")
    assert sorted(error) == ["code", "fix", "message", "path"]


def test_findings_with_one_fix_have_it_once(fewmask: Fewmask, tmp_path: Path) -> None:
    """Fifteen tiles had the same long sentence below each of them."""
    data = write_folder(tmp_path / "data", labeled=4, unlabeled=2, val=1)
    for index in range(3):
        Image.new("L", (64, 48)).save(data / f"masks/photo {index}.png", format="JPEG")
    lines = fewmask("check", data).out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("error jpeg-mask (3)"))
    places = [line.partition(": ")[0].strip() for line in lines[start + 1 : start + 5]]
    assert places == ["masks/photo 0.png", "masks/photo 1.png", "masks/photo 2.png", "fix"]


def test_a_missing_folder_is_named(fewmask: Fewmask, tmp_path: Path) -> None:
    result = fewmask("check", tmp_path / "nowhere")
    assert result.code == 1
    assert result.out.startswith(f"{tmp_path / 'nowhere'}\nerror unknown-layout (1): ")
    assert "  there is no such folder\n" in result.out


def test_words_that_mean_nothing_here(fewmask: Fewmask, scenes: Path) -> None:
    result = fewmask("check", scenes, "foregrund=255")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: unknown setting 'foregrund'\n  where: command line\n  valid: data.root, ")
    assert ", data.foreground, " in result.err
    result = fewmask("check", scenes, "--layout", "coco")
    assert (result.code, result.err) == (
        2,
        "error: data.layout cannot be 'coco'\n  where: settings\n  valid: 'auto', 'folder', 'voc', 'cityscapes' or "
        "'camvid' (how the folder is laid out on disk; auto recognizes it)\n",
    )


def test_255_as_foreground_or_ignore(fewmask: Fewmask, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", val=1, mask=road_or_not)
    names = [each["name"] for each in json.loads(fewmask("check", data, "--json").out)["dataset"]["classes"]]
    assert names == ["background", "foreground"]
    result = fewmask("check", data, "--ignore", 255, "--json")
    assert "foreground" not in [each["name"] for each in json.loads(result.out)["dataset"].get("classes", [])]
    assert fewmask("check", data, "--foreground", 255, "--json").code == 0


def test_pillows_own_warning_never_comes_before_our_error(
    fewmask: Fewmask, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    data = write_folder(tmp_path / "data", val=1)
    (data / "classes.txt").write_text("\n".join("abcdefgh"))  # or the masks would have to be opened to count classes
    before = Image.MAX_IMAGE_PIXELS
    for limit in (1200, 700, 10):  # images have 1,536 pixels: Pillow would warn above its limit and refuse above twice
        result = fewmask("check", data, f"data.max_pixels={limit}", "--json")
        assert result.code == 1
        assert {each["code"] for each in json.loads(result.out)["errors"]} == {"too-large"}
        assert f"48x32 = 1,536 pixels, more than the limit of {limit:,}" in result.out
    assert fewmask("check", data, "data.max_pixels=1536").code == 0
    assert not [each for each in recwarn if issubclass(each.category, Image.DecompressionBombWarning)]
    assert before == Image.MAX_IMAGE_PIXELS


def test_names_that_are_no_text_are_reported_and_refused(fewmask: Fewmask, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    for folder in ("images", "masks"):
        (data / folder / "photo 1.png").rename(data / folder / os.fsdecode(b"caf\xe9.png"))
    result = fewmask("check", data)
    assert result.code == 1
    assert "images/caf\\udce9.png: the file's name is not UTF-8" in result.out
    result = fewmask("train", data, "--out", tmp_path / "run", *TINY)
    assert result.code == 2
    assert "bad-name" in result.err
    assert not (tmp_path / "run").exists()
