"""BatchNorm statistics taken from what a network in eval mode sees, against numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from fewmask.learning.ema import ema_update, teacher_of
from fewmask.learning.statistics import move_statistics, watched_inputs


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Two BatchNorm layers with a past, far from what they will see."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)
    )
    for layer in (layers[1], layers[4]):
        nn.init.uniform_(layer.running_mean, 1, 2)
        nn.init.uniform_(layer.running_var, 2, 3)
        nn.init.normal_(layer.weight)
    return layers.to(dtype).eval()


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, 6, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_statistics_follow_the_inputs_and_answers_do_not():
    """Each layer's input is that of the pass in eval mode; its mean and unbiased variance move the running ones."""
    teacher, seen = network(), images()
    with torch.no_grad():
        answer = teacher(seen)
        fed = {1: teacher[:1](seen), 4: teacher[:4](seen)}
    expected = {}
    for place, momentum in ((1, 0.3), (4, 0.1)):
        values = fed[place].numpy().transpose(1, 0, 2, 3).reshape(fed[place].shape[1], -1)
        mean, variance = teacher[place].running_mean.numpy(), teacher[place].running_var.numpy()
        expected[place] = (
            (1 - momentum) * mean + momentum * values.mean(1),
            (1 - momentum) * variance + momentum * values.var(1, ddof=1),
        )
    with torch.no_grad(), watched_inputs(teacher) as inputs:
        assert torch.equal(teacher(seen), answer)
    assert [len(part) for part in inputs] == [9, 5]
    move_statistics(teacher, torch.cat(inputs))
    for place, (mean, variance) in expected.items():
        np.testing.assert_allclose(teacher[place].running_mean, mean, rtol=1e-12)
        np.testing.assert_allclose(teacher[place].running_var, variance, rtol=1e-12)
    with torch.no_grad():
        after = [buffer.clone() for buffer in teacher.buffers()]
        teacher(seen)  # no longer watched
    assert all(torch.equal(*pair) for pair in zip(after, teacher.buffers(), strict=True))


def test_one_layer_tracks_what_torch_tracks_in_train_mode():
    layer, seen = nn.BatchNorm2d(3), images().float()
    twin = nn.BatchNorm2d(3).train()
    twin(seen)
    with watched_inputs(layer.eval()) as inputs:
        layer(seen)
    move_statistics(layer, torch.cat(inputs))
    torch.testing.assert_close(layer.running_mean, twin.running_mean)
    torch.testing.assert_close(layer.running_var, twin.running_var)


def test_the_moments_of_parts_add_up_to_those_of_the_whole():
    """Two processes with one and two images, summed, move the statistics as one process with all three."""
    whole, parted = network(), network()
    with torch.no_grad(), watched_inputs(whole) as inputs:
        whole(images())
    move_statistics(whole, torch.cat(inputs))
    sums = []
    for part in (images()[:1], images()[1:]):
        with torch.no_grad(), watched_inputs(parted) as inputs:
            parted(part)
        sums.append(torch.cat(inputs))
    move_statistics(parted, sums[0] + sums[1])
    for one, other in zip(whole.buffers(), parted.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [(3, 1), (1, 3), (2, 1, 1), (1, 1, 1, 1)])
def test_only_the_first_rows_count_in_however_many_parts_they_come(sizes):
    """Two of four images: within one part, over two parts, and parts that have none of them."""
    alone, parted = network(), network()
    with torch.no_grad(), watched_inputs(alone) as expected:
        alone(images(4)[:2])
    with torch.no_grad(), watched_inputs(parted, rows=2) as found:
        for part in images(4).split(sizes):
            parted(part)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_small_variances_far_from_zero_keep_their_digits():
    layer = nn.BatchNorm2d(1).eval()
    layer.running_mean.fill_(1000.0)
    seen = 1000 + 0.01 * torch.randn(4, 1, 50, 50, generator=torch.Generator().manual_seed(2))
    for _ in range(200):
        with watched_inputs(layer) as inputs:
            layer(seen)
        move_statistics(layer, torch.cat(inputs))
    assert layer.running_var.item() == pytest.approx(seen.double().var().item(), rel=1e-3)


def test_a_layer_that_saw_nothing_keeps_its_statistics():
    teacher = network()
    before = [buffer.clone() for buffer in teacher.buffers()]
    with watched_inputs(teacher) as inputs:
        pass
    move_statistics(teacher, torch.cat(inputs))
    assert all(torch.equal(*pair) for pair in zip(before, teacher.buffers(), strict=True))
    with watched_inputs(teacher, wanted=False) as inputs:
        teacher(images())
    assert inputs == []


def test_the_moving_average_leaves_them_alone():
    student = network().train()
    teacher = teacher_of(student)
    student(images())
    kept = teacher[1].running_mean.clone()
    with torch.no_grad():
        student[0].weight.add_(1.0)
    weight = teacher[0].weight.clone()
    ema_update(teacher, student, 0.9, "weak")
    assert torch.equal(teacher[1].running_mean, kept)
    assert not torch.equal(student[1].running_mean, kept)
    assert teacher[1].num_batches_tracked == 1
    torch.testing.assert_close(teacher[0].weight, 0.9 * weight + 0.1 * student[0].weight)
