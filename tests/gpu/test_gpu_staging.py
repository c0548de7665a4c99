"""On a GPU: staged images are the resident ones, under a captured step as well, and only the batch is there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fewmask.training.session import Session
from tests.training.runs import started_session, write_data

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
STAGED, MAPPED = ("training.store_share=0",), ("training.store_share=0", "training.host_share=0")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("staged") / "data")


def session_of(data: Path, *words: str) -> Session:
    return started_session(data, "training.precision=fp32", *words, method="rml", device="cuda")


@pytest.mark.parametrize("words", [STAGED, MAPPED])
def test_batches_are_those_of_resident_images(data: Path, words: tuple[str, ...]):
    resident, staged = session_of(data), session_of(data, *words)
    assert not resident.maker.stages
    assert set(staged.maker.stages) == {"labeled", "unlabeled"}
    for step in (0, 1, 2, 9, 3):
        wanted, found = resident.maker.at(step), staged.maker.at(step)
        for name in ("image", "label", "image_index", "weak", "valid", "box", "weak_index"):
            assert torch.equal(getattr(wanted, name), getattr(found, name)), (step, name)
        for name, tensor in wanted.stored.items():
            assert torch.allclose(tensor, found.stored[name], atol=1e-3), (step, name)  # from two sweeps
    staged.maker.close()


def test_a_captured_step_reads_what_was_staged_for_it(data: Path):
    """Losses of steps that are replayed, in order and after a jump, beside those of resident images."""
    losses = []
    for words in ((), STAGED):
        session = session_of(data, *words)
        assert session.stepper.captures
        found = []
        for step in (*range(8), 20, 21):
            session.stepper(step)
            found.append(session.engine.flush()["loss/labeled"])
        assert session.stepper.graph is not None
        session.maker.close()
        losses.append(torch.tensor(found))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)
    assert losses[0].unique().numel() > 5


def test_steps_queued_ahead_never_mix_their_images(data: Path):
    """The host runs ahead while the GPU is busy: every step still finds its own images."""
    resident, staged = session_of(data), session_of(data, *STAGED)
    numbers = [torch.tensor(step, device="cuda") for step in range(30)]
    wanted = [resident.maker(number).weak.double().sum() for number in numbers]
    busy, found = torch.randn(4096, 4096, device="cuda"), []
    for step, number in enumerate(numbers):
        staged.maker.stage(step)
        for _ in range(4):
            busy = (busy @ busy).clamp(-1, 1)
        found.append(staged.maker(number).weak.double().sum())
    assert torch.equal(torch.stack(wanted), torch.stack(found))
    staged.maker.close()
