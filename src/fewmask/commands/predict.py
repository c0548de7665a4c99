"""`fewmask predict`: masks for a folder, files or a glob; an unreadable image does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewmask.commands.image_files import Job, find_images
from fewmask.config import Config, EvaluationSettings
from fewmask.console import ConsoleObserver
from fewmask.data.reading import read_image
from fewmask.data.store import resize_image
from fewmask.errors import ConfigError, DataError
from fewmask.evaluation.inference import Predictor, segment
from fewmask.evaluation.scoring import ENSEMBLE
from fewmask.report.pictures import write_confidence_png, write_index_png
from fewmask.training.checkpoint import write_atomically
from fewmask.training.engine import choose_device, set_tf32
from fewmask.training.model_file import ModelCard
from fewmask.training.networks import autocast_logits, load_network, load_networks
from fewmask.training.run_folder import RunFolder


@dataclass(frozen=True)
class Segmenter:
    """A loaded model, and how to use it."""

    predictors: Sequence[Predictor]
    card: ModelCard
    settings: EvaluationSettings
    max_pixels: int
    device: torch.device

    def __call__(self, source: Path) -> tuple[np.ndarray, np.ndarray]:
        """Class indices and confidences of an image file, [H, W] each, at the file's own size."""
        array = read_image(source, max_pixels=self.max_pixels)
        size = (array.shape[0], array.shape[1])
        if self.card.resize is not None:
            array = resize_image(array, self.card.resize)
        image = model_input(array, self.card.channels, source).to(self.device)
        try:
            label, confidence = segment(self.predictors, image, self.settings, size)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            what = f"not enough memory for {size[1]}x{size[0]} pixels at once"
            raise DataError(what, where=str(source), fix="--tile 512, or a smaller tile") from None
        return label.cpu().numpy(), confidence.cpu().numpy()


def run_predict(
    run: Path,
    images: Sequence[str],
    out: Path,
    *,
    network: str | None,
    confidence: bool,
    tile: int | None,
    max_pixels: int | None,
    device: str | None,
) -> int:
    jobs = find_images(images, out, confidence=confidence)
    segmenter = load_segmenter(RunFolder(run), network, tile=tile, max_pixels=max_pixels, device=device)
    _make_folder(out)
    failures: list[DataError] = []
    with ConsoleObserver() as observer:
        for done, job in enumerate(jobs, start=1):
            try:
                answer = segmenter(job.source)
            except DataError as error:
                failures.append(error)
            else:
                _write(job, *answer, segmenter.card)
            observer.advance("predicting", done, len(jobs))
        observer.say(f"{len(jobs) - len(failures)} of {len(jobs)} masks in {out}")
        for failure in failures:
            fix = f" ({failure.fix})" if failure.fix else ""
            observer.warn(f"not predicted: {failure.where}: {failure.what}{fix}")
    return 1 if failures else 0


def load_segmenter(
    folder: RunFolder, network: str | None, *, tile: int | None, max_pixels: int | None, device: str | None
) -> Segmenter:
    """The model that ships, or the named network; the run's own settings where its config.yaml is there."""
    config = folder.read_config() if folder.config.is_file() else Config()
    settings, target = tiled_settings(config.evaluation, tile), choose_device(device)
    set_tf32(config.training.tf32)
    networks, card, members = load_networks(folder) if network == ENSEMBLE else ({}, None, ())
    if card is not None and len(members) > 1:
        chosen = [networks[name] for name in members]
    else:
        one, card = load_network(folder, network)
        chosen = [one]
    predictors = [autocast_logits(each, target, config.training.precision) for each in chosen]
    return Segmenter(predictors, card, settings, max_pixels or config.data.max_pixels, target)


def model_input(image: np.ndarray, channels: int, where: Path) -> Tensor:
    """[C, H, W] in [0, 1]; gray is repeated for a color model, and gray stored as color serves a gray one."""
    values = torch.from_numpy(image.astype(np.float32) / np.iinfo(image.dtype).max).permute(2, 0, 1)
    if len(values) == 1:
        return values.expand(channels, -1, -1)
    if channels == 1 and bool((values == values[:1]).all()):
        return values[:1]
    if len(values) != channels:
        raise DataError("a color image, but the model was trained on gray ones", where=str(where), fix="a gray image")
    return values


def tiled_settings(settings: EvaluationSettings, tile: int | None) -> EvaluationSettings:
    """The settings with tiles of the asked size, where one was asked for."""
    if tile is None:
        return settings
    if tile < 16:
        raise ConfigError(f"tiles of {tile} pixels are too small", where="--tile", fix="16 or more, e.g. 512")
    return settings.model_copy(update={"mode": "tiled", "tile": (tile, tile)})


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder for the masks cannot be made: {error.strerror}"
        raise ConfigError(what, where=str(out), fix="another --out") from None


def _write(job: Job, label: np.ndarray, confidence: np.ndarray, card: ModelCard) -> None:
    job.mask.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(job.mask, partial(write_index_png, label=label, colors=card.classes.colors))
    if job.confidence is not None:
        write_atomically(job.confidence, partial(write_confidence_png, confidence=confidence))
