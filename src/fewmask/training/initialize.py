"""`--init RUN` and `--baseline RUN`: networks start from the model another run shipped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from fewmask.config import Config
from fewmask.errors import CheckpointError, ConfigError
from fewmask.methods.method import Method
from fewmask.methods.table import method_class
from fewmask.networks.weight_matching import WeightReport
from fewmask.training.learners import learner_config
from fewmask.training.model_file import load_card, load_model


def check_starts(config: Config, runs: Sequence[Path]) -> dict[str, Path]:
    """Which run each learner starts from: one run for all, or one for each in their order."""
    learners = method_class(config.method).learners
    for run in runs:
        load_card(run)  # an error where there is no model
    if len(runs) not in (0, 1, len(learners)):
        what = f"{len(runs)} runs to start from, and {config.method} has {len(learners)} learners"
        raise ConfigError(what, where="--baseline", fix=f"one run, or one for each of {', '.join(learners)}")
    kinds = {learner: learner_config(config, learner).network for learner in learners}
    if len(runs) == 1 and len({(each.backbone, each.head) for each in kinds.values()}) > 1:
        there = ", ".join(f"{learner} is {each.head} on {each.backbone}" for learner, each in kinds.items())
        each_one = " ".join(f"--baseline RUN_{index + 1}" for index in range(len(learners)))
        raise ConfigError(
            f"one run cannot start learners of different kinds: {there}",
            where=str(runs[0]),
            fix=f"{each_one}, in this order, or none: the baselines are then trained",
        )
    return dict.fromkeys(learners, runs[0]) if len(runs) == 1 else dict(zip(learners, runs, strict=False))


def initialize_learners(method: Method, starts: Mapping[str, Path]) -> Iterator[str]:
    """Copy each learner's run into its networks, and say so; learners with one run do it together."""
    own = {name: method.learner_of(name) for name in method.networks()}
    for run in dict.fromkeys(starts.values()):
        yield initialize_from(method, run, [name for name, learner in own.items() if starts.get(learner) == run])


def initialize_from(method: Method, run: Path, names: Sequence[str]) -> str:
    """Copy the run's model into the named networks; tensors of another shape (other classes) stay fresh.

    So do those that the run's network has not, such as auxiliary heads; what it has alone is left out.
    """
    source, card = load_model(run)
    tensors = source.state_dict()
    kept: dict[str, list[str]] = {}
    networks = method.networks()
    for name in names:
        own = networks[name].state_dict()
        fitting = {key: value for key, value in tensors.items() if key in own and own[key].shape == value.shape}
        kept[name] = _parts([key for key in own if key not in fitting], fitting)
        if len(fitting) < len(own) / 2:
            raise CheckpointError(
                f"the run's network is another one: less than half of its tensors fit {name}",
                where=str(run),
                fix=" ".join(f"network.{key}={getattr(card.network, key)}" for key in ("backbone", "head", "width")),
            )
        networks[name].load_state_dict(fitting, strict=False)
        networks[name].weights = WeightReport(f"{card.predictor} of {run}")
    fresh = f"; fresh start for {_named(kept)}" if any(kept.values()) else ""
    all_start = len(names) == len(networks.keys() - method.companions.keys())
    whose = "networks start" if all_start else f"{', '.join(names)} start"
    return f"{whose} from {card.predictor} of {run}{fresh}"


def _parts(fresh: Sequence[str], taken: Collection[str]) -> list[str]:
    """Names of tensors; a part of the network from which nothing was taken has one name."""
    known = {key.partition(".")[0] for key in taken}
    names = [key if key.partition(".")[0] in known else key.partition(".")[0] for key in fresh]
    return [*dict.fromkeys(names)]


def _named(kept: Mapping[str, Sequence[str]]) -> str:
    """Each part with the networks that it belongs to, where these are not all."""
    owners: dict[str, list[str]] = {}
    for name, parts in kept.items():
        for part in parts:
            owners.setdefault(part, []).append(name)
    return ", ".join(
        part if len(names) == len(kept) else f"{part} of {' and '.join(names)}" for part, names in owners.items()
    )
