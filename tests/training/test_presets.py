"""Every preset trains two steps of its method, with its true network and crop, on a miniature in its true layout.

What is small: the images (padded up to the crop), one labeled and as few unlabeled images per step as mixing allows, a
baseline of one step and one step in each of the two stages. Weights are not downloaded.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fewmask.cli import run
from fewmask.methods.rml import RMLSettings
from fewmask.settings import preset
from tests.training.layouts import Size, write_camvid, write_cityscapes, write_demo, write_pets, write_voc

Write = Callable[[Path, Size], Path]
FAST = "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"
SMALL = (
    "network.pretrained=none",
    "training.batch=1",
    "training.steps=1",
    "training.log_every=1",
    "baseline.training.steps=1",
    f"training.precision={FAST}",
)
CASES: dict[str, tuple[Write, Size, tuple[str, ...]]] = {
    "paper-cityscapes": (write_cityscapes, (96, 192), ("data.resize=96x192", "evaluation.size=none")),
    "paper-voc": (write_voc, (97, 129), ()),
    "camvid": (write_camvid, (90, 120), ()),
    "pets": (write_pets, (96, 96), ()),
    "demo": (write_demo, (96, 128), ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_preset_trains_two_steps(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, size, words = CASES[name]
    data, out = write(tmp_path / "data", size), tmp_path / "run"
    settings = RMLSettings(**preset(name)["settings"])
    pairs = f"training.unlabeled_batch={1 if settings.pairs == 'independent' else 2}"
    command = ["train", data, "--out", out, "--preset", name, "--labels", "1", "--device", "cpu", pairs, *SMALL, *words]
    assert run([str(word) for word in command]) == 0
    said = capsys.readouterr().err
    assert f"averages   teachers keep {settings.decay:g} a step" in said
    assert "1 labeled, 2 unlabeled, 1 validation images" in said
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    shutil.rmtree(tmp_path)
