"""Two learners, each a student with its mean teacher: their networks, and what these hold when a stage starts."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch

from fewmask.errors import ConfigError
from fewmask.learning.ema import teacher_of
from fewmask.learning.losses import LabeledLoss
from fewmask.methods.method import BuildNetwork, Method, MethodSettings
from fewmask.networks.segmentation import SegmentationNetwork

Restart = Literal["teacher", "baseline"]
Baselines = Literal["one", "two"]
Networks = tuple[SegmentationNetwork, SegmentationNetwork]


class LearnerPair(Method):
    """student_i and teacher_i have one architecture; that of the other learner may be another."""

    predictors: ClassVar = ("teacher_1", "teacher_2", "student_1", "student_2")
    learners: ClassVar = ("student_1", "student_2")
    ensemble: ClassVar = ("teacher_1", "teacher_2")
    needs_baseline: ClassVar = True

    def __init__(
        self,
        settings: MethodSettings,
        build: BuildNetwork,
        labeled_loss: LabeledLoss,
        restart: Restart = "teacher",
        baselines: Baselines = "one",
    ) -> None:
        super().__init__(settings, labeled_loss)
        self.student_1, self.student_2 = build("student_1"), build("student_2")
        self.teacher_1, self.teacher_2 = (teacher_of(student) for student in self.students)
        self.restart, self.baselines = restart, baselines
        if restart == "baseline":
            self.baseline_1, self.baseline_2 = (teacher_of(student) for student in self.students)

    @property
    def students(self) -> Networks:
        return self.student_1, self.student_2

    @property
    def teachers(self) -> Networks:
        return self.teacher_1, self.teacher_2

    def trained(self) -> dict[str, SegmentationNetwork]:
        return {"student_1": self.student_1, "student_2": self.student_2}

    @property
    @abstractmethod
    def noisy(self) -> bool:
        """Whether noise drives learners with the same weights apart."""

    def baseline_learners(self) -> list[tuple[str, ...]]:
        """One baseline for all, or one each; without any noise the learners would stay identical with one."""
        one, other = ("student_1", "teacher_1"), ("student_2", "teacher_2")
        return [one + other] if self.noisy and self.baselines == "one" else [one, other]

    def check_start(self) -> None:
        if not self.noisy and same_weights(*self.students):
            raise ConfigError(
                "both learners start from the same weights and get no noise, so they would stay identical",
                where="settings.photometric, settings.dropout, settings.stochastic_depth",
                fix="one of these noises, a --baseline for each, or none: two are then trained",
            )

    @torch.no_grad()
    def start_learners(self, stage: int) -> None:
        """Later stages: both networks of a learner start from its teacher's last weights, or from its baseline's.

        In the latter case the student holds the teacher's weights until the sweep is over (see `swept`).
        """
        if stage == 0:
            self.check_start()
        else:
            _copy(self.teachers, to=self.students)
        if self.restart == "baseline":
            kept = (self.baseline_1, self.baseline_2)
            _copy(*((self.teachers, kept) if stage == 0 else (kept, self.teachers)))

    @property
    def swept(self) -> Networks:
        """Whose answers the sweep before a stage stores: the last stage's teachers."""
        return self.students if self.restart == "baseline" else self.teachers

    @torch.no_grad()
    def finish_learners(self) -> None:
        """After the sweep: both networks of a learner are the same."""
        if self.restart == "baseline":
            _copy(self.teachers, to=self.students)


def alike(one: SegmentationNetwork, other: SegmentationNetwork) -> bool:
    """Whether two networks have the same architecture."""
    shapes = [{key: value.shape for key, value in each.state_dict().items()} for each in (one, other)]
    return one.stride == other.stride and shapes[0] == shapes[1]


def same_weights(one: SegmentationNetwork, other: SegmentationNetwork) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=False)
    return alike(one, other) and all(torch.equal(*pair) for pair in pairs)


def _copy(networks: Networks, to: Networks) -> None:
    for source, target in zip(networks, to, strict=True):
        target.load_state_dict(source.state_dict())
