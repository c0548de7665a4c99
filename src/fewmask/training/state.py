"""The one flat state of a run: network.*, method.*, optimizer.*, metrics.*, checksums."""

from __future__ import annotations

from typing import Any

import torch

from fewmask.errors import CheckpointError
from fewmask.methods.method import Method
from fewmask.training.engine import Engine


def collect_state(engine: Engine, checksums: dict[str, str]) -> dict[str, Any]:
    """Everything the next step depends on besides settings and data. All ranks must call this."""
    sums = engine.gather_sums()
    state: dict[str, Any] = method_state(engine.method)
    state |= {f"optimizer.{name}": optimizer.state_dict() for name, optimizer in engine.optimizers.items()}
    state |= {f"metrics.{name}": pair for name, pair in sums.items()}
    return state | {f"checksum.{name}": value for name, value in checksums.items()}


def restore_state(engine: Engine, state: dict[str, Any], checksums: dict[str, str]) -> None:
    for name, value in checksums.items():
        if state[f"checksum.{name}"] != value:
            raise CheckpointError(
                f"the {name} is not the one this run was trained on",
                where=f"checksum.{name}",
                fix="the same files and names",
            )
    load_method(engine.method, state)
    for name, optimizer in engine.optimizers.items():
        capturable = optimizer.defaults.get("capturable")  # belongs to the device, which may be another one now
        optimizer.load_state_dict(state[f"optimizer.{name}"])
        for group in optimizer.param_groups:
            group |= {} if capturable is None else {"capturable": capturable}
    sums = {key.removeprefix("metrics."): value for key, value in state.items() if key.startswith("metrics.")}
    engine.sums = {name: _own(pair, engine) for name, pair in sums.items()}


def _own(pair: torch.Tensor, engine: Engine) -> torch.Tensor:
    return (pair if engine.world.main else torch.zeros_like(pair)).to(engine.device)


def method_state(method: Method) -> dict[str, torch.Tensor]:
    """Tensors of networks under network.<name>.*, everything else the method keeps under method.*."""
    names = tuple(f"{name}." for name in method.networks())
    return {
        f"{'network' if key.startswith(names) else 'method'}.{key}": value for key, value in method.state_dict().items()
    }


def load_method(method: Method, state: dict[str, Any]) -> None:
    tensors = {
        key.partition(".")[2]: value for key, value in state.items() if key.partition(".")[0] in ("network", "method")
    }
    method.load_state_dict(tensors)


def network_state(state: dict[str, Any], name: str) -> dict[str, torch.Tensor]:
    prefix = f"network.{name}."
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
