"""`buffers: weak`: teachers' BatchNorm statistics are those of the weak images that they see."""

import pytest
import torch
from torch import Tensor, nn

from fewmask.errors import ConfigError
from fewmask.types import Batch, Update
from tests.miniature import make_batch, make_engine, make_method, make_progress, requests


def fed_inputs(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """What each BatchNorm layer gets when the network answers in eval mode."""
    found, handles = {}, []
    for name, layer in network.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            handles.append(layer.register_forward_pre_hook(lambda _, args, name=name: found.update({name: args[0]})))
    with torch.no_grad():
        network(images)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("name", ["rml", "mean_teacher"])
def test_weak_statistics_are_those_of_the_weak_images(name: str):
    """After a step each running statistic is 0.9 times itself and 0.1 times that of the unlabeled weak images."""
    method, batch = make_method(name, buffers="weak"), make_batch()
    teacher = method.teacher_1
    for layer in teacher.modules():  # a past that differs from the student's
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.add_(0.1)
    expected = {}
    for layer, values in fed_inputs(teacher, batch.weak).items():
        flat = values.double().transpose(0, 1).flatten(1)  # [D, pixels]
        old = teacher.get_submodule(layer)
        expected[layer] = (
            0.9 * old.running_mean + 0.1 * flat.mean(1),
            0.9 * old.running_var + 0.1 * flat.var(1, correction=1),
        )
    assert len(expected) > 5
    before = teacher(batch.weak).logits
    step = method.step(batch, make_progress())
    assert any(isinstance(request, Update) for request in step)  # labels were made, and nothing has moved yet
    assert torch.equal(teacher(batch.weak).logits, before)
    make_engine(method).step(batch, make_progress())
    for layer, (mean, variance) in expected.items():
        got = teacher.get_submodule(layer)
        torch.testing.assert_close(got.running_mean, mean.float(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(got.running_var, variance.float(), rtol=1e-4, atol=1e-6)
        assert not torch.allclose(got.running_mean, method.student_1.get_submodule(layer).running_mean, atol=1e-4)


def taught_losses(
    name: str, batch: Batch, buffers: str, *, batch_statistics: bool = False
) -> list[tuple[str, float, float]]:
    """What each student loses against the labels of a step, and over how many pixels; only labels need teachers."""
    own = {"confidence": "none"} if name == "rml" else {}  # labels are the teachers' own answers
    method = make_method(name, threshold=0.0, buffers=buffers, **own)
    for teacher in (each for key, each in method.networks().items() if key.startswith("teacher")):
        for layer in (each for each in teacher.modules() if isinstance(each, nn.BatchNorm2d)):
            layer.running_mean.add_(0.1)  # a past that differs from the batch
            layer.train(batch_statistics)
    updates = [each for each in requests(method, batch, make_progress(step=5)) if isinstance(each, Update)]
    terms = [(each.optimizer, term) for each in updates for term in each.loss.terms if term.name == "unlabeled"]
    return [(optimizer, term.total.item(), term.count.item()) for optimizer, term in terms]


@pytest.mark.parametrize("name", ["rml", "mean_teacher"])
def test_weak_statistics_make_the_labels_that_copied_ones_would_make(name: str):
    """The step that moves them answers with the statistics from before, as sweeps and evaluation do."""
    batch = make_batch()
    weak, copied = (taught_losses(name, batch, buffers) for buffers in ("weak", "copied"))
    assert {optimizer for optimizer, _, _ in weak} == {*make_method(name).learners}
    assert weak == copied
    others = taught_losses(name, batch, "copied", batch_statistics=True)  # these would be other labels
    assert all(abs(one[1] - other[1]) > 1 for one, other in zip(copied, others, strict=True))


def test_sweeps_and_evaluation_leave_weak_statistics_alone():
    method = make_method("rml", buffers="weak")
    before = {key: value.clone() for key, value in method.teacher_1.state_dict().items()}
    method.eval()
    method.start_stage(0)
    method.sweep(make_batch().weak, None)
    method.finish_sweep()
    method.teacher_1(make_batch().image)
    assert all(torch.equal(value, before[key]) for key, value in method.teacher_1.state_dict().items())


def test_direct_coupling_shows_its_teachers_no_weak_images():
    with pytest.raises(ConfigError, match="see no weak images"):
        make_method("rml", buffers="weak", coupling="direct")
