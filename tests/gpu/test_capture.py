"""A captured step with the learners on streams of their own has the losses of a computed one, in every step."""

from functools import partial
from pathlib import Path

import pytest
import torch

from fewmask.determinism import deterministic
from fewmask.training.session import Session
from tests.training.runs import NOISY, REFINED, started_session, step_metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

Lines = list[dict[str, float]]
STEPS = 50
LIVE = (f"training.steps={STEPS}", "optimizer.warmup=5")
RML = (*NOISY, "settings.warmup=true", "settings.labeled_every=3")
RUNS = {
    "supervised": (*NOISY[:2], "settings.photometric=true", "optimizer.name=adamw", "optimizer.lr=0.001"),
    "mean_teacher": (*NOISY, "settings.ramp=0.9"),
    "rml": RML,
    "rml, refining head": (*RML, *REFINED, "settings.spread=16", "settings.buffers=weak"),
}
DEEPER = ("network.options={zero_init_last: false, layers: [2, 2, 1, 1]}",)  # maps go from one block to the next
SLOW = ("optimizer.lr=0.0002", "optimizer.head_lr=0.0002")  # rounding does not grow from step to step
TOLERANCES = [("fp32", 1e-4), ("bf16", 2e-2)]


@pytest.mark.parametrize(("precision", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("run", RUNS)
def test_fifty_captured_steps_have_the_losses_of_computed_ones(data, run, precision, tolerance):
    words = (*RUNS[run], *LIVE, f"training.precision={precision}", "training.deterministic=true")
    with deterministic(True, torch.device("cuda")):
        computed, captured = both_ways(data, *words, method=run.partition(",")[0])
    assert_close(computed, captured, tolerance)
    assert len({line["lr/0"] for line in captured}) == STEPS


@pytest.mark.parametrize(("precision", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("run", ["rml", "rml, refining head"])
def test_so_they_have_where_the_gpu_adds_in_any_order(data, run, precision, tolerance):
    words = (*RUNS[run], *LIVE, *SLOW, f"training.precision={precision}")
    assert_close(*map(losses, both_ways(data, *words, method="rml")), tolerance)


def both_ways(data: Path, *words: str, method: str) -> list[Lines]:
    """All metrics of each step, computed and captured."""
    lines = []
    for capture in (False, True):
        more = (*words, f"training.capture={capture}")
        session = started_session(data, *more, method=method, device="cuda")
        lines.append(step_metrics(session, STEPS))
        assert (session.stepper.graph is not None) == capture
        assert len(session.engine.lanes.streams) == (len(session.engine.optimizers) if capture else 0)
    return lines


def assert_close(computed: Lines, captured: Lines, tolerance: float) -> None:
    """Numbers within the tolerance, rates exactly, in every step."""
    for step, (one, other) in enumerate(zip(computed, captured, strict=True)):
        assert other == pytest.approx(one, rel=tolerance, abs=1e-7), step
        rates = [key for key in one if key.startswith("lr/")]
        assert [other[key] for key in rates] == [one[key] for key in rates]


def test_fifty_compiled_steps_with_rewritten_networks_have_the_losses_of_plain_ones(data):
    """At the small rate, so that weights must agree as well as losses."""
    lines, weights = {}, {}
    for compiled in (False, True):
        words = (*RML, *SLOW, f"training.steps={STEPS}", f"training.compile={compiled}")
        session = started_session(data, *words, method="rml", device="cuda")
        twins = [network.twin is not None for network in session.method.networks().values()]
        assert sum(twins) == (2 if compiled else 0)
        start = students(session)
        lines[compiled] = step_metrics(session, STEPS)
        weights[compiled] = students(session)
    assert_close(losses(lines[False]), losses(lines[True]), tolerance=2e-2)
    assert (weights[True] - weights[False]).norm() < 0.1 * (weights[False] - start).norm()


@pytest.mark.parametrize("compiled", [False, True])
def test_fifty_steps_with_fused_norms_have_the_losses_of_plain_ones(data, compiled):
    lines = {}
    for norms in ("plain", "fused"):
        words = (*RML, *SLOW, *DEEPER, f"training.steps={STEPS}", f"training.compile={compiled}")
        session = started_session(data, *words, f"training.norms={norms}", method="rml", device="cuda")
        calls = [module._compiled_call_impl for module in session.method.student_1.backbone.modules()]
        assert any(isinstance(call, partial) for call in calls) == (norms == "fused")
        lines[norms] = step_metrics(session, STEPS)
    assert_close(losses(lines["plain"]), losses(lines["fused"]), tolerance=2e-2)


def losses(lines: Lines) -> Lines:
    """Without norms of gradients, which rounding changes more."""
    return [{name: value for name, value in line.items() if name.startswith("loss/")} for line in lines]


def students(session: Session) -> torch.Tensor:
    """All trained weights in one vector."""
    networks = session.method.trained().values()
    return torch.cat([each.detach().double().flatten() for network in networks for each in network.parameters()])
