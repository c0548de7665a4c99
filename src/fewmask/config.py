"""Settings: one frozen section per room.

A method's own settings stand above the method in its file; here they are a plain mapping that the method validates.
`settings.py` turns presets, files and key=value words into a Config.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, field_validator, model_validator

Size = tuple[PositiveInt, PositiveInt]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
ADAMW_RATE = 0.0001
SEEDS = 2**32  # numpy, whose permutation draws the labels, knows no others
HORIZON = "_horizon"  # `decay_horizon` says `decay` in steps, or before it is resolved as a share of the steps


class Section(BaseModel):
    """Settings that cannot be changed once read, and that know every key they accept."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )  # numbers to str: labels: 46

    @model_validator(mode="before")
    @classmethod
    def _lists_of_one(cls, values: Any) -> Any:
        """A number is a list of one where a list of any length is wanted: ignore: 7."""
        if not isinstance(values, dict):
            return values
        alone = {key: value for key, value in values.items() if type(value) in (int, float)}
        fields = {key: cls.model_fields[key].annotation for key in alone if key in cls.model_fields}
        return values | {key: [alone[key]] for key, kind in fields.items() if _any_length(kind)}


def _any_length(kind: Any) -> bool:
    """Whether it is tuple[X, ...], or may be."""
    return any(get_origin(each) is tuple and Ellipsis in get_args(each) for each in (kind, *get_args(kind)))


class DataSettings(Section):
    root: str | None = Field(None, description="the data set's folder")
    layout: Literal["auto", "folder", "voc", "cityscapes", "camvid"] = Field(
        "auto", description="how the folder is laid out on disk; auto recognizes it"
    )
    labels: str | None = Field(
        None, description="labeled images to use: a count (46) or a share (1/8); the rest is unlabeled"
    )
    split: str | None = Field(
        None, description="file that names the labeled images, one per line, or `image mask` pairs"
    )
    pool: Literal["unlabeled", "all"] = Field(
        "unlabeled",
        description="what is unlabeled: images without a mask, or the labeled ones as well, without their masks",
    )
    foreground: int | None = Field(None, description="mask value that means class 1 in two-class masks, e.g. 255")
    ignore: tuple[int, ...] = Field((), description="mask values that mean ignore, besides the layout's own")
    resize: Size | None = Field(
        None, description="height and width that images and masks are resized to once, at decoding"
    )
    holdout: Share = Field(
        0.0, description="share of the labeled images kept out of training as validation, without val/"
    )
    max_pixels: PositiveInt = Field(100_000_000, description="largest image that is opened, in pixels")


class ViewSettings(Section):
    crop: Size | None = Field(
        None, description="height and width of a training crop; none: the images' size, 512 at most"
    )
    scale: tuple[PositiveFloat, PositiveFloat] = Field(
        (0.75, 2.0), description="range of the random resize before the crop"
    )
    flip: bool = Field(True, description="mirror left and right with probability one half")
    color_operations: PositiveInt = Field(2, description="RandAugment n: color operations per strong view")
    color_magnitude: tuple[int, int] = Field(
        (1, 9), description="RandAugment magnitude, smallest and largest, out of 10"
    )
    color_probability: Share = Field(0.5, description="probability that each drawn color operation is applied")
    class_crops: Share = Field(0.0, description="share of labeled crops centered on a pixel of a randomly drawn class")


WEIGHT_WORDS = ("none", "hub", "coco-voc-classes")  # what `network.pretrained` may say that is no file


class NetworkSettings(Section):
    backbone: str = Field("resnet50", description="a timm model with features_only, see `fewmask networks`")
    head: Literal["deeplabv2", "deeplabv3plus", "sum4", "sum2", "setr_naive"] = Field(
        "deeplabv2", description="what turns features into classes"
    )
    stride: Literal[4, 8, 16, 32] = Field(8, description="input pixels per feature, exactly")
    deep_stride: Literal[8, 16, 32] = Field(
        16,
        description="input pixels per feature of the deepest layer, where the head refines it (deeplabv3plus); the "
        "next coarser one that the network has, where it cannot be had",
    )
    width: PositiveInt = Field(256, description="channels of each head branch and of the pixel feature")
    auxiliary_weight: float = Field(
        0.0,
        ge=0,
        description="setr_naive: weight of the labeled loss of each auxiliary head, after 1/4, 1/2 and 3/4 of the "
        "layers, in training only (SETR: 0.4); 0: no such heads",
    )
    pretrained: str = Field(
        "none", description="none, hub (timm download), coco-voc-classes (torchvision) or a weight file"
    )
    partial: bool = Field(False, description="accept a weight file that matches less than half of the backbone")
    dropout_kind: Literal["channel", "element"] = Field("channel", description="what one dropout draw switches off")
    stochastic_depth_rule: Literal["constant", "linear"] = Field(
        "constant", description="survival rate of residual blocks: the same for all (the paper) or falling with depth"
    )
    frozen_norm: bool = Field(
        False, description="BatchNorm keeps its statistics and answers as in evaluation; its weights still train"
    )
    mean: tuple[float, ...] | None = Field(None, description="input mean in [0, 1]; none: the backbone's own")
    std: tuple[PositiveFloat, ...] | None = Field(
        None, description="input deviation in [0, 1]; none: the backbone's own"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="more arguments for timm.create_model")


class LossSettings(Section):
    kind: Literal["cross_entropy", "ohem", "dice"] = Field(
        "cross_entropy", description="labeled loss; ohem keeps the hardest pixels, dice adds Dice to cross entropy"
    )
    class_weights: tuple[float, ...] | Literal["inverse_frequency"] | None = Field(
        None, description="weight per class, or inverse_frequency from the labeled masks; not with ohem"
    )
    ohem_threshold: Share = Field(
        0.7, description="ohem keeps pixels whose true class has a lower probability than this"
    )
    ohem_keep: Share = Field(0.1, description="... but at least this share of each image")
    dice_weight: float = Field(1.0, ge=0, description="weight of the Dice term beside cross entropy")

    @field_validator("class_weights")
    @classmethod
    def _some_class_counts(cls, weights: Any) -> Any:
        if isinstance(weights, tuple) and (min(weights, default=0) < 0 or not any(weights)):
            raise ValueError("0 or more for each class, and more than 0 for one")
        return weights


class OptimizerSettings(Section):
    name: Literal["sgd", "adamw"] = Field("sgd", description="optimizer")
    lr: PositiveFloat = Field(
        0.01, description=f"learning rate of the backbone at the start; unless given, {ADAMW_RATE} for adamw"
    )
    head_lr: PositiveFloat | None = Field(None, description="learning rate of the head; none: ten times the backbone's")
    momentum: Share = Field(0.9, description="SGD momentum")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="AdamW betas")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay")
    decay_norms: bool = Field(True, description="False: no weight decay on biases and normalization layers")
    clip: PositiveFloat | None = Field(None, description="largest gradient norm")
    schedule: Literal["poly", "cosine", "step", "constant"] = Field("poly", description="learning rate over the steps")
    power: PositiveFloat = Field(0.9, description="exponent of poly")
    milestones: tuple[Share, ...] = Field(
        (0.6, 0.85), description="where the step schedule falls, as shares of training"
    )
    gamma: PositiveFloat = Field(0.1, description="what the step schedule multiplies by at each milestone")
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")

    @model_validator(mode="before")
    @classmethod
    def _rate_of_its_kind(cls, values: Any) -> Any:
        """AdamW moves a weight by about its rate, whatever the gradient: SGD's would be a hundred times too large."""
        adamw = isinstance(values, dict) and values.get("name") == "adamw"
        return {"lr": ADAMW_RATE} | values if adamw else values


class LearnerSettings(Section):
    """Where one learner of a pair differs from the run; see `training/learners.py` for how the parts are joined."""

    network: dict[str, Any] = Field(default_factory=dict, description="its own `network` settings")
    optimizer: dict[str, Any] = Field(default_factory=dict, description="its own `optimizer` settings")
    baseline: dict[str, Any] = Field(default_factory=dict, description="its own `baseline` settings")


class TrainingSettings(Section):
    steps: PositiveInt = Field(4000, description="optimizer steps")
    batch: PositiveInt = Field(8, description="labeled images per step, over all ranks")
    unlabeled_batch: PositiveInt | None = Field(None, description="unlabeled images per step; none: as many as labeled")
    precision: Literal["auto", "bf16", "fp32", "fp64"] = Field(
        "auto", description="auto: bf16 autocast on CUDA, else fp32"
    )
    tf32: bool = Field(
        False, description="fp32 means fp32; True lets CUDA use TF32 in matrix products and convolutions"
    )
    capture: bool = Field(True, description="on CUDA, run the whole step as one captured graph")
    lanes: bool = Field(True, description="in a captured step, run the two learners side by side on two streams")
    compile: bool = Field(
        False, description="on CUDA, put residual blocks and heads through torch.compile, if it works"
    )
    checkpointing: bool = Field(
        False,
        description="keep less for the backward pass: blocks and heads of the students are computed twice, same result",
    )
    accumulate: PositiveInt = Field(
        1,
        description="micro-batches per step: only one of them is held in memory, at the price of one more forward pass "
        "of the students; same result unless BatchNorm is live, whose statistics are then per micro-batch",
    )
    deterministic: bool = Field(
        False,
        description="on CUDA, add in one fixed order: the same bits whether captured or not, resumed or not",
    )
    branches: Literal["auto", "direct", "joined"] = Field(
        "auto",
        description="gradients of the branches of students' deeplabv2 heads: a convolution's each, or two matrix "
        "products for all; auto: joined in compiled bf16 steps on CUDA",
    )
    norms: Literal["auto", "plain", "fused"] = Field(
        "auto",
        description="on CUDA in one process, live BatchNorm of ResNets that train: its own layers, or Triton kernels "
        "that take ReLU, shortcut and stochastic depth along; auto: fused in compiled bf16 steps",
    )
    fold_teachers: Literal["auto", "none", "folded", "fused"] = Field(
        "auto",
        description="BatchNorm of teachers: own layers, folded into convolutions, or fused with ReLU and shortcut too; "
        "auto: fused in compiled bf16 steps on CUDA, unless they are deterministic",
    )
    forecast: bool = Field(
        True,
        description="try up to 10 steps first, put everything back, and say what time and memory the run will take",
    )
    log_every: PositiveInt = Field(50, description="steps between lines of metrics.jsonl")
    diagnose_every: int = Field(
        200,
        ge=0,
        description="steps between looks at the pseudo labels, against hidden masks where there are any; 0: never",
    )
    check_every: PositiveInt = Field(50, description="steps between looks at the non-finite flag")
    checkpoint_every: PositiveInt = Field(1000, description="steps between checkpoints")
    keep: PositiveInt = Field(2, description="checkpoints kept, newest first")
    evaluate_every: int = Field(0, ge=0, description="steps between validations; 0: only at the end")
    store_share: Share = Field(
        0.3, description="share of the free GPU memory that decoded images and soft labels may take"
    )
    host_share: Share = Field(
        0.5, description="share of the main memory at hand that decoded images and soft labels may take; more is mapped"
    )
    cache: str | None = Field(
        None, description="folder for what exceeds host_share, as files that vanish with the run; none: the run folder"
    )
    soft_labels: Literal["auto", "fp16", "uint8", "topk"] = Field(
        "auto", description="how a stage's soft labels are kept; auto: fp16; uint8 is half as large"
    )
    sweep_pixels: PositiveInt = Field(
        2**22, description="pixels per pass of the sweep before a stage; larger images are swept in overlapping tiles"
    )


class EvaluationSettings(Section):
    mode: Literal["whole", "tiled"] = Field(
        "whole", description="whole images, or overlapping tiles with blended seams"
    )
    tile: Size = Field((512, 512), description="height and width of a tile")
    overlap: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.5, description="share of a tile that its neighbor sees, too"
    )
    size: Size | None = Field(None, description="height and width at which to score; none: each label's own resolution")
    batch: PositiveInt = Field(8, description="images per forward pass")


class Config(Section):
    """Everything a run depends on; config.yaml in the run folder holds it resolved."""

    preset: str | None = None
    seed: int = Field(0, ge=0, lt=SEEDS, description="seed of everything that is drawn")
    method: str = Field("rml", description="see `fewmask methods`")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="the method's own settings, see `fewmask methods`"
    )
    baseline: dict[str, Any] = Field(
        default_factory=dict,
        description="settings of the supervised baseline that a method starts from, where they differ",
    )
    learners: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="learner name -> its own network, optimizer and baseline settings, where learners differ",
    )
    companions: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="companion name -> its own optimizer and network settings, where a method has companions",
    )
    data: DataSettings = DataSettings()
    views: ViewSettings = ViewSettings()
    network: NetworkSettings = NetworkSettings()
    loss: LossSettings = LossSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
