"""Runs single steps: eagerly, or captured once as a CUDA graph and replayed.

A method's step and its batch are a pure tensor program of a step tensor, so the whole of it, from the choice of images
to the teachers' update, can be one graph; the host then only writes the step number and the learning rates. A captured
step makes the next one's batch beside its own work, so that nothing waits for views.
"""

from __future__ import annotations

import torch

from fewmask.config import Config
from fewmask.randomness import Randomness
from fewmask.training.engine import Engine
from fewmask.training.lanes import Lanes, own_stream
from fewmask.training.learners import optimizer_settings
from fewmask.training.optimizers import set_rates
from fewmask.types import Batch, Progress
from fewmask.views.sampler import BatchMaker

_WARM_UP = 3  # eager steps before the capture: optimizers make their state, cuDNN chooses its kernels

_EAGER_WARM_UP = 2  # the second step still finds memory that was not touched before


class Stepper:
    def __init__(self, config: Config, engine: Engine, maker: BatchMaker) -> None:
        self.config, self.engine, self.maker = config, engine, maker
        self.optimizers = optimizer_settings(config, engine.optimizers)
        self.step = torch.zeros((), dtype=torch.int64, device=engine.device)  # counts on from stage to stage
        self.stage_step = torch.zeros_like(self.step)
        self.fraction = torch.zeros((), device=engine.device)
        self.progress = Progress(self.stage_step, self.fraction, Randomness(config.seed, self.step))
        self.captures = _can_capture(config, engine, maker)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = own_stream(engine.device, "captured") if self.captures else None
        self.done = 0
        # What is staged are one step's images, so their views cannot be made a step ahead
        self.ahead = self.captures and config.training.lanes and not maker.stages
        self.views = Lanes(int(self.ahead), engine.device, "views")
        self.batch: Batch | None = None  # made ahead, in memory that stays; the batch of step `ready`
        self.ready: int | None = None

    def __call__(self, step: int) -> None:
        steps = self.config.training.steps
        self.maker.stage(step)
        self.step.fill_(step)
        self.stage_step.fill_(step % steps)
        self.fraction.fill_(step % steps / steps)
        for name, optimizer in self.engine.optimizers.items():
            set_rates(optimizer, self.optimizers[name], step % steps, steps)
        if self.ahead and self.ready != step:  # the first step, or a jump
            self._keep(self.maker(self.maker_step()))
        if not self.captures:
            self._compute()
        elif self.done < _WARM_UP:
            self._compute_aside()
        else:
            self._replay()
        self.done, self.ready = self.done + 1, step + 1

    @property
    def settled_after(self) -> int:
        """Steps until the pace is the lasting one."""
        return _WARM_UP + 1 if self.captures else _EAGER_WARM_UP

    def retire(self) -> None:
        """Let go of the captured step, whose memory serves nobody else as long as there is a graph."""
        self.graph, self.batch, self.ready, self.done = None, None, None, 0

    def _compute(self) -> None:
        if not self.ahead:
            self.engine.step(self.maker(self.maker_step()), self.progress)
            return
        assert self.batch is not None
        self.views.enter(0)
        with self.views.current():
            coming = self.maker(self.maker_step() + 1)
        self.engine.step(self.batch, self.progress)
        self.views.join()
        self._keep(coming)

    def _keep(self, batch: Batch) -> None:
        """Copy into the memory that a captured step reads."""
        if self.batch is None:
            self.batch = batch.copy()
        else:
            torch._foreach_copy_(self.batch.tensors(), batch.tensors())

    def maker_step(self) -> torch.Tensor:
        """The step where the stores lie."""
        return self.step.to(self.maker.labeled.values.device)

    def _compute_aside(self) -> None:
        """On the stream that will be captured, as autograd remembers the stream of its first backward pass."""
        assert self.stream is not None
        current = torch.cuda.current_stream(self.engine.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            self._compute()
        current.wait_stream(self.stream)

    def _replay(self) -> None:
        if self.graph is None:
            self.maker.settle()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self._compute()
        self.graph.replay()


def _can_capture(config: Config, engine: Engine, maker: BatchMaker) -> bool:
    """Declared, never found out by failing: the method, one process, and images on the same GPU, resident or staged."""
    return (
        config.training.capture
        and engine.device.type == "cuda"
        and engine.method.capturable
        and engine.world.size == 1
        and maker.labeled.values.is_cuda
        and maker.pool.values.is_cuda
    )
