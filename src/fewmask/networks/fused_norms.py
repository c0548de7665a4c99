"""BatchNorm that trains, together with the ReLU, gate and shortcut after it: one operation each way, of few kernels.

Written layer by layer, a residual block passes over its maps about twice as often. From block to block maps go on as
two tensors, for the branch and for the shortcut, so that a kernel can add up their gradients. The numbers are the same
up to rounding: what would lie between the joined layers is not rounded to bfloat16. As in networks/recomputation.py
only what calling a module does is changed: no name of a parameter changes, and a copy of a network is a plain one.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewmask.networks.model_noise import gated_blocks
from fewmask.networks.residual_blocks import plain_depth


class Fork(NamedTuple):
    """What the next block gets, in one memory: two tensors, so that their gradients come apart."""

    branch: Tensor
    shortcut: Tensor


def fuse_norms(network: nn.Module, *, beside_compiled: bool = False) -> None:
    """Residual blocks of ResNets, and BatchNorms elsewhere, take fused kernels for passes that train.

    `beside_compiled`: residual blocks of other kinds are left to torch.compile, which takes them as a whole. Modules
    that have hooks keep their own call, which runs them: timm can read maps off a network so (`feature_cls: hook`).
    """
    others = [block for block in gated_blocks(network) if beside_compiled and not _depth(block)]
    left = {module for block in others for module in block.modules()}
    for module in network.modules():
        depth = _depth(module)
        if module in left or _watched(module):
            continue
        if depth:
            module._compiled_call_impl = partial(_residual, module, depth)
        elif type(module) is nn.Sequential:
            call = _stage if len(module) and all(map(_depth, module)) else _sequence
            module._compiled_call_impl = partial(call, module)
        elif _suits(module):
            module._compiled_call_impl = partial(normalized, module)


def _depth(block: Any) -> int:
    """How many convolutions follow each other in a block that the kernels suit, each with a norm; 0 for others."""
    depth = plain_depth(block)
    return depth if all(_suits(getattr(block, f"bn{number}")) for number in range(1, depth + 1)) else 0


def _suits(norm: Any) -> TypeGuard[nn.BatchNorm2d]:
    return (
        type(norm) is nn.BatchNorm2d
        and norm.affine
        and norm.track_running_stats
        and norm.momentum is not None
        and norm.num_features % 16 == 0  # whole vectors
    )


def fusing_problem(device: torch.device) -> str | None:
    """Why the kernels do not run here, found by running them on a few numbers; None where they do."""
    try:
        norm = nn.BatchNorm2d(16, device=device)
        maps = torch.rand(2, 16, 2, 2, device=device).to(memory_format=torch.channels_last)
        _Normalized.apply(maps, norm.weight, norm.bias, None, None, norm, True, False)[0].sum().backward()
    except Exception as error:  # Triton may not be there, or not know the GPU, or miss a compiler
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return None


def normalized(
    norm: nn.BatchNorm2d,
    maps: Tensor,
    relu: bool = False,
    shortcut: Tensor | None = None,
    keep: Tensor | None = None,
) -> Tensor:
    """relu(keep * norm(maps) + shortcut), [N, C, h, w]; keep [N] is each sample's."""
    if _fits(norm, maps, shortcut):
        answer: Tensor = _Normalized.apply(maps, norm.weight, norm.bias, shortcut, keep, norm, relu, False)[0]
        return answer
    answer = norm._call_impl(maps)
    if keep is not None:
        answer = answer * keep.to(answer.dtype)[:, None, None, None]
    if shortcut is not None:
        answer = answer + shortcut
    return answer.relu() if relu else answer


def forked(norm: nn.BatchNorm2d, maps: Tensor, shortcut: Tensor, keep: Tensor | None) -> Fork:
    """relu(keep * norm(maps) + shortcut) for a block that follows."""
    if _fits(norm, maps, shortcut):
        return Fork(*_Normalized.apply(maps, norm.weight, norm.bias, shortcut, keep, norm, True, True))
    answer = normalized(norm, maps, True, shortcut, keep)
    return Fork(answer, answer)


def _fits(norm: Any, maps: Tensor, shortcut: Tensor | None) -> bool:
    """Whether there are kernels for it: a live BatchNorm that nobody watches, in channels-last on a GPU."""
    tensors = [maps] if shortcut is None else [maps, shortcut]
    return (
        _suits(norm)
        and norm.training
        and not _watched(norm)
        and torch.is_grad_enabled()
        and _has_kernels(maps.device)
        and 2 * maps.shape[1] <= maps.numel() < 2**31
        and all(each.dtype in (torch.bfloat16, torch.float16, torch.float32) for each in tensors)
        and all(each.is_contiguous(memory_format=torch.channels_last) for each in tensors)
    )


def _watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda"


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        keep: Tensor | None,
        norm: nn.BatchNorm2d,
        relu: bool,
        fork: bool,
    ) -> tuple[Tensor, Tensor | None]:
        from fewmask.networks.norm_passes import applied, moments  # Triton is not everywhere

        assert norm.running_mean is not None and norm.running_var is not None  # noqa: PT018
        assert norm.num_batches_tracked is not None and norm.momentum is not None  # noqa: PT018
        running = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        found = moments(maps, weight, bias, running, momentum=norm.momentum, eps=norm.eps)
        answer = applied(maps, found, relu, shortcut, keep)
        ctx.relu = relu
        ctx.save_for_backward(maps, weight, keep, None if shortcut is None else answer, *found)
        return answer, answer.data if fork else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, pull: Tensor, more: Tensor | None) -> tuple[Tensor | None, ...]:
        from fewmask.networks.norm_passes import Moments, gradients

        pull = pull.contiguous(memory_format=torch.channels_last)
        more = None if more is None else more.contiguous(memory_format=torch.channels_last)
        maps, weight, keep, answer, *found = ctx.saved_tensors
        back = gradients(pull, more, maps, Moments(*found), weight, ctx.relu, answer, keep)
        return back.maps, back.weight, back.bias, back.shortcut, None, None, None, None


def _stage(blocks: nn.Sequential, maps: Tensor) -> Tensor:
    """Residual blocks one after the other."""
    if not torch.is_grad_enabled():
        answer: Tensor = blocks._call_impl(maps)
        return answer
    given = Fork(maps, maps)
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        depth = _fused_depth(block)
        if depth:
            given = _answered(block, depth, given, fork=_fused_depth(following) > 0 and following.downsample is None)
        else:  # its call does something else as well, such as computing it again
            answer = block(given.branch)
            given = Fork(answer, answer)
    return given.branch


def _fused_depth(block: Any) -> int:
    call = getattr(block, "_compiled_call_impl", None)
    return call.args[1] if isinstance(call, partial) and call.func is _residual else 0


def _residual(block: Any, depth: int, maps: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        answer: Tensor = block._call_impl(maps)
        return answer
    return _answered(block, depth, Fork(maps, maps), fork=False).branch


def _answered(block: Any, depth: int, given: Fork, *, fork: bool) -> Fork:
    """A residual block of timm's ResNets, as its own forward has it."""
    inner = given.branch
    for number in range(1, depth):
        inner = normalized(getattr(block, f"bn{number}"), getattr(block, f"conv{number}")(inner), relu=True)
    last = getattr(block, f"conv{depth}")(inner)
    shortcut = given.shortcut if block.downsample is None else block.downsample(given.branch)
    norm, keep = getattr(block, f"bn{depth}"), getattr(block.drop_path, "keep", None)
    if fork:
        return forked(norm, last, shortcut, keep)
    answer = normalized(norm, last, relu=True, shortcut=shortcut, keep=keep)
    return Fork(answer, answer)


def _sequence(layers: nn.Sequential, maps: Any) -> Any:
    """Layers one after the other, where a BatchNorm takes the ReLU behind it along."""
    if not torch.is_grad_enabled():
        return layers._call_impl(maps)
    done = None
    for layer, following in zip(layers, [*layers, None][1:], strict=True):
        if layer is done:
            continue
        if type(layer) is nn.BatchNorm2d and type(following) is nn.ReLU and not _watched(following):
            maps, done = normalized(layer, maps, relu=True), following
        else:
            maps = layer(maps)
    return maps
