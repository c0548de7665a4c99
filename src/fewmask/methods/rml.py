"""Robust Mutual Learning: two students, two mean teachers, pseudo labels rectified by class prototypes, two stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fewmask.labels import IGNORE
from fewmask.learning.ema import MovingAverage, ema_update, warmed_decay
from fewmask.learning.losses import LabeledLoss, cross_entropies
from fewmask.learning.prototypes import (
    Joining,
    Prototypes,
    class_sums,
    coarse_label,
    image_means,
    joining_images,
    prediction_label,
    valid_cells,
)
from fewmask.learning.rectification import (
    hard_label,
    mean_log_probability,
    prototype_confidence,
    rectified,
    total_variation,
)
from fewmask.learning.soft_views import view_probabilities
from fewmask.learning.statistics import batch_statistics, move_statistics, watched_inputs
from fewmask.methods.method import BuildNetwork, Forward, PseudoLabels, at_once, scores_through
from fewmask.methods.pair import LearnerPair, alike
from fewmask.methods.rml_settings import PAPER, RMLSettings, check_networks
from fewmask.types import (
    Batch,
    Join,
    Lane,
    Loss,
    Measure,
    Prediction,
    Progress,
    Reduce,
    Step,
    Update,
    ViewRequest,
)
from fewmask.views.mixing import paste

P0 = "log_p0"  # the PixelStore's name for the stage's soft pseudo labels; with _1 and _2 where each learner has its own


class Denoised(NamedTuple):
    """What one teacher says about the unlabeled images, before mixing."""

    label: Tensor  # [U, H, W]
    sums: Tensor  # [K, D + 1] class sums of its features
    probability: Tensor  # [U, K, h, w] the mean teacher's own softmax, also where a student labels
    inputs: Sequence[Tensor] = ()  # moments of what its BatchNorm layers were fed, where `buffers: weak` wants them


class RobustMutualLearning(LearnerPair):
    """L_i = H(y, h_i(x_l)) + sum_j H(y_j, h_i(noise(x_u))), y_j = argmax_k omega_k * p0_k of teacher j (Eqs. 1, 5, 6).

    Zhang et al., CVPR 2022, Algorithm 1. Where the paper is silent: teachers in eval mode (`teacher_mode: train` is
    ProDA's), prototypes from the 256-d feature before dropout (or `feature_layer: classifier`), moved by the mean over
    a batch's pixels (or `prototype_mean: images`), p0 shared by both learners (the mean of both teachers' softmax at
    the start of a stage, which is the baseline's in the first one; `p0: own` is the alternative, and the rule for
    unlike networks), stages continue from the teachers (or `restart: baseline`). Labels cross at the crop's resolution,
    so learners may differ in stride. Deviation: mixing partners come from the same batch (`pairs: independent` is the
    paper's).
    """

    Settings: ClassVar = RMLSettings
    paper: ClassVar = "Zhang et al., Robust Mutual Learning for Semi-supervised Semantic Segmentation, CVPR 2022"
    paper_settings: ClassVar = PAPER
    pixel_count: Tensor  # [K] labeled pixels of each class
    spread: Tensor  # [] how far from their mean features are taken to lie in this stage, where T is measured

    def __init__(self, settings: RMLSettings, build: BuildNetwork, labeled_loss: LabeledLoss) -> None:
        super().__init__(settings, build, labeled_loss, settings.restart, settings.baselines)
        self.settings = settings
        classes = self.student_1.num_classes
        embedded = settings.feature_layer == "embedding"
        widths = [each.feature_channels if embedded else classes for each in self.students]
        self.prototypes_1, self.prototypes_2 = (Prototypes(classes, width) for width in widths)
        self.register_buffer("pixel_count", torch.zeros(classes))
        self.register_buffer("spread", torch.tensor(settings.spread_of(0)))
        shared = settings.p0 == "shared" or (settings.p0 == "auto" and alike(*self.students))
        self._p0 = (P0, P0) if shared else (f"{P0}_1", f"{P0}_2")  # each learner's map in the store
        check_networks(settings, *self.students)

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

    def fewest_images(self, batch: int, unlabeled: int) -> int:
        """Teachers in train mode see unlabeled images alone, where pseudo labels are diagnosed."""
        students = super().fewest_images(batch, unlabeled)
        return min(students, unlabeled) if self.settings.teacher_mode == "train" else students

    def moving_averages(self) -> tuple[MovingAverage, ...]:
        teachers = MovingAverage("teachers", self.settings.decay, self.settings.warmup)
        return teachers, MovingAverage("prototypes", self.settings.momentum)

    def step(self, batch: Batch, progress: Progress) -> Step:
        """Algorithm 1, one iteration."""
        joining = joining_images(batch, progress.step, self.settings.labeled_every)
        decay = warmed_decay(self.settings.decay, progress.step) if self.settings.warmup else self.settings.decay
        denoised = []
        for learner in (0, 1):
            yield Lane(learner)
            denoised.append(self._denoise(learner, batch, joining))
        yield Join()
        targets = [paste(each.label, batch.partner, batch.box) for each in denoised]  # MixRectify
        counted = paste(batch.valid, batch.partner, batch.box)  # [M, H, W] pixels below the threshold among them
        for learner, (name, student) in enumerate(self.trained().items()):
            yield Lane(learner)
            strong = batch.strong[learner] if self.settings.photometric else batch.weak
            mixed = paste(strong, batch.partner, batch.box)  # x_u <- m * x_u1 + (1 - m) * x_u2
            noise = self.noise(progress, name, batch.image_position, batch.weak_position[: len(mixed)])
            scores = student(torch.cat([batch.image, mixed]), noise).scores  # [B + M, K, h, w]
            labeled, unlabeled = scores.split([len(batch.image), len(mixed)])
            loss = self.labeled_loss(labeled, batch.label)  # Eq. 1
            yield Update(name, loss + self._mutual_loss(unlabeled.logits, self._teaching(learner, targets), counted))

        for learner, each in enumerate(denoised):
            yield Lane(learner)
            sums = yield Reduce(each.sums)  # [K, D + 1], over ranks
            assert sums is not None
            self.prototypes[learner].move(sums, self.settings.momentum)  # Eq. 12
            ema_update(self.teachers[learner], self.students[learner], decay, self.settings.buffers)
            if each.inputs:
                moments = yield Reduce(torch.cat([*each.inputs]))
                assert moments is not None
                move_statistics(self.teachers[learner], moments)
        yield Join()
        apart = total_variation(*(each.probability for each in denoised))  # [U, h, w]
        inside = valid_cells(batch.valid, _size(apart)).to(apart.dtype)
        yield Measure("coupling/total_variation", (apart * inside).sum(), inside.sum())

    @torch.no_grad()
    def _denoise(self, learner: int, batch: Batch, joining: Joining) -> Denoised:
        """Denoise in Algorithm 1: the rectified hard label of every unlabeled image (Eq. 6)."""
        unlabeled = len(batch.weak)
        with watched_inputs(self.teachers[learner], self.settings.buffers == "weak", rows=unlabeled) as inputs:
            everything = self._taught(learner, batch.weak, joining.image)
        valid = valid_cells(torch.cat([batch.valid, joining.known]), _size(everything.logits))  # [U + J, h, w]
        own = prediction_label(everything.logits, valid)
        sums = class_sums(everything.features, own, everything.logits.shape[1])  # [U + J, K, D + 1]
        sums = sums.sum(0) if self.settings.prototype_mean == "pixels" else image_means(sums, fewest=1)
        prediction = Prediction(everything.logits[:unlabeled], everything.features[:unlabeled])
        answer = self._rectified(learner, prediction, batch.stored.get(self._p0[learner]))
        label = hard_label(answer, batch.valid, self.settings.threshold)
        measured = self.teachers[learner](batch.weak) if self.settings.coupling == "direct" else prediction
        return Denoised(label, sums, measured.logits.softmax(1), inputs)

    def _rectified(self, learner: int, prediction: Prediction, log_p0: Tensor | None) -> Tensor:
        """omega * p0, normalized over classes, [U, K, h, w]; without a confidence, the source itself."""
        if self.settings.confidence == "none":
            return prediction.logits.softmax(1)  # Eq. 4
        if log_p0 is None:
            raise KeyError(f"the batch has no {self._p0[learner]}, which the sweep before a stage stores")
        if self.settings.confidence == "static":
            return log_p0.exp()
        return rectified(log_p0, self._log_confidence(learner, prediction))

    def _log_confidence(self, learner: int, prediction: Prediction) -> Tensor:
        """log omega, [U, K, h, w]: from the prototypes (Eq. 10), or the network's own softmax (supplement)."""
        settings = self.settings
        if settings.confidence != "prototypes":
            return prediction.logits.log_softmax(1)
        prototypes, temperature = self.prototypes[learner], self._temperature(learner)
        prior = self.pixel_count / self.pixel_count.sum().clamp(min=1) if settings.prior == "pixel_count" else None
        return prototype_confidence(
            prediction.features, prototypes.center, prototypes.known, temperature=temperature, prior=prior
        )

    def _temperature(self, learner: int) -> float | Tensor:
        """T as set, or the head's own, or one that gives features of any other head the paper's scale."""
        settings = self.settings
        known = self.teachers[learner].temperature if settings.feature_layer == "embedding" else None
        fixed = None if settings.spread else settings.temperature or known
        return fixed or self.prototypes[learner].temperature(self.spread)

    def _taught(self, learner: int, *groups: Tensor) -> Prediction:
        """The prediction that pseudo labels come from: the mean teacher's, or in direct coupling the student's own.

        All groups of images share one pass, but where they would share the statistics of their batch.
        """
        if self.settings.coupling != "direct":
            teacher = self.teachers[learner]
            if self.settings.teacher_mode == "eval":
                return self._with_feature(teacher(torch.cat(groups)))
            with batch_statistics(teacher):
                return self._with_feature(Prediction.joined([teacher(images) for images in groups], torch.cat))
        student = self.students[learner]
        training = student.training
        prediction = self._with_feature(student.eval()(torch.cat(groups)))
        student.train(training)
        return prediction

    def _with_feature(self, prediction: Prediction) -> Prediction:
        """With the feature that prototypes are made of: the embedding's, or class scores less their mean."""
        if self.settings.feature_layer == "embedding":
            return prediction
        return Prediction(prediction.logits, prediction.logits - prediction.logits.mean(1, keepdim=True))

    def _teaching(self, learner: int, targets: Sequence[Tensor]) -> list[Tensor]:
        """Whose labels a learner gets: the peer's, and in `indirect_self` its own teacher's as well."""
        peer = targets[1 - learner]
        return [peer, targets[learner]] if self.settings.coupling == "indirect_self" else [peer]

    def _mutual_loss(self, logits: Tensor, targets: Sequence[Tensor], counted: Tensor) -> Loss:
        share = 1.0 if self.settings.targets == "sum" else 1.0 / len(targets)
        losses = cross_entropies(logits, targets, counted)  # Eq. 3, Eq. 5
        terms = Loss(tuple(term for loss in losses for term in loss.named("unlabeled").terms))
        return self.settings.unlabeled_weight * share * terms

    @torch.no_grad()
    def pseudo_labels(self, batch: Batch) -> Sequence[PseudoLabels]:
        """Denoise once more, with what rectification started from."""
        return [self._pseudo_labels(learner, batch) for learner in (0, 1)]

    def _pseudo_labels(self, learner: int, batch: Batch) -> PseudoLabels:
        settings, log_p0 = self.settings, batch.stored.get(self._p0[learner])
        prediction = self._taught(learner, batch.weak)
        answer = self._rectified(learner, prediction, log_p0)
        weighs = settings.confidence in ("prototypes", "softmax")
        return PseudoLabels(
            source=f"{'student' if settings.coupling == 'direct' else 'teacher'}_{learner + 1}",
            label=hard_label(answer, batch.valid, settings.threshold),
            before=None if log_p0 is None else hard_label(log_p0.exp(), batch.valid),
            weight=self._log_confidence(learner, prediction).amax(1).exp() if weighs else None,
            drift=self.prototypes[learner].drift(),
        )

    @property
    def noisy(self) -> bool:
        settings = self.settings
        return settings.photometric or settings.dropout > 0 or settings.stochastic_depth < 1

    def start_stage(self, stage: int) -> None:
        self.start_learners(stage)
        for prototypes in self.prototypes:
            prototypes.clear()
        self.pixel_count.zero_()
        self.spread.fill_(self.settings.spread_of(stage))

    @torch.no_grad()
    def sweep(self, images: Tensor, label: Tensor | None, forward: Forward = at_once) -> dict[str, Tensor]:
        """One batch of the pass before a stage: features for the prototypes (Eq. 11), and p0 of the pool."""
        predictions = [self._with_feature(forward(teacher, images)) for teacher in self.teachers]
        for prototypes, prediction in zip(self.prototypes, predictions, strict=True):
            coarse = None if label is None else coarse_label(label, _size(prediction.logits))
            seen = prediction.logits.argmax(1)
            own = seen if coarse is None else seen.where(coarse != IGNORE, IGNORE)
            prototypes.collect(prediction.features, own, coarse)
        if label is not None:
            classes = torch.arange(len(self.pixel_count), device=label.device)
            self.pixel_count += (label.flatten()[None] == classes[:, None]).sum(1)
            return {}
        return self._soft_labels(images, predictions, forward)

    def _soft_labels(self, images: Tensor, predictions: Sequence[Prediction], forward: Forward) -> dict[str, Tensor]:
        last = predictions if self.swept == self.teachers else [forward(network, images) for network in self.swept]
        scales, flip = self.settings.p0_scales, self.settings.p0_flip
        soft: dict[str, list[Tensor]] = {}
        for name, network, prediction in zip(self._p0, self.swept, last, strict=True):
            ask = scores_through(forward, network)
            views = view_probabilities(ask, images, prediction.logits, scales=scales, flip=flip)
            soft.setdefault(name, []).extend(views)  # both under one name: p0 is their mean
        return {name: mean_log_probability(each) for name, each in soft.items()}

    def stored_strides(self) -> dict[str, int]:
        return {name: student.stride for name, student in zip(self._p0, self.students, strict=True)}

    def finish_sweep(self) -> None:
        for prototypes in self.prototypes:
            prototypes.settle()
        self.finish_learners()


def _size(maps: Tensor) -> tuple[int, int]:
    return maps.shape[-2], maps.shape[-1]
