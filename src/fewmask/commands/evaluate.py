"""`fewmask evaluate`: score every network of a run on one split."""

from __future__ import annotations

from pathlib import Path

from fewmask.cli import print_json
from fewmask.config import Config
from fewmask.console import ConsoleObserver
from fewmask.data.dataset import Dataset
from fewmask.data.opening import open_dataset
from fewmask.data.store import load_images, load_masks
from fewmask.errors import ConfigError, DataError
from fewmask.evaluation.confusion import Scores
from fewmask.evaluation.scoring import evaluation_json, score_networks
from fewmask.report.tables import scores_table
from fewmask.training.engine import choose_device
from fewmask.training.networks import autocast_logits, load_networks
from fewmask.training.run_folder import RunFolder


def run_evaluate(run: Path, *, data: Path | None, split: str, as_json: bool, device: str | None) -> int:
    if split not in ("val", "test"):
        raise ConfigError(f"there is no split {split!r}", where="--split", fix="val or test")
    folder = RunFolder(run)
    config = folder.read_config()
    before = folder.read_json(folder.evaluation.name)
    root = Path(data or config.data.root or ".")
    dataset = open_dataset(root, config.data, config.seed)
    with ConsoleObserver() as observer:
        scores = _score(folder, config, dataset, split, device, observer)
        content = evaluation_json(scores, selected=before["selected"], selected_on=before["selected_on"], split=split)
        own = data is None and split == "val"
        name = folder.evaluation.name if own else f"evaluation_{split if data is None else root.resolve().name}.json"
        path = folder.write_json(name, content)
        if as_json:
            print_json(content)
        else:
            observer.console.print(scores_table(scores))
            observer.say(f"written to {path}; {content['selected']} is what ships (chosen on {content['selected_on']})")
    return 0


def _score(
    folder: RunFolder, config: Config, dataset: Dataset, split: str, device: str | None, observer: ConsoleObserver
) -> dict[str, Scores]:
    samples = dataset.val if split == "val" else dataset.test
    if not samples:
        raise DataError(
            f"the data set has no {split} images", where=str(dataset.root), fix=f"{split}/images and {split}/masks"
        )
    networks, card, ensemble = load_networks(folder)
    if card.classes.names != dataset.classes.names:
        raise DataError(
            f"the data set's classes are not the model's: {', '.join(dataset.classes.names)}",
            where=str(dataset.root),
            fix=", ".join(card.classes.names),
        )
    target = choose_device(device)
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
