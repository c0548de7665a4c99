"""Learning rates at chosen steps, by hand."""

import math

import pytest
import torch

from fewmask.config import OptimizerSettings
from fewmask.labels import IGNORE
from fewmask.learning.pseudo_labels import pseudo_label
from fewmask.learning.schedules import ramped, rate_factor


def test_poly():
    settings = OptimizerSettings(schedule="poly", power=0.9)
    assert [rate_factor(settings, step, 100) for step in (0, 50, 99)] == pytest.approx([1, 0.5**0.9, 0.01**0.9])


def test_cosine():
    settings = OptimizerSettings(schedule="cosine")
    assert [rate_factor(settings, step, 100) for step in (0, 50, 100)] == pytest.approx([1, 0.5, 0])


def test_step():
    settings = OptimizerSettings(schedule="step", milestones=(0.5, 0.8), gamma=0.1)
    assert [rate_factor(settings, step, 10) for step in (0, 4, 5, 7, 8)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_warm_up_comes_first():
    settings = OptimizerSettings(schedule="constant", warmup=4)
    assert [rate_factor(settings, step, 10) for step in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_ramp_by_hand():
    values = [ramped(torch.tensor(fraction), 0.5).item() for fraction in (0.0, 0.25, 0.5, 0.9)]
    assert values == pytest.approx([math.exp(-5), math.exp(-1.25), 1, 1])
    assert ramped(torch.tensor(0.0), 0.0).item() == 1.0


def test_pseudo_label_by_hand():
    logits = torch.tensor([[[[2.0, 0.0]], [[0.0, 1.0]]]])
    label, confidence = pseudo_label(logits, torch.tensor([[[True, False]]]))
    assert label.tolist() == [[[0, IGNORE]]]
    assert confidence[0, 0, 0].item() == pytest.approx(torch.tensor([2.0, 0.0]).softmax(0)[0].item())
