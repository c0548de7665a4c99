"""Mean teachers: exponential moving averages of a student."""

from __future__ import annotations

import copy
from itertools import compress
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

Buffers = Literal["copied", "averaged", "weak"]
Network = TypeVar("Network", bound=nn.Module)


def teacher_of(student: Network) -> Network:
    """A copy that never trains."""
    teacher = copy.deepcopy(student)
    return teacher.requires_grad_(False).eval()


def horizon_factor(horizon: float) -> float:
    """What a moving average keeps of itself at each step to look back over `horizon` steps: 1 - 1 / horizon."""
    return 1 - 1 / horizon


class MovingAverage(NamedTuple):
    """What the plan says about one: 0.9999 a step reads like 1, and yet moves by 22 % in 2,500 steps."""

    what: str
    factor: float  # what it keeps of itself at each step
    warmed: bool = False  # it starts as the plain mean of the first steps

    def start_left(self, steps: int) -> float:
        """The share of its start that is left after `steps`, where every step moves it."""
        return 0.0 if self.warmed and steps > 0 else self.factor**steps


def warmed_decay(decay: float, step: Tensor) -> Tensor:
    """min(decay, 1 - 1 / (step + 1)): the plain mean of the first steps, then the moving average. [] float32."""
    return (1 - 1 / (step + 1.0)).clamp(max=decay)


@torch.no_grad()
def ema_update(teacher: nn.Module, student: nn.Module, decay: float | Tensor, buffers: Buffers = "copied") -> None:
    """teacher <- decay * teacher + (1 - decay) * student; counters are always copied.

    buffers: BatchNorm statistics are copied from the student, averaged like the weights, or left to what the teacher
    itself sees (`weak`, learning/statistics.py).
    """
    slow: list[Tensor] = list(teacher.parameters())
    fast: list[Tensor] = list(student.parameters())
    slow_buffers, fast_buffers = list(teacher.buffers()), list(student.buffers())
    averaged = [buffers == "averaged" and buffer.is_floating_point() for buffer in slow_buffers]
    slow += [buffer for buffer, average in zip(slow_buffers, averaged, strict=True) if average]
    fast += [buffer for buffer, average in zip(fast_buffers, averaged, strict=True) if average]
    _move(slow, fast, decay)
    own = [buffers == "weak" and buffer.is_floating_point() for buffer in slow_buffers]
    copied = [not (average or kept) for average, kept in zip(averaged, own, strict=True)]
    _copy(list(compress(slow_buffers, copied)), list(compress(fast_buffers, copied)))


def _move(slow: list[Tensor], fast: list[Tensor], decay: float | Tensor) -> None:
    if not isinstance(decay, Tensor):
        torch._foreach_lerp_(slow, fast, 1 - decay)  # one pass over the weights
        return
    step = list(torch._foreach_sub(fast, slow))
    torch._foreach_mul_(step, 1 - decay)
    torch._foreach_add_(slow, step)


def _copy(slow: list[Tensor], fast: list[Tensor]) -> None:
    """All tensors of one type at once: a list of several types would be a copy for each tensor on the GPU."""
    for dtype in {tensor.dtype: None for tensor in slow}:
        chosen = [tensor.dtype == dtype for tensor in slow]
        torch._foreach_copy_(list(compress(slow, chosen)), list(compress(fast, chosen)))
