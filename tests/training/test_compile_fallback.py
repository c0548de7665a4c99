"""A machine on which torch.compile does not work trains all the same, and says why it takes longer."""

import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import torch
from fewmask.training.observer import Observer
from fewmask.training.session import compile_networks
from tests.networks.small import images, network

class Lines(Observer):
    def say(self, text: str) -> None:
        print(text)

net = network()
compile_networks([net], torch.device("cpu"), Lines())
print(sum(module._compiled_call_impl is not None for module in net.modules()), net(images(1, 3, 32, 32)).logits.ndim)
"""


def test_without_a_compiler_networks_stay_as_they_are(tmp_path: Path):
    nowhere = {"CC": "/nowhere/cc", "CXX": "/nowhere/c++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _SCRIPT]
    run = subprocess.run(command, cwd=root, env=os.environ | nowhere, capture_output=True, text=True, check=True)
    said, counted = run.stdout.splitlines()
    assert said.startswith("blocks are not compiled, so steps take longer; torch.compile does not work here: ")
    assert "/nowhere/c++" in said
    assert counted == "0 4"
