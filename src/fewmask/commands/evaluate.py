"""`fewmask evaluate`: score every network of a run on one split."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewmask.cli import print_json
from fewmask.config import Config, DataSettings
from fewmask.console import ConsoleObserver, plain_console
from fewmask.data.dataset import Dataset, Sample
from fewmask.data.opening import open_dataset
from fewmask.data.store import load_images, load_masks
from fewmask.errors import ConfigError, DataError, TrainingError
from fewmask.evaluation.confusion import Scores
from fewmask.evaluation.scoring import evaluation_json, score_networks
from fewmask.report.tables import scores_table
from fewmask.training.engine import choose_device, set_tf32
from fewmask.training.model_file import ModelCard, load_card
from fewmask.training.networks import autocast_logits, load_networks
from fewmask.training.run_folder import RunFolder


def run_evaluate(run: Path, *, data: Path | None, split: str, as_json: bool, device: str | None) -> int:
    if split not in ("val", "test", "unlabeled"):
        raise ConfigError(f"there is no split {split!r}", where="--split", fix="val, test or unlabeled")
    folder = RunFolder(run)
    config, card = folder.read_config(), load_card(run)
    root = Path(data or config.data.root or ".")
    settings = config.data if split == "unlabeled" else _data_settings(config.data, other=data is not None)
    dataset = open_dataset(root, settings, config.seed)
    _require_scorable(dataset, split, card)
    with ConsoleObserver() as observer:
        scores = _score(folder, config, dataset, split, device, observer)
        content = evaluation_json(scores, selected=card.predictor, selected_on=card.selected_on, split=split)
        _write(folder, _file_name(data, root, split), content, observer)
        ships = f"was chosen on {card.selected_on}" if card.selected_on else "was not chosen on held-out labels"
        observer.say(f"{card.predictor} is what ships; it {ships}")
    if as_json:
        print_json(content)
    else:
        plain_console(sys.stdout).print(scores_table(scores))
    return 0


def _data_settings(settings: DataSettings, *, other: bool) -> DataSettings:
    """How the run read its data; which images were labeled says nothing about another folder.

    On the run's own data the choice matters only where validation images are held out from the labeled ones.
    """
    if settings.holdout and not other:
        return settings
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


def _score(
    folder: RunFolder, config: Config, dataset: Dataset, split: str, device: str | None, observer: ConsoleObserver
) -> dict[str, Scores]:
    samples = _samples(dataset, split)
    target = choose_device(device)
    set_tf32(config.training.tf32)
    networks, card, ensemble = load_networks(folder)
    limits = {"resize": config.data.resize, "max_pixels": config.data.max_pixels}
    return score_networks(
        {name: autocast_logits(network, target, config.training.precision) for name, network in networks.items()},
        ensemble,
        load_images(samples, channels=card.channels, **limits),  # type: ignore[arg-type]
        load_masks(samples, dataset.coding, **limits),  # type: ignore[arg-type]
        config.evaluation,
        card.classes.names,
        device=target,
        progress=lambda done, total: observer.advance("scoring", done, total),
    )
