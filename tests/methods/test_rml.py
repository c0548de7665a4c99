"""Algorithm 1 of the paper, one step followed by hand on 4x4 images with networks that see one pixel."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fewmask.labels import IGNORE
from fewmask.learning.rectification import prototype_distance
from fewmask.methods.rml import P0, RobustMutualLearning
from fewmask.training.engine import Engine
from fewmask.types import Batch, Update
from tests.methods.pixel_rml import SIZE, D, K, batch_of, denoise_by_loop, loss_by_loop, method_of, mix_by_loop
from tests.miniature import make_progress, requests

RATE = 0.1


def moved_prototypes(method, learner: int, batch: Batch, own: np.ndarray, step: int) -> Tensor:
    """Eq. 12 with the class means of this batch: unlabeled pixels, and the labeled images whose turn it is."""
    network, every = method.teachers[learner], method.settings.labeled_every
    vectors: dict[int, list[Tensor]] = {k: [] for k in range(K)}
    for n, y, x in np.ndindex(2, SIZE, SIZE):
        if own[n, y, x] != IGNORE:
            vectors[own[n, y, x]].append(network.embed @ batch.weak[n, :, y, x])
        if n % every == step % every and batch.label[n, y, x] != IGNORE:
            feature = network.embed @ batch.image[n, :, y, x]
            vectors[int((network.classify @ feature).argmax())].append(feature)
    center = method.prototypes[learner].center.clone()
    for k, members in vectors.items():
        if members:
            center[k] = 0.9 * center[k] + 0.1 * torch.stack(members).mean(0)
    return center.detach()


@pytest.mark.parametrize(("step", "every"), [(0, 2), (1, 2), (5, 3), (4, 1)])
def test_one_step_of_algorithm_1(step: int, every: int):
    """Of two labeled images one or the other joins the prototypes, none, or both."""
    method, batch = method_of(labeled_every=every), batch_of()
    for learner, teacher in enumerate(method.teachers):  # as in the middle of a stage: none is its student
        for weights in teacher.parameters():
            nn.init.normal_(weights, generator=torch.Generator().manual_seed(50 + learner))
    targets, centers, students = [], [], []
    for learner in (0, 1):
        label, own = denoise_by_loop(method.teachers[learner], method.prototypes[learner].center, batch)
        targets.append(mix_by_loop(label, batch))
        centers.append(moved_prototypes(method, learner, batch, own, step))
    for learner, student in enumerate(method.students):
        mixed = torch.from_numpy(mix_by_loop(batch.strong[learner].numpy(), batch))
        loss = loss_by_loop(student, batch.image, batch.label.numpy())  # Eq. 1
        loss = loss + loss_by_loop(student, mixed, targets[0]) + loss_by_loop(student, mixed, targets[1])  # Eq. 5
        gradients = torch.autograd.grad(loss, [student.embed, student.classify])
        students.append(
            [p.detach() - RATE * g for p, g in zip((student.embed, student.classify), gradients, strict=True)]
        )
    before = [[teacher.embed.clone(), teacher.classify.clone()] for teacher in method.teachers]

    optimizers = {
        name: torch.optim.SGD(network.parameters(), RATE, fused=True) for name, network in method.trained().items()
    }
    Engine(method, optimizers, device=torch.device("cpu")).step(batch, make_progress(step))

    for learner in (0, 1):
        student, teacher = method.students[learner], method.teachers[learner]
        for got, expected in zip((student.embed, student.classify), students[learner], strict=True):
            torch.testing.assert_close(got.detach(), expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(method.prototypes[learner].center, centers[learner], atol=1e-6, rtol=0)
        for got, old, new in zip((teacher.embed, teacher.classify), before[learner], students[learner], strict=True):
            torch.testing.assert_close(got, 0.8 * old + 0.2 * new, atol=1e-10, rtol=0)  # teachers last


def unlabeled_terms(method: RobustMutualLearning, batch: Batch) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for request in requests(method, batch, make_progress()):
        if isinstance(request, Update):
            terms = [term for term in request.loss.terms if term.name == "unlabeled"]
            found[request.optimizer] = [(term.weight * term.total / term.count).item() for term in terms]
    return found


@pytest.mark.parametrize("coupling", ["direct", "indirect", "indirect_self"])
def test_who_teaches_whom(coupling: str):
    """Labels from the peer student, the peer teacher, or both teachers."""
    method, batch = method_of(coupling=coupling, confidence="none"), batch_of()
    for teacher in method.teachers:  # so that teachers and students say different things
        nn.init.normal_(teacher.classify, generator=torch.Generator().manual_seed(99 + len(coupling)))
    sources = method.students if coupling == "direct" else method.teachers
    targets = [
        mix_by_loop(source(batch.weak).logits.argmax(1).where(batch.valid, IGNORE).numpy(), batch) for source in sources
    ]
    got = unlabeled_terms(method, batch)
    for learner, (name, student) in enumerate(method.trained().items()):
        mixed = torch.from_numpy(mix_by_loop(batch.strong[learner].numpy(), batch))
        taught_by = [1 - learner, learner] if coupling == "indirect_self" else [1 - learner]
        expected = [loss_by_loop(student, mixed, targets[teacher]).item() for teacher in taught_by]
        assert got[name] == pytest.approx(expected)


def test_targets_may_be_averaged():
    batch = batch_of()
    summed = unlabeled_terms(method_of(targets="sum"), batch)["student_1"]
    averaged = unlabeled_terms(method_of(targets="mean"), batch)["student_1"]
    assert averaged == pytest.approx([value / 2 for value in summed])


@pytest.mark.parametrize("confidence", ["softmax", "static", "none"])
def test_other_confidences(confidence: str):
    method, batch = method_of(confidence=confidence), batch_of()
    soft, own = batch.stored[P0].exp(), method.teacher_1(batch.weak).logits.softmax(1)
    expected = {"softmax": soft * own, "static": soft, "none": own}[confidence].argmax(1).where(batch.valid, IGNORE)
    assert torch.equal(method.pseudo_labels(batch)[0].label, expected)


def test_the_temperature_is_as_set_or_the_heads_own_or_measured():
    measured = method_of()
    images = torch.rand(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    measured.start_stage(0)
    measured.sweep(images, None)
    measured.finish_sweep()
    for learner, teacher in enumerate(measured.teachers):
        cells = teacher(images).features.movedim(1, -1).reshape(-1, D).detach().numpy()
        expected = 16 / np.sqrt(((cells - cells.mean(0)) ** 2).sum(1).mean())
        assert float(measured._temperature(learner)) == pytest.approx(expected, rel=1e-5)
    assert method_of(temperature=0.25)._temperature(0) == 0.25
    known = method_of()
    known.teacher_1.temperature = 1.0
    known.prototypes_1.spread.fill_(4.0)  # what was measured does not matter to a head that knows its own
    assert known._temperature(0) == 1.0
    asked = method_of(spread=(4.0, 2.0))
    asked.load_state_dict(measured.state_dict())
    asked.teacher_1.temperature = 1.0  # what is asked for goes before what the head knows
    for stage, part in enumerate((4, 8, 8)):  # the last value holds for all further stages
        asked.start_stage(stage)
        assert float(asked._temperature(0)) == pytest.approx(float(measured._temperature(0)) / part)
    with pytest.raises(ValueError, match="none where temperature is set"):
        method_of(spread=(4.0,), temperature=1.0)


def test_the_measured_temperature_decides_labels():
    """With little spread T grows, distances weigh more against p0, and more labels follow the nearest prototype."""
    batch, nearest = batch_of(), []
    for spread in (1e6, 16.0, 1e-3):
        method = method_of()
        method.prototypes_1.spread.fill_(spread)
        features = method.teacher_1(batch.weak).features
        closest = prototype_distance(features, method.prototypes_1.center).argmin(1)
        same = method.pseudo_labels(batch)[0].label == closest
        nearest.append(int(same[batch.valid].sum()))
    p0 = batch.stored[P0].argmax(1)
    assert nearest[0] == int((p0 == closest)[batch.valid].sum())  # distances do not matter: p0 alone
    assert nearest[2] == int(batch.valid.sum())  # nothing else matters
    assert nearest[0] < nearest[1] < nearest[2]


def test_a_threshold_ignores_weak_labels():
    method, batch = method_of(threshold=0.9), batch_of()
    free = method_of().pseudo_labels(batch)[0].label
    kept = method.pseudo_labels(batch)[0].label
    assert torch.equal(kept[kept != IGNORE], free[kept != IGNORE])
    assert (kept == IGNORE).sum() > (free == IGNORE).sum()
    free_terms, terms = (unlabeled_terms_and_counts(each, batch) for each in (method_of(), method))
    assert [count for _, count in terms] == [count for _, count in free_terms]  # dropped pixels stay in the count
    assert all(total < free for (total, _), (free, _) in zip(terms, free_terms, strict=True))


def unlabeled_terms_and_counts(method: RobustMutualLearning, batch: Batch) -> list[tuple[float, float]]:
    updates = [each for each in requests(method, batch, make_progress()) if isinstance(each, Update)]
    terms = [term for each in updates for term in each.loss.terms if term.name == "unlabeled"]
    return [(term.total.item(), term.count.item()) for term in terms]


def test_a_batch_without_p0_is_an_error():
    batch = replace(batch_of(), stored={})
    with pytest.raises(KeyError, match="the batch has no log_p0"):
        method_of().pseudo_labels(batch)
    assert method_of(confidence="none").pseudo_labels(batch)[0].before is None
