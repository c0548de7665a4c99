"""Supervised learning on the labeled images alone: the baseline, and the twin every other method is held against."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fewmask.learning.losses import LabeledLoss
from fewmask.methods.method import BuildNetwork, Method, MethodSettings
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.types import Batch, Progress, Step, Update, ViewRequest


class SupervisedSettings(MethodSettings):
    photometric: bool = Field(False, description="color noise on the labeled images (the strong twin)")


class Supervised(Method):
    """L = H(y, h(x)) over labeled pixels (RML, Eq. 1)."""

    Settings: ClassVar = SupervisedSettings
    paper: ClassVar = "Zhang et al., Robust Mutual Learning, CVPR 2022, Eq. 1"
    predictors: ClassVar = ("student_1",)

    def __init__(self, settings: SupervisedSettings, build: BuildNetwork, labeled_loss: LabeledLoss) -> None:
        super().__init__(settings, labeled_loss)
        self.settings = settings
        self.student_1 = build("student_1")

    @property
    def views(self) -> ViewRequest:
        return ViewRequest(unlabeled=False, labeled_color=self.settings.photometric)

    def trained(self) -> dict[str, SegmentationNetwork]:
        return {"student_1": self.student_1}

    def step(self, batch: Batch, progress: Progress) -> Step:
        noise = self.noise(progress, "student_1", batch.image_position)
        scores = self.student_1(batch.image, noise).scores  # [B, K, h, w]
        yield Update("student_1", self.labeled_loss(scores, batch.label))  # Eq. 1
