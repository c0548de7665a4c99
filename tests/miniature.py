"""Small real things for tests: a network, a batch, a method, an engine. No mocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fewmask.config import LossSettings, NetworkSettings, OptimizerSettings
from fewmask.labels import IGNORE
from fewmask.learning.losses import LabeledLoss
from fewmask.methods.method import Method
from fewmask.methods.rml import P0
from fewmask.methods.table import create_method
from fewmask.networks.build import build_network, seeded
from fewmask.randomness import Randomness
from fewmask.training.engine import Engine
from fewmask.training.optimizers import build_optimizer
from fewmask.types import Batch, Measure, Progress, Reduce, Update
from fewmask.views.mixing import box_mask, partners

CLASSES = 4
NETWORK = NetworkSettings(backbone="test_resnet", width=16, stride=8, options={"zero_init_last": False})
SETR = NetworkSettings(
    backbone="vit_tiny_patch16_224",
    head="setr_naive",
    width=16,
    stride=16,
    auxiliary_weight=0.4,
    options={"embed_dim": 24, "depth": 4, "num_heads": 2, "img_size": 64},
)


def make_method(name: str, network: NetworkSettings = NETWORK, **settings: object) -> Method:
    def build(learner: str, *, channels: int | None = None, num_classes: int | None = None):
        shape = {"channels": channels or 3, "num_classes": num_classes or CLASSES}
        return build_network(network, seed=len(learner), **shape)

    with seeded(0):
        return create_method(name, settings, build, LabeledLoss(LossSettings())).train()


def make_engine(
    method: Method, optimizer: OptimizerSettings | None = None, clip: float | None = None, **options: object
) -> Engine:
    chosen = optimizer or OptimizerSettings(lr=0.01)
    optimizers = {name: build_optimizer(modules, chosen) for name, modules in method.updated().items()}
    clips = {} if clip is None else dict.fromkeys(optimizers, clip)
    return Engine(method, optimizers, device=torch.device("cpu"), clip=clips, **options)


def requests(method: Method, batch: Batch, progress: Progress) -> Iterator[Update | Reduce | Measure]:
    """What a step yields, in one process: a reduction's answer is the tensor itself."""
    step = method.step(batch, progress)
    answer = None
    while True:
        try:
            request = step.send(answer)
        except StopIteration:
            return
        answer = request.tensor if isinstance(request, Reduce) else None
        yield request


def make_progress(step: int = 0, steps: int = 10, seed: int = 0) -> Progress:
    position = torch.tensor(step)
    return Progress(position, torch.tensor(step / steps), Randomness(seed, position))


def make_batch(
    seed: int = 0, size: tuple[int, int] = (32, 48), count: int = 4, mixing: bool = True, stride: int = 8
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    position = torch.arange(count)
    weak = torch.rand(count, 3, *size, generator=generator)
    label = torch.randint(0, CLASSES, (count, *size), generator=generator)
    label[0, :4] = IGNORE
    valid = torch.ones(count, *size, dtype=torch.bool)
    valid[1, :, :5] = False
    box = box_mask(Randomness(seed, torch.tensor(0)), "box", position, size)
    return Batch(
        image=torch.rand(count, 3, *size, generator=generator),
        label=label,
        image_index=position,
        image_position=position,
        weak=weak,
        valid=valid,
        strong=tuple((weak * factor).clamp(0, 1) for factor in (0.6, 1.4)),
        box=box if mixing else torch.zeros_like(box),
        partner=partners(count, position.device),
        weak_index=position,
        weak_position=position,
        stored={
            P0: torch.randn(count, CLASSES, size[0] // stride, size[1] // stride, generator=generator).log_softmax(1)
        },
    )
