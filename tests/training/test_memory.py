"""Settings that save memory: what a run computes stays the same, and the plan says where it does not."""

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fewmask.errors import ConfigError, TrainingError
from fewmask.randomness import Randomness
from fewmask.training.checkpoint import CheckpointWriter
from fewmask.training.loop import train
from fewmask.training.memory_advice import reductions, savings
from fewmask.training.model_file import load_model
from fewmask.training.observer import Observer
from fewmask.training.plan import describe_plan
from fewmask.training.run_folder import RunFolder
from fewmask.training.stepper import Stepper
from fewmask.types import Progress
from tests.methods.test_contract import make_fake
from tests.miniature import make_engine
from tests.training.rank_checks import PAIR
from tests.training.runs import NOISY, assert_same_run, started_session, tiny_config, tiny_session, train_here
from tests.training.test_capture import faked

NOISE = NOISY[:2]
FROZEN, EXACT = "network.frozen_norm=true", "training.precision=fp64"
WEAK = (
    "settings.buffers=weak",
    "settings.labeled_every=2",
)  # teachers see labeled images, too, and must not count them
CHECKPOINTING = "training.checkpointing=true"


def after_steps(data: Path, *words: str, method: str, steps: int = 3) -> dict[str, torch.Tensor]:
    """Every tensor of the method, and the metrics."""
    session = started_session(data, *words, method=method)
    for step in range(steps):
        session.stepper(step)
    return session.method.state_dict() | {key: torch.tensor(value) for key, value in session.engine.flush().items()}


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize(("method", "more"), [("supervised", ()), ("rml", PAIR), ("rml", WEAK)])
def test_checkpointing_changes_no_bit_of_a_run(data, method, more, precision):
    words = (*NOISE, *more, f"training.precision={precision}")
    plain, saving = (after_steps(data, *words, *option, method=method) for option in ((), (CHECKPOINTING,)))
    assert plain.keys() == saving.keys()
    assert [key for key in plain if not torch.equal(plain[key], saving[key])] == []


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("supervised", ("loss.kind=dice", "settings.photometric=true")),
        ("mean_teacher", ("settings.threshold=0.34",)),
        ("mean_teacher", ("settings.threshold=0.34", "settings.buffers=weak", CHECKPOINTING)),
        ("rml", ("training.batch=6",)),
        ("rml", WEAK),
    ],
)
def test_micro_batches_make_the_update_of_the_whole_batch(data, method, more):
    """Frozen BatchNorm: losses, weights and the statistics that teachers take from weak images, after three steps."""
    words = (*NOISE, EXACT, FROZEN, *more)
    whole = after_steps(data, *words, method=method)
    for parts in (2, 3):
        found = after_steps(data, *words, f"training.accumulate={parts}", method=method)
        assert found.keys() == whole.keys()
        for key, value in whole.items():
            torch.testing.assert_close(found[key], value, rtol=1e-10, atol=1e-10, msg=key)
    moved = {key.split(".")[0] for key in whole if key.endswith("running_mean") and whole[key].any()}
    assert not any(name.startswith("student") for name in moved)
    assert bool(moved) == ("settings.buffers=weak" in more)


def test_live_batch_norm_counts_each_micro_batch_once(data):
    found = after_steps(data, "training.accumulate=2", CHECKPOINTING, method="mean_teacher", steps=3)
    counts = {key: int(value) for key, value in found.items() if key.endswith("num_batches_tracked")}
    assert len(counts) > 0
    assert set(counts.values()) == {6}  # the teacher's are copies


def test_a_whole_run_with_sweeps_validation_and_resume(data, tmp_path):
    """Checkpointing may be switched on in the middle; the number of micro-batches belongs to the run."""
    words = ("training.steps=3", "training.checkpoint_every=2", "baseline={training: {steps: 1}}", "settings.stages=1")
    train_here(data, tmp_path / "plain", *words, method="rml")
    train_here(data, tmp_path / "saving", *words, CHECKPOINTING, method="rml")
    assert_same_run(tmp_path / "plain", tmp_path / "saving")
    train_here(data, tmp_path / "plain", *words, CHECKPOINTING, method="rml", resume=True)
    with pytest.raises(ConfigError, match=r"cannot change training\.accumulate"):
        train_here(data, tmp_path / "plain", *words, "training.accumulate=2", method="rml", resume=True)


def test_a_frozen_run_ships_a_model_that_loads(data, tmp_path):
    train_here(data, tmp_path / "run", FROZEN, "training.steps=2", "training.accumulate=2", method="supervised")
    network, card = load_model(tmp_path / "run")
    assert card.network.frozen_norm
    assert all(not norm.running_mean.any() and (norm.running_var == 1).all() for norm in network.batch_norms())


def test_a_saving_step_never_asks_the_host(data):
    """What was computed on fake tensors is computed on them again; a captured step can do the same."""
    session = started_session(data, *NOISE, CHECKPOINTING, "training.accumulate=3", method="rml")
    maker, mode = session.maker, FakeTensorMode(allow_non_fake_inputs=False)
    maker.labeled, maker.labels, maker.pool = (
        faked(mode, store) for store in (maker.labeled, maker.labels, maker.pool)
    )
    maker.maps = {name: faked(mode, maps) for name, maps in maker.maps.items()}
    with mode:
        make_fake(session.method, mode)
        engine = make_engine(session.method)
        step = torch.zeros(1, dtype=torch.int64).sum()
        engine.step(maker(step), Progress(step, step / 10.0, Randomness(0, step)))
    assert all(
        parameter.grad is not None for net in session.method.trained().values() for parameter in net.parameters()
    )


def memory_rows(data: Path, *words: str, method: str = "mean_teacher") -> list[str]:
    lines = describe_plan(tiny_session(data, *words, method=method), 0).splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if line.split()[0] == "memory"]


def test_the_plan_says_what_is_computed_again_and_what_that_changes(data):
    assert memory_rows(data) == []
    (blocks,) = memory_rows(data, CHECKPOINTING, method="rml")
    assert blocks == "blocks that are computed again in the backward pass: 5 of student_1, 5 of student_2"
    (live,) = memory_rows(data, "training.accumulate=3")
    assert live.startswith("3 micro-batches per step")
    assert "BatchNorm statistics are per micro-batch (student_1)" in live
    (frozen,) = memory_rows(data, "training.accumulate=3", FROZEN)
    assert "the update is that of the whole batch" in frozen
    assert "BatchNorm layers keep their statistics" in describe_plan(tiny_session(data, FROZEN), 0)


def test_out_of_memory_advises_what_is_not_in_use_yet(data, tmp_path, monkeypatch):
    def no_memory(stepper, step):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(Stepper, "__call__", no_memory)
    advice = []
    for words in ((), (CHECKPOINTING, "training.accumulate=2")):
        session = tiny_session(data, "training.steps=1", *words)
        with pytest.raises(TrainingError) as caught:
            train(session, RunFolder(tmp_path), Observer(), 0, CheckpointWriter())
        advice.append(caught.value.fix)
    assert advice[0].startswith("any of these may be enough: training.checkpointing=true; training.accumulate=2;")
    assert advice[1].startswith("any of these may be enough: training.accumulate=4;")


def test_precision_and_stride_are_advised_where_they_are_not_in_use(data):
    cuda, config = torch.device("cuda"), tiny_config(data)
    assert savings(config, "fp32", cuda) == ["training.precision=bf16", "training.checkpointing=true"]
    assert savings(config, "bf16", cuda) == savings(config, "fp32", torch.device("cpu")) == [CHECKPOINTING]
    assert "network.stride=16" in reductions(config)
    assert "network.stride=16" not in reductions(tiny_config(data, "network.stride=16"))
