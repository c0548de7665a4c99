"""The mean teacher's step, followed by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fewmask.labels import IGNORE
from fewmask.types import Reduce, Update
from tests.miniature import make_batch, make_engine, make_method, make_progress


def run_step(method, batch):
    generator = method.step(batch, make_progress())
    update = next(generator)
    assert isinstance(update, Update)
    return update, generator


def decided_method(**settings: object):
    """Its networks have learned nothing, and yet are sure of some pixels: of about half of them by more than 0.35."""
    method = make_method("mean_teacher", **settings)
    with torch.no_grad():
        for network in (method.student_1, method.teacher_1):
            network.head.classifier.weight.mul_(10)
    return method


def test_loss_is_the_formula():
    method = decided_method(threshold=0.35, unlabeled_weight=0.7, ramp=0.0)
    batch = make_batch()
    method.eval()  # BatchNorm aside, student and teacher are one function
    update, _ = run_step(method, batch)

    with torch.no_grad():
        weak = F.interpolate(method.teacher_1(batch.weak).logits, batch.weak.shape[-2:], mode="bilinear").softmax(1)
        confidence, target = weak.max(1)
        total, count = 0.0, 0
        for image in range(4):
            other = int(batch.partner[image])
            box = batch.box[image]
            mixed = torch.where(box, batch.strong[0][other], batch.strong[0][image])
            logits = F.interpolate(method.student_1(mixed[None]).logits, mixed.shape[-2:], mode="bilinear")[0]
            losses = -logits.log_softmax(0)
            for y in range(mixed.shape[-2]):
                for x in range(mixed.shape[-1]):
                    source = other if box[y, x] else image
                    if not batch.valid[source, y, x]:
                        continue
                    count += 1
                    if confidence[source, y, x] >= 0.35:
                        total += losses[target[source, y, x], y, x].item()
        assert 0 < (batch.valid & (confidence >= 0.35)).sum() < batch.valid.sum()
        labeled = F.interpolate(method.student_1(batch.image).logits, batch.image.shape[-2:], mode="bilinear")
        expected = F.cross_entropy(labeled, batch.label, ignore_index=IGNORE).item() + 0.7 * total / count
    assert update.loss.value().item() == pytest.approx(expected, rel=1e-4)


def test_identical_networks_and_views_agree_with_themselves():
    """Same weights, same view, no mixing: the target is the student's own argmax."""
    method = make_method("mean_teacher", threshold=0.0, photometric=False, mixing="none").eval()
    batch = make_batch(mixing=False)
    update, _ = run_step(method, batch)
    with torch.no_grad():
        logits = F.interpolate(method.student_1(batch.weak).logits, batch.weak.shape[-2:], mode="bilinear")
        own = logits.argmax(1).where(batch.valid, IGNORE)
        expected = F.cross_entropy(logits, own, ignore_index=IGNORE)
    term = next(term for term in update.loss.terms if term.name == "unlabeled")
    assert (term.total / term.count).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_teacher_moves_after_the_update():
    method = make_method("mean_teacher", decay=0.9, warmup=False)
    before = {key: value.clone() for key, value in method.teacher_1.named_parameters()}
    make_engine(method).step(make_batch(), make_progress())
    student = dict(method.student_1.named_parameters())
    for key, value in method.teacher_1.named_parameters():
        torch.testing.assert_close(value, 0.9 * before[key] + 0.1 * student[key].detach())
    assert any(not torch.equal(student[key], before[key]) for key in before)


def test_a_high_threshold_trusts_nothing():
    method = make_method("mean_teacher", threshold=1.0)
    update, rest = run_step(method, make_batch())
    term = next(term for term in update.loss.terms if term.name == "unlabeled")
    assert term.total.item() == 0.0
    assert term.count.item() > 0  # dropped pixels stay in the denominator
    measure = list(rest)[-1]
    assert measure.name == "trusted"
    assert measure.total.item() == 0.0


def test_a_confidence_at_the_threshold_is_trusted():
    method = make_method("mean_teacher", threshold=1.0)
    with torch.no_grad():
        method.teacher_1.head.classifier.weight.mul_(1e6)  # softmax rounds to 1
    batch = make_batch()
    (labels,) = method.pseudo_labels(batch)
    assert (labels.label != IGNORE).sum().item() > 0.9 * batch.valid.sum().item()
    _, rest = run_step(method, batch)
    measure = list(rest)[-1]
    assert measure.total.item() > 0.9 * measure.count.item()


def test_an_answer_below_the_threshold_is_no_pseudo_label():
    method, batch = decided_method(threshold=0.35), make_batch()
    (labels,) = method.pseudo_labels(batch)
    with torch.no_grad():
        logits = F.interpolate(method.teacher_1(batch.weak).logits, batch.weak.shape[-2:], mode="bilinear")
    confidence, label = logits.softmax(1).max(1)
    taught = batch.valid & (confidence >= 0.35)
    assert 0 < taught.sum() < batch.valid.sum()
    assert torch.equal(labels.label, label.where(taught, IGNORE))


def test_the_weight_of_unlabeled_images_rises_over_the_ramp():
    method = make_method("mean_teacher", unlabeled_weight=2.0, ramp=0.5)
    for step, expected in ((0, 2 * math.exp(-5)), (2, 2 * math.exp(-5 * 0.6**2)), (5, 2.0), (9, 2.0)):
        update = next(method.step(make_batch(), make_progress(step, steps=10)))
        (term,) = (term for term in update.loss.terms if term.name == "unlabeled")
        assert float(term.weight) == pytest.approx(expected, rel=1e-5)


def test_views_are_those_that_the_settings_name():
    for photometric in (True, False):
        assert make_method("mean_teacher", photometric=photometric).views.strong == int(photometric)
        assert make_method("mean_teacher", labeled_photometric=photometric).views.labeled_color == photometric
        assert make_method("supervised", photometric=photometric).views.labeled_color == photometric
    assert [make_method("mean_teacher", mixing=mixing).views.mixing for mixing in ("box", "none")] == ["box", "none"]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_weak_statistics_are_moved_by_the_sums_over_all_processes(share):
    """And by nothing else: where the answer is that nobody saw anything, they stay."""
    method = make_method("mean_teacher", buffers="weak")
    layer = next(method.teacher_1.batch_norms())
    before = layer.running_mean.clone()
    _, rest = run_step(method, make_batch())
    request = next(rest)
    assert isinstance(request, Reduce)
    rest.send(share * request.tensor)
    assert torch.equal(layer.running_mean, before) == (share == 0)


def test_padding_never_teaches():
    method = make_method("mean_teacher", threshold=0.0)
    batch = make_batch()
    update, _ = run_step(method, replace(batch, valid=torch.zeros_like(batch.valid)))
    term = next(term for term in update.loss.terms if term.name == "unlabeled")
    assert (term.total.item(), term.count.item()) == (0.0, 0.0)
