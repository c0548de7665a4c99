"""The switches of Robust Mutual Learning: each row of the paper's ablation tables is a choice of these."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from fewmask.config import Share
from fewmask.errors import ConfigError
from fewmask.learning.ema import Buffers
from fewmask.learning.prototypes import PAPER_SPREAD
from fewmask.methods.method import Horizon, MethodSettings, WordNone
from fewmask.methods.pair import Baselines, Restart
from fewmask.networks.segmentation import SegmentationNetwork

# What the paper states; it is silent about the others
PAPER: dict[str, Any] = {
    "coupling": "indirect_self", "photometric": True, "cutmix": True, "pairs": "independent", "dropout": 0.5,
    "stochastic_depth": 0.8, "confidence": "prototypes", "temperature": 1.0, "prior": "uniform", "threshold": 0.0,
    "momentum": 0.9999, "stages": 2, "targets": "sum", "labeled_photometric": False, "unlabeled_weight": 1.0,
}  # fmt: skip


class RMLSettings(MethodSettings):
    without_mixing: ClassVar = "settings.cutmix=false"

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
    temperature: Annotated[PositiveFloat | None, WordNone] = Field(
        None,
        description="T in softmax(-T * d) (paper: 1); none: 1 for the head deeplabv2, for others 16 / the "
        "root-mean-square distance of features from their mean, measured before each stage",
    )
    spread: Annotated[tuple[PositiveFloat, ...] | None, WordNone] = Field(
        None,
        description="measure T for every head, such that features lie this far from their mean: larger trusts "
        "prototypes more; a value, or one for each stage; none: as `temperature` says",
    )
    prior: Literal["uniform", "pixel_count"] = Field("uniform", description="pi: equal (paper) or labeled pixel counts")
    threshold: Share = Field(0.0, description="rectified labels below this value are ignored (paper: 0)")
    momentum: Share = Field(0.9999, description="lambda: how much of a prototype stays at each step (paper: 0.9999)")
    momentum_horizon: Horizon = Field(
        None, description="steps that momentum looks back over (paper: 10000); below 1: a share of a stage"
    )
    stages: PositiveInt = Field(2, description="stages; each recomputes p0 and restarts the schedule (paper: 2)")
    p0: Literal["auto", "shared", "own"] = Field(
        "auto", description="p0: both teachers' mean (shared) or each learner's own; auto: own where networks differ"
    )
    p0_scales: tuple[Annotated[float, Field(ge=0.1, le=10.0)], ...] = Field(
        (1.0,), min_length=1, description="sizes at which images are swept for p0, the mean over all (paper silent)"
    )
    p0_flip: bool = Field(False, description="sweep mirrored images for p0, too, and take the mean (paper silent)")
    baselines: Baselines = Field(
        "one", description="one baseline for both learners (paper), or two, of different seeds; two without any noise"
    )
    restart: Restart = Field("teacher", description="later stages go on from the teachers, or from the baseline again")
    decay: Share = Field(
        0.999, description="alpha: how much of a teacher stays at each step (paper silent; ProDA 0.999)"
    )
    decay_horizon: Horizon = Field(
        None, description="steps that decay looks back over, decay = 1 - 1 / horizon; below 1: a share of a stage"
    )
    warmup: bool = Field(False, description="start each stage's teachers with the plain mean of the first steps")
    buffers: Buffers = Field(
        "copied", description="teachers' BatchNorm statistics: copied from the student, averaged, or of weak images"
    )
    teacher_mode: Literal["eval", "train"] = Field(
        "eval", description="teachers label with running BatchNorm statistics, or with those of the batch (ProDA's)"
    )
    feature_layer: Literal["embedding", "classifier"] = Field(
        "embedding",
        description="the prototypes' feature: the one before the classifier (ProDA's), or class scores less their mean",
    )
    prototype_mean: Literal["pixels", "images"] = Field(
        "pixels", description="a batch's class mean for Eq. 12: over all its pixels, or the mean of its images' means"
    )
    targets: Literal["sum", "mean"] = Field(
        "sum", description="add the losses against both teachers (Eq. 5) or average them"
    )
    labeled_every: PositiveInt = Field(
        8, description="each labeled image of a batch joins the prototypes every so many steps"
    )
    labeled_photometric: bool = Field(False, description="color noise on the labeled images, too (paper: off)")
    unlabeled_weight: float = Field(1.0, ge=0, description="weight of the loss on unlabeled images (paper: 1)")

    @field_validator("spread")
    @classmethod
    def _one_temperature(cls, spread: tuple[float, ...] | None, info: ValidationInfo) -> tuple[float, ...] | None:
        if spread and info.data.get("temperature"):
            raise ValueError("none where temperature is set")
        return spread or None

    def spread_of(self, stage: int) -> float:
        """The last value holds for all further stages; without one, that of the paper's feature."""
        return self.spread[min(stage, len(self.spread) - 1)] if self.spread else PAPER_SPREAD


def check_networks(settings: RMLSettings, one: SegmentationNetwork, other: SegmentationNetwork) -> None:
    """What the settings ask of two students that they cannot do."""
    if settings.p0 == "shared" and one.stride != other.stride:
        what = f"networks of stride {one.stride} and {other.stride} cannot share p0"
        raise ConfigError(what, where="settings.p0", fix="own, or auto")
    if settings.buffers == "weak" and settings.coupling == "direct":
        what = "in direct coupling the teachers see no weak images to take their statistics from"
        raise ConfigError(what, where="settings.buffers", fix="copied or averaged, or another settings.coupling")
    for student in (one, other) if set(settings.p0_scales) != {1.0} else ():
        if student.backbone.only_size is not None:
            what = f"{student.backbone.name} takes images of one size only, and p0_scales shows it others"
            raise ConfigError(what, where="settings.p0_scales", fix="1.0, or another backbone")
