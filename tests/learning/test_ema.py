"""Mean teachers by hand."""

import pytest
import torch
from torch import nn

from fewmask.learning.ema import ema_update, teacher_of, warmed_decay


def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    teacher = teacher_of(student)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
        student[1].running_mean.fill_(5.0)
        student[1].num_batches_tracked.fill_(7)
    return student, teacher


@pytest.mark.parametrize("decay", [0.9, torch.tensor(0.9)])
def test_parameters_move_by_one_minus_decay(decay):
    student, teacher = pair()
    before = [parameter.clone() for parameter in teacher.parameters()]
    ema_update(teacher, student, decay)
    for old, now, fast in zip(before, teacher.parameters(), student.parameters(), strict=True):
        torch.testing.assert_close(now, 0.9 * old + 0.1 * fast.detach())


def test_buffer_policies():
    student, teacher = pair()
    ema_update(teacher, student, 0.9, "copied")
    assert teacher[1].running_mean.tolist() == [5.0, 5.0]
    assert teacher[1].num_batches_tracked == 7
    student, teacher = pair()
    ema_update(teacher, student, 0.9, "averaged")
    assert teacher[1].running_mean.tolist() == pytest.approx([0.5, 0.5])
    assert teacher[1].num_batches_tracked == 7


def test_warm_up_is_the_plain_mean_at_first():
    values = [3.0, 5.0, 10.0]
    mean = torch.tensor(100.0)
    for step, value in enumerate(values):
        decay = warmed_decay(0.999, torch.tensor(step))
        mean = decay * mean + (1 - decay) * value
    assert mean.item() == pytest.approx(sum(values) / 3)
    assert warmed_decay(0.9, torch.tensor(10**6)).item() == pytest.approx(0.9)


def test_teacher_never_trains():
    _, teacher = pair()
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not teacher.training
