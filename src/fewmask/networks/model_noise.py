"""Model noise: dropout before the classifier and stochastic depth, drawn from addressed randomness.

timm's own drop layers draw from torch's generator and know the linear rule only. Here every residual block has a gate
(gates.py puts it there), set for one pass at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from fewmask.randomness import Noise

DepthRule = Literal["constant", "linear"]


class PassNoise:
    """Opens and closes all gates of one network for one forward pass, with a single draw for all of them."""

    def __init__(self) -> None:
        self.gates: list[ResidualGate] = []  # in the order in which a pass reaches them

    @contextmanager
    def set_to(self, noise: Noise | None) -> Iterator[None]:
        if noise is not None and self.gates:
            self._draw(noise)
        try:
            yield
        finally:
            for gate in self.gates:
                gate.keep = None

    def _draw(self, noise: Noise) -> None:
        survival = [gate.survival(noise.survival) for gate in self.gates]
        if min(survival) >= 1.0:
            return
        draws = noise.uniform("depth", len(survival))  # [N, gates]
        rate = _on_device(survival, draws.device)
        keeps = ((draws < rate) / rate).unbind(1)  # [N] each
        for gate, keep, each in zip(self.gates, keeps, survival, strict=True):
            gate.keep = keep if each < 1.0 else None


def _on_device(rates: list[float], device: torch.device) -> Tensor:
    """[1] where all are alike, else [gates]; filled on the device, as a copy from the host cannot be captured."""
    alike = rates[:1] if len(set(rates)) == 1 else rates
    return torch.cat([torch.full((1,), each, dtype=torch.float64, device=device) for each in alike])


class ResidualGate(nn.Module):
    """Keeps or drops each sample's residual branch; what is kept is divided by the block's survival rate."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 1.0  # 0 at a block that always survives, 1 at one with the full drop rate
        self.keep: Tensor | None = None  # [N] 0 or 1 / survival; none: undisturbed

    def survival(self, asked: float) -> float:
        return 1.0 - self.depth * (1.0 - asked)

    def forward(self, branch: Tensor) -> Tensor:
        if self.keep is None:
            return branch
        return branch * self.keep.to(branch.dtype).reshape(-1, *[1] * (branch.ndim - 1))


def gated_blocks(network: nn.Module) -> list[nn.Module]:
    """The modules that own a gate: residual blocks, in the order of their names."""
    return [each for each in network.modules() if any(isinstance(child, ResidualGate) for child in each.children())]


def dropped_out(features: Tensor, noise: Noise | None, kind: Literal["channel", "element"]) -> Tensor:
    """Features [N, D, h, w] with whole channels or single elements switched off, the rest divided by the keep rate."""
    if noise is None or noise.dropout <= 0.0:
        return features
    channels, *size = features.shape[1:]
    draw = noise.uniform("dropout", channels, *(size if kind == "element" else (1, 1)))  # [N, D, h, w] or [N, D, 1, 1]
    keep = (draw >= noise.dropout).to(features.dtype) / (1.0 - noise.dropout)
    return features * keep
