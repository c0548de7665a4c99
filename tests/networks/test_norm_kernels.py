"""Triton's compiler takes the kernels of fused norms to Hopper's machine code, for which no GPU is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is only there where it has GPUs to compile for")

ROOT = Path(__file__).parents[2]


def test_kernels_compile_for_hopper_and_pass_over_maps_in_whole_vectors():
    """In a process of its own: where the interpreter is on, it puts something else in the kernels' place."""
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.networks.hopper_code"]
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 7
    assert set(map(tuple, found.values())) == {("v4.b32",)}, found
