"""`fewmask train --config FILE`: a file that is spelled like words, and one for another method."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from fewmask.methods.table import method_class
from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY

RML = """
method: rml
settings: {stages: 1, spread: [16, 8], cutmix: true}
baseline: {optimizer: {lr: 0.02}, training: {steps: 3}, settings: {photometric: true}}
learners:
  student_1: {optimizer: {weight_decay: 0.1}, baseline: {training: {steps: 4}}}
  student_2: {optimizer: {lr: 0.3}}
optimizer: {name: sgd, lr: 0.005}
"""


def read_config(run: Path) -> dict:
    return yaml.safe_load((run / "config.yaml").read_text())


@pytest.fixture
def rml_file(tmp_path: Path) -> Path:
    file = tmp_path / "rml.yaml"
    file.write_text(RML)
    return file


@pytest.mark.parametrize(
    ("method", "own", "said"),
    [
        ("supervised", {"photometric": True}, ("", ", settings.photometric=true")),
        ("mean_teacher", {}, (", baseline.settings.photometric=true", "")),
    ],
)
def test_a_file_for_another_method_gives_what_is_not_its_methods_own(
    fewmask: Fewmask, scenes: Path, tmp_path: Path, rml_file: Path, method: str, own: dict, said: tuple[str, str]
) -> None:
    out = tmp_path / "run"
    words = (*TINY[:2], "training.batch=2")
    result = fewmask("train", scenes, "--out", out, "--config", rml_file, "--method", method, *words)
    assert result.code == 0, result.err
    config = read_config(out)
    assert (config["method"], config["baseline"]) == (method, {})
    assert config["settings"] == method_class(method).Settings(**own).complete()
    assert config["learners"] == {"student_1": {"optimizer": {"weight_decay": 0.1}}}
    assert (config["optimizer"]["lr"], config["training"]["steps"]) == (0.02, 3)
    lines = [line.strip() for line in result.err.splitlines()]
    assert (
        f"not taken, as it belongs to the method rml: settings.stages=1, settings.spread=16,8{said[0]}, "
        "learners.student_1.baseline.training.steps=4, learners.student_2.optimizer.lr=0.3" in lines
    )
    assert f"taken from the baseline of rml, for the run itself: optimizer.lr=0.02, training.steps=3{said[1]}" in lines


def test_a_finished_run_is_a_file_for_its_supervised_twin_and_cannot_become_it(
    fewmask: Fewmask, scenes: Path, tmp_path: Path
) -> None:
    full, words = tmp_path / "full", (*TINY[:2], "training.batch=2", "training.steps=1", "settings.stages=1")
    assert fewmask("train", scenes, "--out", full, *words).code == 0
    before = (full / "config.yaml").read_bytes()
    for method in ("supervised", "mean_teacher"):
        result = fewmask("train", "--out", full, "--resume", "--method", method)
        assert result.code == 2
        assert result.err.startswith("error: a resumed run cannot change method\n  where: --resume\n  valid: ")
    assert (full / "config.yaml").read_bytes() == before
    twin = tmp_path / "twin"
    result = fewmask("train", scenes, "--out", twin, "--config", full / "config.yaml", "--method", "supervised")
    assert result.code == 0, result.err
    apart = tmp_path / "apart"  # the twin as the preset gives it
    same = ("--method", "supervised", *words[:-1], "views.crop=32x32")
    assert fewmask("train", scenes, "--out", apart, "--preset", "general", *same).code == 0
    assert read_config(twin) == read_config(apart)


def test_what_is_wrong_in_a_file_is_said_for_another_method_as_well(
    fewmask: Fewmask, tmp_path: Path, rml_file: Path
) -> None:
    words = ("train", tmp_path / "no data", "--out", tmp_path / "run", "--config", rml_file, "--method", "supervised")
    for added, what in (
        ("baseline: {seed: 4}", "a baseline cannot have a 'seed' of its own"),
        ("baseline: {trainin: {steps: 3}}", "unknown setting 'trainin.steps'"),
        ("learners: {student_3: {}}", "the method rml has no learner 'student_3'"),
        ("thresold: 0.5", "unknown setting 'thresold'"),
    ):
        rml_file.write_text(f"method: rml\n{added}\n")
        result = fewmask(*words)
        assert result.code == 2
        assert result.err.startswith(f"error: {what}")


SPELLINGS = {
    "sections": """
        training: {steps: 1, batch: 2, unlabeled_batch: null}
        views: {crop: [32, 48], scale: [0.5, 1.5]}
        optimizer: {lr: 0.0001, betas: [0.5, 0.9]}
        network: {backbone: test_resnet, width: 16, options: {zero_init_last: false}}
        settings: {threshold: 0.001, decay_horizon: 0.2}
        learners: {student_1: {optimizer: {lr: 0.001}}}
        data: {labels: 1/2}
        """,
    "words": """
        steps: 1
        training.batch: 2
        training.unlabeled_batch: none
        crop: 32x48
        views.scale: 0.5, 1.5
        lr: 1e-4
        optimizer: {betas: "5e-1,0.9"}
        network.backbone: test_resnet
        network: {width: 16, options.zero_init_last: false}
        threshold: 1e-3
        settings.decay_horizon: 2e-1
        learners.student_1: {optimizer.lr: 1e-3}
        labels: 1/2
        """,
}


def test_a_file_accepts_what_words_accept(fewmask: Fewmask, scenes: Path, tmp_path: Path) -> None:
    configs = []
    for name, text in SPELLINGS.items():
        file, out = tmp_path / f"{name}.yaml", tmp_path / name
        file.write_text(dedent(text))
        result = fewmask("train", scenes, "--out", out, "--config", file, "--method", "mean_teacher")
        assert result.code == 0, result.err
        configs.append(read_config(out))
    assert configs[0] == configs[1]
    assert (configs[0]["views"]["crop"], configs[0]["optimizer"]["betas"]) == ([32, 48], [0.5, 0.9])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("training: {steps: 4}\ntraining.steps: 5", ("training.steps is set twice", "FILE", "one of them")),
        ("training.steps: 5\nsteps: 5", ("training.steps is set twice", "FILE", "one of them")),
        ("training.steps: 5\ntraining:", ("training is set twice", "FILE", "one of them")),
        ("training: 5\ntraining.steps: 5", ("training is set twice", "FILE", "one of them")),
        ("batch: 4", ("'batch' could mean several", "FILE", "training.batch or evaluation.batch")),
        ("momentum: 0.9", ("'momentum' could mean several", "FILE", "optimizer.momentum or settings.momentum")),
        ("stepz: 4", ("unknown setting 'stepz'", "did you mean training.steps or")),
        ("training.stepz: 4", ("unknown setting 'training.stepz'", "did you mean training.steps")),
        ("trainin: {steps: 4}", ("unknown setting 'trainin.steps'", "did you mean training.")),
        ("views: {crop: 64}", ("views.crop cannot be 64", "height x width, e.g. 256x320")),
        ("1: 2", ("unknown setting '1'",)),
    ],
)
def test_a_line_of_a_file_that_cannot_be_used(
    fewmask: Fewmask, tmp_path: Path, text: str, parts: tuple[str, ...]
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    result = fewmask("train", tmp_path / "no data", "--out", tmp_path / "run", "--config", file)
    assert result.code == 2
    for part in parts:
        assert part.replace("FILE", str(file)) in result.err
