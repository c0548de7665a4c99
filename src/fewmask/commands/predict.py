"""`fewmask predict`: masks for a folder, files or a glob; an unreadable image does not stop the others."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewmask.config import EvaluationSettings
from fewmask.console import ConsoleObserver
from fewmask.data.reading import IMAGE_SUFFIXES, read_image
from fewmask.errors import ConfigError, DataError
from fewmask.evaluation.inference import Predictor, segment
from fewmask.report.pictures import write_confidence_png, write_index_png
from fewmask.training.engine import choose_device
from fewmask.training.model_file import ModelCard
from fewmask.training.networks import autocast_logits, load_network
from fewmask.training.run_folder import RunFolder


def run_predict(
    run: Path,
    images: Sequence[str],
    out: Path,
    *,
    network: str | None,
    confidence: bool,
    tile: int | None,
    device: str | None,
) -> int:
    folder = RunFolder(run)
    target = choose_device(device)
    chosen, card = load_network(folder, network)
    settings = _settings(folder, tile)
    predictor = autocast_logits(chosen, target)
    jobs = list(_jobs(images))
    max_pixels = folder.read_config().data.max_pixels if folder.config.is_file() else 100_000_000
    failures: list[DataError] = []
    with ConsoleObserver() as observer:
        for done, (source, name) in enumerate(jobs, start=1):
            try:
                image = model_input(read_image(source, max_pixels=max_pixels), card, source)
            except DataError as error:
                failures.append(error)
                observer.warn(f"passed over {source}: {error.what}")
                continue
            _write(predictor, image.to(target), out / name, card, settings, confidence)
            observer.advance("predicting", done, len(jobs))
        observer.say(f"{len(jobs) - len(failures)} of {len(jobs)} masks in {out}")
        for failure in failures:
            observer.warn(f"not predicted: {failure.where}: {failure.what}")
    return 1 if failures else 0


def model_input(image: np.ndarray, card: ModelCard, where: Path) -> Tensor:
    """[C, H, W] in [0, 1] with the model's number of channels; gray is repeated for a color model."""
    values = torch.from_numpy(image.astype(np.float32) / np.iinfo(image.dtype).max).permute(2, 0, 1)
    if len(values) == 1 and card.channels == 3:
        values = values.expand(3, -1, -1)
    if len(values) != card.channels:
        raise DataError(
            f"the image has {len(values)} channels and the model takes {card.channels}",
            where=str(where),
            fix=f"images with {card.channels} channels",
        )
    return values


def _write(
    predictor: Predictor, image: Tensor, path: Path, card: ModelCard, settings: EvaluationSettings, confidence: bool
) -> None:
    label, certainty = segment([predictor], image, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_index_png(path, label.cpu().numpy(), card.classes.colors)
    if confidence:
        write_confidence_png(path.with_name(f"{path.stem}_confidence.png"), certainty.cpu().numpy())


def _settings(folder: RunFolder, tile: int | None) -> EvaluationSettings:
    settings = folder.read_config().evaluation if folder.config.is_file() else EvaluationSettings()
    if tile is None:
        return settings
    if tile < 16:
        raise ConfigError(f"tiles of {tile} pixels are too small", where="--tile", fix="16 or more, e.g. 512")
    return settings.model_copy(update={"mode": "tiled", "tile": (tile, tile)})


def _jobs(images: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Each image with the name of its mask: below a folder its relative path, else its file name, suffix .png."""
    seen: dict[Path, Path] = {}
    for word in images:
        for source, relative in _found(word):
            name = relative.with_suffix(".png")
            if name in seen:  # a.jpg beside a.png
                name = relative.with_name(f"{relative.stem}_{relative.suffix[1:]}.png")
            if name in seen:
                raise ConfigError(
                    f"two images would write the mask {name}",
                    where=f"{seen[name]} and {source}",
                    fix="one folder at a time",
                )
            seen[name] = source
            yield source, name


def _found(word: str) -> list[tuple[Path, Path]]:
    path = Path(word)
    if path.is_dir():
        below = sorted(each for each in path.rglob("*") if each.suffix.lower() in IMAGE_SUFFIXES and each.is_file())
        found = [(each, each.relative_to(path)) for each in below]
    elif path.is_file():
        found = [(path, Path(path.name))]
    else:
        matches = sorted(Path(each) for each in glob.glob(word, recursive=True))
        found = [(each, Path(each.name)) for each in matches if each.is_file()]
    if not found:
        raise ConfigError(
            "no images found", where=word, fix=f"a folder, files, or a glob of {', '.join(IMAGE_SUFFIXES)}"
        )
    return found
