"""A tiny data set and a run trained on it by the command itself, shared by the tests of the other commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fewmask.cli import run
from fewmask.data.synthetic import write_scenes
from tests.commands.folders import TINY, add_test_part


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Fewmask = Callable[..., Result]


def _on_cpu(words: list[str]) -> list[str]:
    """Tests compare with float32 on the CPU; a machine with a GPU would compute in bfloat16 there."""
    computing = words[0] in ("train", "evaluate", "predict") and "--device" not in words
    return [*words, "--device", "cpu"] if computing else words


@pytest.fixture
def fewmask(capsys: pytest.CaptureFixture[str]) -> Fewmask:
    """One command, run in this process."""

    def call(*words: object) -> Result:
        capsys.readouterr()
        code = run(_on_cpu([str(word) for word in words]))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six labeled, five unlabeled, three val and two test scenes of 32x48 pixels; tests only read it."""
    root = tmp_path_factory.mktemp("data") / "scenes"
    write_scenes(root, labeled=6, unlabeled=5, val=3, size=(32, 48))
    add_test_part(root, count=2)
    return root


@pytest.fixture(scope="session")
def trained(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished mean teacher run; tests only read it."""
    out = tmp_path_factory.mktemp("runs") / "first"
    learning = ("training.steps=20", "optimizer.name=adamw", "optimizer.lr=0.003", "optimizer.head_lr=0.003")
    words = ["train", str(scenes), "--out", str(out), "--method", "mean_teacher", *TINY, *learning]
    assert run(_on_cpu(words)) == 0
    return out
