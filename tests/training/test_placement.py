"""A run whose pixels and soft labels lie in mapped files and are staged is the run whose pixels lie in memory."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fewmask.errors import ConfigError, TrainingError
from fewmask.methods.rml import P0
from fewmask.training.observer import Observer
from fewmask.training.placement import place_stores
from fewmask.training.plan import describe_plan
from fewmask.training.scores import validate
from fewmask.training.session import build_maker, class_pixels
from fewmask.training.stages import begin_stage
from fewmask.types import FlatImages
from tests.resident import resident_kib
from tests.training.runs import assert_same_run, tiny_session, train_here

MAPPED = "training.host_share=0"
SHORT = ("training.steps=4", "training.log_every=1", "training.diagnose_every=2", "training.checkpoint_every=2")


@pytest.fixture(scope="module")
def resident(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("resident") / "run"
    train_here(data, out, *SHORT, "baseline={training: {steps: 2}}", "data.labels=4", method="rml")
    return out


def staging_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("staging")]


def test_a_staged_run_is_bit_equal(data: Path, resident: Path, tmp_path: Path):
    """Baseline, two stages with their sweeps, diagnostics against hidden masks, scores."""
    words = (*SHORT, "baseline={training: {steps: 2}}", "data.labels=4", MAPPED)
    heard = train_here(data, tmp_path / "run", *words, method="rml")
    assert_same_run(tmp_path / "run", resident)
    plan = next(line for line in heard.lines if "log_p0" in line)
    where = f"in a mapped file in {tmp_path / 'run'}"
    assert f"unlabeled: 40.5 KiB {where}, staged: " in plan
    assert f"0.0 MiB in all, {where}\n" in plan  # the soft labels
    assert staging_threads() == []
    names = {path.name for path in resident.iterdir()}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names  # no cache is left


def test_where_pixels_lie_may_change_with_a_resume(data: Path, tmp_path: Path):
    whole, words = tmp_path / "whole", SHORT[1:]
    train_here(data, whole, "training.steps=6", *words)
    train_here(data, tmp_path / "run", "training.steps=6", *words)
    (tmp_path / "run" / "checkpoints" / "step_00000006.pt").unlink()
    train_here(data, tmp_path / "run", "training.steps=6", *words, MAPPED, resume=True)
    assert_same_run(tmp_path / "run", whole)


def test_soft_labels_follow_the_rule(data: Path, tmp_path: Path):
    """Images in memory with soft labels in a file are staged together."""
    wanted = begin_stage(tiny_session(data, method="rml"), 0, Observer())
    session = tiny_session(data, method="rml")
    session.stores.host.budget = session.stores.host.taken
    assert not session.maker.stages
    session = begin_stage(session, 0, Observer())
    assert list(session.maker.stages) == ["unlabeled"]
    for step in (0, 5):
        assert torch.equal(wanted.maker.at(step).stored[P0], session.maker.at(step).stored[P0])
    session.maker.close()


@pytest.mark.parametrize("read", ["labels", "hidden masks", "validation"])
def test_mapped_pages_are_let_go_of_after_use(data: Path, read: str):
    """Counting classes and finding anchors, holding pseudo labels against the truth, and scoring."""
    weights = ("loss.class_weights=inverse_frequency", "views.class_crops=0.5", "training.diagnose_every=1")
    session = tiny_session(data, MAPPED, *weights, "data.labels=4")
    assert session.diagnostics is not None
    assert resident_kib(session.stores.host) == 0  # the labels were read for weights, the prior and anchors
    if read == "validation":
        assert validate(session, Observer())
    elif read == "hidden masks":
        session.maker.stage(0)
        session.maker.close()
        session.diagnostics(session.engine, session.maker, session.stepper.maker_step())
    assert resident_kib(session.stores.host) == 0


def test_classes_are_counted_in_place():
    """Every value counts once, ignore is no class, and no copy of the labels is made."""
    values = torch.arange(2**20).remainder(256).to(torch.uint8)
    values[:3] = 1
    one = torch.ones(1, dtype=torch.int64)
    labels = FlatImages(values, 0 * one, one, 2**20 * one, 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        found = class_pixels(labels, 4)
    assert (found.dtype, found.tolist()) == (torch.int64, [4095, 4098, 4095, 4096])
    events = log.profiler.kineto_results.events()
    assert max(event.nbytes() for event in events if event.name() == "[memory]") < 2**16


def test_the_images_of_a_step_that_went_wrong_are_named(data: Path, tmp_path: Path):
    words = ("optimizer.lr=1e30", "training.steps=9", "training.check_every=4", "training.log_every=100")
    errors = []
    for name, more in (("one", ()), ("other", (MAPPED,))):
        with pytest.raises(TrainingError, match="not finite in step 1;") as caught:
            train_here(data, tmp_path / name, *words, *more)
        errors.append(caught.value.where)
    assert errors[0] == errors[1]
    assert staging_threads() == []


def test_an_image_that_cannot_be_read_again_stops_the_step(data: Path):
    session = tiny_session(data, MAPPED)
    stage = session.maker.stages["unlabeled"]
    stage.sources[0] = replace(stage.sources[0], offset=stage.sources[0].offset[:0])
    with pytest.raises(IndexError):
        session.stepper(0)
    session.maker.close()


def test_the_cache_folder_may_be_chosen(data: Path, tmp_path: Path):
    session = tiny_session(data, MAPPED, f"training.cache={tmp_path / 'elsewhere'}")
    assert f"in a mapped file in {tmp_path / 'elsewhere'}" in describe_plan(session, 0)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be kept on disk"):
        tiny_session(data, MAPPED, f"training.cache={tmp_path / 'file'}")


def test_labeled_images_come_first_on_the_gpu(data: Path, monkeypatch: pytest.MonkeyPatch):
    """Soft labels count with the unlabeled images; what does not fit is staged, and the plan says so."""
    stores = tiny_session(data).stores
    assert stores.unlabeled is not None
    few = len(stores.labeled.values) + len(stores.labels.values)
    moved: list[FlatImages] = []
    monkeypatch.setattr(FlatImages, "to", lambda self, device: moved.append(self) or self)
    for free, kept, wanted in (
        (0, 0, []),
        (few, 0, [stores.labeled, stores.labels]),
        (few + len(stores.unlabeled.values), 1, [stores.labeled, stores.labels]),
        (few + len(stores.unlabeled.values), 0, [stores.labeled, stores.labels, stores.unlabeled]),
    ):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (2 * free, 0))
        moved.clear()
        place_stores(stores, torch.device("cuda"), 0.5, Observer(), kept=kept)
        assert list(map(id, moved)) == list(map(id, wanted))


def test_a_maker_over_stores_in_memory_stages_nothing(data: Path):
    session = tiny_session(data)
    assert not session.maker.stages
    assert not build_maker(session.config, session.stores, session.engine).stages
    assert "labeled: 36.0 KiB in main memory\n" in describe_plan(session, 0)
