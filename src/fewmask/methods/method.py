"""What a method is: a small module that owns its networks and whose step reads like its paper's algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator
from torch import Tensor, nn

from fewmask.config import HORIZON, Section, Share
from fewmask.errors import ConfigError
from fewmask.learning.ema import MovingAverage, horizon_factor
from fewmask.learning.losses import LabeledLoss
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.randomness import Noise
from fewmask.types import Batch, Prediction, Progress, Step, ViewRequest

Forward = Callable[[SegmentationNetwork, Tensor], Prediction]  # a network's answer about images, however it is got


def at_once(network: SegmentationNetwork, images: Tensor) -> Prediction:
    """One pass over whole images."""
    prediction: Prediction = network(images)
    return prediction


def scores_through(forward: Forward, network: SegmentationNetwork) -> Callable[[Tensor], Tensor]:
    """A function from images to the network's class scores."""
    return lambda images: forward(network, images).logits


class BuildNetwork(Protocol):
    """A freshly initialized network for a learner, or for a companion, which may see and say something else."""

    def __call__(
        self, name: str, /, *, channels: int | None = None, num_classes: int | None = None
    ) -> SegmentationNetwork: ...


@dataclass(frozen=True)
class Companion:
    """What trains beside the learners under an optimizer of its own, such as a discriminator; it is never scored.

    `companions.NAME.optimizer` changes its optimizer, and `companions.NAME.network` the network that the method has
    built for it under its name, where it is `built`.
    """

    optimizer: Mapping[str, Any] = field(default_factory=dict)  # what the paper sets; nothing of it is the run's
    built: bool = False


def _unset(value: Any) -> Any:
    return None if value == "none" else value  # the word on the command line that undoes a preset's setting


WordNone = BeforeValidator(_unset)
Horizon = Annotated[PositiveInt | None, WordNone]  # steps that a moving average looks back over, shares resolved


class MethodSettings(Section):
    """The model noise that every method can put on its students."""

    without_mixing: ClassVar[str] = ViewRequest.without_mixing  # the word that switches it off, where a method mixes

    dropout: Share = Field(0.0, description="probability of dropout before the classifier (paper: 0.5)")
    stochastic_depth: Share = Field(1.0, description="survival rate of each residual block (paper: 0.8); 1 is off")

    @model_validator(mode="after")
    def _follow_horizons(self) -> Self:
        """A setting such as `decay` becomes 1 - 1 / horizon where `decay_horizon` is set."""
        for horizon in (name for name in type(self).model_fields if name.endswith(HORIZON)):
            steps: int | None = getattr(self, horizon)
            if steps is not None:
                self._follow(horizon.removesuffix(HORIZON), horizon, steps)
        return self

    def complete(self) -> dict[str, Any]:
        """Every setting as it can be read again; a factor that follows from a horizon is left to it."""
        values = self.model_dump(mode="json")
        horizons = [name for name, value in values.items() if name.endswith(HORIZON) and value is not None]
        follow = {name.removesuffix(HORIZON) for name in horizons}
        return {name: value for name, value in values.items() if name not in follow}

    def _follow(self, factor: str, horizon: str, steps: int) -> None:
        given, follows = getattr(self, factor), horizon_factor(steps)
        if factor in self.model_fields_set and given != follows:
            raise ConfigError(
                f"{factor}={given:g} and {horizon}={steps} (a {factor} of {follows:g}) contradict each other",
                where=f"settings.{factor}, settings.{horizon}",
                fix=f"one of them: settings.{horizon}=none makes {factor} count",
            )
        object.__setattr__(self, factor, follows)  # frozen from here on


@dataclass(frozen=True)
class PseudoLabels:
    """What one network teaches about a batch's unlabeled images, before mixing; for diagnostics."""

    source: str  # the network that says so
    label: Tensor  # [U, H, W]; IGNORE on padding and where nothing is taught
    before: Tensor | None = None  # [U, H, W] the label without rectification
    weight: Tensor | None = None  # [U, h, w] the largest omega of each feature cell
    drift: Tensor | None = None  # [] how far its prototypes have moved since the stage began, relative to their length


class Method(nn.Module, ABC):
    """Owns networks, names what trains and what ships, and yields updates.

    What trains is in train mode, all else in eval mode, whatever `train()` is told.
    """

    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    paper: ClassVar[str] = ""
    paper_settings: ClassVar[dict[str, Any]] = {}  # the values that the paper states, whatever the defaults here are
    capturable: ClassVar[bool] = True  # the step is a pure tensor program
    predictors: ClassVar[
        tuple[str, ...]
    ]  # networks that are scored; the first ships when there is nothing to choose by
    needs_baseline: ClassVar[bool] = False  # starts from a supervised run, and sweeps over all images before each stage
    learners: ClassVar[tuple[str, ...]] = ("student_1",)  # networks that train; each may have settings of its own
    companions: ClassVar[Mapping[str, Companion]] = {}  # child modules that train beside them
    ensemble: ClassVar[tuple[str, ...]] = ()  # predictors whose mean softmax is scored, too

    def __init__(self, settings: MethodSettings, labeled_loss: LabeledLoss) -> None:
        super().__init__()
        self.noise_settings = settings
        self.labeled_loss = labeled_loss

    @property
    @abstractmethod
    def views(self) -> ViewRequest:
        """What its batches must hold."""

    @abstractmethod
    def trained(self) -> dict[str, SegmentationNetwork]:
        """Optimizer name -> the network it updates."""

    def updated(self) -> dict[str, tuple[nn.Module, ...]]:
        """Optimizer name -> all that it updates; what trains along with a network, a projector, is added here."""
        alone: dict[str, tuple[nn.Module, ...]] = {name: (network,) for name, network in self.trained().items()}
        return alone | {name: (self.get_submodule(name),) for name in self.companions}

    @classmethod
    def learner_of(cls, network: str) -> str:
        """The learner whose architecture a network has: `teacher_2` belongs to `student_2`, a companion to itself."""
        own = network in cls.learners or network in cls.companions
        return network if own else f"student_{network.rpartition('_')[2]}"

    @abstractmethod
    def step(self, batch: Batch, progress: Progress) -> Step:
        """One iteration of the paper's algorithm."""

    @property
    def stages(self) -> int:
        return 1

    def fewest_images(self, batch: int, unlabeled: int) -> int:
        """Images of the smallest pass in train mode, where BatchNorm has no other values than theirs."""
        return batch + unlabeled if self.views.unlabeled else batch

    def moving_averages(self) -> tuple[MovingAverage, ...]:
        """What the step averages over time, for the plan."""
        return ()

    def baseline_learners(self) -> list[tuple[str, ...]]:
        """Networks that start from one supervised baseline, for each baseline that has to be trained."""
        return []

    def stored_strides(self) -> dict[str, int]:
        """Names of the maps that a sweep stores -> the stride at which a batch gets them."""
        return {}

    def check_start(self) -> None:
        """Raise where nothing can come of the weights that the first stage starts from; nothing is written yet."""

    def start_stage(self, stage: int) -> None:
        """Set the networks up for a stage, before its sweep."""

    def sweep(self, images: Tensor, label: Tensor | None, forward: Forward = at_once) -> dict[str, Tensor]:  # noqa: ARG002
        """What the pass over labeled and unlabeled images computes before a stage: log-probabilities [N, K, h, w] to
        store, of those without a label. Networks are called through `forward`, which sees to images that are too large
        for one pass."""
        return {}

    def finish_sweep(self) -> None:
        """After the last images of a sweep."""

    def pseudo_labels(self, batch: Batch) -> Sequence[PseudoLabels]:  # noqa: ARG002
        """What is taught about this batch as things stand, for diagnostics; empty without pseudo labels."""
        return ()

    def noise(self, progress: Progress, learner: str, *positions: Tensor) -> Noise:
        """The model noise of one forward pass, at the rates of the settings."""
        rates = self.noise_settings
        return progress.noise(learner, *positions, dropout=rates.dropout, survival=rates.stochastic_depth)

    def networks(self) -> dict[str, SegmentationNetwork]:
        return {name: child for name, child in self.named_children() if isinstance(child, SegmentationNetwork)}

    def train(self, mode: bool = True) -> Method:
        super().train(False)
        for modules in self.updated().values():
            for module in modules:
                module.train(mode)
        return self
