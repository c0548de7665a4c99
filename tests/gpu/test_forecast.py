"""Looking ahead on CUDA: the captured step goes on after its trial, and too large a step is explained."""

from pathlib import Path

import pytest
import torch

from fewmask.errors import TrainingError
from fewmask.training.costs import measure
from fewmask.training.foresight import foresee
from fewmask.training.observer import Observer
from fewmask.training.session import Session
from fewmask.training.trial import on_trial
from tests.training.runs import tiny_session, write_data

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WORDS = ("training.steps=500", "training.precision=fp32", "settings.dropout=0.5")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("cuda") / "data")


def cuda_session(data: Path, *more: str, method: str = "mean_teacher") -> Session:
    return tiny_session(data, *WORDS, *more, method=method, device="cuda")


def weights(session: Session) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in session.method.state_dict().items()}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_captured_step_goes_on_where_it_was(data: Path, optimizer: str):
    tried, plain = (cuda_session(data, f"optimizer.name={optimizer}") for _ in range(2))
    before = weights(tried)
    with on_trial(tried.engine):
        costs = measure(tried, 0, 8)
    graph = tried.stepper.graph
    assert graph is not None
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(tried).items())
    for step in range(6):
        for session in (tried, plain):
            session.stepper(step)
    assert tried.stepper.graph is graph
    assert tried.engine.flush() == pytest.approx(plain.engine.flush(), rel=1e-3, abs=1e-5)
    one, other = weights(tried), weights(plain)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-4)
    assert costs.step > 0
    assert costs.peak >= torch.cuda.memory_allocated() // 2


def test_rml_is_tried_before_its_sweep_and_nothing_of_it_is_left(data: Path):
    session = cuda_session(data, method="rml")
    before = weights(session)
    forecast = foresee(session, 0, Observer())
    assert forecast is not None
    assert {"steps", "sweeps", "starts of a stage", "validations"} <= {part.what for part in forecast.parts}
    assert 0 < forecast.peak < forecast.capacity
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(session).items())
    assert session.stepper.graph is None
    assert session.engine.sums == {}


def test_a_step_that_does_not_fit_is_explained(data: Path):
    session = cuda_session(data, "training.batch=8192")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2**31 / total)
    try:
        with pytest.raises(TrainingError, match="does not fit into the memory of cuda") as caught:
            foresee(session, 0, Observer())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "training.batch=" in caught.value.fix
    assert "training.precision=bf16" in caught.value.fix
