"""What the paper leaves open and RML offers beside its default: teachers' mode, the prototypes' feature and mean."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fewmask.config import LossSettings
from fewmask.labels import IGNORE
from fewmask.learning.losses import LabeledLoss, upsample
from fewmask.learning.prototypes import joining_images
from fewmask.learning.statistics import batch_statistics
from fewmask.methods.pair import same_weights
from fewmask.methods.rml import P0, RMLSettings, RobustMutualLearning
from fewmask.training.engine import Engine
from fewmask.types import ViewRequest
from tests.methods.pixel_rml import K, PixelNetwork, batch_of, method_of
from tests.miniature import make_batch, make_engine, make_method, make_progress
from tests.networks.small import network


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, {"strong": 2, "mixing": "box"}),
        ({"pairs": "independent"}, {"strong": 2, "mixing": "box", "pairs": "independent"}),
        ({"photometric": False}, {"mixing": "box"}),
        ({"cutmix": False}, {"strong": 2}),
        ({"cutmix": False, "pairs": "independent"}, {"strong": 2}),  # a second draw would be for nothing
        ({"labeled_photometric": True}, {"strong": 2, "mixing": "box", "labeled_color": True}),
    ],
)
def test_each_switch_of_input_noise_asks_for_its_views_alone(settings: dict[str, Any], asked: dict[str, Any]):
    assert method_of(**settings).views == ViewRequest(**asked)


@pytest.mark.parametrize(
    ("noise", "apart"),
    [({"dropout": 0.5}, True), ({"stochastic_depth": 0.5}, True), ({"photometric": True}, True), ({}, False)],
)
def test_each_noise_alone_drives_learners_with_the_same_weights_apart(noise: dict[str, Any], apart: bool):
    """Drawn for each student by itself; boxes are the same for both, so that they help nothing here."""
    method = make_method("rml", **{"photometric": False, "dropout": 0.0, "stochastic_depth": 1.0, **noise})
    for each in method.networks().values():
        each.load_state_dict(method.student_1.state_dict())
    make_engine(method).step(make_batch(), make_progress())
    assert same_weights(*method.students) != apart


@pytest.mark.parametrize("coupling", ["direct", "indirect", "indirect_self"])
@pytest.mark.parametrize(
    ("warmup", "step", "decay"), [(False, 0, 0.8), (True, 0, 0.0), (True, 2, 2 / 3), (True, 9, 0.8)]
)
def test_teachers_follow_their_students_in_every_coupling(coupling: str, warmup: bool, step: int, decay: float):
    """Also where they label nothing; with a warm-up first by the plain mean of the steps so far."""
    method = method_of(coupling=coupling, warmup=warmup)
    for teacher in method.teachers:
        torch.nn.init.ones_(teacher.embed)
    optimizers = {name: torch.optim.SGD(net.parameters(), 0.1, fused=True) for name, net in method.trained().items()}
    Engine(method, optimizers, device=torch.device("cpu")).step(batch_of(), make_progress(step))
    for teacher, student in zip(method.teachers, method.students, strict=True):
        expected = decay + (1 - decay) * student.embed.detach()
        torch.testing.assert_close(teacher.embed, expected, atol=1e-6, rtol=0)


def test_a_teacher_in_train_mode_labels_with_the_statistics_of_its_batch():
    batch = make_batch()
    modes = {mode: make_method("rml", confidence="none", teacher_mode=mode) for mode in ("eval", "train")}
    teacher = copy.deepcopy(modes["train"].teacher_1)
    probability = torch.nn.functional.interpolate(
        teacher.train()(batch.weak).logits.softmax(1), size=batch.valid.shape[-2:], mode="bilinear", align_corners=False
    )
    labels = {mode: method.pseudo_labels(batch)[0].label for mode, method in modes.items()}
    assert torch.equal(labels["train"], probability.argmax(1).where(batch.valid, IGNORE))
    assert not torch.equal(labels["train"], labels["eval"])


def test_a_student_that_labels_answers_as_a_teacher_would():
    """In direct coupling: with running statistics, which stay as they are, and in train mode again afterwards."""
    method, batch = make_method("rml", coupling="direct", confidence="none"), make_batch()
    student = copy.deepcopy(method.student_1).eval()
    expected = upsample(student(batch.weak).logits.softmax(1), (32, 48)).argmax(1).where(batch.valid, IGNORE)
    assert torch.equal(method.pseudo_labels(batch)[0].label, expected)
    assert method.student_1.training
    after = method.student_1.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in student.state_dict().items())


def test_its_running_statistics_are_moved_by_nobody_but_the_moving_average():
    batch = make_batch()
    modes = {mode: make_method("rml", decay=1.0, buffers="averaged", teacher_mode=mode) for mode in ("eval", "train")}
    before = {key: value.clone() for key, value in modes["train"].teacher_1.state_dict().items()}
    for method in modes.values():
        make_engine(method).step(batch, make_progress())
        assert not method.teacher_1.training
    after = modes["train"].teacher_1.state_dict()
    assert all(torch.equal(value, before[key]) for key, value in after.items() if "num_batches" not in key)


def test_batch_statistics_end_with_their_block_even_after_an_error():
    net, images = network(), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        running = net.eval()(images).logits
        with batch_statistics(net):
            assert not torch.allclose(net(images).logits, running)
        assert torch.equal(net(images).logits, running)
        with pytest.raises(TypeError), batch_statistics(net):
            net(None)
        assert torch.equal(net(images).logits, running)


def test_labeled_images_that_join_the_prototypes_leave_the_labels_alone():
    """Those of a step are those that diagnostics look at, whatever the labeled images are."""
    method, batch = make_method("rml", teacher_mode="train"), make_batch()
    looked_at = method.pseudo_labels(batch)[0].label
    for image in (batch.image, 1 - batch.image):
        changed = replace(batch, image=image)
        joining = joining_images(changed, make_progress().step, every=1)
        assert torch.equal(method._denoise(0, changed, joining).label, looked_at)


@pytest.mark.parametrize("coupling", ["direct", "indirect_self"])
def test_prototypes_may_be_made_of_class_scores(coupling: str):
    """The sweep's class means and a step's distances, by numpy, from logits less their mean over classes."""
    batch = batch_of()
    settings = RMLSettings(coupling=coupling, feature_layer="classifier", dropout=0.0, stochastic_depth=1.0)
    loss = LabeledLoss(LossSettings())
    method = RobustMutualLearning(settings, lambda learner: PixelNetwork(int(learner[-1])), loss).double()
    net = method.teacher_1  # student_1 is the same here
    method.eval()
    method.start_stage(0)
    method.sweep(batch.weak, None)
    method.finish_sweep()
    logits = net(batch.weak).logits.detach().numpy()  # [2, K, 4, 4]
    centered = logits - logits.mean(1, keepdims=True)
    own = logits.argmax(1)
    seen = [k for k in range(K) if (own == k).sum((1, 2)).max() >= 10]
    assert seen
    for k in seen:
        images = [centered[n][:, own[n] == k].mean(1) for n in range(2) if (own[n] == k).sum() >= 10]
        np.testing.assert_allclose(method.prototypes_1.center[k].numpy(), np.mean(images, axis=0))
    torch.nn.init.normal_(method.prototypes_1.center)
    method.prototypes_1.known.fill_(True)
    center, scale = method.prototypes_1.center.numpy(), method._temperature(0).item()
    distance = np.linalg.norm(centered[:, None] - center[None, :, :, None, None], axis=2)  # [2, K, 4, 4]
    expected = (batch.stored[P0].numpy() - scale * distance).argmax(1)
    label = method.pseudo_labels(batch)[0].label.numpy()
    assert np.array_equal(label, np.where(batch.valid.numpy(), expected, IGNORE))


@pytest.mark.parametrize("mean", ["pixels", "images"])
def test_a_batch_counts_by_its_pixels_or_by_its_images(mean: str):
    method, batch = method_of(prototype_mean=mean, labeled_every=10**6), batch_of()
    joining = batch.__class__(**{**vars(batch), "label": torch.full_like(batch.label, IGNORE)})  # none joins
    prediction = method.teacher_1(batch.weak)
    features, own = prediction.features.detach().numpy(), prediction.logits.argmax(1).numpy()
    own = np.where(batch.valid.numpy(), own, IGNORE)
    before = method.prototypes_1.center.clone()
    method.prototypes_1.known.fill_(True)
    optimizers = {name: torch.optim.SGD(net.parameters(), 0.1, fused=True) for name, net in method.trained().items()}
    Engine(method, optimizers, device=torch.device("cpu")).step(joining, make_progress())
    for k in range(K):
        parts = [features[n][:, own[n] == k] for n in range(len(own)) if (own[n] == k).any()]
        if not parts:
            continue
        batch_mean = np.concatenate(parts, 1).mean(1) if mean == "pixels" else np.mean([p.mean(1) for p in parts], 0)
        expected = 0.9 * before[k].numpy() + 0.1 * batch_mean
        np.testing.assert_allclose(method.prototypes_1.center[k].numpy(), expected, rtol=1e-6)


def test_ignored_parts_of_labeled_images_are_in_no_prototype():
    """Whatever stands there, the sweep gives the same prototypes and the same spread of features."""
    batch = batch_of()
    label = batch.label.clone()
    label[:, 1] = IGNORE
    other = batch.image.clone()
    other[:, :, 1] = 7.0
    found = []
    for images in (batch.image, other):
        method = method_of().eval()
        method.start_stage(0)
        method.sweep(images, label)
        method.sweep(batch.weak, None)
        method.finish_sweep()
        found.append((method.prototypes_1.center.clone(), method.prototypes_1.spread.clone()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_p0_may_be_the_mean_over_sizes_and_mirror_images():
    """By hand: four views of each teacher, brought back to the cells of the image as it is."""
    method, images = make_method("rml", p0_scales=(1.0, 1.5), p0_flip=True).eval(), make_batch().weak  # [4, 3, 32, 48]
    with torch.no_grad():
        method.teacher_2.head.classifier.weight.neg_()
    expected = torch.zeros(4, method.student_1.num_classes, 4, 6)
    resize = partial(torch.nn.functional.interpolate, mode="bilinear", antialias=True)
    for teacher in method.teachers:
        for view in (images, resize(images, size=(48, 72))):
            for mirrored in (False, True):
                answer = teacher(view.flip(-1) if mirrored else view).logits.softmax(1).detach()
                expected += resize(answer.flip(-1) if mirrored else answer, size=(4, 6)) / 8
    got = method.sweep(images, None)[P0].exp()
    torch.testing.assert_close(got, expected)
    plain = make_method("rml").eval()
    plain.load_state_dict(method.state_dict())
    assert not torch.allclose(plain.sweep(images, None)[P0].exp(), expected, atol=1e-4)
