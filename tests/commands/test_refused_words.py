"""Settings that `fewmask train` refuses: one error block, code 2, and nothing left where the run would have been."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fewmask.config import Config
from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY


def refused(fewmask: Fewmask, folder: Path, *words: object) -> str:
    """The error; the data folder is missing as well, so this was found before the data were touched."""
    data, out = folder / "no data", folder / "run"
    result = fewmask("train", data, "--out", out, *TINY, *words)
    assert result.code == 2, result.err
    assert not out.exists()
    assert result.err.startswith("error: ")
    return " ".join(result.err.split())


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("baseline.trainin.steps=4", ("unknown setting 'trainin.steps'", "baseline", "did you mean training.steps")),
        ("baseline.training.steps=0", ("training.steps cannot be 0", "baseline", "greater than 0")),
        ("baseline.settings.photometrc=true", ("unknown setting 'photometrc'", "did you mean photometric")),
        ("baseline.method=rml", ("cannot have a 'method' of its own", "baseline without method")),
        ("baseline.seed=4", ("cannot have a 'seed' of its own", "baseline without seed")),
        ("baseline.data.labels=3", ("cannot have a 'data' of its own", "baseline without data")),
        ("learners.student_2.baseline.seed=4", ("cannot have a 'seed' of its own", "learners.student_2.baseline")),
    ],
)
def test_a_wrong_baseline_is_refused_before_the_run_folder_is_claimed(
    fewmask: Fewmask, tmp_path: Path, word: str, parts: tuple[str, ...]
) -> None:
    text = refused(fewmask, tmp_path, word)
    for part in parts:
        assert part in text


def test_a_preset_is_chosen_by_its_option_alone(fewmask: Fewmask, tmp_path: Path) -> None:
    text = refused(fewmask, tmp_path, "preset=demo")
    assert "a preset is not chosen by a setting where: preset=demo valid: --preset demo" in text
    assert "'preset' of its own" in refused(fewmask, tmp_path, "baseline.preset=demo")


def test_a_preset_in_a_file_is_a_label_and_must_exist(fewmask: Fewmask, scenes: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("preset: demmo\nmethod: supervised\n")
    text = refused(fewmask, tmp_path, "--config", file)
    assert f"there is no preset 'demmo' where: {file} valid: camvid, demo" in text
    file.write_text("preset: demo\nmethod: supervised\n")
    assert fewmask("train", scenes, "--out", tmp_path / "run", "--config", file, *TINY).code == 0
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["preset"], config["optimizer"]["lr"]) == ("demo", Config().optimizer.lr)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("optimizer.betas=2,2", ("optimizer.betas.0 cannot be 2", "less than 1 (AdamW betas)")),
        ("optimizer.betas=0.9,1", ("optimizer.betas.1 cannot be 1", "less than 1 (AdamW betas)")),
        ("optimizer.betas=-0.1,0.9", ("optimizer.betas.0 cannot be -0.1", "greater than or equal to 0")),
        ("settings.p0_scales=0.001,1", ("p0_scales.0 cannot be 0.001", "greater than or equal to 0.1")),
        ("views.crop=32", ("views.crop cannot be 32", "height x width, e.g. 256x320")),
        ("views.scale=1", ("views.scale cannot be 1", "e.g. 0.5,1.5")),
        ("optimizer.lr=.inf", ("optimizer.lr cannot be inf", "a finite number")),
        ("optimizer.lr=inf", ("optimizer.lr cannot be 'inf'", "a finite number")),
        ("loss.class_weights=1,-1", ("loss.class_weights cannot be [1, -1]", "0 or more for each class")),
        ("loss.class_weights=0,0", ("loss.class_weights cannot be [0, 0]", "more than 0 for one")),
        ("network.std=0.2,0,0.2", ("network.std.1 cannot be 0", "greater than 0")),
        ("seed=2024-13-01", ("not readable as YAML", "key=value")),
    ],
)
def test_numbers_out_of_bounds(fewmask: Fewmask, tmp_path: Path, word: str, parts: tuple[str, ...]) -> None:
    text = refused(fewmask, tmp_path, word)
    for part in parts:
        assert part in text


def test_a_picture_is_no_settings_file(fewmask: Fewmask, scenes: Path, tmp_path: Path) -> None:
    photo = next(scenes.rglob("*.png"))
    text = refused(fewmask, tmp_path, "--config", photo)
    assert f"the settings file cannot be read: it is no text in UTF-8 where: {photo} valid: a YAML file" in text


@pytest.mark.parametrize("content", [b"some words: and more\n", b"", b"\x89PNG\r\n\x1a\n", b"q:0:0:x:/home\n", b"}"])
@pytest.mark.parametrize("ending", ["txt", "safetensors"])
def test_a_text_is_no_weight_file(fewmask: Fewmask, scenes: Path, tmp_path: Path, content: bytes, ending: str) -> None:
    file = tmp_path / f"weights.{ending}"
    file.write_bytes(content)
    result = fewmask("train", scenes, "--out", tmp_path / "run", *TINY, f"network.pretrained={file}")
    assert result.code == 2
    assert "error: cannot read weights: " in result.err
    assert "valid: a .safetensors file, or a state dict" in result.err
    assert "torch.load" not in result.err
    assert not (tmp_path / "run").exists()
