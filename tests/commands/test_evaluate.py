"""`fewmask evaluate`: the scores of training again, other images, and nothing ever chosen anew."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from fewmask.config import DataSettings
from fewmask.data.opening import open_dataset
from fewmask.training.model_file import save_model
from fewmask.training.networks import load_networks
from fewmask.training.run_folder import RunFolder
from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, write_folder


@pytest.fixture
def own(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may write into."""
    return Path(shutil.copytree(trained, tmp_path / "own run"))


def test_json_is_all_there_is_on_standard_output_and_equals_the_end_of_training(
    fewmask: Fewmask, own: Path, scenes: Path
) -> None:
    written = (own / "evaluation.json").read_bytes()
    (own / "evaluation.json").unlink()
    result = fewmask("evaluate", own, "--json")
    assert result.code == 0
    assert json.loads(result.out) == json.loads(written)
    assert (own / "evaluation.json").read_bytes() == written
    assert result.err.splitlines() == [
        f"3 val images of {scenes} scored",
        f"written to {own / 'evaluation.json'}",
        f"{json.loads(written)['selected']} is what ships; it was chosen on val",
    ]
    content = json.loads(written)
    assert list(content) == ["networks", "selected", "selected_on", "split"]
    assert list(content["networks"]) == ["teacher_1", "student_1"]
    assert content["networks"]["teacher_1"]["miou"] != content["networks"]["student_1"]["miou"]


def test_the_table_goes_to_standard_output(fewmask: Fewmask, own: Path) -> None:
    result = fewmask("evaluate", own)
    rows = {line.split("│")[1].strip(): line.split("│")[2:4] for line in result.out.splitlines() if "│" in line}
    teacher = json.loads((own / "evaluation.json").read_text())["networks"]["teacher_1"]
    assert float(rows["mean (mIoU)"][0]) == pytest.approx(100 * teacher["miou"], abs=0.05)
    assert float(rows["road"][0]) == pytest.approx(100 * teacher["iou"]["road"], abs=0.05)
    assert list(rows)[:8] == ["sky", "building", "road", "pavement", "tree", "car", "person", "pole"]
    assert "│" not in result.err


def test_test_images_are_scored_beside_and_choose_nothing(fewmask: Fewmask, own: Path) -> None:
    scores = json.loads((own / "evaluation.json").read_text())["networks"]
    other = min(scores, key=lambda name: scores[name]["miou"])  # as if the worse one had been chosen
    networks, loaded, _ = load_networks(RunFolder(own))
    save_model(own, networks[other], replace(loaded, predictor=other))
    kept = {name: (own / name).read_bytes() for name in ("evaluation.json", "model.json", "model.safetensors")}
    result = fewmask("evaluate", own, "--split", "test", "--json")
    content = json.loads((own / "evaluation_test.json").read_text())
    assert (result.code, json.loads(result.out)) == (0, content)
    assert (content["split"], content["selected"], content["selected_on"]) == ("test", other, "val")
    assert content["networks"] != scores
    assert {name: (own / name).read_bytes() for name in kept} == kept


def test_another_folder_is_scored_beside_whatever_labels_the_run_had(fewmask: Fewmask, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", labeled=5, val=2)
    other = write_folder(tmp_path / "other place", labeled=2, val=3)
    run = tmp_path / "run"
    names = tmp_path / "names.txt"
    names.write_text("photo 0\nphoto 3\nphoto 4\n")
    assert fewmask("train", data, "--out", run, "--split", names, *TINY).code == 0
    names.unlink()  # the list is needed no more: val/ does not depend on it
    before = (run / "evaluation.json").read_bytes()
    assert fewmask("evaluate", run).code == 0
    assert (run / "evaluation.json").read_bytes() == before
    result = fewmask("evaluate", run, "--data", other, "--json")
    assert result.code == 0
    assert json.loads((run / "evaluation_other place_val.json").read_text()) == json.loads(result.out)
    assert json.loads(result.out)["networks"] != json.loads(before)["networks"]
    assert (run / "evaluation.json").read_bytes() == before


def test_another_folder_without_a_class_file_has_the_models_classes(
    fewmask: Fewmask, own: Path, tmp_path: Path
) -> None:
    """Its masks may show only the first of them, and then it was refused."""
    other = write_folder(tmp_path / "other", labeled=2, mask=lambda label: np.minimum(label, 1))
    (own / "config.yaml").write_text((own / "config.yaml").read_text().replace("holdout: 0.0", "holdout: 0.5"))
    result = fewmask("evaluate", own, "--data", other)
    assert result.code == 0, result.err
    assert result.err.splitlines()[:3] == [
        f"note: there is no class file: masks are read as {own / 'model.json'} says",
        "note: held out of the labeled images as validation: 1",
        f"1 val image of {other} scored",
    ]
    (other / "classes.txt").write_text("sky\nbuilding\n")  # its own word counts
    assert "classes are not the model's: sky, building" in fewmask("evaluate", own, "--data", other).err


def test_a_run_folder_that_cannot_be_written_is_scored_all_the_same(fewmask: Fewmask, own: Path) -> None:
    expected = json.loads((own / "evaluation.json").read_text())
    (own / "evaluation.json").unlink()
    (own / "evaluation.json").mkdir()  # nothing can be renamed onto a folder
    result = fewmask("evaluate", own, "--json")
    assert result.code == 0
    assert json.loads(result.out) == expected
    assert result.err.splitlines()[1] == f"warning: evaluation.json cannot be written: Is a directory ({own})"


def test_a_run_on_a_read_only_file_system_is_scored_all_the_same(
    fewmask: Fewmask, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There even removing a file that does not exist is an error."""
    before = (own / "evaluation.json").read_bytes()
    make, remove = Path.open, Path.unlink

    def refuse(path: Path) -> None:
        if path.parent == own and path.suffix == ".tmp":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "open", lambda path, *how, **more: refuse(path) or make(path, *how, **more))
    monkeypatch.setattr(Path, "unlink", lambda path, *how, **more: refuse(path) or remove(path, *how, **more))
    result = fewmask("evaluate", own)
    assert (result.code, "mean (mIoU)" in result.out) == (0, True)
    assert f"warning: evaluation.json cannot be written: Read-only file system ({own})" in result.err.splitlines()
    assert (own / "evaluation.json").read_bytes() == before


def test_without_checkpoints_only_what_ships_is_scored(fewmask: Fewmask, own: Path) -> None:
    before = json.loads((own / "evaluation.json").read_text())
    shutil.rmtree(own / "checkpoints")
    content = json.loads(fewmask("evaluate", own, "--json").out)
    assert content["networks"] == {before["selected"]: before["networks"][before["selected"]]}


def test_a_checkpoint_of_another_step_is_not_scored_as_what_ships(
    fewmask: Fewmask, scenes: Path, tmp_path: Path
) -> None:
    """As of a run whose last checkpoint is damaged, or of one that is being extended."""
    run, rates = tmp_path / "run", ("optimizer.lr=0.1", "training.checkpoint_every=1")
    assert fewmask("train", scenes, "--out", run, "--method", "mean_teacher", *TINY, *rates).code == 0
    before, checkpoints = json.loads((run / "evaluation.json").read_text()), run / "checkpoints"
    whole = (checkpoints / "step_00000002.pt").read_bytes()
    (checkpoints / "step_00000002.pt").write_bytes(whole[:1000])
    result = fewmask("evaluate", run, "--json")
    what = "the newest readable checkpoint, of step 1, is not of the model that ships"
    assert (result.code, result.err.splitlines()[0]) == (0, f"warning: {what}: only {before['selected']} is scored")
    content = json.loads(result.out)
    assert content["networks"] == {before["selected"]: before["networks"][before["selected"]]}
    (other,) = before["networks"].keys() - {before["selected"]}
    result = fewmask("predict", run, scenes / "val/images", "--out", tmp_path / "masks", "--network", other)
    fix = f"{before['selected']}, or `fewmask train --out {run} --resume` first"
    assert (result.code, result.err) == (2, f"error: {what}\n  where: {checkpoints}\n  valid: {fix}\n")
    assert fewmask("train", "--out", run, "--resume").code == 0  # the advice
    assert json.loads(fewmask("evaluate", run, "--json").out) == before


def test_masks_that_training_never_saw_can_be_scored(fewmask: Fewmask, tmp_path: Path) -> None:
    data, run, same = write_folder(tmp_path / "data", labeled=5, val=1), tmp_path / "run", tmp_path / "same"
    assert fewmask("train", data, "--out", run, "--labels", "2", *TINY).code == 0
    hidden = json.loads((run / "split.json").read_text())["unlabeled"]["names"]
    assert len(hidden) == 3 + 3  # the folder's own unlabeled images have no masks at all
    for name in (name for name in hidden if name.startswith("photo")):
        for part in ("images", "masks"):
            (same / "val" / part).mkdir(parents=True, exist_ok=True)
            shutil.copy(data / part / f"{name}.png", same / "val" / part)
    shutil.copytree(data / "images", same / "images")
    shutil.copytree(data / "masks", same / "masks")
    result = fewmask("evaluate", run, "--split", "unlabeled", "--json")
    expected = fewmask("evaluate", run, "--data", same, "--json")
    assert (result.code, expected.code) == (0, 0)
    assert json.loads(result.out)["networks"] == json.loads(expected.out)["networks"]
    assert json.loads((run / "evaluation_unlabeled.json").read_text())["split"] == "unlabeled"


def test_hidden_masks_that_training_tolerates_are_left_out(fewmask: Fewmask, tmp_path: Path) -> None:
    """One of another size, one with a value that is no class: the others are scored, and the reasons are counted."""
    data, run = write_folder(tmp_path / "data", labeled=6, val=1), tmp_path / "run"
    hidden = [sample.name for sample in open_dataset(data, DataSettings(labels="2")).unlabeled if sample.mask]
    small, strange, *fitting = hidden
    Image.fromarray(np.zeros((8, 9), np.uint8)).save(data / "masks" / f"{small}.png")
    Image.fromarray(np.full((32, 48), 77, np.uint8)).save(data / "masks" / f"{strange}.png")
    assert fewmask("train", data, "--out", run, "--labels", "2", *TINY).code == 0
    result = fewmask("evaluate", run, "--split", "unlabeled", "--json")
    assert result.code == 0, result.err
    content = json.loads(result.out)
    assert content["left_out"] == {"size-mismatch": 1, "label-outside-classes": 1}
    assert json.loads((run / "evaluation_unlabeled.json").read_text()) == content
    why = f"(1 size-mismatch, 1 label-outside-classes): {small}, {strange}"
    assert f"warning: 2 of 4 hidden masks do not fit and are left out {why}" in result.err.splitlines()
    for name in (small, strange):
        (data / "masks" / f"{name}.png").unlink()
    (data / "split.txt").write_text("\n".join({f"photo {index}" for index in range(6)} - {small, strange, *fitting}))
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["data"] |= {"labels": None, "split": str(data / "split.txt")}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    without = json.loads(fewmask("evaluate", run, "--split", "unlabeled", "--json").out)
    assert (without["networks"], without["left_out"]) == (content["networks"], {})


def test_hidden_masks_of_which_none_fits_cannot_be_scored(fewmask: Fewmask, tmp_path: Path) -> None:
    data, run = write_folder(tmp_path / "data", labeled=2, val=1), tmp_path / "run"
    (name,) = (sample.name for sample in open_dataset(data, DataSettings(labels="1")).unlabeled if sample.mask)
    Image.fromarray(np.full((32, 48), 77, np.uint8)).save(data / "masks" / f"{name}.png")
    assert fewmask("train", data, "--out", run, "--labels", "1", *TINY).code == 0
    result = fewmask("evaluate", run, "--split", "unlabeled")
    assert result.code == 2
    assert (
        "error: no hidden mask can be used: the mask holds values outside the classes: 77 (1536 pixels)" in result.err
    )
    assert fewmask("evaluate", run).code == 0  # what was hidden does not decide about the classes here either


def test_data_that_have_moved_are_asked_for_and_found_again(fewmask: Fewmask, own: Path, scenes: Path) -> None:
    before, gone = (own / "evaluation.json").read_bytes(), str(own / "gone")
    config = yaml.safe_load((own / "config.yaml").read_text())
    config["data"]["root"] = gone
    (own / "config.yaml").write_text(yaml.safe_dump(config))
    command = f"fewmask evaluate '{own}' --data NEW"
    result = fewmask("evaluate", own)
    assert (result.code, result.err) == (
        2,
        "error: the run's data are not there: there is no such folder\n"
        f"  where: {gone}\n  valid: {command}, if they have moved\n",
    )
    Path(gone).mkdir()  # as where a disk is mounted that is not there now
    result = fewmask("evaluate", own)
    assert (result.code, result.err.splitlines()[-1]) == (2, f"  valid: {command}, if they have moved")
    assert fewmask("evaluate", own, "--data", scenes).code == 0
    assert (own / "evaluation_scenes_val.json").read_bytes() == before


def test_moved_data_of_which_part_was_held_out_are_not_drawn_from_anew(fewmask: Fewmask, tmp_path: Path) -> None:
    """With --data the draw would be among all labeled images, some of which were trained on."""
    data, run, new = write_folder(tmp_path / "data", labeled=6), tmp_path / "run", tmp_path / "new"
    assert fewmask("train", data, "--out", run, "--labels", "4", "data.holdout=0.5", *TINY).code == 0
    before = (run / "evaluation.json").read_bytes()
    data.rename(new)
    fix = f"  valid: their new place as data.root in {run / 'config.yaml'}; with --data other images would be held out"
    assert fewmask("evaluate", run).err.splitlines()[-1] == fix
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["root"] = str(new)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert fewmask("evaluate", run).code == 0
    assert (run / "evaluation.json").read_bytes() == before


def test_what_cannot_be_scored(fewmask: Fewmask, own: Path, scenes: Path, tmp_path: Path) -> None:
    result = fewmask("evaluate", own, "--split", "train")
    assert (result.code, result.err) == (
        2,
        "error: there is no split 'train'\n  where: --split\n  valid: val, test or unlabeled\n",
    )
    result = fewmask("evaluate", scenes)
    assert (result.code, result.err) == (
        2,
        f"error: not a run folder\n  where: {scenes}\n  valid: the --out folder of `fewmask train`\n",
    )
    bare = write_folder(tmp_path / "bare", val=0)
    result = fewmask("evaluate", own, "--data", bare)
    assert (result.code, result.err) == (
        2,
        f"error: the data set has no val images with masks\n  where: {bare}\n"
        "  valid: val/images and val/masks, or --data with another folder that has them\n",
    )
    result = fewmask("evaluate", own, "--split", "unlabeled")
    assert (result.code, result.err.splitlines()[0]) == (2, "error: the data set has no unlabeled images with masks")
    strange = write_folder(tmp_path / "strange", val=1)
    (strange / "classes.txt").write_text("\n".join("abcdefgh"))
    result = fewmask("evaluate", own, "--data", strange)
    assert (result.code, result.err) == (
        2,
        f"error: the data set's classes are not the model's: a, b, c, d, e, f, g, h\n  where: {strange}\n"
        "  valid: sky, building, road, pavement, tree, car, person, pole\n",
    )
    assert not list(own.glob("evaluation_*"))
