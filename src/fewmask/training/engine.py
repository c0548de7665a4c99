"""The engine runs a method's step: devices, precision, backward, clipping, ranks and the non-finite flag."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from fewmask.errors import ConfigError
from fewmask.methods.method import Method
from fewmask.training.distributed import World
from fewmask.training.lanes import Lanes
from fewmask.types import Batch, Join, Lane, Loss, Measure, Progress, Reduce, Update

Precision = Literal["bf16", "fp32", "fp64"]


def choose_device(name: str | None) -> torch.device:
    """The named device, or CUDA where there is one; a GPU that is named by its number becomes the current one.

    Events, streams and questions for "the GPU" then mean it as well; torchrun's processes get theirs in `join_world`.
    """
    if name is None or name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{name!r} is not a device", where="--device", fix="cpu, cuda or cuda:0") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{name!r} is not supported", where="--device", fix="cpu, cuda or cuda:0")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("this machine has no usable CUDA device", where="--device", fix="cpu, or leave --device away")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ConfigError(f"there is no {name}", where="--device", fix=f"cuda:0 to cuda:{last}" if last else "cuda:0")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def choose_precision(asked: str, device: torch.device) -> Precision:
    if asked == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return asked  # type: ignore[return-value]


def set_tf32(allowed: bool) -> None:
    """fp32 means fp32: TF32 only where the settings ask for it."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


class Engine:
    """Serves what a method's step yields."""

    def __init__(
        self,
        method: Method,
        optimizers: Mapping[str, Optimizer],
        *,
        device: torch.device,
        precision: Precision = "fp32",
        world: World | None = None,
        clip: Mapping[str, float] | None = None,
        lanes: int = 0,
    ) -> None:
        self.method, self.optimizers = method, optimizers
        self.device, self.precision = device, precision
        self.world = world or World()
        self.clip = clip or {}  # optimizer name -> largest gradient norm
        self.lanes = Lanes(lanes, device)
        self.found: list[tuple[str, Tensor, Tensor]] = []  # this step's metrics: name, total, count
        self.finite: list[Tensor] = []  # a flag of each of its updates
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=device)  # first step with a non-finite loss
        self.sums: dict[str, Tensor] = {}  # metric name -> [2]: total and count since the last line of metrics

    def autocast(self) -> AbstractContextManager[object]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def step(self, batch: Batch, progress: Progress) -> None:
        """One step of the method, update by update."""
        requests = self.method.step(batch, progress)
        answer: Tensor | None = None
        while True:
            try:
                with self.lanes.current(), self.autocast():
                    request = requests.send(answer)
            except StopIteration:
                break
            if isinstance(request, Lane):
                self.lanes.enter(request.number)
            elif isinstance(request, Join):
                self.lanes.join()
            with self.lanes.current():
                answer = self._serve(request)
        self.lanes.join()
        self._settle(progress)

    def _serve(self, request: Update | Reduce | Measure | Lane | Join) -> Tensor | None:
        """Run on the lane that asked."""
        if not torch.is_grad_enabled():
            raise RuntimeError("a yield inside torch.no_grad() would take the gradients of what follows")
        if isinstance(request, Reduce):
            return self.world.sum(request.tensor)
        if isinstance(request, Update):
            self._update(request)
        elif isinstance(request, Measure):
            self._add(request.name, request.total.detach(), request.count.detach())
        return None

    def _update(self, update: Update) -> None:
        optimizer = self.optimizers[update.optimizer]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        loss, total = self._reduced(update.loss)
        optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=parameters)  # this optimizer's parameters only; frees the graph
        self.world.sum_gradients(parameters)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        finite = torch.isfinite(total) & torch.isfinite(norm)
        if update.optimizer in self.clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.clip[update.optimizer], norm)
        optimizer.grad_scale, optimizer.found_inf = None, (~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
        # Fused kernels do not say what they change: a graph from before would mix old features with new weights
        torch.autograd.graph.increment_version(parameters)
        self.finite.append(finite)
        self._add(f"{update.optimizer}/gradient_norm", norm.detach() * self._once, self._once)  # equal on all ranks

    def _reduced(self, loss: Loss) -> tuple[Tensor, Tensor]:
        """This rank's share of the global loss (with gradient), and the global loss; terms go into the metrics."""
        counts = self.world.sum(torch.stack([term.count.detach() for term in loss.terms]))
        shares = [term.total / count.clamp(min=1) for term, count in zip(loss.terms, counts, strict=True)]
        for term, share in zip(loss.terms, shares, strict=True):
            self._add(f"loss/{term.name}", share.detach(), self._once)
        value = torch.stack([term.weight * share for term, share in zip(loss.terms, shares, strict=True)]).sum()
        return value, self.world.sum(value.detach())

    @property
    def _once(self) -> Tensor:
        """1 on the first rank, 0 on the others: counts a step once, whatever the number of ranks."""
        return torch.full((), float(self.world.main), device=self.device)

    def _add(self, name: str, total: Tensor, count: Tensor) -> None:
        self.found.append((name, total, count))

    def _settle(self, progress: Progress) -> None:
        """After the last join: lanes must not write into the same sums at the same time."""
        for name, total, count in self.found:
            if name not in self.sums:
                self.sums[name] = torch.zeros(2, dtype=torch.float64, device=self.device)
            self.sums[name].add_(torch.stack([total.double(), count.double()]))  # a captured step keeps adding
        if self.finite:
            bad = ~torch.stack(self.finite).all() & (self.bad_step < 0)
            self.bad_step.copy_(torch.where(bad, progress.random.step, self.bad_step))
        self.found, self.finite = [], []

    def retire(self) -> None:
        """Let go of what the optimizers keep; gradients of a captured step would hold on to its memory."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
            optimizer.state.clear()
            optimizer.grad_scale, optimizer.found_inf = None, None  # type: ignore[attr-defined]

    def gather_sums(self) -> dict[str, Tensor]:
        """Collect the metric sums on the first rank (all ranks must call this) and return them, on the CPU."""
        for name in sorted(self.sums):
            total = self.world.sum(self.sums[name])
            self.sums[name].copy_(total if self.world.main else torch.zeros_like(total))
        return {name: pair.cpu().clone() for name, pair in sorted(self.sums.items())}

    def flush(self) -> dict[str, float]:
        """The means since the last call; a line of metrics."""
        sums = self.gather_sums()
        for pair in self.sums.values():
            pair.zero_()
        return {name: (pair[0] / pair[1].clamp(min=1e-12)).item() for name, pair in sums.items()}
