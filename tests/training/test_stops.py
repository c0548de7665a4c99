"""Runs that have to stop: a loss that is not finite, and memory that does not suffice."""

import json
import signal
import time

import pytest
import torch

from fewmask.errors import TrainingError
from fewmask.training.checkpoint import CheckpointWriter, list_checkpoints, load_checkpoint
from fewmask.training.device_memory import is_out_of_memory
from fewmask.training.loop import train
from fewmask.training.observer import Observer
from fewmask.training.run import run_training
from fewmask.training.run_folder import RunFolder
from fewmask.training.signals import Interrupted
from fewmask.training.stepper import Stepper
from tests.training.runs import NOISY, assert_same_run, tensors, tiny_config, tiny_session, train_here

# The rate explodes after half of the steps: step 3 is the first with the new rate, so the loss of step 4 overflows.
EXPLODING = (
    *NOISY,
    "optimizer.schedule=step",
    "optimizer.milestones=[0.5]",
    "optimizer.gamma=1e30",
    "training.steps=6",
)


def test_a_loss_that_is_not_finite_stops_the_run_before_anything_is_overwritten(data, tmp_path):
    run = tmp_path / "run"
    pace = ("training.checkpoint_every=1", "training.log_every=2", "training.keep=9")
    with pytest.raises(TrainingError, match="not finite in step 4") as caught:
        train_here(data, run, *EXPLODING, *pace)
    session = tiny_session(data, *EXPLODING)
    batch = session.maker(torch.tensor(4))
    labeled = [session.dataset.labeled[index].name for index in batch.image_index]
    unlabeled = [session.dataset.unlabeled[index].name for index in batch.weak_index]
    assert caught.value.where == f"labeled images {', '.join(labeled)}; unlabeled {', '.join(unlabeled)}"
    assert caught.value.fix == (
        "a lower optimizer.lr and optimizer.head_lr, optimizer.clip=1.0; with another --out; "
        "`fewmask check` looks at the images"
    )
    kept = [load_checkpoint(path) for path in list_checkpoints(run / "checkpoints")]
    assert [state["step"] for state in kept] == [4, 3, 2, 1, 0]
    for state in kept:
        numbers = tensors({key: value for key, value in state.items() if key.startswith("network.")})
        assert all(torch.isfinite(value).all() for value in numbers.values())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert not (run / "model.safetensors").exists()


OWN = "learners.student_2.optimizer={name: adamw, lr: 0.001}"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (
            ("baseline.optimizer.lr=1e30",),
            "a lower baseline.optimizer.lr and baseline.optimizer.head_lr, baseline.optimizer.clip=1.0; ",
        ),
        (
            ("baseline.optimizer.lr=1e30", "optimizer.head_lr=none", "baseline.optimizer.clip=0.5"),
            "a lower baseline.optimizer.lr; ",
        ),
        (
            (OWN, "learners.student_2.baseline.optimizer.lr=1e30"),
            "a lower learners.student_2.baseline.optimizer.lr, learners.student_2.baseline.optimizer.clip=1.0; ",
        ),
        (
            (OWN, "optimizer.lr=1e30", "baseline.optimizer.lr=0.001"),
            "a lower optimizer.lr and optimizer.head_lr and learners.student_2.optimizer.lr, optimizer.clip=1.0, "
            "learners.student_2.optimizer.clip=1.0; ",
        ),
    ],
)
def test_the_rates_to_lower_are_those_that_count_where_it_happened(data, tmp_path, words, advice):
    """In a baseline its own, of a learner with an optimizer of its own that one's, and a head's where it is set."""
    steps = ("training.steps=4", "training.check_every=1")
    with pytest.raises(TrainingError, match="not finite in step 1;") as caught:
        train_here(data, tmp_path / "run", *steps, *words, method="rml")
    assert caught.value.fix.startswith(advice)


def test_finished_baselines_need_not_be_trained_again(data, tmp_path):
    words = ("training.steps=4", "training.check_every=1", "baseline.optimizer.lr=0.001")
    with pytest.raises(TrainingError, match="not finite in step 1;") as caught:
        train_here(data, tmp_path / "run", *words, "optimizer.lr=1e30", method="rml")
    reused = tmp_path / "run/baseline"
    assert f"; with another --out and --baseline {reused}; " in caught.value.fix
    config = tiny_config(data, *words, method="rml")
    common = {"device": "cpu", "resume": False, "init": None, "observer": Observer()}
    run_training(config, tmp_path / "other", baselines=[reused], **common)
    assert not (tmp_path / "other/baseline").exists()


@pytest.mark.parametrize("message", ["could not create a primitive", "std::bad_alloc", "can't allocate memory: 12"])
def test_what_a_cpu_says_without_memory(message):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(ValueError(message))


@pytest.mark.parametrize("looking", ["check_every", "log_every", "checkpoint_every"])
def test_the_flag_is_read_at_the_next_look(data, tmp_path, looking):
    """Step 1 goes wrong and nobody looks before step 3 is done; neither log nor checkpoint gets to see it."""
    run = tmp_path / "run"
    words = ("optimizer.lr=1e30", "training.steps=9", f"training.{looking}=4")
    rest = {"check_every", "log_every", "checkpoint_every"} - {looking}
    with pytest.raises(TrainingError, match="not finite in step 1;"):
        train_here(data, run, *words, *(f"training.{each}=100" for each in rest), method="supervised")
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["step_00000000.pt"]
    assert not (run / "metrics.jsonl").exists()


class Nudge(Observer):
    """Sends a signal when training gets to its last step for the first time."""

    sent = False

    def advance(self, task: str, done: int, total: int) -> None:
        if (task, done) == ("training", total) and not self.sent:
            self.sent = True
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_in_a_baselines_last_step_stops_the_run_that_it_belongs_to(data, tmp_path):
    config = tiny_config(data, "training.steps=3", method="rml")
    common = {"device": "cpu", "init": None}
    with pytest.raises(Interrupted) as caught:
        run_training(config, tmp_path / "run", resume=False, observer=Nudge(), **common)
    assert caught.value.signal_number == signal.SIGTERM
    assert (tmp_path / "run/baseline/model.safetensors").is_file()  # it was finished all the same
    assert not (tmp_path / "run/metrics.jsonl").exists()
    run_training(config, tmp_path / "run", resume=True, observer=Observer(), **common)
    run_training(config, tmp_path / "whole", resume=False, observer=Observer(), **common)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


class LateTerm(Observer):
    """Sends SIGTERM while the networks are scored at the end."""

    def advance(self, task: str, done: int, total: int) -> None:
        if task == "validating":
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_during_the_last_scores_lets_the_last_checkpoint_get_whole(data, tmp_path, monkeypatch):
    """On a slow disk, so that it is still being written then."""
    write = torch.save

    def slow(state, file):
        time.sleep(0.5 if state["step"] == 2 else 0.0)
        write(state, file)

    def outside(number, frame):
        pytest.fail("the signal reached what was there before the run")

    monkeypatch.setattr(torch, "save", slow)
    config = tiny_config(data, "training.steps=2")
    before = signal.signal(signal.SIGTERM, outside)
    try:
        with pytest.raises(Interrupted, match="stopped by SIGTERM after step 2"):
            run_training(config, tmp_path / "run", device="cpu", resume=False, init=None, observer=LateTerm())
        assert signal.getsignal(signal.SIGTERM) is outside
    finally:
        signal.signal(signal.SIGTERM, before)
    names = [path.name for path in (tmp_path / "run/checkpoints").iterdir()]
    assert sorted(names) == ["step_00000000.pt", "step_00000002.pt"]
    assert load_checkpoint(tmp_path / "run/checkpoints/step_00000002.pt")["step"] == 2


def no_memory_on_the_gpu(step):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of ...")


def no_memory_on_the_host(step):
    torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("broken", "size"), [(no_memory_on_the_gpu, r"20\.00 GiB"), (no_memory_on_the_host, f"{2**60} bytes")]
)
def test_out_of_memory_says_how_much_was_asked_for_and_what_to_change(data, tmp_path, monkeypatch, broken, size):
    session = tiny_session(data, "training.steps=2")
    monkeypatch.setattr(Stepper, "__call__", lambda _, step: broken(step))
    with pytest.raises(TrainingError, match=f"out of memory in step 0: tried to allocate {size}\n") as caught:
        train(session, RunFolder(tmp_path), Observer(), 0, CheckpointWriter())
    assert caught.value.where == "training.batch=4, views.crop=32x48"
    assert all(word in caught.value.fix for word in ("training.batch", "views.crop", "network.stride"))


def test_other_errors_of_a_step_stay_what_they_are(data, tmp_path, monkeypatch):
    def broken(stepper, step):
        raise RuntimeError("shapes do not fit")

    session = tiny_session(data, "training.steps=2")
    monkeypatch.setattr(Stepper, "__call__", broken)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train(session, RunFolder(tmp_path), Observer(), 0, CheckpointWriter())
