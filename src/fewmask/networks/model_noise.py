"""Model noise: dropout before the classifier and stochastic depth, drawn from addressed randomness.

timm's own drop layers draw from torch's generator and know the linear rule only. Here every residual block gets a gate
in the place where timm would have put its drop path, and all gates read the noise of the pass in progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from timm.layers import DropBlock2d, DropPath
from torch import Tensor, nn

from fewmask.randomness import Noise

DepthRule = Literal["constant", "linear"]


class PassNoise:
    """The noise of the forward pass in progress, shared by all gates of one network."""

    def __init__(self) -> None:
        self.current: Noise | None = None

    @contextmanager
    def set_to(self, noise: Noise | None) -> Iterator[None]:
        self.current = noise
        try:
            yield
        finally:
            self.current = None


class ResidualGate(nn.Module):
    """Keeps or drops each sample's residual branch; what is kept is divided by the block's survival rate."""

    def __init__(self, shared: PassNoise) -> None:
        super().__init__()
        self.shared = shared
        self.stream = "depth"
        self.depth = 1.0  # 0 at a block that always survives, 1 at one with the full drop rate

    def survival(self, asked: float) -> float:
        return 1.0 - self.depth * (1.0 - asked)

    def forward(self, branch: Tensor) -> Tensor:
        noise = self.shared.current
        if noise is None or self.survival(noise.survival) >= 1.0:
            return branch
        survival = self.survival(noise.survival)
        keep = (noise.uniform(self.stream) < survival).to(branch.dtype) / survival  # [N]
        return branch * keep.reshape(-1, *[1] * (branch.ndim - 1))


def install_gates(body: nn.Module, shared: PassNoise) -> list[ResidualGate]:
    """Put a gate wherever a block may have a drop path, and switch timm's own dropout layers off."""
    gates = []
    for module in list(body.modules()):
        for attribute in [name for name in (*vars(module), *module._modules) if name.startswith("drop_path")]:
            if isinstance(getattr(module, attribute), (type(None), nn.Identity, DropPath)):
                gates.append(ResidualGate(shared))
                setattr(module, attribute, gates[-1])
        if isinstance(module, (nn.Dropout, nn.Dropout2d)):
            module.p = 0.0
        elif isinstance(module, DropBlock2d):
            module.drop_prob = 0.0
    return gates


def settle_gates(body: nn.Module, called: Sequence[ResidualGate], rule: DepthRule) -> int:
    """Number the residual blocks in the order in which a forward pass reached them, and return how many there are.

    Gates that were not reached belong to blocks without a shortcut, such as the strided ones of a MobileNet.
    """
    places = _gate_places(body)
    blocks: dict[nn.Module, int] = {}
    for gate in called:
        blocks.setdefault(places[gate][0], len(blocks))
    for gate, (block, attribute) in places.items():
        if gate not in called:
            setattr(block, attribute, nn.Identity())
            continue
        index = blocks[block]
        part = attribute.removeprefix("drop_path")  # a transformer block gates attention (1) and MLP (2) apart
        gate.stream = f"depth/{index}/{part}" if part else f"depth/{index}"
        gate.depth = index / (len(blocks) - 1) if rule == "linear" and len(blocks) > 1 else 1.0
    return len(blocks)


def _gate_places(body: nn.Module) -> dict[ResidualGate, tuple[nn.Module, str]]:
    return {
        child: (module, name)
        for module in body.modules()
        for name, child in module.named_children()
        if isinstance(child, ResidualGate)
    }


def dropped_out(features: Tensor, noise: Noise | None, kind: Literal["channel", "element"]) -> Tensor:
    """Features [N, D, h, w] with whole channels or single elements switched off, the rest divided by the keep rate."""
    if noise is None or noise.dropout <= 0.0:
        return features
    channels, *size = features.shape[1:]
    draw = noise.uniform("dropout", channels, *(size if kind == "element" else (1, 1)))  # [N, D, h, w] or [N, D, 1, 1]
    keep = (draw >= noise.dropout).to(features.dtype) / (1.0 - noise.dropout)
    return features * keep
