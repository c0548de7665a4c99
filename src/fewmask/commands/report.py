"""From run folders to report pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fewmask.config import EvaluationSettings
from fewmask.evaluation.inference import Predictor, segment
from fewmask.report.contents import PictureRow, Report, Run
from fewmask.report.curves import metric_series
from fewmask.report.page import write_report
from fewmask.training.model_file import load_model
from fewmask.training.networks import autocast_logits
from fewmask.training.run import Outcome
from fewmask.training.run_folder import RunFolder, describe_environment
from fewmask.training.session import Session

_PICTURES = 4


def write_run_report(outcome: Outcome) -> Path:
    """report.html of one run: pictures of validation images, scores, curves, settings; its baselines beside it."""
    session, folder = outcome.session, outcome.folder
    predictors = _predictors(outcome)
    report = Report(
        title=f"{session.config.method} on {session.dataset.root.name}",
        classes=session.dataset.classes,
        runs=[
            *map(_baseline, folder.baselines),
            run_of(folder, session.config.method, seconds=_seconds(outcome)),
        ],
        picture_titles=[*(["image", "truth"] if session.stores.val else ["unlabeled image"]), *predictors],
        pictures=picture_rows(session, predictors),
        data=data_summary(session),
        notes=(*session.dataset.notes, *folder.read_json(folder.split.name).get("notes", ())),
        next_commands=_next_commands(outcome),
        environment=describe_environment(),
    )
    write_report(folder.report, report)
    return folder.report


def _predictors(outcome: Outcome) -> dict[str, Predictor]:
    """The baseline that what ships has started from, where it is in the run's folder, and what ships."""
    baselines = outcome.folder.baselines
    start = baselines[-1:] if outcome.session.method.learner_of(outcome.selected) == "student_2" else baselines[:1]
    networks = {path.name: load_model(path)[0] for path in start}
    networks[outcome.selected] = outcome.session.method.networks()[outcome.selected]
    engine = outcome.session.engine
    return {name: autocast_logits(each, engine.device, engine.precision) for name, each in networks.items()}


def _baseline(path: Path) -> Run:
    """Without its curves, which have steps of their own."""
    found = run_of(RunFolder(path), path.name, twin=True)
    return replace(found, metrics={}, note="labeled images only; where the run started")


def _next_commands(outcome: Outcome) -> list[str]:
    """`evaluate` would be an error where there is nothing to score on."""
    run = shlex.quote(str(outcome.folder.path))
    predict = f"fewmask predict {run} IMAGES --out predictions"
    return [f"fewmask evaluate {run}", predict] if outcome.scores else [predict]


def _seconds(outcome: Outcome) -> float | None:
    """Of the loop; nobody knows it where a part of the steps was done before."""
    return outcome.pace.seconds if outcome.pace.steps == outcome.session.total_steps else None


def run_of(folder: RunFolder, name: str, *, seconds: float | None = None, twin: bool = False) -> Run:
    evaluation = folder.read_json(folder.evaluation.name)
    return Run(
        name=name,
        evaluation=evaluation if evaluation["networks"] else None,
        metrics=metric_series(folder.read_metrics()),
        config=folder.read_config().model_dump(mode="json"),
        seconds=seconds,
        twin=twin,
    )


def picture_rows(session: Session, predictors: Mapping[str, Predictor], count: int = _PICTURES) -> list[PictureRow]:
    """Image, truth and each predictor's answer for a few validation images, spread over the set.

    Where there are none, the answers for unlabeled images are all there is to see.
    """
    images, labels = session.stores.val, session.stores.val_labels
    if images is None or labels is None:
        return _unlabeled_rows(session, predictors, count)
    rows = []
    for index in _spread(len(images), count):
        size = (int(labels.height[index]), int(labels.width[index]))
        picture, *answers = _answers(session, predictors, images.image(index), session.config.evaluation, size)
        rows.append(PictureRow(session.dataset.val[index].name, [picture, labels.raw(index)[0].numpy(), *answers]))
    return rows


def _unlabeled_rows(session: Session, predictors: Mapping[str, Predictor], count: int) -> list[PictureRow]:
    """Training saw crops of them, so they go through in tiles, and only those that every network takes."""
    images = session.stores.unlabeled
    if images is None:
        return []
    only = next((size for each in session.method.networks().values() if (size := each.backbone.only_size)), None)
    settings = session.config.evaluation.model_copy(update={"mode": "tiled", **({"tile": only} if only else {})})
    low, most = only or (1, 1), session.config.training.sweep_pixels
    sizes = enumerate(zip(images.height.tolist(), images.width.tolist(), strict=True))
    known = [index for index, (tall, wide) in sizes if tall >= low[0] and wide >= low[1] and tall * wide <= most]
    rows = []
    for place in _spread(len(known), count):
        cells = _answers(session, predictors, images.image(known[place]), settings)
        rows.append(PictureRow(session.dataset.unlabeled[known[place]].name, cells))
    return rows


def _answers(
    session: Session,
    predictors: Mapping[str, Predictor],
    image: torch.Tensor,
    settings: EvaluationSettings,
    size: tuple[int, int] | None = None,
) -> list[np.ndarray]:
    """The image as a picture, and each predictor's label map of it."""
    image = image.to(session.engine.device)
    maps = [segment([predictor], image[None], settings, size)[0][0].cpu().numpy() for predictor in predictors.values()]
    return [_picture(image), *maps]


def data_summary(session: Session) -> dict[str, object]:
    dataset = session.dataset
    return {
        "folder": str(dataset.root),
        "layout": dataset.layout,
        "labeled": len(dataset.labeled),
        "unlabeled": len(dataset.unlabeled),
        "validation": len(dataset.val),
        "split checksum": session.checksums["split"],
    }


def _picture(image: torch.Tensor) -> np.ndarray:
    """[C, H, W] in [0, 1] as [H, W, 3] uint8; gray is repeated, further channels are left out."""
    shown = image.expand(3, -1, -1) if len(image) == 1 else image[:3]
    return (shown * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def _spread(total: int, count: int) -> Sequence[int]:
    count = min(count, total)
    return [round(index * (total - 1) / max(count - 1, 1)) for index in range(count)]
