"""Gates in a timm model: one in each place where timm would have put a block's drop path."""

from __future__ import annotations

from collections.abc import Sequence

from timm.layers import DropBlock2d, DropPath
from torch import nn

from fewmask.networks.model_noise import DepthRule, ResidualGate


def install_gates(body: nn.Module) -> list[ResidualGate]:
    """Put a gate wherever a block may have a drop path, and switch timm's own dropout layers off."""
    gates = []
    for module in list(body.modules()):
        for attribute in [name for name in (*vars(module), *module._modules) if name.startswith("drop_path")]:
            if isinstance(getattr(module, attribute), (type(None), nn.Identity, DropPath)):
                gates.append(ResidualGate())
                setattr(module, attribute, gates[-1])
        if isinstance(module, (nn.Dropout, nn.Dropout2d)):
            module.p = 0.0
        elif isinstance(module, DropBlock2d):
            module.drop_prob = 0.0
    return gates


def settle_gates(body: nn.Module, called: Sequence[ResidualGate], rule: DepthRule) -> int:
    """Place the residual blocks in the order in which a forward pass reached them, and return how many there are.

    Gates that were not reached belong to blocks without a shortcut, such as the strided ones of a MobileNet. A
    transformer block has two: attention and MLP are dropped apart.
    """
    places = _gate_places(body)
    blocks: dict[nn.Module, int] = {}
    for gate in called:
        blocks.setdefault(places[gate][0], len(blocks))
    for gate, (block, attribute) in places.items():
        if gate not in called:
            setattr(block, attribute, nn.Identity())
        elif rule == "linear" and len(blocks) > 1:
            gate.depth = blocks[block] / (len(blocks) - 1)
    return len(blocks)


def _gate_places(body: nn.Module) -> dict[ResidualGate, tuple[nn.Module, str]]:
    return {
        child: (module, name)
        for module in body.modules()
        for name, child in module.named_children()
        if isinstance(child, ResidualGate)
    }
