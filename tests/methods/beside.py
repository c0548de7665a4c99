"""Methods that train more than students, as their papers need: an adversary, a corrector, a projector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fewmask.config import Share
from fewmask.labels import IGNORE
from fewmask.learning.losses import LabeledLoss, cross_entropy, upsample
from fewmask.methods.method import BuildNetwork, Companion, Method, MethodSettings
from fewmask.methods.table import METHODS
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.types import Batch, Loss, Prediction, Progress, Step, Update, ViewRequest


class BesideSettings(MethodSettings):
    threshold: Share = Field(0.0, description="what is less certain does not teach")
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of all that unlabeled images teach")


class OneStudent(Method):
    """Labeled and plain unlabeled images in one pass."""

    Settings: ClassVar = BesideSettings
    predictors: ClassVar = ("student_1",)

    def __init__(self, settings: BesideSettings, build: BuildNetwork, labeled_loss: LabeledLoss) -> None:
        super().__init__(settings, labeled_loss)
        self.settings = settings
        self.student_1 = build("student_1")

    @property
    def views(self) -> ViewRequest:
        return ViewRequest()

    def trained(self) -> dict[str, SegmentationNetwork]:
        return {"student_1": self.student_1}

    def seen(self, batch: Batch, progress: Progress) -> tuple[Prediction, Prediction]:
        noise = self.noise(progress, "student_1", batch.image_position, batch.weak_position)
        prediction = self.student_1(torch.cat([batch.image, batch.weak]), noise)
        count = [len(batch.image), len(batch.weak)]
        parts = zip(prediction.logits.split(count), prediction.features.split(count), strict=True)
        labeled, unlabeled = (Prediction(*part) for part in parts)
        return labeled, unlabeled


def judged(score: Tensor, counted: Tensor, name: str, real: bool) -> Loss:
    """Binary cross entropy of a discriminator's answers [N, 1, h, w] over the counted pixels [N, H, W]."""
    pixels = upsample(score, (counted.shape[1], counted.shape[2]))[:, 0]
    return Loss.mean(name, (F.softplus(-pixels if real else pixels) * counted).sum(), counted.sum().to(score.dtype))


class Adversarial(OneStudent):
    """L = H(y, h(x_l)) + w * BCE(D(h(x_u)), 1); L_D = BCE(D(h(x_u)), 0) + BCE(D(y), 1)."""

    companions: ClassVar = {"discriminator": Companion({"name": "adamw", "lr": 1e-3, "betas": (0.9, 0.99)})}

    def __init__(self, settings: BesideSettings, build: BuildNetwork, labeled_loss: LabeledLoss) -> None:
        super().__init__(settings, build, labeled_loss)
        first = nn.Conv2d(self.student_1.num_classes, 8, 3, stride=2, padding=1)
        self.discriminator = nn.Sequential(first, nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 3, padding=1))

    def step(self, batch: Batch, progress: Progress) -> Step:
        labeled, unlabeled = self.seen(batch, progress)
        size, known = (batch.label.shape[1], batch.label.shape[2]), batch.label != IGNORE
        guess = upsample(unlabeled.logits, size).softmax(1)  # [U, K, H, W]
        fooled = judged(self.discriminator(guess), batch.valid, "unlabeled", real=True)
        yield Update("student_1", self.labeled_loss(labeled, batch.label) + self.settings.unlabeled_weight * fooled)
        classes = torch.arange(guess.shape[1], device=known.device)[:, None, None]
        truth = (batch.label[:, None] == classes).to(guess.dtype)  # [B, K, H, W]
        loss = judged(self.discriminator(guess.detach()), batch.valid, "fake", real=False)
        yield Update("discriminator", loss + judged(self.discriminator(truth), known, "real", real=True))


class Corrected(OneStudent):
    """L = H(y, h(x_l)) + w * H(C(x_u, h), h(x_u)); L_C = H(y, C(x_l, h)); C sees an image and what is said of it."""

    companions: ClassVar = {"corrector": Companion(built=True)}

    def __init__(self, settings: BesideSettings, build: BuildNetwork, labeled_loss: LabeledLoss) -> None:
        super().__init__(settings, build, labeled_loss)
        classes, channels = self.student_1.num_classes, self.student_1.backbone.image_channels
        self.corrector = build("corrector", channels=channels + classes, num_classes=classes + 1)

    def step(self, batch: Batch, progress: Progress) -> Step:
        labeled, unlabeled = self.seen(batch, progress)
        size = (batch.label.shape[1], batch.label.shape[2])
        with torch.no_grad():
            corrected = self._corrected(batch.weak, unlabeled, size)[:, :-1].argmax(1)  # [U, H, W], the last: unsure
        loss = cross_entropy(unlabeled.logits, corrected.where(batch.valid, IGNORE)).named("unlabeled")
        yield Update("student_1", self.labeled_loss(labeled, batch.label) + self.settings.unlabeled_weight * loss)
        answer = self._corrected(batch.image, labeled, size)
        yield Update("corrector", cross_entropy(answer, batch.label).named("corrector"))

    def _corrected(self, images: Tensor, prediction: Prediction, size: tuple[int, int]) -> Tensor:
        said = upsample(prediction.logits.detach(), size).softmax(1)
        logits: Tensor = self.corrector(torch.cat([images, said], dim=1)).logits
        return upsample(logits, size)


class Projected(OneStudent):
    """L = H(y, h(x_l)) + w * ||P(f(x_u)) - 1||^2; the projector P trains with the student, by one loss."""

    def __init__(self, settings: BesideSettings, build: BuildNetwork, labeled_loss: LabeledLoss) -> None:
        super().__init__(settings, build, labeled_loss)
        self.projector = nn.Conv2d(self.student_1.feature_channels, 4, 1)

    def updated(self) -> dict[str, tuple[nn.Module, ...]]:
        return {"student_1": (self.student_1, self.projector)}

    def step(self, batch: Batch, progress: Progress) -> Step:
        labeled, unlabeled = self.seen(batch, progress)
        far = (self.projector(unlabeled.features) - 1).square()  # [U, 4, h, w]
        loss = Loss.mean("unlabeled", far.sum(), torch.ones_like(far).sum())
        yield Update("student_1", self.labeled_loss(labeled, batch.label) + self.settings.unlabeled_weight * loss)


BESIDE: dict[str, type[Method]] = {"adversarial": Adversarial, "corrected": Corrected, "projected": Projected}


@contextmanager
def in_the_table() -> Iterator[None]:
    """These methods can be named like others."""
    METHODS.update(BESIDE)
    try:
        yield
    finally:
        for name in BESIDE:
            del METHODS[name]
