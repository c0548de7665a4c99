"""`fewmask train`: what it refuses, most of it before it reads the data, and that each refusal is one block."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewmask.cli import run
from fewmask.errors import ConfigError
from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, write_folder

# The data folder is missing as well: whatever is reported instead was found before the data were touched.
EARLY = {
    "method": (("--method", "nope"), "there is no method 'nope'", "supervised, mean_teacher"),
    "method's setting": (("treshold=0.3",), "unknown setting 'treshold'", "did you mean threshold"),
    "section's setting": (("training.stepz=3",), "unknown setting 'training.stepz'", "did you mean training.steps"),
    "value": (("training.steps=many",), "training.steps cannot be 'many'", "a valid integer (optimizer steps)"),
    "ambiguous": (("batch=3",), "the setting 'batch' could mean several", "training.batch or evaluation.batch"),
    "word": (("steps:3",), "'steps:3' is not a setting", "key=value, e.g. training.steps=2000"),
    "bracket": (("training.steps=[1",), "not readable as YAML", "key=value"),
    "preset": (("--preset", "nope"), "there is no preset 'nope'", "camvid, demo"),
    "preset's setting": (
        ("--preset", "pets", "settings.decay=0.9"),
        "decay=0.9 and decay_horizon=250 (a decay of 0.996) contradict each other",
        "one of them: settings.decay_horizon=none makes decay count",
    ),
    "settings file": (("--config", "no.yaml"), "the settings file does not exist", "a YAML file"),
    "device": (("--device", "gpu"), "'gpu' is not a device", "cpu, cuda or cuda:0"),
    "odd device": (("--device", "meta"), "'meta' is not supported", "cpu, cuda or cuda:0"),
    "start": (("--init", "nowhere"), "no model here", "the folder of a finished run, with model.json"),
    "weight file": (
        ("network.pretrained=/nofile.safetensors",),
        "no such weight file: /nofile.safetensors",
        "none, hub, coco-voc-classes, or a .safetensors or .pt file",
    ),
    "weight file of a learner": (
        ("learners.student_2.network.pretrained=no.pt",),
        "no such weight file: no.pt",
        "none, hub, coco-voc-classes",
    ),
    "weight file of the baseline": (
        ("baseline.network.pretrained=no.pt",),
        "no such weight file: no.pt",
        "none, hub, coco-voc-classes",
    ),
    "backbone": (("network.backbone=resnet55",), "there is no timm model called 'resnet55'", "resnet5"),
    "backbone's option": (("network.options.num_classes=3",), "num_classes is not a free option", "the classes decide"),
    "backbone of a learner": (
        ("learners.student_2.network.backbone=zzz",),
        "there is no timm model called 'zzz'\n  where: network.backbone of student_2",
        "see `fewmask networks`",
    ),
    "seed": (("--seed", "-1"), "seed cannot be -1", "greater than or equal to 0"),
    "large seed": (("--seed", "4294967296"), "seed cannot be 4294967296", "less than 4294967296"),
}


@pytest.mark.parametrize("case", EARLY)
def test_wrong_words_are_refused_before_the_data_are_read(fewmask: Fewmask, tmp_path: Path, case: str) -> None:
    words, what, valid = EARLY[case]
    result = fewmask("train", tmp_path / "no data", "--out", tmp_path / "run", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {what}")
    assert "\n  where: " in result.err
    assert f"\n  valid: {valid}" in result.err
    assert not (tmp_path / "run").exists()


def test_folders_that_cannot_serve(fewmask: Fewmask, trained: Path, scenes: Path, tmp_path: Path) -> None:
    result = fewmask("train", scenes)
    assert (result.code, result.err) == (
        2,
        "error: no run folder given\n  where: --out\n  valid: fewmask train DATA --out RUN\n",
    )
    result = fewmask("train", tmp_path / "no data", "--out", trained, *TINY)
    assert (result.code, result.err) == (
        2,
        f"error: the run folder already holds a run\n  where: {trained}\n"
        "  valid: --resume to go on with it, or another --out\n",
    )
    (tmp_path / "file").write_text("")
    result = fewmask("train", scenes, "--out", tmp_path / "file" / "run", *TINY)
    assert (result.code, result.err) == (
        2,
        f"error: the run folder cannot be made: Not a directory\n  where: {tmp_path / 'file/run'}\n"
        "  valid: another --out\n",
    )
    result = fewmask("train", "--out", tmp_path / "run")
    assert (result.code, result.err.splitlines()[0]) == (2, "error: no data folder given")


def test_a_missing_or_broken_data_set_is_one_block(fewmask: Fewmask, tmp_path: Path) -> None:
    result = fewmask("train", tmp_path / "nowhere", "--out", tmp_path / "run", *TINY)
    assert result.code == 2
    first, where, valid, *tree = result.err.splitlines()
    assert (first, where) == ("error: there is no such folder (unknown-layout)", f"  where: {tmp_path / 'nowhere'}")
    assert valid == "  valid: a folder such as"
    assert all(line.startswith(" " * 9) for line in tree)  # the drawing of the folder stands below "valid:"
    data = write_folder(tmp_path / "my data", val=1)
    for name in ("photo 1", "photo 2"):
        (data / "masks" / f"{name}.png").unlink()
    result = fewmask("train", data, "--out", tmp_path / "run", *TINY)
    assert result.code == 2
    lines = result.err.splitlines()
    assert lines[-4].endswith("(missing-mask)")
    assert lines[-3] == f"  where: {data / 'images/photo 1.png'}"
    assert lines[-1] == f"         (1 more: `fewmask check '{data}'` lists everything)"


def test_a_method_without_unlabeled_images_says_what_would_work(fewmask: Fewmask, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", unlabeled=0, val=1)
    result = fewmask("train", data, "--out", tmp_path / "run", *TINY)
    assert result.code == 2
    assert result.err.splitlines()[-3:] == [
        "error: the method rml needs unlabeled images and there are none",
        f"  where: {data}",
        "  valid: images in unlabeled/, --labels N to hide some masks, or --method supervised",
    ]
    assert fewmask("train", data, "--out", tmp_path / "run", "--method", "supervised", *TINY).code == 0


@pytest.mark.parametrize(
    ("method", "word"), [("rml", "settings.cutmix=false"), ("mean_teacher", "settings.mixing=none")]
)
def test_one_unlabeled_image_has_none_to_mix_with_and_the_error_says_how_to_do_without(
    fewmask: Fewmask, tmp_path: Path, method: str, word: str
) -> None:
    data = write_folder(tmp_path / "data", unlabeled=1, val=1)
    words = ("train", data, "--method", method, *TINY)
    result = fewmask(*words, "--out", tmp_path / "run")
    assert (result.code, result.err.splitlines()[-3:]) == (
        2,
        [
            "error: mixing pastes one unlabeled image into another, and there is 1",
            "  where: unlabeled images",
            f"  valid: at least 2 of them, or {word}",
        ],
    )
    assert fewmask(*words, "--out", tmp_path / "run", word).code == 0


def test_debug_shows_the_traceback(scenes: Path) -> None:
    with pytest.raises(ConfigError, match="no run folder given"):
        run(["train", str(scenes), "--debug"])
