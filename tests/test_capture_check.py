"""scripts/capture_check.py with a tiny network on the CPU, where nothing is captured and nothing may differ."""

import torch
from scripts.capture_check import arguments, check, differences

TINY = (
    "network.backbone=test_resnet",
    "network.width=16",
    "network.options={}",
    "data.resize=32x32",
    "training.batch=2",
)


def test_on_the_cpu_no_loss_differs():
    asked = arguments(["--preset", "demo", "--steps", "2", "--precision", "fp32", *TINY, "--timed", "1"])
    runs = {"device": torch.device("cpu"), "steps": asked.steps, "timed": asked.timed}
    words = (*asked.words, "views.crop=32x32")
    found = check(*asked.preset, words, precision=asked.precision[0], fixed=True, **runs)
    assert found["captured_from_computed"] == found["captured_from_itself"] == [0.0]
    assert (found["captured"], found["deterministic"], found["precision"]) == (False, True, "fp32")
    assert found["ms"] > 0
    assert not torch.are_deterministic_algorithms_enabled()


def test_differences_are_the_largest_of_ten_steps():
    one = [{"loss/a": 2.0, "loss/b": 1.0}] * 12
    other = [*one[:3], {"loss/a": 2.0, "loss/b": 1.5}, *one[4:11], {"loss/a": 1.0, "loss/b": 1.0}]
    assert differences(one, other) == [0.5, 0.5]
    assert differences(one, one) == [0.0, 0.0]
