"""Figure 2 of the RML paper: how fast two learners grow alike, on MNIST, through the method itself.

A digit is an image whose label map is one pixel, so `RobustMutualLearning` runs as it is. The paper states three
layers, 1/60 of the labels and what is measured: the total variation distance of the two teachers' softmax outputs on
training images. The rest is in `Plan`. Its model noise is dropout before the classifier: a perceptron of three layers
has no residual block, so there is no stochastic depth.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fewmask.config import LossSettings, OptimizerSettings
from fewmask.errors import DataError, TrainingError
from fewmask.experiments.mnist_data import Digits
from fewmask.experiments.mnist_network import digit_network
from fewmask.learning.losses import LabeledLoss
from fewmask.learning.rectification import total_variation
from fewmask.methods.rml import RMLSettings, RobustMutualLearning
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.randomness import Randomness, shuffled
from fewmask.training.engine import Engine
from fewmask.training.observer import Observer
from fewmask.training.optimizers import build_optimizer, set_rates
from fewmask.types import Batch, Progress
from fewmask.views.mixing import partners

_CHUNK = 2500  # images per forward pass where nothing is learned


@dataclass(frozen=True)
class Variant:
    """One curve of the figure."""

    name: str
    title: str
    settings: Mapping[str, Any]


VARIANTS = (
    Variant("direct", "direct", {"coupling": "direct"}),
    Variant("indirect", "indirect", {"coupling": "indirect"}),
    Variant("indirect_noise", "indirect + model noise", {"coupling": "indirect", "dropout": 0.5}),
)
_BASELINE = Variant("baseline", "baseline", {"unlabeled_weight": 0.0, "decay": 0.0})
_NO_NOISE = {"photometric": False, "cutmix": False, "dropout": 0.0, "stochastic_depth": 1.0}


@dataclass(frozen=True)
class Plan:
    """Sizes and rates; of these the paper states the share of labels alone."""

    seeds: int = 5
    steps: int = 1500
    baseline_steps: int = 0  # on labeled images alone, before: 0 starts from the two initializations
    labels: int = 60  # one image in so many is labeled (paper)
    width: int = 128  # of both hidden layers
    batch: int = 32  # labeled images per step
    unlabeled_batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    schedule: str = "poly"
    decay: float = 0.996  # of the mean teachers: a horizon of 250 steps
    measured: int = 5000  # unlabeled training images that the curves are measured on
    points: int = 30  # measurements along a curve

    def optimizer(self) -> OptimizerSettings:
        rates = {"lr": self.lr, "head_lr": self.lr, "momentum": self.momentum, "schedule": self.schedule}
        return OptimizerSettings.model_validate({"name": "sgd", "weight_decay": 0.0, **rates})


@dataclass(frozen=True)
class Curve:
    """What one pair of learners did."""

    variant: str
    seed: int
    steps: list[int]
    total_variation: list[float]  # of the teachers' softmax outputs, mean over the measured images
    label_accuracy: list[float]  # of the teachers on these images, mean of both
    test_accuracy: dict[str, float]  # of each network, at the end


@dataclass(frozen=True)
class Split:
    """Which training images are labeled, [n] int64 each."""

    labeled: Tensor
    unlabeled: Tensor


def run_experiment(train: Digits, test: Digits, plan: Plan, observer: Observer) -> list[Curve]:
    """Every variant with every seed."""
    pairs = [(seed, variant) for seed in range(plan.seeds) for variant in VARIANTS]
    return [train_pair(variant, train, test, plan, seed, observer) for seed, variant in pairs]


def train_pair(variant: Variant, train: Digits, test: Digits, plan: Plan, seed: int, observer: Observer) -> Curve:
    """Two learners from two initializations; for one seed all variants share these, the labels and the batches."""
    split = split_labels(len(train), plan.labels, seed)
    watched = _subset(train, split.unlabeled[: plan.measured])
    method, engine = build_pair(variant, plan, seed)
    if plan.baseline_steps:
        method.load_state_dict(_baselines(train, split, plan, seed).state_dict())
    task = f"seed {seed}, {variant.title}"
    steps, values = [], []
    for step in run_steps(engine, train, split, plan, seed):
        if step % max(1, plan.steps // plan.points) == 0:
            steps.append(step)
            values.append(measure(method, watched))
            observer.advance(task, step, plan.steps)
    _check_finite(engine, task)
    observer.advance(task, plan.steps, plan.steps)
    apart, right = zip(*values, measure(method, watched), strict=True)
    accuracy = {name: _accuracy(network, test) for name, network in method.networks().items()}
    return Curve(variant.name, seed, [*steps, plan.steps], list(apart), list(right), accuracy)


def run_steps(engine: Engine, train: Digits, split: Split, plan: Plan, seed: int) -> Iterator[int]:
    """Yields each step's number before it is run."""
    for step, batch in enumerate(batches(train, split, plan, seed)):
        yield step
        for optimizer in engine.optimizers.values():
            set_rates(optimizer, plan.optimizer(), step, plan.steps)
        now = torch.tensor(step)
        engine.step(batch, Progress(now, torch.tensor(step / plan.steps), Randomness(seed, now)))


def _baselines(train: Digits, split: Split, plan: Plan, seed: int) -> RobustMutualLearning:
    """The same pair after steps on labeled images alone; its teachers are its students."""
    method, engine = build_pair(_BASELINE, plan, seed)
    for _ in run_steps(engine, train, split, replace(plan, steps=plan.baseline_steps), seed):
        pass
    return method


def split_labels(count: int, labels: int, seed: int) -> Split:
    """One in `labels` images keeps its label."""
    if count < labels:
        what = f"{count} training images are too few for one label in {labels}"
        raise DataError(what, where="training images", fix=f"{labels} or more")
    order = shuffled(seed, "labels", torch.arange(count), count)
    return Split(order[: count // labels], order[count // labels :])


def build_pair(variant: Variant, plan: Plan, seed: int) -> tuple[RobustMutualLearning, Engine]:
    """Pseudo labels are the teacher's own argmax (Eq. 4): there is no baseline to give p0, so nothing is rectified."""
    settings = RMLSettings.model_validate(
        {**_NO_NOISE, "confidence": "none", "stages": 1, "decay": plan.decay, **variant.settings}
    )

    def build(learner: str, **_: object) -> SegmentationNetwork:
        return digit_network(plan.width, seed=zlib.crc32(f"{seed}/{learner}".encode()))

    method = RobustMutualLearning(settings, build, LabeledLoss(LossSettings()))
    method.train()
    optimizers = {name: build_optimizer(modules, plan.optimizer()) for name, modules in method.updated().items()}
    return method, Engine(method, optimizers, device=torch.device("cpu"))


def batches(train: Digits, split: Split, plan: Plan, seed: int) -> Iterator[Batch]:
    """Every step's images, from shuffled passes over the labeled and the unlabeled ones."""
    labeled = _drawn(split.labeled, plan.steps, plan.batch, seed, "labeled")
    unlabeled = _drawn(split.unlabeled, plan.steps, plan.unlabeled_batch, seed, "unlabeled")
    nowhere = torch.zeros(plan.unlabeled_batch, 1, 1, dtype=torch.bool)  # [U, 1, 1] label maps are one pixel
    for image_index, weak_index in zip(labeled, unlabeled, strict=True):
        yield Batch(
            image=_pixels(train.images[image_index]),
            label=train.labels[image_index][:, None, None],
            image_index=image_index,
            image_position=torch.arange(plan.batch),
            weak=_pixels(train.images[weak_index]),
            valid=~nowhere,
            strong=(),
            box=nowhere,
            partner=partners(plan.unlabeled_batch),
            weak_index=weak_index,
            weak_position=torch.arange(plan.unlabeled_batch),
        )


def measure(method: RobustMutualLearning, watched: Digits) -> tuple[float, float]:
    """Total variation between the teachers' softmax outputs, and the share of their answers that is right."""
    one, other = (_probability(teacher, watched) for teacher in method.teachers)  # [N, K, 1, 1] each
    right = torch.stack([each.argmax(1).flatten() == watched.labels for each in (one, other)])
    return total_variation(one, other).mean().item(), right.float().mean().item()


def _accuracy(network: SegmentationNetwork, digits: Digits) -> float:
    return (_probability(network, digits).argmax(1).flatten() == digits.labels).float().mean().item()


@torch.no_grad()
def _probability(network: SegmentationNetwork, digits: Digits) -> Tensor:
    return torch.cat([network(_pixels(part)).logits.softmax(1) for part in digits.images.split(_CHUNK)])


def _drawn(pool: Tensor, steps: int, size: int, seed: int, stream: str) -> Tensor:
    """[steps, size] indices; all passes are shuffled at once, which is cheap for a pool of this size."""
    return pool[shuffled(seed, stream, torch.arange(steps * size), len(pool))].reshape(steps, size)


def _subset(digits: Digits, index: Tensor) -> Digits:
    return Digits(digits.images[index], digits.labels[index])


def _pixels(images: Tensor) -> Tensor:
    return images.float() / 255.0


def _check_finite(engine: Engine, task: str) -> None:
    if int(engine.bad_step) >= 0:
        what = f"the loss is not finite since step {int(engine.bad_step)}"
        raise TrainingError(what, where=task, fix="a lower learning rate")
