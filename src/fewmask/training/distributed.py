"""Many processes: the one place that knows about ranks.

Losses, metrics and BatchNorm statistics are summed over ranks, gradients are summed after each backward pass, so N
ranks make the update that one process would make with the whole batch. Networks stay plain modules.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from fewmask.errors import ConfigError


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, without gradient."""
        if self.size == 1:
            return tensor.detach()
        total = tensor.detach().clone()
        dist.all_reduce(total)
        return total

    def any(self, value: bool, device: torch.device) -> bool:
        """Whether any rank says so, the same answer on all."""
        return bool(self.sum(torch.tensor(float(value), device=device)) > 0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """One flat reduction for all gradients of an update."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()


def launched_world() -> World:
    """The world that torchrun describes in the environment, or a world of one; nobody has joined it yet."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    return World(int(os.environ["RANK"]), size) if size > 1 else World()


def join_world(device: torch.device) -> World:
    world = launched_world()
    if world.size == 1:
        return world
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return world


def check_divisible(world: World, **batches: int) -> None:
    for name, batch in batches.items():
        if batch % world.size:
            raise ConfigError(
                f"training.{name} = {batch} cannot be shared by {world.size} processes",
                where="training",
                fix=f"a multiple of {world.size}",
            )


class _SumOverRanks(torch.autograd.Function):
    """All-reduce whose gradient is all-reduced, too: every rank's loss depends on every rank's statistics."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class SyncedBatchNorm(nn.BatchNorm2d):
    """BatchNorm over the batches of all ranks, on any device (torch's own needs CUDA)."""

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return super().forward(images)
        wide = images.float() if images.dtype in (torch.bfloat16, torch.float16) else images
        pixels = wide.new_tensor([wide.numel() / wide.shape[1]])
        summed: Tensor = _SumOverRanks.apply(torch.cat([wide.sum((0, 2, 3)), pixels]))
        count = summed[-1].detach()
        mean = summed[:-1] / count  # [D]
        centered = wide - mean[:, None, None]
        variance = _SumOverRanks.apply(centered.square().sum((0, 2, 3))) / count
        self._track(mean.detach(), variance.detach() * count / (count - 1))
        result = centered * (variance + self.eps).rsqrt()[:, None, None]
        if self.affine:
            result = result * self.weight[:, None, None] + self.bias[:, None, None]
        return result.to(images.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats:
            return
        assert self.running_mean is not None and self.running_var is not None  # noqa: PT018
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


def sync_batch_norms(module: nn.Module) -> None:
    """Replace every BatchNorm2d below `module`, keeping names, weights and timm's built-in activation."""
    for name, child in module.named_children():
        if isinstance(child, BatchNormAct2d):
            setattr(module, name, _SyncedBatchNormAct(child))
        elif type(child) is nn.BatchNorm2d:
            setattr(module, name, _synced(child, SyncedBatchNorm))
        elif isinstance(child, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{type(child).__name__} layers cannot be synchronized over processes",
                where="network.backbone",
                fix="one process, or a backbone with plain BatchNorm2d, GroupNorm or LayerNorm",
            )
        else:
            sync_batch_norms(child)


def _synced(norm: nn.BatchNorm2d, kind: type[SyncedBatchNorm]) -> SyncedBatchNorm:
    synced = kind(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    synced.__dict__.update(norm.__dict__)
    return synced


class _SyncedBatchNormAct(SyncedBatchNorm):
    """timm's BatchNorm with dropout and activation in one module."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__(norm.num_features)
        self.__dict__.update(norm.__dict__)

    def forward(self, images: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(images)))  # type: ignore[operator]
