"""Mean teachers by hand."""

import pytest
import torch
from torch import nn

from fewmask.learning.ema import MovingAverage, ema_update, horizon_factor, teacher_of, warmed_decay


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


def test_a_horizon_is_a_factor():
    """The paper's 0.999 and 0.9999 are horizons of 1,000 and 10,000 steps, exactly."""
    assert [horizon_factor(steps) for steps in (1, 250, 1000, 10_000)] == [0.0, 0.996, 0.999, 0.9999]


@pytest.mark.parametrize(
    ("factor", "steps", "left"),
    [(0.9999, 2500, 0.7788), (0.999, 2500, 0.0820), (0.996, 250, 0.3672), (0.5, 3, 0.125), (0.9, 0, 1.0)],
)
def test_what_is_left_of_the_start(factor: float, steps: int, left: float):
    """0.9999 moves a prototype by 22 % in 2,500 steps and no more; a horizon's own steps leave about 1/e."""
    assert MovingAverage("prototypes", factor).start_left(steps) == pytest.approx(left, abs=1e-4)


def test_what_is_left_of_the_start_is_what_updates_leave():
    teacher, student = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.ones_(teacher.weight), nn.init.zeros_(student.weight)
    for _ in range(7):
        ema_update(teacher, student, 0.8)
    assert teacher.weight.item() == pytest.approx(MovingAverage("teacher", 0.8).start_left(7))
    ema_update(teacher, student, warmed_decay(0.8, torch.tensor(0)))
    assert teacher.weight.item() == MovingAverage("teacher", 0.8, warmed=True).start_left(1) == 0.0


def test_teacher_never_trains():
    _, teacher = pair()
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not teacher.training
