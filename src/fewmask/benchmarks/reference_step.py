"""One step of Robust Mutual Learning as research code writes it: the yardstick of `fewmask bench step --reference`.

Two batches of unlabeled images, a forward pass each for labeled and mixed images, one network after the other, plain
optimizers, teachers averaged parameter by parameter, a cross entropy per target. Nothing here is meant to be fast, and
nothing to be slow. It shares no code with `methods/rml.py`, so each checks the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from fewmask.labels import IGNORE
from fewmask.types import Batch


@dataclass
class Learner:
    student: nn.Module
    teacher: nn.Module
    optimizer: Optimizer
    prototypes: Tensor  # [K, D]
    known: Tensor  # [K] bool, classes that have a prototype

    def __post_init__(self) -> None:
        """Pairs of the teacher's tensor and the student's; walking through all modules at every step takes time.

        BatchNorm's counters of batches are left out, as nothing reads them.
        """
        self.weights = list(zip(self.teacher.parameters(), self.student.parameters(), strict=True))
        both = zip(self.teacher.buffers(), self.student.buffers(), strict=True)
        self.statistics = [pair for pair in both if pair[0].is_floating_point()]


@dataclass(frozen=True)
class ReferenceStep:
    """Called with a batch of independent pairs: the partners are the second half of its unlabeled images."""

    learners: Sequence[Learner]
    bf16: bool
    decay: float  # of the teachers
    momentum: float  # of the prototypes
    labeled_every: int  # steps between labeled images in the prototypes
    soft_label: str  # the name of log p0 in the batch

    def __call__(self, batch: Batch, step: int = 0) -> list[Tensor]:
        """The losses of the two students, before their updates."""
        targets, members = [], []
        for learner in self.learners:
            label_1, member_1 = self._pseudo_label(learner, batch, half=0)
            label_2, member_2 = self._pseudo_label(learner, batch, half=1)
            targets.append(torch.where(batch.box, label_2, label_1))  # [U, H, W]
            members.append([member_1, member_2])

        losses = []
        for index, learner in enumerate(self.learners):
            view_1, view_2 = (batch.strong[index] if batch.strong else batch.weak).chunk(2)  # color noise may be off
            mixed = torch.where(batch.box[:, None], view_2, view_1)  # [U, C, H, W]
            losses.append(self._update(learner, batch, mixed, targets))

        for learner, member in zip(self.learners, members, strict=True):
            if step % self.labeled_every == 0:
                member.append(self._predict(learner.teacher, batch.image, batch.label != IGNORE))
            self._move_prototypes(learner, member)
            self._move_teacher(learner)
        return losses

    def _update(self, learner: Learner, batch: Batch, mixed: Tensor, targets: Sequence[Tensor]) -> Tensor:
        size = batch.label.shape[1:]
        with self._autocast(batch.image):
            labeled_logits = _enlarged(learner.student(batch.image).logits, size)  # [B, K, H, W]
            mixed_logits = _enlarged(learner.student(mixed).logits, size)  # [U, K, H, W]
            loss = F.cross_entropy(labeled_logits, batch.label, ignore_index=IGNORE)
            for target in targets:
                loss = loss + F.cross_entropy(mixed_logits, target, ignore_index=IGNORE)
        learner.optimizer.zero_grad()
        loss.backward()
        learner.optimizer.step()
        return loss.detach()

    @torch.inference_mode()
    def _pseudo_label(self, learner: Learner, batch: Batch, half: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The rectified label of one batch of unlabeled images, [U, H, W], with its features and their classes."""
        images, valid = batch.weak.chunk(2)[half], batch.valid.chunk(2)[half]
        soft = batch.stored[self.soft_label].chunk(2)[half].exp()  # [U, K, h, w]
        features, own = self._predict(learner.teacher, images, valid)
        pixels = features.flatten(2).transpose(1, 2)  # [U, hw, D]
        distance = torch.cdist(pixels, learner.prototypes[None]).transpose(1, 2)  # [U, K, hw]
        distance = distance.masked_fill(~learner.known[:, None], torch.inf)
        weight = F.softmax(-distance, dim=1).unflatten(2, features.shape[2:])  # [U, K, h, w]
        rectified = weight * soft
        rectified = rectified / rectified.sum(dim=1, keepdim=True)
        label = _enlarged(rectified, valid.shape[1:]).argmax(dim=1)
        return label.masked_fill_(~valid, IGNORE), (features, own)

    @torch.inference_mode()
    def _predict(self, teacher: nn.Module, images: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Features [N, D, h, w] and the class of each, [N, h, w]."""
        with self._autocast(images):
            prediction = teacher(images)
        own = prediction.logits.argmax(dim=1)
        inside = F.interpolate(valid[:, None].float(), size=own.shape[1:], mode="nearest-exact")[:, 0]
        return prediction.features, own.masked_fill_(inside == 0, IGNORE)

    @torch.no_grad()
    def _move_prototypes(self, learner: Learner, members: Sequence[tuple[Tensor, Tensor]]) -> None:
        features = torch.cat([each.permute(0, 2, 3, 1).flatten(0, 2) for each, _ in members])  # [cells, D]
        own = torch.cat([label.flatten() for _, label in members])  # [cells]
        classes = torch.arange(len(learner.prototypes), device=own.device)
        member = (own == classes[:, None]).to(features.dtype)  # [K, cells]
        count = member.sum(dim=1, keepdim=True)  # [K, 1]
        mean = member @ features / count.clamp(min=1)  # [K, D]
        moved = self.momentum * learner.prototypes + (1 - self.momentum) * mean
        moved = torch.where(learner.known[:, None], moved, mean)
        learner.prototypes = torch.where(count > 0, moved, learner.prototypes)
        learner.known = learner.known | (count[:, 0] > 0)

    @torch.no_grad()
    def _move_teacher(self, learner: Learner) -> None:
        for slow, fast in learner.weights:
            slow.lerp_(fast, 1 - self.decay)
        for statistic, current in learner.statistics:
            statistic.copy_(current)

    def _autocast(self, images: Tensor) -> torch.autocast:
        return torch.autocast(images.device.type, torch.bfloat16, enabled=self.bf16)


def _enlarged(maps: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)
