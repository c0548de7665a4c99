"""Steps are compiled; passes over whole images, which come in many sizes, and diagnoses are not."""

from pathlib import Path

import torch

from fewmask.networks.compilation import compile_blocks
from fewmask.training.observer import Observer
from fewmask.training.scores import validate
from fewmask.training.stages import begin_stage
from tests.training.runs import tiny_session


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_only_steps_are_compiled(data: Path, tmp_path: Path):
    session = tiny_session(data, "settings.stochastic_depth=0.8", method="rml")
    for network in session.method.networks().values():
        compile_blocks(network, backend="eager")
    before = graphs()
    session = begin_stage(session, 0, Observer())
    assert graphs() == before
    session.stepper(0)
    compiled = graphs()
    assert compiled > before
    assert session.diagnostics is not None
    session.diagnostics(session.engine, session.maker, torch.tensor(0))
    scores = validate(session, Observer())
    session.method.train()
    assert set(scores) >= {"student_1", "teacher_1"}
    assert graphs() == compiled
    session.stepper(1)
    assert graphs() == compiled
