"""Inference with BatchNorm folded into the convolutions before it: the same answers from fewer passes over memory.

In eval mode a BatchNorm is a fixed scale and shift per channel, so a convolution with w * gamma / sqrt(var + eps) and a
bias says the same as both. A teacher's weights change at every step: its twin's are written anew before each pass, into
tensors that stay where they are, as a captured step needs it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fewmask.networks.fused_layers import FusedConvolution, fuse_blocks
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.types import Prediction

_FOLDABLE = (nn.Conv2d, Conv2dSame)  # exactly these: others compute their weight first
_PROBE_SIZE = 64
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Pair:
    """Names of a convolution, the BatchNorm that alone reads what it returns, and the ReLU right after, if any."""

    convolution: str
    norm: str
    activation: str | None = None


def sharing_copy(module: Module) -> Module:
    """Modules of its own, with the same tensors in them."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared)


@contextmanager
def _without_twin(network: SegmentationNetwork) -> Iterator[None]:
    """The network's own layers answer, and no copy takes an earlier twin along."""
    twin, network.twin = network.twin, None
    try:
        yield
    finally:
        network.twin = twin


class FoldedTwin:
    """A second body for a network's weights. What cannot be folded is the network's own, not a copy.

    `dtype` is that of the folded weights: bfloat16 for passes under autocast. `fused` also joins ReLU and shortcut with
    the convolution before them, on CUDA as one cuDNN kernel.
    """

    def __init__(self, network: SegmentationNetwork, *, dtype: torch.dtype | None = None, fused: bool = False) -> None:
        with _without_twin(network):
            pairs, self.network = find_pairs(network), sharing_copy(network).eval()
        modules = dict(network.named_modules())
        self.sources = [(modules[pair.convolution], modules[pair.norm]) for pair in pairs]
        self.layers = [_folded_layer(self.network, pair, dtype) for pair in pairs]
        if fused:
            for pair in pairs:
                _fuse_activation(self.network, pair)
            fuse_blocks(self.network)
        self.refresh()

    def __call__(self, images: Tensor) -> Prediction:
        self.refresh()
        prediction: Prediction = self.network(images)
        return prediction

    @torch.no_grad()
    def refresh(self) -> None:
        """Write the network's present weights into the folded ones."""
        if not self.sources:
            return
        norms = [norm for _, norm in self.sources]
        scales = torch._foreach_add([norm.running_var for norm in norms], [norm.eps for norm in norms])
        torch._foreach_sqrt_(scales)
        torch._foreach_reciprocal_(scales)
        torch._foreach_mul_(scales, [_scale(norm) for norm in norms])  # [D] each
        shifts = torch._foreach_mul([_center(*source) for source in self.sources], scales)
        torch._foreach_neg_(shifts)
        torch._foreach_add_(shifts, [_shift(norm) for norm in norms])
        torch._foreach_copy_([layer.bias for layer in self.layers], shifts)
        for layer, (convolution, _), scale in zip(self.layers, self.sources, scales, strict=True):
            torch.mul(convolution.weight, scale[:, None, None, None], out=layer.weight)  # and rounded, in one kernel


def _scale(norm: Any) -> Tensor:
    return norm.running_var.new_ones(norm.num_features) if norm.weight is None else norm.weight


def _shift(norm: Any) -> Tensor:
    return norm.running_mean.new_zeros(norm.num_features) if norm.bias is None else norm.bias


def _center(convolution: Any, norm: Any) -> Tensor:
    """What the norm subtracts from the convolution without its bias."""
    mean: Tensor = norm.running_mean
    return mean if convolution.bias is None else mean - convolution.bias


@torch.no_grad()
def find_pairs(network: SegmentationNetwork) -> list[Pair]:
    """Watch a pass over an empty image; timm's many architectures need not be known for that."""
    parameter, size = next(network.parameters()), network.backbone.only_size or (_PROBE_SIZE, _PROBE_SIZE)
    probe = torch.zeros(1, network.backbone.image_channels, *size, device=parameter.device, dtype=parameter.dtype)
    training = network.training
    with _Watch(network) as watch:
        network.eval()(probe)
    network.train(training)
    return watch.found()


class _Watch(TorchDispatchMode):
    """Which layer gets exactly the tensor that another returned, and how many others read that tensor.

    A layer that already has hooks is left alone: someone wants what it gives.
    """

    def __init__(self, network: SegmentationNetwork) -> None:
        super().__init__()
        kinds = (*_FOLDABLE, nn.BatchNorm2d, nn.ReLU)
        named = network.named_modules()
        self.body = network.backbone.body
        self.names: dict[nn.Module, str] = {
            module: name for name, module in named if isinstance(module, kinds) and not _hooked(module)
        }
        self.calls: Counter[nn.Module] = Counter()
        self.reads: Counter[int] = Counter()
        self.made: dict[int, tuple[nn.Module, Tensor]] = {}  # kept alive, so that no id comes twice
        self.pairs: list[tuple[nn.Module, nn.Module, Tensor]] = []  # convolution, norm, what is between them
        self.activations: dict[nn.Module, tuple[nn.ReLU, Tensor]] = {}  # norm -> what follows it, and between them
        self.handles: list[Any] = []

    def __enter__(self) -> Self:
        for module in self.names:
            self.handles.append(module.register_forward_pre_hook(self._before))
            self.handles.append(module.register_forward_hook(self._after))
        self.handles.append(self.body.register_forward_hook(self._returned))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self.handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._count((args, kwargs))
        return func(*args, **(kwargs or {}))

    def _count(self, values: Any) -> None:
        self.reads.update(id(value) for value in tree_leaves(values) if isinstance(value, Tensor))

    def _returned(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        self._count(output)  # a feature map must stay what it is

    def _before(self, module: nn.Module, inputs: Any) -> None:
        self.calls[module] += 1
        before, value = self.made.get(id(inputs[0]), (None, inputs[0]))
        if before is None or self.reads[id(value)] > 0:
            return
        if isinstance(module, nn.BatchNorm2d) and type(before) in _FOLDABLE and module.running_mean is not None:
            self.pairs.append((before, module, value))
        elif isinstance(module, nn.ReLU) and isinstance(before, nn.BatchNorm2d):
            self.activations[before] = (module, value)

    def _after(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self.reads[id(inputs[0])] = 0  # from here on, others
        if not isinstance(module, nn.ReLU):  # which may hand its input on
            self.made[id(output)] = (module, output)
            self.reads[id(output)] = 0

    def found(self) -> list[Pair]:
        """Pairs whose convolution and norm were called once, with nobody else reading what is between them."""
        return [
            Pair(self.names[convolution], self.names[norm], self._activation(norm))
            for convolution, norm, value in self.pairs
            if self.calls[convolution] == self.calls[norm] == 1 and self.reads[id(value)] == 0
        ]

    def _activation(self, norm: nn.Module) -> str | None:
        if norm not in self.activations:
            return None
        activation, value = self.activations[norm]
        alone = activation.inplace or self.reads[id(value)] == 0
        return self.names[activation] if alone and self.calls[activation] == 1 else None


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _folded_layer(network: nn.Module, pair: Pair, dtype: torch.dtype | None) -> Any:
    """Give the convolution tensors of its own in the place of parameters, and keep of the norm what follows it."""
    layer: Any = network.get_submodule(pair.convolution)
    weight = layer.weight
    for name in ("weight", "bias"):
        delattr(layer, name)
    layer.register_buffer("weight", torch.empty_like(weight, dtype=dtype, requires_grad=False), persistent=False)
    layer.register_buffer("bias", layer.weight.new_empty(len(weight)), persistent=False)
    norm: Any = network.get_submodule(pair.norm)
    # timm's norms may have an activation of their own, also where they were made to work over several processes.
    rest = nn.Sequential(norm.drop, norm.act) if hasattr(norm, "act") else nn.Identity()
    network.set_submodule(pair.norm, rest)
    return layer


def _fuse_activation(network: nn.Module, pair: Pair) -> None:
    """Let the convolution apply the ReLU that follows it, in a module of its own or in timm's norm."""
    layer, rest = network.get_submodule(pair.convolution), network.get_submodule(pair.norm)
    own = isinstance(rest, nn.Sequential) and type(rest[0]) is nn.Identity and type(rest[1]) is nn.ReLU
    if type(layer) is not nn.Conv2d or not (own or pair.activation):
        return
    network.set_submodule(pair.convolution, FusedConvolution(layer))
    network.set_submodule(pair.norm if own or pair.activation is None else pair.activation, nn.Identity())
