"""Deterministic mode on the CPU: what is switched, what comes back, and what is refused; tests/gpu has the bits."""

import os

import pytest
import torch

from fewmask.cli import run
from fewmask.determinism import any_order, deterministic
from fewmask.errors import ConfigError
from fewmask.training.run_folder import RunFolder
from tests.training.runs import words, write_data

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def switches() -> tuple[bool, ...]:
    cudnn = torch.backends.cudnn
    enabled, filled = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    return enabled, torch.is_deterministic_algorithms_warn_only_enabled(), cudnn.benchmark, cudnn.deterministic, filled


def unordered_write() -> None:
    """Which of two values a place gets is not defined; torch refuses this on every device."""
    torch.zeros(2).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("benchmark", [True, False])
def test_switches_come_back_after_a_run_and_after_an_error(benchmark, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", benchmark)
    before = switches()
    with deterministic(True, CPU):
        assert switches() == (True, False, False, True, False)
    assert switches() == before
    with pytest.raises(ZeroDivisionError), deterministic(True, CPU):
        _ = 1 / 0
    assert switches() == before
    with deterministic(False, CUDA):
        assert switches() == before


def test_an_operation_without_a_fixed_order_is_an_error_of_the_settings():
    unordered_write()
    with pytest.raises(ConfigError, match="put_ is not deterministic") as caught, deterministic(True, CPU):
        unordered_write()
    assert caught.value.where == "training.deterministic"
    assert "training.deterministic=false" in caught.value.fix
    with pytest.raises(RuntimeError, match="something else"), deterministic(True, CPU):
        raise RuntimeError("something else")


def test_any_order_lets_one_operation_through_and_no_more():
    with any_order():
        unordered_write()
    with deterministic(True, CPU):
        with any_order():
            unordered_write()
        assert torch.are_deterministic_algorithms_enabled()
        with pytest.raises(RuntimeError):
            unordered_write()


@pytest.mark.parametrize(("given", "kept"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_workspaces_are_fixed_unless_the_user_did_so(monkeypatch, given, kept):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: given is not None)
    monkeypatch.setenv(WORKSPACE, given or "")
    if given is None:
        monkeypatch.delenv(WORKSPACE)
    with deterministic(True, CUDA):
        assert os.environ[WORKSPACE] == kept
    assert os.environ[WORKSPACE] == kept  # cuBLAS reads it once in a process


@pytest.mark.parametrize(("given", "message"), [(None, "began to use the GPU"), (":0:0", "CONFIG=:0:0")])
def test_workspaces_that_cannot_be_fixed_any_more(monkeypatch, given, message):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setenv(WORKSPACE, given or "")
    if given is None:
        monkeypatch.delenv(WORKSPACE)
    before = switches()
    with pytest.raises(ConfigError, match=message) as caught, deterministic(True, CUDA):
        pytest.fail("not reached")
    assert ":4096:8" in caught.value.fix
    assert switches() == before


def test_the_option_reaches_the_run_and_stays_with_it(tmp_path):
    data, out = write_data(tmp_path / "data"), tmp_path / "run"
    before = switches()
    assert run([*words(data, out, "training.steps=1"), "--deterministic"]) == 0
    assert switches() == before
    assert RunFolder(out).read_config().training.deterministic
    assert run([*words(data, out, "training.steps=2"), "--resume"]) == 0
    assert RunFolder(out).read_config().training.deterministic


def test_on_the_cpu_the_environment_stays_as_it_is(monkeypatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    with deterministic(True, CPU):
        assert WORKSPACE not in os.environ
