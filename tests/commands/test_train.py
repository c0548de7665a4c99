"""`fewmask train`: what it leaves behind, which images it takes, and which settings it has."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

from fewmask.commands.train_layers import for_method
from fewmask.methods.table import method_class
from fewmask.settings import preset
from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, gray16, road_or_not, write_folder


def checksum(names: list[str]) -> str:
    return hashlib.sha256("".join(f"{name}\n" for name in sorted(names)).encode()).hexdigest()


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_finished_run_folder_is_complete(trained: Path, scenes: Path) -> None:
    assert sorted(path.name for path in trained.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "environment.json",
        "evaluation.json",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "report.html",
        "split.json",
        "timing.json",
    ]
    card, evaluation = read(trained / "model.json"), read(trained / "evaluation.json")
    best = max(evaluation["networks"], key=lambda name: evaluation["networks"][name]["miou"])
    assert (card["predictor"], card["selected_on"]) == (best, "val") == (evaluation["selected"], "val")
    assert card["miou"] == evaluation["networks"][best]["miou"]
    split = read(trained / "split.json")
    for part, count in (("labeled", 6), ("unlabeled", 5), ("val", 3), ("test", 2)):
        assert len(split[part]["names"]) == split[part]["count"] == count
        assert split[part]["sha256"] == checksum(split[part]["names"])
    assert split["sha256"] == checksum(
        [f"{part}:{split[part]['sha256']}" for part in ("labeled", "unlabeled", "val", "test")]
    )


def test_the_run_remembers_where_its_data_are(
    fewmask: Fewmask, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenes.parent)
    assert fewmask("train", "scenes", "--out", tmp_path / "run", "--method", "supervised", *TINY).code == 0
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["data"]["root"] == str(scenes)
    monkeypatch.chdir(tmp_path)
    assert fewmask("evaluate", "run").code == 0
    result = fewmask("train", "--out", "run", "--resume", "training.steps=3")
    assert result.code == 0
    assert "continuing run after step 2\n" in result.err


def test_the_run_remembers_where_its_weights_are(
    fewmask: Fewmask, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until something is saved a resumed run reads them again, wherever it is resumed."""
    here, elsewhere, run = tmp_path / "here", tmp_path / "elsewhere", tmp_path / "run"
    for folder in (here, elsewhere):
        folder.mkdir()
    torch.save(timm.create_model("test_resnet").state_dict(), here / "body.pt")
    monkeypatch.chdir(here)
    of_one = "learners.student_2.network.pretrained=./body.pt"
    words = ("train", scenes, "--out", run, *TINY, "network.pretrained=body.pt", of_one, "baseline.training.steps=2")
    assert fewmask(*words).code == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["network"]["pretrained"] == str(here / "body.pt")
    assert config["learners"] == {"student_2": {"network": {"pretrained": str(here / "body.pt")}}}
    again = fewmask(*words, "--resume")
    assert (again.code, "continuing" in again.err) == (0, True), again.err
    for saved in (run / "checkpoints", *run.glob("baseline*")):
        shutil.rmtree(saved)
    monkeypatch.chdir(elsewhere)
    result = fewmask("train", "--out", run, "--resume")
    assert result.code == 0, result.err
    assert f"weights: {here / 'body.pt'}" in result.err


def test_without_val_nothing_is_scored_and_the_plan_says_what_ships(fewmask: Fewmask, tmp_path: Path) -> None:
    data, run = write_folder(tmp_path / "data"), tmp_path / "run"
    result = fewmask("train", data, "--out", run, *TINY)
    assert (result.code, result.out) == (0, "")
    assert read(run / "evaluation.json") == {
        "networks": {},
        "selected": "teacher_1",
        "selected_on": None,
        "split": "val",
    }
    card = read(run / "model.json")
    assert (card["predictor"], card["selected_on"], card["miou"]) == ("teacher_1", None, None)
    assert (run / "report.html").is_file()
    lines = [line.strip() for line in result.err.splitlines()]
    assert "note       without held-out labels teacher_1 ships, as it is at the last step" in lines
    assert sum("no validation images" in line for line in lines) == 1
    assert "nothing was scored, there are no held-out labels: teacher_1 ships" in lines


def test_validation_masks_that_hold_only_ignore_select_nothing(fewmask: Fewmask, tmp_path: Path) -> None:
    data, run = write_folder(tmp_path / "data", val=2), tmp_path / "run"
    for path in (data / "val/masks").iterdir():
        Image.fromarray(np.full((32, 48), 255, np.uint8)).save(path)
    words = ("training.evaluate_every=1", "training.log_every=1", "settings.stages=1")
    result = fewmask("train", data, "--out", run, *TINY, *words)
    assert result.code == 0, result.err
    lines = [line.strip() for line in result.err.splitlines()]
    assert "no network was selected, as no validation pixel has a label: teacher_1 ships" in lines
    assert not [line for line in lines if "on val" in line or "points since then" in line]
    (row,) = [line.split("│")[2:-1] for line in lines if "mean (mIoU)" in line]
    assert {cell.strip() for cell in row} == {"-"}
    evaluation, card = read(run / "evaluation.json"), read(run / "model.json")
    assert {(each["miou"], each["pixel_accuracy"]) for each in evaluation["networks"].values()} == {(None, None)}
    assert (evaluation["selected"], evaluation["selected_on"]) == ("teacher_1", None)
    assert (card["predictor"], card["selected_on"], card["miou"]) == ("teacher_1", None, None)
    for path in (*run.glob("*.json"), *run.glob("baseline*/*.json"), *run.glob("**/metrics.jsonl")):
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.loads(text, parse_constant=lambda word, path=path: pytest.fail(f"{word} in {path}"))
    assert read_lines(run / "metrics.jsonl")[-1]["val_miou/teacher_1"] is None
    assert "teacher_1 was not chosen by any score" in (run / "report.html").read_text()
    before = (run / "evaluation.json").read_bytes()
    scored = fewmask("evaluate", run, "--json")
    assert (scored.code, json.loads(scored.out)) == (0, evaluation)
    assert "teacher_1 is what ships; it was not chosen on held-out labels" in scored.err.splitlines()
    assert fewmask("evaluate", run).code == 0
    assert (run / "evaluation.json").read_bytes() == before
    again = fewmask("train", "--out", run, "--resume")
    assert (again.code, (run / "evaluation.json").read_bytes()) == (0, before)


def test_without_a_preset_a_run_is_rml_with_baselines_and_stages_of_as_many_steps(
    fewmask: Fewmask, scenes: Path, tmp_path: Path
) -> None:
    result = fewmask("train", scenes, "--out", tmp_path / "run", *TINY[:2], "training.batch=2", "training.steps=5")
    assert result.code == 0, result.err
    lines = [line.strip() for line in result.err.splitlines()]
    both = ", then ".join(["a baseline of 5 supervised steps"] * 2)
    assert f"steps      {both}, then 2 stages of 5 steps" in lines
    assert sum(line.startswith("data ") for line in lines) == 1  # baselines print what is their own
    assert [line for line in lines if line.startswith("method ")] == [
        "method     rml, preset general: dropout=0.1, stochastic_depth=1.0, spread=16.0,8.0, momentum_horizon=2, "
        "baselines=two, decay_horizon=1, targets=mean",
        *["method     supervised, preset general: its default settings"] * 2,
    ]
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["preset"], config["method"], config["training"]["steps"]) == ("general", "rml", 5)
    ours = read(tmp_path / "run/evaluation.json")
    had = read(tmp_path / "run/baseline_2/evaluation.json")["networks"]["student_1"]["miou"]
    points = 100 * (ours["networks"][ours["selected"]]["miou"] - had)
    said = f"baseline_2 (labeled images only) had {100 * had:.1f} % mIoU: {points:+.1f} points since then"
    assert said in lines
    for name, seed in (("baseline", 0), ("baseline_2", 1)):
        baseline = yaml.safe_load((tmp_path / "run" / name / "config.yaml").read_text())
        assert (baseline["training"]["steps"], baseline["seed"]) == (5, seed)
        assert baseline["optimizer"]["head_lr"] == 0.1


def test_another_optimizer_says_which_rates_it_has_instead(fewmask: Fewmask, scenes: Path, tmp_path: Path) -> None:
    words = (*TINY[:2], "training.batch=2", "training.steps=1", "settings.stages=1")
    result = fewmask("train", scenes, "--out", tmp_path / "run", *words, "baseline.optimizer.name=adamw")
    assert result.code == 0, result.err
    lines = [line.strip() for line in result.err.splitlines()]
    assert (
        "not taken, as it belongs to another optimizer: baseline.optimizer.lr=0.01, baseline.optimizer.head_lr=0.1"
        in lines
    )
    assert [line for line in lines if line.startswith("optimizer ")][:2] == [
        "optimizer  sgd, rate 0.005 (head 0.005), poly, weight decay 0.0005 (student_1, student_2)",
        "optimizer  adamw, rate 0.0001 (head 0.001), poly, weight decay 0.0005 (baseline, baseline_2)",
    ]
    config = (tmp_path / "run/config.yaml").read_text()
    again = fewmask("train", "--out", tmp_path / "run", "--resume")
    assert (again.code, "not taken" in again.err) == (0, False)
    assert (tmp_path / "run/config.yaml").read_text() == config


def test_a_file_without_a_preset_stands_alone(fewmask: Fewmask, scenes: Path, tmp_path: Path) -> None:
    """What nobody named must not change what a file says."""
    file = tmp_path / "own.yaml"
    file.write_text("method: supervised\noptimizer: {lr: 0.02}\n")
    result = fewmask("train", scenes, "--out", tmp_path / "run", "--config", file, *TINY)
    assert result.code == 0, result.err
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["preset"], config["optimizer"]["lr"], config["optimizer"]["head_lr"]) == (None, 0.02, None)
    again = fewmask("train", scenes, "--out", tmp_path / "again", "--config", tmp_path / "run/config.yaml")
    assert again.code == 0, again.err
    assert (tmp_path / "again/config.yaml").read_text() == (tmp_path / "run/config.yaml").read_text()


def test_holdout_keeps_labeled_images_back_for_scoring(fewmask: Fewmask, tmp_path: Path) -> None:
    data, run = write_folder(tmp_path / "data"), tmp_path / "run"
    assert fewmask("train", data, "--out", run, "data.holdout=0.2", "--labels", 5, *TINY).code == 0
    split = read(run / "split.json")
    assert (split["labeled"]["count"], split["val"]["count"]) == (4, 1)
    assert sorted(split["labeled"]["names"] + split["val"]["names"]) == [f"photo {index}" for index in range(5)]
    scored = read(run / "evaluation.json")
    assert scored["selected_on"] == "val"
    assert json.loads(fewmask("evaluate", run, "--json").out) == scored


@pytest.mark.parametrize(("words", "count"), [(("--labels", "4"), 4), (("--labels", "1/2"), 3)])
def test_labels_draws_a_subset(fewmask: Fewmask, scenes: Path, tmp_path: Path, words: tuple[str, ...], count: int):
    names = [f"scene_{index:04d}" for index in range(6)]
    order = np.random.RandomState(5).permutation(6)[:count]  # the published rule
    expected = sorted(names[index] for index in order)
    result = fewmask("train", scenes, "--out", tmp_path / "run", "--seed", 5, "--method", "supervised", *words, *TINY)
    assert result.code == 0
    split = read(tmp_path / "run/split.json")
    assert split["labeled"] == {"count": count, "names": expected, "sha256": checksum(expected)}
    assert split["unlabeled"]["count"] == 5 + 6 - count
    assert f"{count} of 6 labeled images are used with their masks" in result.err


def test_split_names_the_labeled_images(fewmask: Fewmask, scenes: Path, tmp_path: Path) -> None:
    listed = tmp_path / "my labels.txt"
    listed.write_text("scene_0004\n\nscene_0001\n")
    words = ("train", scenes, "--out", tmp_path / "run", "--method", "supervised", *TINY)
    assert fewmask(*words, "--split", listed).code == 0
    split = read(tmp_path / "run/split.json")
    assert split["labeled"]["names"] == ["scene_0001", "scene_0004"]
    assert split["labeled"]["sha256"] == checksum(["scene_0001", "scene_0004"])
    assert {"scene_0000", "scene_0002", "scene_0003", "scene_0005"} < set(split["unlabeled"]["names"])
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["data"]["split"] == str(listed)
    listed.write_text("scene_9999\n")
    result = fewmask("train", scenes, "--out", tmp_path / "other", "--split", listed, *TINY)
    assert result.code == 2
    assert result.err.startswith(
        f"error: not in the data set, 1 in all: scene_9999 (bad-split)\n  where: {listed}\n  valid: names such as "
    )
    assert not (tmp_path / "other").exists()


def test_gray_16_bit_images_with_0_255_masks_in_a_folder_with_an_odd_name(fewmask: Fewmask, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "my data, ünïcode [bold]", val=1, image=gray16, mask=road_or_not)
    run = tmp_path / "a run"
    assert fewmask("check", data).code == 0
    result = fewmask("train", data, "--out", run, *TINY)
    assert result.code == 0
    assert f"{data} (folder): 5 labeled, 3 unlabeled, 1 validation images" in result.err
    assert "every mask holds only 0 and 255: 255 is read as class 1 (--ignore 255 would ignore it)" in result.err
    assert result.err.splitlines()[-1] == f"next: fewmask predict '{run}' IMAGES --out predictions"
    card = read(run / "model.json")
    assert (card["channels"], [each["name"] for each in card["classes"]]) == (1, ["background", "foreground"])
    assert fewmask("predict", run, data / "unlabeled", "--out", tmp_path / "masks").code == 0
    with Image.open(tmp_path / "masks" / "more 0.png") as mask:
        assert set(np.unique(np.asarray(mask))) <= {0, 1}


def test_a_resized_data_set_is_remembered_in_the_card(fewmask: Fewmask, scenes: Path, tmp_path: Path) -> None:
    words = ("--method", "supervised", "data.resize=16x24", *TINY)
    assert fewmask("train", scenes, "--out", tmp_path / "run", *words).code == 0
    assert read(tmp_path / "run/model.json")["resize"] == [16, 24]


@pytest.mark.parametrize(
    ("method", "words", "settings"),
    [("supervised", (), {"photometric": True}), ("mean_teacher", ("threshold=0.5",), {"threshold": 0.5})],
)
def test_another_method_takes_a_presets_baseline_and_none_of_its_settings(
    fewmask: Fewmask, scenes: Path, tmp_path: Path, method: str, words: tuple[str, ...], settings: dict[str, object]
) -> None:
    """`--preset demo --method supervised` is the twin of what the preset's rml starts from."""
    small = ("views.crop=32x48", "training.batch=2", "training.steps=1", *words)
    result = fewmask("train", scenes, "--out", tmp_path / "run", "--preset", "demo", "--method", method, *small)
    assert result.code == 0, result.err
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["method"], config["baseline"]) == (method, {})
    assert config["settings"] == method_class(method).Settings(**settings).complete()
    assert config["network"]["backbone"] == "resnet10t"
    values = for_method(preset("paper-voc"), method)
    assert values["optimizer"] == preset("paper-voc")["optimizer"] | {"lr": 0.00025, "head_lr": 0.0025}
    assert values["training"]["steps"] == 60_000
    pair = preset("camvid") | {"learners": {"student_2": {"optimizer": {"lr": 0.1}}}}
    assert for_method(pair, method)["learners"] == {}  # of a learner that these methods do not have
