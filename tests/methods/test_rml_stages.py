"""What RML's stages start from: baselines, teachers, and a sweep that gives soft labels and prototypes."""

import pytest
import torch
from torch import nn

from fewmask.errors import ConfigError
from fewmask.methods.rml import P0, RobustMutualLearning
from tests.methods.pixel_rml import K, method_of


def test_without_noise_each_learner_needs_its_own_baseline():
    quiet = method_of(photometric=False)
    assert quiet.baseline_learners() == [("student_1", "teacher_1"), ("student_2", "teacher_2")]
    assert method_of().baseline_learners() == [("student_1", "teacher_1", "student_2", "teacher_2")]
    assert method_of(baselines="two").baseline_learners() == quiet.baseline_learners()
    quiet.student_2.load_state_dict(quiet.student_1.state_dict())
    with pytest.raises(ConfigError, match="stay identical"):
        quiet.start_stage(0)


def test_later_stages_start_from_the_teachers():
    method = method_of()
    nn.init.zeros_(method.teacher_1.embed)
    method.start_stage(0)
    assert method.student_1.embed.abs().sum() > 0
    method.start_stage(1)
    assert method.student_1.embed.abs().sum() == 0


def test_the_sweep_gives_p0_and_prototypes():
    """p0 is the mean of both softmax outputs; prototypes are per-image class means of each own prediction."""
    check_sweep(method_of(), stage=0)


def test_a_later_sweep_keeps_nothing_of_the_one_before():
    method = method_of()
    check_sweep(method, stage=0)
    for index, teacher in enumerate(method.teachers):
        for weights in teacher.parameters():
            nn.init.normal_(weights, generator=torch.Generator().manual_seed(70 + index))
    spread = method.prototypes_1.spread.clone()
    check_sweep(method, stage=1)
    fresh = method_of()
    fresh.load_state_dict(method.state_dict())
    check_sweep(fresh, stage=1)
    assert torch.equal(method.prototypes_1.spread, fresh.prototypes_1.spread)
    assert method.prototypes_1.spread != spread


def check_sweep(method: RobustMutualLearning, stage: int) -> None:
    images = torch.rand(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    method.start_stage(stage)
    stored = method.sweep(images, None)[P0]
    method.finish_sweep()
    predictions = [teacher(images) for teacher in method.teachers]
    expected = sum(prediction.logits.softmax(1) for prediction in predictions) / 2
    torch.testing.assert_close(stored.exp().double(), expected, atol=1e-6, rtol=0)
    for prototypes, prediction in zip(method.prototypes, predictions, strict=True):
        for k in range(K):
            means = []
            for features, label in zip(prediction.features, prediction.logits.argmax(1), strict=True):
                if (label == k).sum() >= 10:
                    means.append(features[:, label == k].mean(1))
            assert bool(prototypes.known[k]) == bool(means)
            if means:
                torch.testing.assert_close(prototypes.center[k], torch.stack(means).mean(0), atol=1e-6, rtol=0)
