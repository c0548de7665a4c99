"""The whole step, from the choice of images to the optimizer, never asks the host for a value."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fewmask.config import OptimizerSettings
from fewmask.randomness import Randomness
from fewmask.types import Progress
from tests.methods.test_contract import make_fake
from tests.miniature import make_engine
from tests.training.runs import NOISY, tiny_session


def faked(mode: FakeTensorMode, store: Any) -> Any:
    """Images, or maps of them."""
    moved = {key: mode.from_tensor(value) for key, value in vars(store).items() if isinstance(value, torch.Tensor)}
    return replace(store, **moved)


@pytest.mark.parametrize(
    ("method", "kind", "optimizer"),
    [("mean_teacher", "cross_entropy", "sgd"), ("supervised", "ohem", "adamw"), ("supervised", "dice", "sgd")],
)
def test_the_whole_step_runs_on_tensors_without_values(data, method, kind, optimizer):
    """Fake tensors hold no values: a host sync anywhere between the stores and the update raises."""
    noise = NOISY if method == "mean_teacher" else NOISY[:2]
    session = tiny_session(data, *noise, f"loss.kind={kind}", method=method)
    maker, mode = session.maker, FakeTensorMode(allow_non_fake_inputs=False)
    maker.labeled, maker.labels, maker.pool = (
        faked(mode, store) for store in (maker.labeled, maker.labels, maker.pool)
    )
    with mode:
        make_fake(session.method, mode)
        engine = make_engine(session.method, OptimizerSettings(name=optimizer), clip=1.0)
        step = torch.zeros(1, dtype=torch.int64).sum()  # a faked scalar would still know its value
        progress = Progress(step, step / 10.0, Randomness(0, step))
        for _ in range(2):  # the first makes the optimizer's memory, the second uses it
            engine.step(maker(step), progress)
        with pytest.raises(DataDependentOutputException):
            engine.bad_step.item()
    assert engine.optimizers["student_1"].state
    assert any(name.startswith("loss/") for name in engine.sums)
