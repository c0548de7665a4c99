"""Mean teacher with weak and strong views: one student learns from the moving average of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from fewmask.config import Share
from fewmask.labels import IGNORE
from fewmask.learning.ema import Buffers, MovingAverage, ema_update, teacher_of, warmed_decay
from fewmask.learning.losses import LabeledLoss, cross_entropy
from fewmask.learning.pseudo_labels import pseudo_label
from fewmask.learning.schedules import ramped
from fewmask.learning.statistics import move_statistics, watched_inputs
from fewmask.methods.method import BuildNetwork, Horizon, Method, MethodSettings, PseudoLabels
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.types import Batch, Measure, Progress, Reduce, Step, Update, ViewRequest
from fewmask.views.mixing import paste


class MeanTeacherSettings(MethodSettings):
    without_mixing: ClassVar = "settings.mixing=none"

    decay: Share = Field(0.999, description="alpha: how much of the teacher stays at each step")
    decay_horizon: Horizon = Field(
        None, description="steps that decay looks back over, decay = 1 - 1 / horizon; below 1: a share of all steps"
    )
    warmup: bool = Field(True, description="start with the plain mean of the first steps: min(decay, 1 - 1/(step+1))")
    buffers: Buffers = Field(
        "copied", description="teacher's BatchNorm statistics: copied from the student, averaged, or of weak images"
    )
    threshold: Share = Field(0.95, description="tau: pseudo labels below this confidence are dropped, not renormalized")
    unlabeled_weight: float = Field(1.0, ge=0, description="w: weight of the loss on unlabeled images")
    ramp: Share = Field(0.5, description="share of training over which that weight rises, as exp(-5 (1 - t)^2)")
    mixing: Literal["none", "box"] = Field("box", description="paste a box of another image into each unlabeled image")
    photometric: bool = Field(True, description="color noise on the student's unlabeled view")
    labeled_photometric: bool = Field(False, description="color noise on the labeled images, too")


class MeanTeacher(Method):
    """L = H(y, h(x_l)) + w(t) * 1[max p >= tau] * H(argmax p, h(strong(x_u))), p of the mean teacher on the weak view.

    Tarvainen and Valpola's mean teacher with hard pseudo labels (RML, Eq. 2) and the box mixing of French et al.
    Deviations: hard labels instead of a squared difference; the confidence threshold acts per pixel, and dropped pixels
    stay in the denominator.
    """

    Settings: ClassVar = MeanTeacherSettings
    paper: ClassVar = "Tarvainen and Valpola, NeurIPS 2017; French et al., BMVC 2020"
    predictors: ClassVar = ("teacher_1", "student_1")

    def __init__(self, settings: MeanTeacherSettings, build: BuildNetwork, labeled_loss: LabeledLoss) -> None:
        super().__init__(settings, labeled_loss)
        self.settings = settings
        self.student_1 = build("student_1")
        self.teacher_1 = teacher_of(self.student_1)

    @property
    def views(self) -> ViewRequest:
        settings = self.settings
        return ViewRequest(
            strong=int(settings.photometric), labeled_color=settings.labeled_photometric, mixing=settings.mixing
        )

    def trained(self) -> dict[str, SegmentationNetwork]:
        return {"student_1": self.student_1}

    def moving_averages(self) -> tuple[MovingAverage, ...]:
        return (MovingAverage("the teacher's weights", self.settings.decay, self.settings.warmup),)

    def step(self, batch: Batch, progress: Progress) -> Step:
        settings = self.settings
        with torch.no_grad(), watched_inputs(self.teacher_1, settings.buffers == "weak") as inputs:
            target, confidence = pseudo_label(self.teacher_1(batch.weak).logits, batch.valid)  # [U, H, W] each
        strong = batch.strong[0] if settings.photometric else batch.weak
        mixed, target, confidence = (paste(part, batch.partner, batch.box) for part in (strong, target, confidence))
        trusted = (confidence >= settings.threshold).to(mixed.dtype)  # [U, H, W]

        noise = self.noise(progress, "student_1", batch.image_position, batch.weak_position)
        scores = self.student_1(torch.cat([batch.image, mixed]), noise).scores  # [B + U, K, h, w]
        labeled, unlabeled = scores.split([len(batch.image), len(mixed)])
        weight = settings.unlabeled_weight * ramped(progress.fraction, settings.ramp)
        loss = self.labeled_loss(labeled, batch.label)
        loss = loss + weight * cross_entropy(unlabeled.logits, target, pixel_weight=trusted).named("unlabeled")
        yield Update("student_1", loss)

        decay = warmed_decay(settings.decay, progress.step) if settings.warmup else settings.decay
        ema_update(self.teacher_1, self.student_1, decay, settings.buffers)
        if inputs:
            moments = yield Reduce(torch.cat(inputs))
            assert moments is not None
            move_statistics(self.teacher_1, moments)
        yield Measure("trusted", trusted.sum(), torch.ones_like(trusted).sum())

    @torch.no_grad()
    def pseudo_labels(self, batch: Batch) -> Sequence[PseudoLabels]:
        label, confidence = pseudo_label(self.teacher_1(batch.weak).logits, batch.valid)  # [U, H, W] each
        return [PseudoLabels("teacher_1", label.where(confidence >= self.settings.threshold, IGNORE))]
