"""A step that is noted once and played again gives the same bits as steps that are computed.

So no number of the host is baked in, no operation belongs to another step, and lanes need nothing of each other;
tests/gpu/test_capture.py does the same with CUDA graphs.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fewmask.methods.table import METHODS
from fewmask.training.session import Session
from tests.methods.beside import BESIDE, in_the_table
from tests.training.runs import NOISY, started_session, step_metrics
from tests.training.tape import Tape, TapedStepper, lanes_mixed, lanes_turned

STEPS = 10
LIVE = (f"training.steps={STEPS}", "optimizer.warmup=5", "optimizer.clip=0.5")  # rates move in every step
ADAMW = ("optimizer.name=adamw", "optimizer.schedule=cosine")
RUNS = {name: (name, NOISY[:2]) for name, kind in METHODS.items() if kind.capturable} | {
    "supervised": ("supervised", (*NOISY[:2], "loss.kind=ohem", "settings.photometric=true", *ADAMW)),
    "mean_teacher": ("mean_teacher", (*NOISY, "settings.ramp=0.9", "settings.buffers=weak")),
    "rml": ("rml", (*NOISY, "settings.warmup=true", "settings.labeled_every=3", "settings.momentum=0.9")),
    **{name: (name, NOISY[:2]) for name in BESIDE},
    "rml_direct": ("rml", ("settings.coupling=direct", "settings.buffers=averaged", "views.class_crops=0.5", *ADAMW)),
}


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    with in_the_table():
        yield


def session_of(name: str, data: Path) -> Session:
    method, words = RUNS[name]
    session = started_session(data, *words, *LIVE, method=method)
    for optimizer in session.engine.optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])  # as on a GPU
    return session


def taped(session: Session, order=iter) -> Session:
    stepper = TapedStepper(session.config, session.engine, session.maker)
    stepper.order = order
    return replace(session, stepper=stepper)


@pytest.mark.parametrize("name", RUNS)
def test_a_played_step_is_a_computed_step(data, name):
    plain = session_of(name, data)
    played = taped(session_of(name, data))
    expected, found = step_metrics(plain, STEPS), step_metrics(played, STEPS)
    assert found == expected
    state, other = plain.method.state_dict(), played.method.state_dict()
    assert [key for key in state if not torch.equal(state[key], other[key])] == []
    assert len({line["lr/0"] for line in expected}) == STEPS
    assert len({line["loss/labeled"] for line in expected}) == STEPS
    assert played.stepper.tape is not None


@pytest.mark.parametrize("played", [True, False])
def test_a_batch_made_ahead_is_the_batch(data, played):
    """The next batch is made beside a step, and made anew after a jump, as when a run goes on from a checkpoint."""
    plain, other = (session_of("rml", data) for _ in range(2))
    other = taped(other) if played else other
    other.stepper.ahead = True
    for step in (0, 1, 2, 3, 7, 8):
        plain.stepper(step)
        other.stepper(step)
        assert other.stepper.ready == step + 1
    assert torch.equal(other.stepper.batch.weak, other.maker.at(9).weak)
    assert not torch.equal(other.stepper.batch.weak, other.maker.at(8).weak)
    assert other.engine.flush() == plain.engine.flush()
    state = other.method.state_dict()
    assert [key for key, value in plain.method.state_dict().items() if not torch.equal(value, state[key])] == []


@pytest.mark.parametrize("order", [lanes_turned, lanes_mixed])
def test_lanes_may_run_in_any_order(data, order):
    expected = step_metrics(session_of("rml", data), 6)
    played = taped(session_of("rml", data), order)
    assert step_metrics(played, 6) == expected
    assert {note.lane for note in played.stepper.tape.notes} == {None, 0, 1}


def test_the_tape_notices_a_number_of_the_host():
    """The guard itself: a float stays what it was, a tensor that is filled anew is read anew, a sync is refused."""
    state, live, baked = torch.zeros(2), torch.tensor(1.0), 1.0
    with (tape := Tape()):
        state[:1].add_(live)
        state[1:].add_(baked * torch.ones(1))
        with pytest.raises(AssertionError, match="between host and device"):
            state.sum().item()
    live.fill_(5.0)
    baked = 5.0
    tape.play()
    assert state.tolist() == [6.0, 2.0]
