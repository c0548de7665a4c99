"""Robust Mutual Learning over its baseline and two stages: what each leaves, and resuming anywhere in them."""

import json
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from fewmask.errors import CheckpointError
from fewmask.training import loop, stages
from fewmask.training import run as running
from fewmask.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from fewmask.training.observer import Observer
from fewmask.training.run import run_training
from fewmask.training.session import Session
from fewmask.training.state import load_method, method_state
from fewmask.training.stepper import Stepper
from fewmask.types import PixelMaps
from tests.training.runs import assert_same_run, tiny_config, tiny_session, write_data

STEPS, BASELINE = 4, 3
WORDS = (f"training.steps={STEPS}", "training.checkpoint_every=3", "training.log_every=2", "training.keep=9")
WORDS += ("training.diagnose_every=1", "data.labels=4")  # two hidden masks, and images that have none


SWEEP = "a sweep"


class Stopped(Exception):
    """The process died here."""


class Fuse(Observer):
    """Dies in the middle of step `at` of the task, as a killed process would: nothing more is saved.

    A task that comes again, as a sweep does, is let go on `spared` times. `heard` is what a resumed run did, in order.
    """

    def __init__(self, at: tuple[str, int] | None = None, spared: int = 0) -> None:
        self.at, self.spared = at, spared
        self.heard: list[str | int] = []

    def say(self, text: str) -> None:
        if text.startswith("continuing "):
            self.heard.append(int(text.rpartition(" after step ")[2]))

    def advance(self, task: str, done: int, total: int) -> None:
        if (task, done) == ("sweeping", total):
            self.heard.append(SWEEP)
        if (task, done) == self.at and total != BASELINE:
            if not self.spared:
                raise Stopped
            self.spared -= 1


def train(
    data: Path, out: Path, fuse: Fuse | None = None, resume: bool = False, where: str = "", **settings: object
) -> None:
    words = (*WORDS, *where.split(), *(f"settings.{key}={value}" for key, value in settings.items()))
    config = tiny_config(data, *words, method="rml")
    config = config.model_copy(update={"baseline": {"training": {"steps": BASELINE}}})
    run_training(config, out, device="cpu", resume=resume, init=None, observer=fuse or Fuse())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("stages") / "data")


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    out = data.parent / "whole"
    train(data, out)
    return out


@pytest.mark.parametrize(
    ("at", "spared", "heard"),
    [
        (("validating", 5), 0, [BASELINE, SWEEP, SWEEP]),  # the baseline's scores: it is the one that goes on
        (("sweeping", 4), 0, [0, SWEEP, SWEEP]),
        (("training", 2), 0, [0, SWEEP, SWEEP]),
        (("training", STEPS), 0, [SWEEP, 3, SWEEP]),  # stage 1 is rejoined, which sweeps before it goes on
        (("sweeping", 4), 1, [STEPS, SWEEP]),  # the sweep before stage 2, which begins again
        (("training", STEPS + 2), 0, [STEPS, SWEEP]),  # before the first checkpoint of stage 2
        (("training", STEPS + 3), 0, [SWEEP, STEPS + 2]),  # after it: stage 2 is rejoined
        (("validating", 5), 1, [2 * STEPS]),
    ],
)
def test_resuming_anywhere_ends_the_same(
    data: Path, whole: Path, tmp_path: Path, at: tuple[str, int], spared: int, heard: list[str | int]
):
    with pytest.raises(Stopped):
        train(data, tmp_path / "run", Fuse(at, spared))
    resumed = Fuse()
    train(data, tmp_path / "run", resumed, resume=True)
    assert resumed.heard == heard
    assert_same_run(tmp_path / "run", whole)


def test_steps_that_outran_the_first_checkpoint_leave_no_trace(data: Path, whole: Path, tmp_path: Path):
    """Stage 1 had begun when the run was killed, but what it started from was still on its way to the disk."""
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        train(data, run, Fuse(("training", 3)))
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    (run / "checkpoints" / ".step_00000000.pt.1.tmp").write_bytes(b"a killed process's")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": ')
    train(data, run, resume=True)
    assert_same_run(run, whole)
    assert all(path.suffix == ".pt" and path.name[0] != "." for path in (run / "checkpoints").iterdir())


def test_a_start_that_was_killed_leaves_nothing_to_the_next_one(data: Path, whole: Path, tmp_path: Path):
    """It began from other networks and got no config.yaml; the next one is killed before it has saved its own."""
    run = tmp_path / "run"
    other = load_checkpoint(whole / "checkpoints" / "step_00000000.pt")
    other["network.teacher_1.head.classifier.weight"] += 1
    save_checkpoint(run / "checkpoints", 0, other, keep=1)
    (run / ".config.yaml.1.tmp").write_bytes(b"a killed process's")
    (run / ".mine.tmp").write_bytes(b"no run's")
    with pytest.raises(Stopped):
        train(data, run, Fuse(("validating", 5)))
    resumed = Fuse()
    train(data, run, resumed, resume=True)
    assert resumed.heard == [BASELINE, SWEEP, SWEEP]
    assert_same_run(run, whole)
    assert [path.name for path in run.glob(".*")] == [".mine.tmp"]


@pytest.mark.parametrize("damaged", [1, 2])
def test_older_checkpoints_can_be_gone_on_from(data: Path, whole: Path, tmp_path: Path, damaged: int):
    """Also those of the stage before, when the newer ones are damaged."""
    run = tmp_path / "run"
    where = "training.keep=3 training.checkpoint_every=1"
    with pytest.raises(Stopped):
        train(data, run, Fuse(("training", STEPS + 2)), where=where)
    for path in list_checkpoints(run / "checkpoints")[:damaged]:
        path.write_bytes(path.read_bytes()[:100])
    resumed = Fuse()
    train(data, run, resumed, resume=True, where=where)
    assert resumed.heard == [[STEPS, SWEEP], [SWEEP, STEPS - 1, SWEEP]][damaged - 1]
    for name in ("metrics.jsonl", "model.safetensors", "evaluation.json"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_stage_that_is_rejoined_may_be_interrupted_again(data: Path, whole: Path, tmp_path: Path):
    with pytest.raises(Stopped):
        train(data, tmp_path / "run", Fuse(("training", STEPS + 3)))
    for again in (Fuse(("sweeping", 4)), Fuse(("training", STEPS + 3))):
        with pytest.raises(Stopped):
            train(data, tmp_path / "run", again, resume=True)
    resumed = Fuse()
    train(data, tmp_path / "run", resumed, resume=True)
    assert resumed.heard == [SWEEP, STEPS + 2]
    assert_same_run(tmp_path / "run", whole)


def test_a_stage_keeps_the_checkpoint_that_it_started_from(data: Path, tmp_path: Path):
    """Without it the soft labels of an interrupted stage could not be made again; nothing else is kept for that."""
    with pytest.raises(Stopped):
        train(
            data, tmp_path / "run", Fuse(("training", 2 * STEPS)), where="training.keep=1 training.checkpoint_every=1"
        )
    there = [int(path.stem[5:]) for path in list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert there == [2 * STEPS - 1, STEPS]
    (tmp_path / "run" / "checkpoints" / f"step_{STEPS:08d}.pt").unlink()
    with pytest.raises(CheckpointError, match="that stage 2 started from is gone"):
        train(data, tmp_path / "run", resume=True)


def test_stages_start_where_the_paper_says(whole: Path, data: Path):
    """Stage 1: all four networks are the baseline. Stage 2: each student is its teacher of the end of stage 1."""
    first = load_checkpoint(whole / "checkpoints" / "step_00000000.pt")
    baseline = load_checkpoint(whole / "baseline" / "checkpoints" / f"step_{BASELINE:08d}.pt")
    for key, value in baseline.items():
        if key.startswith("network.student_1."):
            for name in ("student_1", "student_2", "teacher_1", "teacher_2"):
                assert torch.equal(first[key.replace("student_1", name, 1)], value), key
    end = load_checkpoint(whole / "checkpoints" / f"step_{STEPS:08d}.pt")
    session = tiny_session(data, *WORDS, method="rml")
    load_method(session.method, end)
    second = method_state(stages.begin_stage(session, 1, Observer()).method)
    names = [key for key in end if key.startswith(("network.teacher_1.", "network.teacher_2."))]
    for key in names:
        assert torch.equal(second[key], end[key])
        assert torch.equal(second[key.replace("teacher", "student", 1)], end[key])
    apart = [key for key in names if "teacher_1" in key and not torch.equal(end[key], end[key.replace("_1", "_2", 1)])]
    assert apart  # noise has driven the learners apart


def test_every_stage_has_its_diagnostics(whole: Path):
    """Drift is measured from the start of each stage, accuracy wherever a batch holds an image with a hidden mask."""
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 2 * STEPS + 1))  # every second one with losses, too
    drift = [line["prototypes/drift"] for line in lines]
    assert all(before < after for stage in (drift[:STEPS], drift[STEPS:]) for before, after in pairwise(stage))
    assert drift[STEPS] < drift[STEPS - 1]
    told = [line for line in lines if "pseudo/accuracy" in line]
    assert told
    assert all(f"pseudo_miou/teacher_{learner}" in line for line in told for learner in (1, 2))
    assert all(0 <= line["rectification/certain"] <= 1 for line in lines)


def test_without_noise_two_baselines_are_trained(data: Path, tmp_path: Path):
    train(data, tmp_path / "run", photometric="false", dropout=0, stochastic_depth=1, stages=1)
    one, other = (
        load_checkpoint(tmp_path / "run" / name / "checkpoints" / f"step_{BASELINE:08d}.pt")
        for name in ("baseline", "baseline_2")
    )
    start = load_checkpoint(tmp_path / "run" / "checkpoints" / "step_00000000.pt")
    key = "network.student_1.head.classifier.weight"
    assert not torch.equal(one[key], other[key])
    assert torch.equal(start["network.teacher_2.head.classifier.weight"], other[key])


@pytest.mark.parametrize("where", ["training.host_share=0.5", "training.host_share=0"], ids=["resident", "mapped"])
def test_a_stage_leaves_no_memory_to_the_next_after_a_resume(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    """Soft labels and slots, the optimizers' state, gradients: gone before the next sweep makes its own."""
    with pytest.raises(Stopped):
        train(data, tmp_path / "run", Fuse(("training", 4)))
    kept: list[weakref.ref[torch.Tensor]] = []
    alive: dict[int, int] = {}
    compute, allocate = Stepper.__call__, stages.empty_maps

    def watched_step(stepper: Stepper, step: int) -> None:
        alive.setdefault(step, sum(each() is not None for each in kept))
        compute(stepper, step)
        kept.extend(weakref.ref(each) for each in tensors_of(stepper) if step == STEPS - 1)

    def watched_sweep(*arguments: Any) -> PixelMaps:
        alive[-1] = sum(each() is not None for each in kept)  # the last sweep's counts
        return allocate(*arguments)

    monkeypatch.setattr(Stepper, "__call__", watched_step)
    monkeypatch.setattr(stages, "empty_maps", watched_sweep)
    train(data, tmp_path / "run", resume=True, where=where)
    assert len(kept) > 10
    assert (alive[-1], alive[STEPS]) == (0, 0)


def test_a_finished_baseline_keeps_no_memory(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Networks and optimizer are gone when the next baseline is built, and when the stages begin."""
    kept: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    build, begin = running.baseline_session, loop.begin_stage

    def watched_build(*arguments: Any) -> Session:
        alive.append(sum(each() is not None for each in kept))
        alone = build(*arguments)
        kept.extend(weakref.ref(each) for each in alone.method.parameters())
        return alone

    def watched_begin(*arguments: Any) -> Session:
        alive.append(sum(each() is not None for each in kept))
        return begin(*arguments)

    monkeypatch.setattr(running, "baseline_session", watched_build)
    monkeypatch.setattr(loop, "begin_stage", watched_begin)
    train(data, tmp_path / "run", baselines="two", stages=1)
    assert len(kept) > 20
    assert alive == [0, 0, 0]


def tensors_of(stepper: Stepper) -> list[torch.Tensor]:
    """What a stage has of its own."""
    maker, optimizers = stepper.maker, stepper.engine.optimizers.values()
    maps = [each.values for each in maker.maps.values()]
    slots = [each.kept for each in maker.stages.values()]
    sources = [each.values for stage in maker.stages.values() for each in stage.sources if isinstance(each, PixelMaps)]
    state = [tensor for each in optimizers for values in each.state.values() for tensor in values.values()]
    gradients = [each.grad for each in stepper.engine.method.parameters() if each.grad is not None]
    return [*maps, *slots, *sources, *state, *gradients]
