"""Training with folded teachers is training, with every way in which teachers get their statistics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fewmask.errors import ConfigError
from fewmask.training.session import Session
from tests.training.runs import tiny_session

STEPS = 3
EXACT = ("training.precision=fp64", "settings.threshold=0.3", "settings.dropout=0.2", "settings.decay=0.5")


def trained(data: Path, *words: str) -> Session:
    session = tiny_session(data, *EXACT, *words)
    for step in range(STEPS):
        session.stepper(step)
    return session


@pytest.mark.parametrize("kind", ["folded", "fused"])
@pytest.mark.parametrize("buffers", ["copied", "averaged", "weak"])
def test_the_same_weights_after_some_steps(data: Path, kind: str, buffers: str):
    plain = trained(data, f"settings.buffers={buffers}")
    folded = trained(data, f"settings.buffers={buffers}", f"training.fold_teachers={kind}")
    assert plain.method.teacher_1.twin is None
    assert folded.method.teacher_1.twin is not None
    assert folded.method.student_1.twin is None
    assert list(plain.method.state_dict()) == list(folded.method.state_dict())
    for (name, one), other in zip(plain.method.state_dict().items(), folded.method.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10, msg=name)
    first = tiny_session(data, *EXACT).method.student_1
    assert not torch.equal(next(first.parameters()), next(plain.method.student_1.parameters()))


def test_fused_kernels_are_not_promised_to_be_deterministic(data: Path):
    with pytest.raises(ConfigError, match="need not be deterministic"):
        tiny_session(data, "training.fold_teachers=fused", "training.deterministic=true")
