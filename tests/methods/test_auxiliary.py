"""Auxiliary heads in every method: they learn from labeled images, and nobody learns from them."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fewmask.labels import IGNORE
from fewmask.methods.method import Method
from fewmask.methods.table import METHODS
from fewmask.types import Loss, Update
from tests.methods.test_contract import SEMI_SUPERVISED, updates
from tests.miniature import SETR, make_batch, make_engine, make_method, make_progress, requests

PLAIN = SETR.model_copy(update={"auxiliary_weight": 0.0})
NAMES = [f"labeled_auxiliary_{number}" for number in (1, 2, 3)]


def losses_of(method: Method) -> dict[str, Loss]:
    found = requests(method, make_batch(stride=16), make_progress())
    return {each.optimizer: each.loss for each in found if isinstance(each, Update)}


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_is_that_without_them_and_their_weight_of_the_labeled_loss_of_each(name):
    """The rest of the loss is the same bits; theirs is torch's cross entropy of what they say about labeled rows."""
    seen: list[tuple[torch.Tensor, ...]] = []
    method = make_method(name, SETR)
    for student in method.trained().values():
        student.register_forward_hook(lambda _, __, answer: seen.append(answer.auxiliary))
    found, plain, label = losses_of(method), losses_of(make_method(name, PLAIN)), make_batch().label
    for (learner, loss), auxiliary in zip(found.items(), seen, strict=True):
        terms = [term for term in loss.terms if term.name not in NAMES]
        assert Loss(tuple(terms)).value().item() == plain[learner].value().item()
        by_hand = [
            F.cross_entropy(
                F.interpolate(each[: len(label)], label.shape[1:], mode="bilinear"), label, ignore_index=255
            )
            for each in auxiliary
        ]
        assert len(by_hand) == len(NAMES)
        expected = plain[learner].value() + 0.4 * sum(by_hand)
        assert loss.value().item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("name", SEMI_SUPERVISED)
def test_unlabeled_images_teach_them_nothing(name):
    method = make_method(name, SETR, threshold=0.0)
    batch = make_batch(stride=16)
    updates(method, replace(batch, label=torch.full_like(batch.label, IGNORE)), make_progress())
    for network in method.trained().values():
        assert all((parameter.grad == 0).all() for parameter in network.auxiliary.parameters())
        assert any(parameter.grad.any() for parameter in network.backbone_parameters())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mean_teacher", {}),
        ("rml", {}),
        ("rml", {"teacher_mode": "train"}),
        ("rml", {"coupling": "direct", "feature_layer": "classifier"}),
    ],
)
def test_teachers_pseudo_labels_and_sweeps_never_ask_them(name, settings):
    """In a whole step each student asks its heads once and nobody else does, though teachers may be in train mode."""
    method = make_method(name, SETR, **settings)
    calls: list[str] = []
    for network_name, network in method.networks().items():
        for head in network.auxiliary:
            head.embedding.register_forward_hook(lambda *_, name=network_name: calls.append(name))
    batch = make_batch(stride=16)
    method.pseudo_labels(batch)
    method.sweep(batch.weak, None)
    assert calls == []
    make_engine(method).step(batch, make_progress())
    assert calls == [learner for learner in method.trained() for _ in NAMES]


def test_pseudo_labels_and_soft_labels_do_not_depend_on_them():
    """The same bits with heads of other weights."""
    method = make_method("rml", SETR)
    other = copy.deepcopy(method)
    for network in other.networks().values():
        for parameter in network.auxiliary.parameters():
            parameter.data.add_(1.0)
    batch = make_batch(stride=16)
    for one, two in zip(method.pseudo_labels(batch), other.pseudo_labels(batch), strict=True):
        assert torch.equal(one.label, two.label)
        assert torch.equal(one.weight, two.weight)
    first, second = method.sweep(batch.weak, None), other.sweep(batch.weak, None)
    assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize("buffers", ["copied", "averaged", "weak"])
def test_teachers_average_them_like_all_other_weights(buffers):
    method = make_method("mean_teacher", SETR, buffers=buffers, warmup=False, decay=0.75)
    before = {key: value.clone() for key, value in method.teacher_1.auxiliary.named_parameters()}
    make_engine(method).step(make_batch(stride=16), make_progress())
    now = dict(method.student_1.auxiliary.named_parameters())
    for key, value in method.teacher_1.auxiliary.named_parameters():
        torch.testing.assert_close(value, 0.75 * before[key] + 0.25 * now[key], msg=key)
    assert all(value.isfinite().all() for value in method.teacher_1.auxiliary.state_dict().values())
