"""Steps on trial: whatever they change is put back in place, so that a captured graph goes on with the same tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fewmask.training.engine import Engine

# An optimizer makes its state in its first step. Such state gets the value with which the next step computes what a
# first step would: momentum * -0.0 + g is g to the bit, also where g is -0.0. AdamW's starts from zeros anyway.
_BEFORE_THE_FIRST_STEP = {"momentum_buffer": -0.0}


@contextmanager
def on_trial(engine: Engine) -> Iterator[None]:
    """Inside, steps, sweeps and validations may run; afterwards nothing of them is left but what they allocated."""
    before = {name: tensor.detach().to("cpu", copy=True) for name, tensor in _changing(engine).items()}
    try:
        yield
    finally:
        _put_back(engine, before)


@torch.no_grad()
def _put_back(engine: Engine, before: dict[tuple[str, ...], Tensor]) -> None:
    engine.found, engine.finite = [], []
    engine.method.train()
    for name, tensor in _changing(engine).items():
        if name in before:
            tensor.copy_(before[name])
        else:
            tensor.fill_(_BEFORE_THE_FIRST_STEP.get(name[-1], 0.0))


def _changing(engine: Engine) -> dict[tuple[str, ...], Tensor]:
    """Every tensor that a step may change, buffers that no checkpoint has included."""
    found: dict[tuple[str, ...], Tensor] = {("bad_step",): engine.bad_step}
    found |= {("parameter", name): tensor for name, tensor in engine.method.named_parameters()}
    found |= {("buffer", name): tensor for name, tensor in engine.method.named_buffers()}
    found |= {("sums", name): pair for name, pair in engine.sums.items()}
    for name, optimizer in engine.optimizers.items():
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        for index, parameter in enumerate(parameters):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[("optimizer", name, str(index), key)] = value
    return found
