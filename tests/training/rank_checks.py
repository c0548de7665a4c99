"""What two processes compute, for `test_ranks`: run by torchrun, leaves the results of each rank in a file."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from fewmask.errors import ConfigError
from fewmask.methods.table import METHODS
from fewmask.training.checkpoint import CheckpointWriter
from fewmask.training.distributed import World, join_world, sync_batch_norms
from fewmask.training.loop import train
from fewmask.training.observer import Observer
from fewmask.training.run_folder import RunFolder
from fewmask.training.session import Session
from fewmask.training.signals import Interrupted
from fewmask.training.stages import restarted, sweep
from tests.methods.beside import BESIDE, in_the_table
from tests.training.runs import tiny_session

EXACT = ("training.precision=fp64", "training.batch=4", "optimizer.clip=0.5")
PAIR = (
    "learners.student_2.network={backbone: vit_tiny_patch16_224, head: setr_naive, stride: 16, width: 12, options: "
    "{embed_dim: 24, depth: 3, num_heads: 2, img_size: 64}}",
    "learners.student_2.optimizer={name: adamw, lr: 0.002, schedule: cosine, clip: 1.0}",
)
WEIGHT = "learners.student_2.network.auxiliary_weight=0.4"
# AdamW divides by the root of tiny squares, which enlarges rounding (most in pos_embed) to the scale of its rate
SLOW = "learners.student_2.optimizer.lr=0.0002"
NOISE = ("settings.dropout=0.5", "settings.stochastic_depth=0.8")
CASES: dict[str, tuple[str, ...]] = {
    "ohem": (*EXACT, *NOISE, "loss.kind=ohem", "loss.ohem_threshold=0.35", "settings.photometric=true"),
    "dice": (*EXACT, *NOISE, "loss.kind=dice", "optimizer.name=adamw", "optimizer.lr=1e-3"),
    "weighted": (*EXACT, *NOISE, "loss.class_weights=inverse_frequency", "views.class_crops=0.5"),
    # Prototypes of two widths, statistics of weak images, auxiliary heads
    "pair": (*EXACT, *PAIR, SLOW, WEIGHT, "settings.buffers=weak"),
    "parts": (*EXACT, *NOISE, "network.frozen_norm=true", "training.accumulate=2"),
}
CASES |= dict.fromkeys([*METHODS, *BESIDE], (*EXACT, *NOISE))
AGAIN = {"pair again": (*CASES["pair"], "training.checkpointing=true")}  # collectives within the backward pass
CASE_METHODS = {"pair": "rml", "pair again": "rml"} | {
    name: name for name in (*METHODS, *BESIDE)
}  # the others are supervised
SHARES = ((0, 2), (2, 6))  # BatchNorm's six images: two on the first rank, four on the second


def trained(data: Path, case: str, world: World) -> dict[str, Tensor]:
    """Five steps: every tensor of the method, and the metrics."""
    with in_the_table():
        return _trained(
            tiny_session(data, *(CASES | AGAIN)[case], method=CASE_METHODS.get(case, "supervised"), world=world)
        )


def _trained(session: Session) -> dict[str, Tensor]:
    if session.method.needs_baseline:
        session.method.start_stage(0)
        session = restarted(session, sweep(session, Observer()))
    for step in range(5):
        session.stepper(step)
    return session.method.state_dict() | {key: torch.tensor(value) for key, value in session.engine.flush().items()}


def norm_and_input(kind: str) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A norm with a past, six images [6, 5, 4, 3] far from zero, and the weights of a loss."""
    generator = torch.Generator().manual_seed(1)
    norm = nn.BatchNorm2d(5, momentum=0.3) if kind == "plain" else BatchNormAct2d(5, act_layer=nn.SiLU)
    with torch.no_grad():
        for value in (norm.weight, norm.bias, norm.running_mean):
            value.copy_(torch.rand(5, generator=generator))
    images = 3 + torch.randn(6, 5, 4, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(6, 5, 4, 3, generator=generator, dtype=torch.float64)
    return nn.Sequential(norm).double().train(), images, weight


def normalized(kind: str, share: tuple[int, int], synced: bool) -> dict[str, Tensor]:
    """Output, gradients and statistics of a norm that sees a share of the images."""
    module, images, weight = norm_and_input(kind)
    if synced:
        sync_batch_norms(module)
    part = images[slice(*share)].requires_grad_()
    output = module(part)
    (output.square() * weight[slice(*share)]).sum().backward()
    gradients = {name: value.grad for name, value in module.named_parameters()}
    found = {"output": output.detach(), "input": part.grad, **gradients, **dict(module.named_buffers())}
    module.eval()
    return {**found, "eval": module(images[:2]).detach()}


def refused(data: Path, world: World, *words: str) -> str:
    try:
        tiny_session(data, *words, world=world)
    except ConfigError as error:
        return str(error)
    return ""


def stopped(data: Path, out: Path, world: World) -> list[int]:
    """Only the second rank gets a signal, after its first step; the step after which this rank stopped, and why."""

    class SignalOnce(Observer):
        def advance(self, task: str, done: int, total: int) -> None:
            if world.rank == 1 and done == 1:
                signal.raise_signal(signal.SIGTERM)

    session = tiny_session(data, "training.steps=9", "training.check_every=3", world=world)
    try:
        with CheckpointWriter() as writer:
            train(session, RunFolder(out), SignalOnce(), 0, writer)
    except Interrupted as interrupted:
        return [interrupted.step, int(interrupted.signal_number)]
    return []


def main(data: Path, out: Path) -> None:
    world = join_world(torch.device("cpu"))
    results: dict[str, Any] = {case: trained(data, case, world) for case in CASES | AGAIN}
    results |= {kind: normalized(kind, SHARES[world.rank], synced=True) for kind in ("plain", "act")}
    results["sum"] = world.sum(torch.tensor([1.0, float(world.rank)]))
    results["any"] = [world.any(world.rank == rank, torch.device("cpu")) for rank in (0, 1, 2)]
    results["odd batch"] = refused(data, world, "training.batch=5")
    results["odd share"] = refused(data, world, "training.batch=4", "training.unlabeled_batch=6")
    results["stopped"] = stopped(data, out / "stopped", world)
    torch.save(results, out / f"rank_{world.rank}.pt")
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
