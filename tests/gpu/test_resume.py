"""On a GPU a run goes on from the state that it saved; a deterministic one that was killed ends with the same bits."""

import shutil
import signal
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from fewmask.training.checkpoint import list_checkpoints, load_checkpoint
from fewmask.training.run import run_training
from fewmask.training.state import collect_state, restore_state
from tests.training.runs import (
    NOISY,
    REFINED,
    Heard,
    assert_same_run,
    finish,
    newest_state,
    started_session,
    tensors,
    tiny_config,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DEVICE = "cuda"
STEPS, SAVED, KILLED = 12, 5, 9  # every part begins with computed steps and ends with captured ones
RUN = (
    *NOISY,
    f"training.steps={STEPS}",
    f"training.checkpoint_every={SAVED}",
    "training.keep=9",
    "training.log_every=4",
    "training.precision=fp32",
    "settings.stages=1",
    "settings.momentum=0.9",
    f"baseline.training.steps={SAVED}",
)
DETERMINISTIC = "training.deterministic=true"
NEAR = 0.05  # of the way that the weights went since the checkpoint


def train(data: Path, out: Path, *more: str, resume: bool = False) -> None:
    config = tiny_config(data, *RUN, *more, method="rml")
    run_training(config, out, device=DEVICE, resume=resume, init=None, observer=Heard())


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(data, run)
    return run


@pytest.mark.parametrize("head", [(), REFINED], ids=["deeplabv2", "deeplabv3plus"])
def test_a_deterministic_run_that_was_killed_ends_with_the_same_bits(data, tmp_path, head):
    """SIGKILL in a process of its own, after captured steps; the uninterrupted run has no other process."""
    run, log = tmp_path / "run", tmp_path / "log"
    more = (*head, DETERMINISTIC)
    words = [str(KILLED), str(data), str(run), DEVICE, *RUN, *more]
    assert finish(words, log, module="tests.training.killed") == -signal.SIGKILL, log.read_text()
    assert newest_state(run)["step"] == SAVED
    train(data, run, *more, resume=True)
    train(data, tmp_path / "whole", *more)
    assert_same_run(tmp_path / "whole", run)


def test_state_and_draws_come_back_as_they_were(data, whole, tmp_path):
    saved = load_checkpoint(whole / "checkpoints" / f"step_{SAVED:08d}.pt")
    sessions = [started_session(data, *RUN, method="rml", device=DEVICE) for _ in range(2)]
    restore_state(sessions[0].engine, saved, sessions[0].checksums)
    restored = tensors(collect_state(sessions[0].engine, sessions[0].checksums))
    expected = {key: value for key, value in tensors(saved).items() if key not in ("/step", "/format_version")}
    assert restored.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(restored[key].cpu(), expected[key])] == []
    one, other = (session.maker(torch.tensor(SAVED, device=DEVICE)) for session in sessions)
    drawn = [field.name for field in fields(one) if isinstance(getattr(one, field.name), torch.Tensor)]
    assert [name for name in drawn if not torch.equal(getattr(one, name), getattr(other, name))] == []


def test_a_resumed_run_ends_near_one_that_was_not(data, whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for path in list_checkpoints(run / "checkpoints"):
        if int(path.stem.removeprefix("step_")) > SAVED:
            path.unlink()
    start = weights(run)
    train(data, run, resume=True)
    assert newest_state(run)["step"] == STEPS
    assert (weights(run) - weights(whole)).norm() < NEAR * (weights(whole) - start).norm()


def weights(run: Path) -> torch.Tensor:
    """All networks of the newest checkpoint in one vector, without counters."""
    state = newest_state(run)
    networks = [state[key] for key in sorted(state) if key.startswith("network.")]
    return torch.cat([each.double().flatten() for each in networks if each.is_floating_point()])
