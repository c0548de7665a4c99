"""Robust Mutual Learning: two students, two mean teachers, pseudo labels rectified by class prototypes, two stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from fewmask.config import Share
from fewmask.errors import ConfigError
from fewmask.learning.ema import Buffers, ema_update, teacher_of, warmed_decay
from fewmask.learning.losses import LabeledLoss, cross_entropies
from fewmask.learning.prototypes import Prototypes, class_sums, coarse_label, prediction_label, valid_cells
from fewmask.learning.rectification import (
    hard_label,
    mean_log_probability,
    prototype_confidence,
    rectified,
    total_variation,
)
from fewmask.methods.method import BuildNetwork, Forward, Method, MethodSettings, at_once
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.types import IGNORE, Batch, Loss, Measure, Prediction, Progress, Reduce, Step, Update, ViewRequest
from fewmask.views.mixing import paste

P0 = "log_p0"  # the PixelStore's name for the stage's soft pseudo labels


class RMLSettings(MethodSettings):
    coupling: Literal["direct", "indirect", "indirect_self"] = Field(
        "indirect_self", description="labels from the peer student, the peer teacher, or both teachers (paper, Eq. 5)"
    )
    photometric: bool = Field(True, description="color noise, drawn independently for each student (paper: on)")
    cutmix: bool = Field(True, description="paste a box of another unlabeled image (paper: on)")
    pairs: Literal["batch", "independent"] = Field(
        "batch",
        description="mixing partners: the batch's own images, or a second draw (the paper; twice the teachers' work)",
    )
    dropout: Share = Field(0.5, description="probability of dropout before the classifier (paper: 0.5)")
    stochastic_depth: Share = Field(0.8, description="survival rate of each residual block (paper: 0.8); 1 is off")
    confidence: Literal["prototypes", "softmax", "none", "static"] = Field(
        "prototypes",
        description="omega: from prototypes (paper), the teacher's softmax, none = its argmax (Eq. 4), static = p0",
    )
    temperature: PositiveFloat = Field(1.0, description="T in softmax(-T * d) (paper: 1)")
    prior: Literal["uniform", "pixel_count"] = Field("uniform", description="pi: equal (paper) or labeled pixel counts")
    threshold: Share = Field(0.0, description="rectified labels below this value are ignored (paper: 0)")
    momentum: Share = Field(0.9999, description="lambda: how much of a prototype stays at each step (paper: 0.9999)")
    stages: PositiveInt = Field(2, description="stages; each recomputes p0 and restarts the schedule (paper: 2)")
    decay: Share = Field(
        0.999, description="alpha: how much of a teacher stays at each step (paper silent; ProDA 0.999)"
    )
    warmup: bool = Field(False, description="start each stage's teachers with the plain mean of the first steps")
    buffers: Buffers = Field(
        "copied", description="teachers' BatchNorm statistics: copied from the student or averaged"
    )
    targets: Literal["sum", "mean"] = Field(
        "sum", description="add the losses against both teachers (Eq. 5) or average them"
    )
    labeled_every: PositiveInt = Field(
        8, description="each labeled image of a batch joins the prototypes every so many steps"
    )
    labeled_photometric: bool = Field(False, description="color noise on the labeled images, too (paper: off)")
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of the loss on unlabeled images (paper: 1)")


class Denoised(NamedTuple):
    """What one teacher says about the unlabeled images, before mixing."""

    label: Tensor  # [U, H, W]
    sums: Tensor  # [K, D + 1] class sums of its features
    probability: Tensor  # [U, K, h, w] its own softmax
    flipped: Tensor  # [] feature cells whose label rectification changed


class RobustMutualLearning(Method):
    """L_i = H(y, h_i(x_l)) + sum_j H(y_j, h_i(noise(x_u))), y_j = argmax_k omega_k * p0_k of teacher j (Eqs. 1, 5, 6).

    Zhang et al., CVPR 2022, Algorithm 1. Where the paper is silent: teachers in eval mode, prototypes from the 256-d
    feature before dropout, p0 shared by both learners (the mean of both teachers' softmax at the start of a stage,
    which is the baseline's in the first one), stages continue from the teachers. Deviation: mixing partners come from
    the same batch (`pairs: independent` is the paper's).
    """

    Settings: ClassVar = RMLSettings
    paper: ClassVar = "Zhang et al., Robust Mutual Learning for Semi-supervised Semantic Segmentation, CVPR 2022"
    predictors: ClassVar = ("teacher_1", "teacher_2", "student_1", "student_2")
    ensemble: ClassVar = ("teacher_1", "teacher_2")
    needs_baseline: ClassVar = True
    pixel_count: Tensor  # [K] labeled pixels of each class

    def __init__(self, settings: RMLSettings, build: BuildNetwork, labeled_loss: LabeledLoss) -> None:
        super().__init__(settings, labeled_loss)
        self.settings = settings
        self.student_1, self.student_2 = build("student_1"), build("student_2")
        self.teacher_1, self.teacher_2 = teacher_of(self.student_1), teacher_of(self.student_2)
        sizes = (self.student_1.num_classes, self.student_1.feature_channels)
        self.prototypes_1, self.prototypes_2 = Prototypes(*sizes), Prototypes(*sizes)
        self.register_buffer("pixel_count", torch.zeros(sizes[0]))

    @property
    def students(self) -> tuple[SegmentationNetwork, SegmentationNetwork]:
        return self.student_1, self.student_2

    @property
    def teachers(self) -> tuple[SegmentationNetwork, SegmentationNetwork]:
        return self.teacher_1, self.teacher_2

    @property
    def prototypes(self) -> tuple[Prototypes, Prototypes]:
        return self.prototypes_1, self.prototypes_2

    @property
    def views(self) -> ViewRequest:
        settings = self.settings
        return ViewRequest(
            strong=2 * int(settings.photometric),
            labeled_color=settings.labeled_photometric,
            mixing="box" if settings.cutmix else "none",
            pairs=settings.pairs if settings.cutmix else "batch",
        )

    @property
    def stages(self) -> int:
        return self.settings.stages

    def trained(self) -> dict[str, SegmentationNetwork]:
        return {"student_1": self.student_1, "student_2": self.student_2}

    def step(self, batch: Batch, progress: Progress) -> Step:
        """Algorithm 1, one iteration."""
        denoised = [self._denoise(learner, batch) for learner in (0, 1)]
        targets = [paste(each.label, batch.partner, batch.box) for each in denoised]  # MixRectify
        for learner, (name, student) in enumerate(self.trained().items()):
            strong = batch.strong[learner] if self.settings.photometric else batch.weak
            mixed = paste(strong, batch.partner, batch.box)  # x_u <- m * x_u1 + (1 - m) * x_u2
            noise = self.noise(progress, name, batch.image_position, batch.weak_position[: len(mixed)])
            logits = student(torch.cat([batch.image, mixed]), noise).logits  # [B + M, K, h, w]
            labeled, unlabeled = logits.split([len(batch.image), len(mixed)])
            loss = self.labeled_loss(labeled, batch.label)  # Eq. 1
            yield Update(name, loss + self._mutual_loss(unlabeled, self._taught_by(learner, targets)))

        batch_sums = [each.sums + self._labeled_sums(learner, batch, progress) for learner, each in enumerate(denoised)]
        sums = yield Reduce(torch.stack(batch_sums))  # [2, K, D + 1], over ranks
        assert sums is not None
        for prototypes, learner_sums in zip(self.prototypes, sums, strict=True):
            prototypes.move(learner_sums, self.settings.momentum)  # Eq. 12

        decay = warmed_decay(self.settings.decay, progress.step) if self.settings.warmup else self.settings.decay
        for teacher, student in zip(self.teachers, self.students, strict=True):
            ema_update(teacher, student, decay, self.settings.buffers)
        yield from self._measures(denoised, batch)

    @torch.no_grad()
    def _denoise(self, learner: int, batch: Batch) -> Denoised:
        """Denoise in Algorithm 1: the rectified hard label of every unlabeled image (Eq. 6)."""
        prediction = self._taught(learner, batch.weak)
        valid = valid_cells(batch.valid, _size(prediction.logits))  # [U, h, w]
        probability = prediction.logits.softmax(1)
        answer = self._rectified(learner, prediction, batch.stored.get(P0))
        own = prediction_label(prediction.logits, valid)
        sums = class_sums(prediction.features, own, prediction.logits.shape[1]).sum(0)
        before = batch.stored[P0].argmax(1) if P0 in batch.stored else own
        flipped = ((answer.argmax(1) != before) & valid).sum()
        return Denoised(hard_label(answer, batch.valid, self.settings.threshold), sums, probability, flipped)

    def _rectified(self, learner: int, prediction: Prediction, log_p0: Tensor | None) -> Tensor:
        """omega * p0, normalized over classes, [U, K, h, w]; without a confidence, the source itself."""
        settings = self.settings
        log_softmax = prediction.logits.log_softmax(1)
        if settings.confidence == "none" or log_p0 is None:
            return log_softmax.exp()  # Eq. 4
        if settings.confidence == "static":
            return log_p0.exp()
        if settings.confidence == "softmax":
            return rectified(log_p0, log_softmax)
        prototypes = self.prototypes[learner]
        prior = self.pixel_count / self.pixel_count.sum().clamp(min=1) if settings.prior == "pixel_count" else None
        confidence = prototype_confidence(
            prediction.features, prototypes.center, prototypes.known, temperature=settings.temperature, prior=prior
        )
        return rectified(log_p0, confidence)

    def _taught(self, learner: int, images: Tensor) -> Prediction:
        """The prediction that pseudo labels come from: the mean teacher's, or in direct coupling the student's own."""
        if self.settings.coupling != "direct":
            taught: Prediction = self.teachers[learner](images)
            return taught
        student = self.students[learner]
        training = student.training
        prediction: Prediction = student.eval()(images)
        student.train(training)
        return prediction

    def _taught_by(self, learner: int, targets: Sequence[Tensor]) -> list[Tensor]:
        """Whose labels a learner gets: the peer's, and in `indirect_self` its own teacher's as well."""
        peer = targets[1 - learner]
        return [peer, targets[learner]] if self.settings.coupling == "indirect_self" else [peer]

    def _mutual_loss(self, logits: Tensor, targets: Sequence[Tensor]) -> Loss:
        share = 1.0 if self.settings.targets == "sum" else 1.0 / len(targets)
        losses = cross_entropies(logits, targets)  # Eq. 3, Eq. 5
        terms = Loss(tuple(term for loss in losses for term in loss.named("unlabeled").terms))
        return self.settings.unlabeled_weight * share * terms

    @torch.no_grad()
    def _labeled_sums(self, learner: int, batch: Batch, progress: Progress) -> Tensor:
        """Class sums of this step's share of the labeled images: each of them joins every `labeled_every` steps."""
        every = self.settings.labeled_every
        count = -(-len(batch.image) // every)
        place = progress.step % every + every * torch.arange(count, device=batch.image.device)  # [count]
        there = place < len(batch.image)
        place = place.clamp(max=len(batch.image) - 1)
        prediction = self._taught(learner, batch.image.index_select(0, place))
        known = coarse_label(batch.label.index_select(0, place), _size(prediction.logits)) != IGNORE  # [count, h, w]
        own = prediction_label(prediction.logits, known & there[:, None, None])
        return class_sums(prediction.features, own, prediction.logits.shape[1]).sum(0)

    def _measures(self, denoised: Sequence[Denoised], batch: Batch) -> Step:
        """The coupling index and what rectification does."""
        one, other = denoised
        apart = total_variation(one.probability, other.probability)  # [U, h, w]
        cells = torch.ones_like(apart).sum()
        yield Measure("coupling/total_variation", apart.sum(), cells)
        yield Measure("rectification/flipped", (one.flipped + other.flipped) / 2, cells)
        agree = ((one.label == other.label) & batch.valid).sum()
        yield Measure("coupling/same_label", agree, batch.valid.sum())

    def baseline_learners(self) -> list[tuple[str, ...]]:
        """One baseline for all; without any noise the learners would stay identical, so each gets its own."""
        one, other = ("student_1", "teacher_1"), ("student_2", "teacher_2")
        return [one, other] if self._noiseless else [one + other]

    @property
    def _noiseless(self) -> bool:
        settings = self.settings
        return not settings.photometric and settings.dropout == 0 and settings.stochastic_depth == 1

    @torch.no_grad()
    def start_stage(self, stage: int) -> None:
        """Later stages: both networks of a learner start from its teacher's last weights."""
        if stage == 0 and self._noiseless and _same_weights(*self.students):
            raise ConfigError(
                "both learners start from the same weights and get no noise, so they would stay identical",
                where="photometric, dropout, stochastic_depth",
                fix="one of these noises, or leave --baseline away: two baselines are then trained",
            )
        if stage > 0:
            for student, teacher in zip(self.students, self.teachers, strict=True):
                student.load_state_dict(teacher.state_dict())
        for prototypes in self.prototypes:
            prototypes.clear()
        self.pixel_count.zero_()

    @torch.no_grad()
    def sweep(self, images: Tensor, label: Tensor | None, forward: Forward = at_once) -> dict[str, Tensor]:
        """One batch of the pass before a stage: p0 for the store, features for the prototypes (Eq. 11)."""
        predictions = [forward(teacher, images) for teacher in self.teachers]
        size = _size(predictions[0].logits)
        coarse = None if label is None else coarse_label(label, size)
        for prototypes, prediction in zip(self.prototypes, predictions, strict=True):
            prototypes.collect(prediction.features, prediction.logits.argmax(1), coarse)
        if label is not None:
            classes = torch.arange(len(self.pixel_count), device=label.device)
            self.pixel_count += (label.flatten()[None] == classes[:, None]).sum(1)
        return {P0: mean_log_probability([prediction.logits for prediction in predictions])}

    def stored_strides(self) -> dict[str, int]:
        return {P0: self.student_1.stride}

    def finish_sweep(self) -> None:
        for prototypes in self.prototypes:
            prototypes.settle()


def _same_weights(one: SegmentationNetwork, other: SegmentationNetwork) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


def _size(maps: Tensor) -> tuple[int, int]:
    return maps.shape[-2], maps.shape[-1]
