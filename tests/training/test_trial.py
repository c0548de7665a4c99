"""Steps on trial leave nothing behind: the run that follows is the run without them, bit for bit."""

import json
from pathlib import Path

import pytest
import torch

from fewmask.training import costs
from fewmask.training.costs import measure
from fewmask.training.run import run_training
from fewmask.training.run_folder import RunFolder
from fewmask.training.session import Session
from fewmask.training.trial import on_trial
from fewmask.types import Batch, Progress, Step
from tests.training.runs import NOISY, Heard, assert_same_run, tiny_config, tiny_session, train_here

STEPS = 6
WORDS = (f"training.steps={STEPS}", "training.checkpoint_every=4", "training.log_every=2", "training.diagnose_every=3")
OFF = "training.forecast=false"
KINDS = {
    "supervised": ("settings.dropout=0.5",),
    "supervised_adamw": ("optimizer.name=adamw", "optimizer.clip=1.0"),
    "mean_teacher": NOISY,
    "no_momentum": ("optimizer.momentum=0.0",),
}


@pytest.fixture(autouse=True)
def short_runs_look_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SHARE", 1)


def method_of(kind: str) -> str:
    return "supervised" if kind.startswith("supervised") else "mean_teacher"


def bits(session: Session) -> dict[str, torch.Tensor]:
    """Everything that training may change, as bytes: the sign of a zero counts."""
    found = dict(session.method.state_dict(keep_vars=False))
    found |= {name: buffer for name, buffer in session.method.named_buffers() if name not in found}
    found |= {f"sums {name}": pair for name, pair in session.engine.sums.items()}
    for name, optimizer in session.engine.optimizers.items():
        for index, state in optimizer.state_dict()["state"].items():
            found |= {f"{name} {index} {key}": value for key, value in state.items() if value is not None}
    return {name: tensor.detach().flatten().clone().view(torch.uint8) for name, tensor in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_is_the_same_to_the_last_bit(data: Path, tmp_path: Path, kind: str):
    words = (*WORDS, *KINDS[kind])
    train_here(data, tmp_path / "off", *words, OFF, method=method_of(kind))
    heard = train_here(data, tmp_path / "on", *words, method=method_of(kind))
    assert f"steps {STEPS} x" in next(line for line in heard.lines if "  time  " in line)
    if kind == "no_momentum":  # keeps no optimizer state to compare
        assert (tmp_path / "on" / "metrics.jsonl").read_bytes() == (tmp_path / "off" / "metrics.jsonl").read_bytes()
    else:
        assert_same_run(tmp_path / "on", tmp_path / "off")


@pytest.mark.parametrize("kind", ["supervised", "supervised_adamw", "mean_teacher"])
def test_what_is_put_back_gives_the_same_first_steps(data: Path, kind: str):
    tried, plain = (tiny_session(data, *WORDS, *KINDS[kind], method=method_of(kind)) for _ in range(2))
    before = bits(tried)
    places = {name: tensor.data_ptr() for name, tensor in tried.method.state_dict().items()}
    with on_trial(tried.engine):
        measure(tried, 0, 4)
        assert any(not torch.equal(now, before[name]) for name, now in bits(tried).items() if name in before)
    assert all(torch.equal(bits(tried)[name], value) for name, value in before.items())
    assert {name: tensor.data_ptr() for name, tensor in tried.method.state_dict().items()} == places
    for step in range(2):
        for session in (tried, plain):
            session.stepper(step)
        one, other = bits(tried), bits(plain)
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_a_resumed_run_looks_ahead_too(data: Path, tmp_path: Path):
    """Here the optimizer has its state already, and it is put back."""
    more = (*NOISY, "training.keep=9")
    for name, *switch in (("off", OFF), ("on",)):
        train_here(data, tmp_path / name, *WORDS, *more, *switch)
        longer = (*more, *WORDS[1:], *switch, "training.steps=11")
        heard = train_here(data, tmp_path / name, *longer, resume=True)
    assert any("steps 5 x" in line for line in heard.lines)
    assert_same_run(tmp_path / "on", tmp_path / "off")


def test_no_more_steps_than_said_are_tried_and_others_lie_between_them(data: Path, monkeypatch: pytest.MonkeyPatch):
    """Timed steps train, also after the validation, which leaves networks in eval mode."""
    session = tiny_session(data, *WORDS, *NOISY)
    done: list[int | str] = []
    step, validate = session.method.step, costs.validate

    def training(batch: Batch, progress: Progress) -> Step:
        assert session.method.student_1.training
        done.append(int(progress.step))
        yield from step(batch, progress)

    monkeypatch.setattr(session.method, "step", training)
    monkeypatch.setattr(costs, "validate", lambda *given: done.append("validation") or validate(*given))
    with on_trial(session.engine):
        measure(session, 1, 5)
    assert done == [1, 2, 3, "validation", "validation", "validation", 4, 5]


def test_an_error_on_trial_puts_everything_back(data: Path):
    session = tiny_session(data, *WORDS, *NOISY)
    before = bits(session)
    with pytest.raises(KeyError):
        _failing_trial(session)
    assert all(torch.equal(bits(session)[name], value) for name, value in before.items())
    assert session.engine.found == []


def _failing_trial(session: Session) -> None:
    with on_trial(session.engine):
        session.stepper(0)
        raise KeyError


def test_rml_is_foreseen_with_its_baseline_before_both(data: Path, tmp_path: Path):
    baseline, said = 5, {}
    for name, *switch in (("off", OFF), ("on",)):
        heard = Heard()
        config = tiny_config(data, *WORDS, "data.labels=4", *switch, method="rml")
        config = config.model_copy(update={"baseline": {"training": {"steps": baseline}}})
        run_training(config, tmp_path / name, device="cpu", resume=False, init=None, observer=heard)
        said[name] = heard.lines
    assert_same_run(tmp_path / "on", tmp_path / "off")
    assert_same_run(tmp_path / "on" / "baseline", tmp_path / "off" / "baseline")
    start = f"checkpoints/step_{STEPS:08d}.pt"  # of the second stage
    assert (tmp_path / "on" / start).read_bytes() == (tmp_path / "off" / start).read_bytes()
    plan = said["on"][0]  # before anything was trained
    assert f"baseline steps {baseline} x" in plan
    assert f", steps {2 * STEPS} x" in plan
    timing = json.loads(RunFolder(tmp_path / "on").timing.read_text())
    assert {"baseline steps", "steps", "sweeps", "checkpoints"} <= {
        part["what"] for part in timing["predicted"]["parts"]
    }
    total = sum(part["count"] * part["each"] for part in timing["predicted"]["parts"])
    assert timing["predicted"]["seconds"] == pytest.approx(total)
    assert timing["actual"]["peak_bytes"] > 2**20
    parts = {part["what"]: part for part in timing["actual"]["parts"]}
    assert parts.keys() == {
        *("baseline steps", "baseline checkpoints", "baseline validations", "baseline files", "baseline the rest"),
        *("steps", "sweeps", "starts of a stage", "checkpoints", "validations", "files", "the rest"),
        "looks at pseudo labels",
    }
    assert [parts[what]["count"] for what in ("baseline steps", "steps", "sweeps")] == [baseline, 2 * STEPS, 2]
    assert timing["actual"]["seconds"] == pytest.approx(sum(part["seconds"] for part in parts.values()))
    assert all(part["seconds"] > 0 for part in parts.values())
    without = json.loads(RunFolder(tmp_path / "off").timing.read_text())
    assert without["predicted"]["seconds"] is None
    assert without["actual"]["seconds"] > 0


def test_short_stages_after_long_baselines_are_foreseen(data: Path, tmp_path: Path):
    """The steps that are tried are few beside all of the run's, also where few of these are the stages' own."""
    config = tiny_config(data, "training.steps=4", "data.labels=4", method="rml")
    config = config.model_copy(update={"baseline": {"training": {"steps": 120}}})
    heard = Heard()
    run_training(config, tmp_path / "run", device="cpu", resume=False, init=None, observer=heard)
    assert "baseline steps 120 x" in heard.lines[0]
    assert ", steps 8 x" in heard.lines[0]


def test_short_runs_and_finished_ones_are_not_tried(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    session = tiny_session(data, "training.steps=10")
    assert costs.trial_steps(10, session.stepper) == 10
    assert costs.trial_steps(4, session.stepper) == 0  # the first two are slower, and two more say too little
    monkeypatch.setattr(costs, "SHARE", 20)
    assert [costs.trial_steps(left, session.stepper) for left in (0, 99, 100, 199, 200, 90_000)] == [0, 0, 5, 9, 10, 10]
    heard = train_here(data, tmp_path / "run", "training.steps=3")
    assert not any("  time  " in line for line in heard.lines)
    kept = RunFolder(tmp_path / "run").timing.read_bytes()
    train_here(data, tmp_path / "run", "training.steps=3", resume=True)
    assert RunFolder(tmp_path / "run").timing.read_bytes() == kept
    RunFolder(tmp_path / "run").timing.unlink()  # killed between the last checkpoint and the last file
    train_here(data, tmp_path / "run", "training.steps=3", resume=True)
    assert json.loads(RunFolder(tmp_path / "run").timing.read_text()) == {
        "predicted": {"seconds": None, "peak_bytes": None, "parts": []},
        "actual": {"seconds": None, "peak_bytes": None, "parts": []},
    }
