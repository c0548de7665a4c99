"""A captured step with the learners on streams of their own has the losses of a computed one, in every step."""

import pytest
import torch

from fewmask.determinism import deterministic
from fewmask.training.session import Session
from tests.training.runs import NOISY, started_session, step_metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STEPS = 50
LIVE = (f"training.steps={STEPS}", "optimizer.warmup=5", "training.deterministic=true")
METHODS = {
    "supervised": (*NOISY[:2], "settings.photometric=true", "optimizer.name=adamw", "optimizer.lr=0.001"),
    "mean_teacher": (*NOISY, "settings.ramp=0.9"),
    "rml": (*NOISY, "settings.warmup=true", "settings.labeled_every=3"),
}


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 2e-2)])
@pytest.mark.parametrize("method", METHODS)
def test_fifty_captured_steps_have_the_losses_of_computed_ones(data, tmp_path, method, precision, tolerance):
    lines = {}
    for capture in (False, True):
        words = (*METHODS[method], *LIVE, f"training.precision={precision}", f"training.capture={capture}")
        with deterministic(True, torch.device("cuda")):
            session = started_session(data, tmp_path / str(capture), *words, method=method, device="cuda")
            lines[capture] = step_metrics(session, STEPS)
        assert (session.stepper.graph is not None) == capture
        assert len(session.engine.lanes.streams) == (len(session.engine.optimizers) if capture else 0)
    for step, (computed, captured) in enumerate(zip(lines[False], lines[True], strict=True)):
        assert captured == pytest.approx(computed, rel=tolerance, abs=1e-7), step
        assert [captured[key] for key in captured if key.startswith("lr/")] == [
            computed[key] for key in computed if key.startswith("lr/")
        ]
    assert len({line["lr/0"] for line in lines[True]}) == STEPS


def test_fifty_compiled_steps_with_rewritten_networks_have_the_losses_of_plain_ones(data, tmp_path):
    """At a small rate, where rounding does not grow from step to step; so weights must agree as well as losses."""
    rate = ("optimizer.lr=0.0002", "optimizer.head_lr=0.0002")
    lines, weights = {}, {}
    for compiled in (False, True):
        words = (*METHODS["rml"], *rate, f"training.steps={STEPS}", f"training.compile={compiled}")
        session = started_session(data, tmp_path / str(compiled), *words, method="rml", device="cuda")
        twins = [network.twin is not None for network in session.method.networks().values()]
        assert sum(twins) == (2 if compiled else 0)
        start = students(session)
        lines[compiled] = step_metrics(session, STEPS)
        weights[compiled] = students(session)
    for step, (plain, other) in enumerate(zip(lines[False], lines[True], strict=True)):
        losses = {name: value for name, value in plain.items() if name.startswith("loss/")}
        assert {name: other[name] for name in losses} == pytest.approx(losses, rel=2e-2), step
    assert (weights[True] - weights[False]).norm() < 0.1 * (weights[False] - start).norm()


def students(session: Session) -> torch.Tensor:
    """All trained weights in one vector."""
    networks = session.method.trained().values()
    return torch.cat([each.detach().double().flatten() for network in networks for each in network.parameters()])
