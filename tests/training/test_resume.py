"""Going on with a run: what may change, what may not, and what another run starts from."""

import json
import os
import shutil
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

from fewmask.errors import CheckpointError, ConfigError
from fewmask.training import run as running
from fewmask.training.checkpoint import list_checkpoints
from fewmask.training.initialize import initialize_from
from fewmask.training.model_file import load_card
from fewmask.training.run_folder import RunFolder
from tests.training.runs import NOISY, assert_same_run, newest_state, tiny_session, train_here, write_data

RUN = (*NOISY, "training.steps=8", "training.log_every=3", "training.checkpoint_every=3")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps, with checkpoints after step 6 and 8."""
    run = tmp_path_factory.mktemp("finished") / "run"
    train_here(data, run, *RUN)
    return run


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def steps(run: Path) -> list[str]:
    return [path.name for path in list_checkpoints(run / "checkpoints")]


def test_exactly_the_newest_checkpoints_are_kept(finished):
    assert steps(finished) == ["step_00000008.pt", "step_00000006.pt"]
    assert len(list((finished / "checkpoints").iterdir())) == 2


def test_a_truncated_newest_checkpoint_is_passed_over(data, finished, copied):
    newest = list_checkpoints(copied / "checkpoints")[0]
    os.truncate(newest, newest.stat().st_size // 2)
    heard = train_here(data, copied, *RUN, resume=True)
    assert "step_00000008.pt is damaged and was passed over" in heard.warnings
    assert f"continuing {copied} after step 6" in heard.lines
    assert_same_run(finished, copied)


def test_nothing_but_damaged_checkpoints_is_an_error(data, copied):
    for path in list_checkpoints(copied / "checkpoints"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        train_here(data, copied, *RUN, resume=True)


def test_a_run_of_which_nothing_was_saved_begins_again_with_the_images_that_are_there(data, tmp_path):
    """Killed before its first checkpoint was on the disk; an image has come since."""
    folder, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(data, folder)
    train_here(folder, run, *RUN)
    first = json.loads((run / "split.json").read_text())
    shutil.rmtree(run / "checkpoints")
    shutil.copy(folder / "unlabeled" / "u0.png", folder / "unlabeled" / "u9.png")
    heard = train_here(folder, run, *RUN, resume=True)
    assert f"nothing was saved yet: {run} begins again" in heard.lines
    train_here(folder, tmp_path / "other", *RUN)
    assert_same_run(tmp_path / "other", run)
    now = json.loads((run / "split.json").read_text())
    assert now == json.loads((tmp_path / "other" / "split.json").read_text()) != first


def test_two_processes_cannot_train_in_one_folder(data, copied):
    before = (copied / "metrics.jsonl").read_bytes()
    with RunFolder(copied).held(), pytest.raises(ConfigError, match="another process is training in this run folder"):
        train_here(data, copied, *RUN, "training.steps=9", resume=True)
    assert (copied / "metrics.jsonl").read_bytes() == before


def test_a_folder_in_which_nothing_was_begun_is_gone(tmp_path):
    with RunFolder(tmp_path / "deep" / "run").held():
        assert (tmp_path / "deep" / "run").is_dir()
    assert not (tmp_path / "deep" / "run").exists()


def test_a_run_with_a_checkpoint_needs_its_pretrained_weights_no_more(data, tmp_path):
    """Its own are in the checkpoint; the file may be gone, or named from another working folder."""
    file, run = tmp_path / "weights.pt", tmp_path / "run"
    torch.save(timm.create_model("test_resnet").state_dict(), file)
    words = (*RUN, f"network.pretrained={file}", "baseline.training.steps=3")
    train_here(data, tmp_path / "whole", *words, method="rml")
    shutil.copytree(tmp_path / "whole", run)
    list_checkpoints(run / "checkpoints")[0].unlink()  # as if it had been killed before the last ones
    file.unlink()
    heard = train_here(data, run, *words, method="rml", resume=True)
    assert any("weights: those of the checkpoint" in line for line in heard.lines)
    assert_same_run(tmp_path / "whole", run)
    assert (run / "config.yaml").read_bytes() == (tmp_path / "whole" / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match="no such weight file"):
        train_here(data, tmp_path / "other", *words, method="rml", resume=True)  # of this run nothing was saved


def test_resuming_a_finished_run_changes_nothing(data, finished, copied):
    (copied / "checkpoints" / ".step_00000009.pt.1.tmp").write_bytes(b"a killed process's")
    train_here(data, copied, *RUN, resume=True)
    assert_same_run(finished, copied)
    assert steps(copied) == steps(finished)
    assert len(list((copied / "checkpoints").iterdir())) == 2


def test_a_finished_run_can_be_made_longer(data, copied, tmp_path):
    """With a constant rate the longer run is the one that was asked for at once."""
    constant = (
        *NOISY,
        "settings.ramp=0",
        "optimizer.schedule=constant",
        "training.log_every=2",
        "training.checkpoint_every=3",
    )
    train_here(data, tmp_path / "short", *constant, "training.steps=4")
    train_here(data, tmp_path / "short", *constant, "training.steps=6", "training.keep=1", resume=True)
    train_here(data, tmp_path / "long", *constant, "training.steps=6")
    assert_same_run(tmp_path / "long", tmp_path / "short")
    assert steps(tmp_path / "short") == ["step_00000006.pt"]
    with pytest.raises(CheckpointError, match=r"at step 8, beyond training.steps=7") as caught:
        train_here(data, copied, *RUN, "training.steps=7", resume=True)
    assert "training.steps=8 or more" in caught.value.fix


def test_a_longer_run_killed_while_it_is_written_down_is_no_mixture_with_the_shorter(
    data, copied, tmp_path, monkeypatch
):
    """The scores of the one beside the model of the other, or a time of fewer steps."""
    longer = (*RUN, "training.steps=10")
    shutil.copytree(copied, tmp_path / "whole")
    train_here(data, tmp_path / "whole", *longer, resume=True)
    (copied / "report.html").write_text("of the shorter run")

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(running, "save_model", killed)
        with pytest.raises(KeyboardInterrupt):
            train_here(data, copied, *longer, resume=True)
    assert (copied / "evaluation.json").read_bytes() == (tmp_path / "whole" / "evaluation.json").read_bytes()
    assert not (copied / "report.html").exists()
    with pytest.raises(CheckpointError, match="no model here"):
        load_card(copied)
    train_here(data, copied, *longer, resume=True)
    assert_same_run(tmp_path / "whole", copied)
    assert json.loads((copied / "timing.json").read_text())["actual"]["seconds"] is None  # not that of the shorter run


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        (["optimizer.lr=0.02"], "optimizer.lr"),
        (["training.batch=2"], "training.batch"),
        (["training.precision=fp64"], "training.precision"),
        (["training.tf32=true"], "training.tf32"),
        (["network.backbone=resnet18"], "network.backbone"),
        (["training.soft_labels=fp16"], "training.soft_labels"),
        (["seed=1"], "seed"),
        (["settings.decay=0.5", "optimizer.lr=0.02"], "optimizer.lr, settings.decay"),
        (["views.crop=32x32"], "views.crop"),
    ],
)
def test_a_resumed_run_cannot_become_another(data, copied, changed, keys):
    before = (copied / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match="a resumed run cannot change") as caught:
        train_here(data, copied, *RUN, *changed, resume=True)
    assert caught.value.what == f"a resumed run cannot change {keys}"
    assert "--init" in caught.value.fix
    assert (copied / "config.yaml").read_bytes() == before


def test_a_resumed_run_may_log_and_save_at_another_pace(data, copied):
    train_here(data, copied, *RUN, "training.log_every=1", "training.keep=1", "evaluation.batch=1", resume=True)
    assert "log_every: 1" in (copied / "config.yaml").read_text()


@pytest.mark.parametrize("part", ["data", "split"])
def test_other_data_are_noticed(finished, copied, part, tmp_path):
    """One pixel of an unlabeled image, or one more image; a folder that only moved is welcome."""
    moved = write_data(tmp_path / "moved")
    train_here(moved, copied, *RUN, resume=True)
    if part == "data":
        image = Image.open(moved / "unlabeled" / "u3.png")
        image.putpixel((0, 0), (1, 2, 3))
        image.save(moved / "unlabeled" / "u3.png")
    else:
        shutil.copy(moved / "unlabeled" / "u3.png", moved / "unlabeled" / "u9.png")
    with pytest.raises(CheckpointError, match=f"the {part} is not the one this run was trained on"):
        train_here(moved, copied, *RUN, resume=True)


def test_an_existing_run_is_never_overwritten(data, copied):
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="already holds a run") as caught:
        train_here(data, copied, *RUN)
    assert "--resume" in caught.value.fix
    (copied / "config.yaml").unlink()
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"parts of a run but no config.yaml"):
            train_here(data, copied, *RUN, resume=resume)
    del before[copied / "config.yaml"]
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_resuming_nothing_starts(data, finished, tmp_path):
    (tmp_path / "run").mkdir()
    train_here(data, tmp_path / "run", *RUN, resume=True)
    assert_same_run(finished, tmp_path / "run")


def weights_of(model: dict[str, torch.Tensor]) -> set[str]:
    """All but BatchNorm's statistics, which see one batch more in one step."""
    return {key for key in model if "running_" not in key and "num_batches" not in key}


def test_init_copies_the_model_into_every_network(data, finished, tmp_path):
    """A rate of next to nothing: after one step the weights are still those of the model."""
    rates = ("optimizer.lr=1e-30", "optimizer.head_lr=1e-30", "training.steps=1")
    heard = train_here(data, tmp_path / "run", *rates, init=finished)
    assert any(line.startswith("networks start from ") and "fresh" not in line for line in heard.lines)
    model = load_file(finished / "model.safetensors")
    state = newest_state(tmp_path / "run")
    for network in ("student_1", "teacher_1"):
        for key in weights_of(model):
            torch.testing.assert_close(state[f"network.{network}.{key}"], model[key], rtol=0, atol=1e-12, msg=key)


def test_a_run_killed_right_after_init_still_starts_from_there(data, finished, tmp_path):
    train_here(data, tmp_path / "whole", *RUN, init=finished)
    train_here(data, tmp_path / "run", *RUN, "training.steps=1", init=finished)
    (tmp_path / "run" / "checkpoints" / "step_00000001.pt").unlink()  # as if the process had died in its first step
    train_here(data, tmp_path / "run", *RUN, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_init_with_other_classes_keeps_the_classifier_fresh_and_says_so(finished, tmp_path):
    other = write_data(tmp_path / "data")
    (other / "classes.txt").write_text("ground\nleft\nright\nnone\n")
    rates = ("optimizer.lr=1e-30", "optimizer.head_lr=1e-30", "training.steps=1")
    heard = train_here(other, tmp_path / "run", *rates, method="supervised", init=finished)
    line = next(line for line in heard.lines if line.startswith("networks start from"))
    assert line.endswith("fresh start for head.classifier.weight")
    model, state = load_file(finished / "model.safetensors"), newest_state(tmp_path / "run")
    for key in weights_of(model) - {"head.classifier.weight"}:
        torch.testing.assert_close(state[f"network.student_1.{key}"], model[key], rtol=0, atol=1e-12, msg=key)
    fresh = tiny_session(other, *rates, method="supervised").method.student_1.head.classifier.weight
    torch.testing.assert_close(state["network.student_1.head.classifier.weight"], fresh.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("number", [1, 2])
def test_init_says_which_of_two_learners_starts_with_a_fresh_head(data, finished, number):
    """One of them is wider than the run that both start from."""
    method = tiny_session(data, f"learners.student_{number}.network.width=24", method="rml").method
    line = initialize_from(method, finished, list(method.networks()))
    assert line.endswith(f"; fresh start for head of student_{number} and teacher_{number}")


def test_init_from_another_architecture_is_an_error_and_leaves_no_run(data, finished, tmp_path):
    with pytest.raises(CheckpointError, match="another one") as caught:
        train_here(data, tmp_path / "run", "network.backbone=resnet18", "training.steps=1", init=finished)
    assert "network.backbone=test_resnet" in caught.value.fix
    assert not (tmp_path / "run" / "config.yaml").exists()
    train_here(data, tmp_path / "run", "training.steps=1", init=finished)  # corrected, into the same folder
