"""Training with rewritten networks is training, with every way in which teachers get their statistics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fewmask.config import TrainingSettings
from fewmask.errors import ConfigError
from fewmask.networks.deeplab import ConcatenatedBranches
from fewmask.networks.fused_norms import fuse_norms
from fewmask.networks.model_noise import gated_blocks
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training import rewriting
from fewmask.training.distributed import sync_batch_norms
from fewmask.training.rewriting import _chosen_branches, _chosen_folding, _chosen_norms
from fewmask.training.session import Session
from tests.networks.small import network
from tests.training.runs import tiny_session

STEPS = 3
EXACT = ("training.precision=fp64", "settings.threshold=0.3", "settings.dropout=0.2", "settings.decay=0.5")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def trained(data: Path, *words: str) -> Session:
    session = tiny_session(data, *EXACT, *words)
    for step in range(STEPS):
        session.stepper(step)
    return session


def assert_same_state(one: Session, other: Session) -> None:
    assert list(one.method.state_dict()) == list(other.method.state_dict())
    for (name, value), found in zip(one.method.state_dict().items(), other.method.state_dict().values(), strict=True):
        torch.testing.assert_close(value, found, atol=1e-10, rtol=1e-10, msg=name)


def joined(network: SegmentationNetwork) -> list[bool]:
    return [module.joined for module in network.modules() if isinstance(module, ConcatenatedBranches)]


@pytest.mark.parametrize("kind", ["folded", "fused"])
@pytest.mark.parametrize("buffers", ["copied", "averaged", "weak"])
def test_folded_teachers_leave_the_same_weights_after_some_steps(data: Path, kind: str, buffers: str):
    plain = trained(data, f"settings.buffers={buffers}")
    folded = trained(data, f"settings.buffers={buffers}", f"training.fold_teachers={kind}")
    assert plain.method.teacher_1.twin is None
    assert folded.method.teacher_1.twin is not None
    assert folded.method.student_1.twin is None
    assert_same_state(plain, folded)
    first = tiny_session(data, *EXACT).method.student_1
    assert not torch.equal(next(first.parameters()), next(plain.method.student_1.parameters()))


def test_joined_students_leave_the_same_weights_after_some_steps(data: Path):
    plain, other = trained(data), trained(data, "training.branches=joined")
    assert (joined(plain.method.student_1), joined(plain.method.teacher_1)) == ([False], [False])
    assert (joined(other.method.student_1), joined(other.method.teacher_1)) == ([True], [False])
    assert_same_state(plain, other)


def test_fused_norms_are_for_gpus(data: Path):
    """On a CPU the setting is ignored, as compilation is; a GPU that Triton does not know is told before training."""
    plain, other = trained(data), trained(data, "training.norms=fused")
    assert not any(module._compiled_call_impl for module in other.method.student_1.modules())
    assert_same_state(plain, other)
    assert _chosen_norms(TrainingSettings(compile=True, precision="fp32"), CUDA) == "plain"
    assert _chosen_norms(TrainingSettings(compile=True, precision="bf16", norms="plain"), CUDA) == "plain"
    fast = TrainingSettings(compile=True, precision="bf16")
    if torch.cuda.is_available():
        assert _chosen_norms(TrainingSettings(norms="fused"), CUDA) == "fused"
        assert _chosen_norms(fast, CUDA) == "fused"
    else:
        assert _chosen_norms(fast, CUDA) == "plain"  # torch.compile will say what is wrong
        with pytest.raises(ConfigError, match="Triton does not work here: "):
            _chosen_norms(TrainingSettings(norms="fused"), CUDA)


@pytest.mark.parametrize("frozen", [True, False])
def test_statistics_that_are_frozen_need_no_fused_norms(data: Path, monkeypatch, frozen):
    monkeypatch.setattr(rewriting, "_chosen_norms", lambda settings, device: "fused")
    session = tiny_session(data, f"network.frozen_norm={frozen}")
    assert any(module._compiled_call_impl for module in session.method.student_1.modules()) is not frozen


def test_norms_of_several_processes_keep_their_own_call():
    net = network()
    sync_batch_norms(net)
    fuse_norms(net.backbone, beside_compiled=True)
    assert not any(module._compiled_call_impl for module in (*net.batch_norms(), *gated_blocks(net)))


def test_fused_kernels_are_not_promised_to_be_deterministic(data: Path):
    with pytest.raises(ConfigError, match="need not be deterministic"):
        tiny_session(data, "training.fold_teachers=fused", "training.deterministic=true")


@pytest.mark.parametrize(
    ("settings", "device", "branches", "folding"),
    [
        ({"compile": True}, CUDA, "joined", "fused"),
        ({"compile": True, "deterministic": True}, CUDA, "joined", "none"),
        ({"compile": True, "precision": "fp32"}, CUDA, "direct", "none"),
        ({"compile": False}, CUDA, "direct", "none"),
        ({"compile": True, "precision": "bf16"}, CPU, "direct", "none"),
        ({"branches": "joined", "fold_teachers": "folded"}, CPU, "joined", "folded"),
        ({"compile": True, "branches": "direct", "fold_teachers": "none"}, CUDA, "direct", "none"),
    ],
)
def test_auto_is_for_compiled_bf16_steps_on_cuda(settings: dict, device: torch.device, branches: str, folding: str):
    chosen = TrainingSettings(**settings)
    assert (_chosen_branches(chosen, device), _chosen_folding(chosen, device)) == (branches, folding)
