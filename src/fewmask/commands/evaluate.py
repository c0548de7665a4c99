"""`fewmask evaluate`: score every network of a run on one split."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fewmask.cli import print_json
from fewmask.config import Config, DataSettings
from fewmask.console import ConsoleObserver, plain_console
from fewmask.data.check_report import counted
from fewmask.data.dataset import Dataset, Sample
from fewmask.data.folder import KnownClasses
from fewmask.data.opening import open_dataset
from fewmask.data.problem import DataProblem
from fewmask.data.store import load_hidden_masks, load_images, load_masks
from fewmask.errors import ConfigError, DataError, TrainingError
from fewmask.evaluation.confusion import Scores
from fewmask.evaluation.scoring import evaluation_json, score_networks
from fewmask.report.tables import scores_table
from fewmask.training.engine import choose_device, set_tf32
from fewmask.training.model_file import ModelCard, load_card
from fewmask.training.networks import autocast_logits, load_networks
from fewmask.training.run_folder import RunFolder
from fewmask.types import FlatImages

_SHOWN = 5  # images named in a warning


def run_evaluate(run: Path, *, data: Path | None, split: str, as_json: bool, device: str | None) -> int:
    if split not in ("val", "test", "unlabeled"):
        raise ConfigError(f"there is no split {split!r}", where="--split", fix="val, test or unlabeled")
    folder = RunFolder(run)
    config, card = folder.read_config(), load_card(run)
    root = Path(data or config.data.root or ".")
    dataset = _opened(folder, config, root, split) if data is None else _read_other(folder, config, root, split, card)
    _require_scorable(dataset, split, card)
    with ConsoleObserver() as observer:
        for note in dataset.notes if data is not None else ():
            observer.say(f"note: {note}")
        truth = _load(config, dataset, split, card, observer)
        scores = _score(folder, config, truth, device, observer)
        content = evaluation_json(scores, selected=card.predictor, selected_on=card.selected_on, split=split)
        content |= {"left_out": truth.left_out} if split == "unlabeled" else {}
        observer.say(f"{counted(len(truth.images), f'{split} image')} of {root} scored")
        _write(folder, _file_name(data, root, split), content, observer)
        ships = f"was chosen on {card.selected_on}" if card.selected_on else "was not chosen on held-out labels"
        observer.say(f"{card.predictor} is what ships; it {ships}")
    if as_json:
        print_json(content)
    else:
        plain_console(sys.stdout).print(scores_table(scores))
    return 0


def _opened(folder: RunFolder, config: Config, root: Path, split: str) -> Dataset:
    """The run's own data; where their folder is gone, its layout is not what the user has to be told about."""
    try:
        return _read(folder, config, root, split)
    except DataProblem as problem:
        if problem.code != "unknown-layout":
            raise
        fix = f"fewmask evaluate {shlex.quote(str(folder.path))} --data NEW, if they have moved"
        if config.data.holdout and (config.data.labels or config.data.split):  # the draw is among the chosen labels
            fix = f"their new place as data.root in {folder.config}; with --data other images would be held out"
        raise DataError(f"the run's data are not there: {problem.what}", where=str(root), fix=fix) from None


def _read(folder: RunFolder, config: Config, root: Path, split: str) -> Dataset:
    """The run's own data as it read them.

    The choice of labeled images matters where others were left unlabeled, and where validation images are held out from
    them. Else it need not be made again, but masks that it hid still have no say in the classes.
    """
    if split == "unlabeled" or config.data.holdout:
        return open_dataset(root, config.data, config.seed)
    shown = folder.read_json(folder.split.name)["labeled"]["names"] if folder.split.is_file() else None
    return open_dataset(root, _unchosen(config.data), config.seed, shown=shown)


def _read_other(folder: RunFolder, config: Config, root: Path, split: str, card: ModelCard) -> Dataset:
    """Another folder, of whose images the run's choice of labels says nothing; without a class file its masks are read
    as the run read its own, as they may show only some of the classes."""
    settings = config.data if split == "unlabeled" else _unchosen(config.data)
    known = KnownClasses(folder.path / "model.json", card.classes, card.coding) if card.coding else None
    return open_dataset(root, settings, config.seed, known=known)


def _unchosen(settings: DataSettings) -> DataSettings:
    return settings.model_copy(update={"labels": None, "split": None})


def _samples(dataset: Dataset, split: str) -> list[Sample]:
    """Images to score; unlabeled ones where their masks are known, which training never saw."""
    parts = {"val": dataset.val, "test": dataset.test, "unlabeled": dataset.unlabeled}
    return [sample for sample in parts[split] if sample.mask is not None]


def _require_scorable(dataset: Dataset, split: str, card: ModelCard) -> None:
    if not _samples(dataset, split):
        fix = f"{split}/images and {split}/masks, or --data with another folder that has them"
        if split == "unlabeled":
            fix = "a run whose --labels or --split left masks out; of images in unlabeled/ there are none"
        raise DataError(f"the data set has no {split} images with masks", where=str(dataset.root), fix=fix)
    if card.classes.names != dataset.classes.names:
        what = f"the data set's classes are not the model's: {', '.join(dataset.classes.names)}"
        raise DataError(what, where=str(dataset.root), fix=", ".join(card.classes.names))


def _file_name(data: Path | None, root: Path, split: str) -> str:
    """evaluation.json belongs to the run's own validation images; everything else stands beside it."""
    if data is not None:
        return f"evaluation_{root.resolve().name}_{split}.json"
    return "evaluation.json" if split == "val" else f"evaluation_{split}.json"


def _write(folder: RunFolder, name: str, content: Mapping[str, Any], observer: ConsoleObserver) -> None:
    try:
        observer.say(f"written to {folder.write_json(name, content)}")
    except TrainingError as error:  # someone else's run can be scored, too
        observer.warn(f"{error.what} ({error.where})")


@dataclass(frozen=True)
class Truth:
    """Images with their labels, and why others have none that could be used: code -> how many."""

    images: FlatImages
    labels: FlatImages
    left_out: dict[str, int] = field(default_factory=dict)


def _load(config: Config, dataset: Dataset, split: str, card: ModelCard, observer: ConsoleObserver) -> Truth:
    samples = _samples(dataset, split)
    limits: dict[str, Any] = {"resize": config.data.resize, "max_pixels": config.data.max_pixels}
    images = load_images(samples, channels=card.channels, **limits)
    if split != "unlabeled":
        return Truth(images, load_masks(samples, dataset.coding, **limits))
    problems: dict[int, DataProblem] = {}
    labels = load_hidden_masks(samples, images, dataset.coding, unfit=problems.__setitem__, **limits)
    left_out = _left_out(samples, dict(sorted(problems.items())), observer)
    kept = torch.tensor([index for index in range(len(samples)) if index not in problems])
    return Truth(images.only(kept), labels.only(kept), left_out)


def _left_out(
    samples: Sequence[Sample], problems: Mapping[int, DataProblem], observer: ConsoleObserver
) -> dict[str, int]:
    """Training tolerates hidden masks that do not fit, so scores do, too, as long as there are others; they say so."""
    if len(problems) == len(samples):
        first = problems[0]
        raise DataError(f"no hidden mask can be used: {first.what} ({first.code})", where=first.where, fix=first.fix)
    codes = Counter(problem.code for problem in problems.values())
    if problems:
        why = ", ".join(f"{count} {code}" for code, count in codes.items())
        names = [samples[index].name for index in problems]
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        observer.warn(f"{len(names)} of {len(samples)} hidden masks do not fit and are left out ({why}): {shown}")
    return dict(codes)


def _score(
    folder: RunFolder, config: Config, truth: Truth, device: str | None, observer: ConsoleObserver
) -> dict[str, Scores]:
    target = choose_device(device)
    set_tf32(config.training.tf32)
    networks, card, ensemble = load_networks(folder, observer.warn)
    return score_networks(
        {name: autocast_logits(network, target, config.training.precision) for name, network in networks.items()},
        ensemble,
        truth.images,
        truth.labels,
        config.evaluation,
        card.classes.names,
        device=target,
        progress=lambda done, total: observer.advance("scoring", done, total),
    )
