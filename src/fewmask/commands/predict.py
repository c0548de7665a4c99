"""`fewmask predict`: masks for a folder, files or a glob; an unreadable image does not stop the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewmask.commands.image_files import Job, earlier_maps, find_images, require_own
from fewmask.config import Config, EvaluationSettings
from fewmask.console import ConsoleObserver
from fewmask.data.imagefile import unread_part
from fewmask.data.problem import DataProblem
from fewmask.data.reading import read_image
from fewmask.data.resizing import resize_image
from fewmask.errors import ConfigError, DataError
from fewmask.evaluation.inference import Predictor, Progress, segment
from fewmask.evaluation.scoring import ENSEMBLE
from fewmask.report.pictures import write_confidence_png, write_index_png
from fewmask.training.checkpoint import write_atomically
from fewmask.training.device_memory import is_out_of_memory
from fewmask.training.engine import choose_device, set_tf32
from fewmask.training.model_file import ModelCard
from fewmask.training.networks import autocast_logits, load_network, load_networks
from fewmask.training.run_folder import RunFolder

_MOST_PIXELS = 2**21  # of several images in one pass; a larger image goes through alone
Answer = tuple[np.ndarray, np.ndarray]  # class indices and confidences, [H, W] each


@dataclass(frozen=True)
class Photo:
    """An image that was read."""

    job: Job
    image: Tensor  # [C, H, W] as the network gets it
    size: tuple[int, int]  # the file's own


@dataclass(frozen=True)
class Remarks:
    """What has to be said about the files in the end."""

    failures: list[DataError] = field(default_factory=list)
    unread: dict[str, list[Path]] = field(default_factory=dict)  # what is not read of files that were -> these files

    def lines(self, old_maps: Sequence[Path]) -> Iterator[str]:
        for failure in self.failures:
            fix = f" ({failure.fix})" if failure.fix else ""
            yield f"not predicted: {failure.where}: {failure.what}{fix}"
        for what, paths in self.unread.items():
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            yield f"read in part: {paths[0]}{more}: {what}"
        if old_maps:
            more = f" and {len(old_maps) - 1} more" if len(old_maps) > 1 else ""
            yield f"not of these masks, but of earlier ones: {old_maps[0]}{more} (--confidence replaces them)"


@dataclass(frozen=True)
class Segmenter:
    """A loaded model, and how to use it."""

    predictors: Sequence[Predictor]
    card: ModelCard
    settings: EvaluationSettings
    max_pixels: int
    device: torch.device
    progress: Progress | None = None  # through the tiles of an image

    def read(self, job: Job) -> Photo:
        array = _opened(job.source, self.max_pixels)
        size = (array.shape[0], array.shape[1])
        if self.card.resize is not None:
            array = resize_image(array, self.card.resize)
        return Photo(job, model_input(array, self.card.channels, job.source), size)

    def groups(self, photos: Iterable[Photo]) -> Iterator[list[Photo]]:
        """Neighbors of equal size, as many as one pass may see."""
        group: list[Photo] = []
        for photo in photos:
            most = min(self.settings.batch, _MOST_PIXELS // math.prod(photo.size))
            if group and (photo.size != group[0].size or len(group) >= most):
                yield group
                group = []
            group.append(photo)
        if group:
            yield group

    def __call__(self, photos: Sequence[Photo]) -> list[Answer]:
        """What the model says about images of equal size, at the files' own size."""
        images = torch.stack([photo.image for photo in photos]).to(self.device)
        label, confidence = segment(self.predictors, images, self.settings, photos[0].size, progress=self.progress)
        return list(zip(label.cpu().numpy(), confidence.cpu().numpy(), strict=True))

    def alone(self, photo: Photo) -> Answer:
        """One image, or an error that says what would take less memory."""
        try:
            return self([photo])[0]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            what = f"not enough memory for {photo.size[1]}x{photo.size[0]} pixels at once"
            raise DataError(what, where=str(photo.job.source), fix="--tile 512, or a smaller tile") from None


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
    require_own(jobs)
    segmenter = load_segmenter(RunFolder(run), network, tile=tile, max_pixels=max_pixels, device=device)
    _make_folder(out)
    remarks = Remarks()
    with ConsoleObserver() as observer:
        if observer.live or len(jobs) == 1:  # of many images, lines count these
            segmenter = replace(segmenter, progress=partial(observer.advance, "tiles"))
        done = 0
        for photos in segmenter.groups(_readable(jobs, segmenter, remarks)):
            for photo, answer in _answers(segmenter, photos, remarks.failures):
                _write(photo.job, *answer, segmenter.card)
            done += len(photos)
            observer.advance("predicting", done, len(jobs))
        observer.advance("predicting", len(jobs), len(jobs))  # with those that could not be read
        observer.say(f"{len(jobs) - len(remarks.failures)} of {len(jobs)} masks in {out}")
        for line in remarks.lines(earlier_maps(jobs)):
            observer.warn(line)
    return 1 if remarks.failures else 0


def _readable(jobs: Sequence[Job], segmenter: Segmenter, remarks: Remarks) -> Iterator[Photo]:
    for job in jobs:
        try:
            photo = segmenter.read(job)
            unread = unread_part(job.source, max_pixels=segmenter.max_pixels)
        except DataError as error:
            remarks.failures.append(error)
            continue
        if unread:
            remarks.unread.setdefault(unread, []).append(job.source)
        yield photo


def _answers(segmenter: Segmenter, photos: list[Photo], failures: list[DataError]) -> Iterator[tuple[Photo, Answer]]:
    """All at once, or one by one where they do not fit into memory together."""
    if len(photos) > 1:
        try:
            yield from zip(photos, segmenter(photos), strict=True)
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
    for photo in photos:
        try:
            yield photo, segmenter.alone(photo)
        except DataError as error:
            failures.append(error)


def load_segmenter(
    folder: RunFolder, network: str | None, *, tile: int | None, max_pixels: int | None, device: str | None
) -> Segmenter:
    """The model that ships, or the named network; the run's own settings where its config.yaml is there."""
    if max_pixels is not None and max_pixels < 1:
        raise ConfigError(f"a limit of {max_pixels} pixels lets no image in", where="--max-pixels", fix="1 or more")
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
    limit = config.data.max_pixels if max_pixels is None else max_pixels
    return Segmenter(predictors, card, settings, limit, target)


def _opened(path: Path, max_pixels: int) -> np.ndarray:
    """The image; the error of one that is too large names the option of this command, not the setting of training."""
    try:
        return read_image(path, max_pixels=max_pixels)
    except DataProblem as problem:
        if problem.code != "too-large":
            raise
        fix = f"up to {max_pixels:,} pixels; if the file can be trusted, a larger --max-pixels"
        raise DataProblem(problem.code, problem.what, where=path, fix=fix) from None


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
