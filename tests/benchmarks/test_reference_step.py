"""The plain step and the method's own are two programs of one algorithm: each is the other's oracle."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from fewmask.benchmarks.reference import plain_optimizer, require_comparable
from fewmask.benchmarks.reference_step import Learner, ReferenceStep
from fewmask.config import OptimizerSettings
from fewmask.errors import ConfigError
from fewmask.methods.rml import P0, RobustMutualLearning
from fewmask.settings import resolve
from fewmask.types import Batch, Update
from tests.miniature import CLASSES, make_batch, make_engine, make_method, make_progress, requests

OPTIMIZER = OptimizerSettings(lr=0.02, head_lr=0.05, weight_decay=0.01)
QUIET = {"dropout": 0.0, "stochastic_depth": 1.0, "pairs": "independent", "labeled_every": 1}
RATES = {"decay": 0.7, "momentum": 0.8}


def method_of(seed: int = 0, **settings: object) -> RobustMutualLearning:
    """Four different networks, BatchNorm frozen, and prototypes of all classes but one."""
    method = make_method("rml", **QUIET, **RATES, **settings).eval()
    assert isinstance(method, RobustMutualLearning)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.1 * parameter.std().nan_to_num() * torch.randn(parameter.shape, generator=generator))
    for prototypes in method.prototypes:
        prototypes.center.copy_(torch.randn(prototypes.center.shape, generator=generator))
        prototypes.known.fill_(True)
        prototypes.known[2] = False
    return method


def independent_batch(seed: int = 0) -> Batch:
    """Two unlabeled images with two partners, beside four labeled ones."""
    batch = make_batch(seed=seed, count=4, size=(32, 48))
    generator = torch.Generator().manual_seed(seed)
    soft = (2 * torch.randn(4, CLASSES, 4, 6, generator=generator)).log_softmax(1)
    return replace(batch, box=batch.box[:2], partner=torch.tensor([2, 3]), stored={P0: soft})


def reference_of(method: RobustMutualLearning) -> ReferenceStep:
    learners = []
    for student, teacher, prototypes in zip(method.students, method.teachers, method.prototypes, strict=True):
        one, other = copy.deepcopy(student), copy.deepcopy(teacher)
        state = prototypes.center.clone(), prototypes.known.clone()
        learners.append(Learner(one, other, plain_optimizer(one, OPTIMIZER), *state))
    return ReferenceStep(learners, bf16=False, labeled_every=1, soft_label=P0, **RATES)


def losses_of(method: RobustMutualLearning, batch: Batch) -> list[float]:
    found = [each for each in requests(method, batch, make_progress()) if isinstance(each, Update)]
    return [each.loss.value().item() for each in found]


@pytest.mark.parametrize(("seed", "photometric"), [(0, True), (1, True), (1, False)])
def test_both_steps_have_the_same_losses(seed: int, photometric: bool):
    method, batch = method_of(seed, photometric=photometric), independent_batch(seed)
    batch = batch if photometric else replace(batch, strong=())
    reference = reference_of(method)
    expected = losses_of(copy.deepcopy(method), batch)
    assert expected[0] != pytest.approx(expected[1], abs=1e-3)
    assert [loss.item() for loss in reference(batch)] == pytest.approx(expected, rel=1e-5)


def test_both_steps_leave_the_same_networks_and_prototypes():
    method = method_of()
    reference, engine = reference_of(method), make_engine(method, OPTIMIZER)
    before = copy.deepcopy(method.state_dict())
    for step in range(3):  # momentum, moved teachers and moved prototypes take part from the second on
        batch = independent_batch(step)
        engine.step(batch, make_progress(step))
        reference(batch, step)
    pairs = zip(reference.learners, method.students, method.teachers, method.prototypes, strict=True)
    for learner, student, teacher, prototypes in pairs:
        for plain, ours in ((learner.student, student), (learner.teacher, teacher)):
            for name, value in ours.state_dict().items():
                torch.testing.assert_close(plain.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)
        torch.testing.assert_close(learner.prototypes, prototypes.center, rtol=1e-4, atol=1e-5)
        assert torch.equal(learner.known, prototypes.known)
    moved = [name for name, value in method.state_dict().items() if not torch.equal(before[name], value)]
    assert {name.split(".")[0] for name in moved} >= {"student_1", "teacher_2", "prototypes_1", "prototypes_2"}


def test_labeled_images_join_the_prototypes_only_every_few_steps():
    method, batch = method_of(), independent_batch()
    often, seldom = reference_of(method), replace(reference_of(method), labeled_every=4)
    often(batch, step=1)
    seldom(batch, step=1)
    assert not torch.equal(often.learners[0].prototypes, seldom.learners[0].prototypes)
    assert torch.equal(
        often.learners[0].student.head.classifier.weight, seldom.learners[0].student.head.classifier.weight
    )


def test_what_the_reference_does_not_have_is_not_compared():
    require_comparable(resolve(words=["settings.photometric=true", "settings.cutmix=true"]))
    with pytest.raises(ConfigError, match="no auxiliary heads"):
        require_comparable(resolve(words=["network.head=setr_naive", "network.auxiliary_weight=0.4"]))
