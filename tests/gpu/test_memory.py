"""On a GPU: captured steps that save memory have the losses of others and a lower peak, and nothing piles up."""

import gc
from pathlib import Path

import pytest
import torch

from fewmask.training.checkpoint import HostCopies
from tests.training.runs import NOISY, started_session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CHECKPOINTING, PARTS = "training.checkpointing=true", "training.accumulate=3"
SAME = ("training.steps=8", "training.precision=fp32", "optimizer.lr=1e-3", *NOISY[:2])
# Blocks outweigh the stem, and activations outweigh weights; without live BatchNorm residuals have to start at zero
DEEP = (
    "network.backbone=resnet50",
    "network.options={channels: [16, 16, 16, 16], stem_width: 8, stem_type: deep, zero_init_last: true}",
    "network.frozen_norm=true",
    "views.crop=256x256",
    "training.batch=6",
)


def losses_and_peak(data: Path, *words: str, method: str = "rml") -> tuple[dict[str, float], int]:
    """Six steps, the last three replayed: the metrics of all, and the most memory in use once kernels are chosen."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    session = started_session(data, *SAME, *words, method=method, device="cuda")
    assert session.stepper.captures
    for step in range(6):
        if step == 3:  # the trials of cudnn.benchmark are over
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        session.stepper(step)
    torch.cuda.synchronize()
    assert session.stepper.graph is not None
    return session.engine.flush(), torch.cuda.max_memory_allocated() - before


@pytest.fixture(scope="module")
def plain(data: Path) -> tuple[dict[str, float], int]:
    return losses_and_peak(data, *DEEP)


@pytest.mark.parametrize(("words", "share"), [((CHECKPOINTING,), 0.8), ((PARTS,), 0.7), ((CHECKPOINTING, PARTS), 0.6)])
def test_captured_steps_save_memory_and_keep_their_losses(data, plain, words, share):
    found, peak = losses_and_peak(data, *DEEP, *words)
    assert found == pytest.approx(plain[0], rel=1e-3)
    assert peak < share * plain[1], f"{peak / plain[1]:.2f} of {plain[1] / 2**20:.0f} MiB"


@pytest.mark.slow
def test_compiled_blocks_are_recomputed_in_a_captured_step(data):
    """With live BatchNorm; inductor's code is the same for both, so it is compiled once."""
    words = ("training.compile=true", "training.batch=6")
    plain, saving = (losses_and_peak(data, *words, *more, method="supervised")[0] for more in ((), (CHECKPOINTING,)))
    assert saving == pytest.approx(plain, rel=1e-3)


def test_sessions_share_their_streams(data):
    """cuBLAS keeps a workspace for each that there ever was."""
    one, other = (started_session(data, *SAME, method="rml", device="cuda") for _ in range(2))
    assert one.stepper.stream is other.stepper.stream
    assert one.engine.lanes.streams == other.engine.lanes.streams
    streams = {one.stepper.stream, *one.engine.lanes.streams, *one.stepper.views.streams}
    assert len(streams) == 4  # and yet no two roles have the same


def test_a_state_is_copied_into_pinned_memory_that_is_used_again():
    weights, copies = torch.arange(5.0, device="cuda"), HostCopies()
    first = copies({"weights": weights})["weights"]
    weights.add_(1)
    assert first.is_pinned()
    assert first.tolist() == [0, 1, 2, 3, 4]
    again = copies({"weights": weights})["weights"]
    assert again.data_ptr() == first.data_ptr()
    assert again.tolist() == [1, 2, 3, 4, 5]
