"""A network that rounds down, on images that no stride divides: baseline, sweep, steps and validation."""

import json

import pytest

from fewmask.config import NetworkSettings
from fewmask.training.run import run_training
from tests.training.runs import Heard, newest_state, tiny_config

WORDS = ("data.resize=37x53", "views.crop=37x45", "training.steps=2", "training.log_every=1", "settings.stages=1")


@pytest.mark.parametrize(("head", "stride"), [("deeplabv3plus", 4), ("deeplabv2", 8)])
def test_images_of_an_odd_size_go_all_the_way(data, tmp_path, head, stride):
    shallow = {"depths": (1, 1, 1, 1)}
    network = NetworkSettings(backbone="convnext_atto", head=head, stride=stride, width=16, options=shallow)
    config = tiny_config(data, *WORDS, "training.diagnose_every=1", method="rml")
    config = config.model_copy(update={"network": network, "baseline": {"training": {"steps": 2}}})
    run_training(config, tmp_path / "run", device="cpu", resume=False, init=None, observer=Heard())

    scores = json.loads((tmp_path / "run/evaluation.json").read_text())["networks"]
    assert {"teacher_1", "student_2", "ensemble"} <= set(scores)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss/unlabeled"] > 0
    assert newest_state(tmp_path / "run")["step"] == 2
