"""Stages: a sweep over all images fills the store of soft labels, then optimizers, schedule and step start anew."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fewmask.config import TrainingSettings
from fewmask.errors import CheckpointError
from fewmask.evaluation.cells import bounded_forward
from fewmask.networks.compilation import for_any_size
from fewmask.training.checkpoint import checkpoint_path, load_checkpoint
from fewmask.training.clock import STARTS, SWEEPS
from fewmask.training.device_memory import release
from fewmask.training.observer import Observer
from fewmask.training.pixel_store import empty_maps, map_forms, write_maps
from fewmask.training.run_folder import RunFolder
from fewmask.training.session import Session, build_engine, build_maker
from fewmask.training.state import load_method
from fewmask.training.stepper import Stepper
from fewmask.types import FlatImages, PixelMaps

SWEEP_BATCH = 8
_SWEEP_LEAST = 2**16  # pixels: of small images more share a pass, or its calls would cost more than its work


def begin_stage(session: Session, stage: int, observer: Observer) -> Session:
    """Set the networks up, sweep, and start anew; the checkpoint of the step before stays until the stage is over.

    The last stage's memory is given back before the sweep, the sweep's before a step.
    """
    with session.timed(STARTS):
        session.method.start_stage(stage)
        retire(session)
        release(session.engine.device)
    with session.timed(SWEEPS):
        maps = sweep(session, observer)
    with session.timed(STARTS, count=0):
        following = restarted(session, maps)
        release(session.engine.device)
    return following


def rejoin_stage(session: Session, folder: RunFolder, stage: int, observer: Observer) -> Session:
    """The session of a stage that was interrupted: begun again with the same weights it gets the same soft labels."""
    path = checkpoint_path(folder.checkpoints, stage * session.config.training.steps)
    if not path.exists():
        raise CheckpointError(
            f"the checkpoint that stage {stage + 1} started from is gone, and its soft labels are made from that",
            where=str(path),
            fix="the file again; or without the later checkpoints too, the run goes on from the last one before",
        )
    load_method(session.method, load_checkpoint(path))
    return begin_stage(session, stage, observer)


def retire(session: Session) -> None:
    """Let go of what a stage's steps need: graph, soft labels, slots, optimizer state; metrics and networks go on.

    Callers may have the session until the run ends, so what it holds is dropped here and not with its last name.
    """
    session.maker.retire()
    session.stepper.retire()
    session.engine.retire()


def sweep(session: Session, observer: Observer) -> dict[str, PixelMaps]:
    """One pass over labeled and unlabeled images in eval mode, without augmentation; what it stores is the pool's."""
    method, stores = session.method.eval(), session.stores
    assert stores.unlabeled is not None
    total = len(stores.labeled) + len(stores.unlabeled)
    done, forward = 0, bounded_forward(session.config.training.sweep_pixels)
    for images, label in _groups(session, stores.labeled, stores.labels):
        with session.engine.autocast(), for_any_size():
            method.sweep(images, label, forward)
        done += len(images)
        observer.advance("sweeping", done, total)
    forms = map_forms(method, session.config.training.soft_labels)
    stored = {name: empty_maps(form, stores.unlabeled, stores.host, name) for name, form in forms.items()}
    for images, _ in _groups(session, stores.unlabeled, None):
        with session.engine.autocast(), for_any_size():
            maps = method.sweep(images, None, forward)
        for name, values in maps.items():
            write_maps(stored[name], done - len(stores.labeled), values)
        done += len(images)
        observer.advance("sweeping", done, total)
    method.finish_sweep()
    method.train()
    return stored


def _groups(session: Session, images: FlatImages, labels: FlatImages | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Neighbors of equal size, as many as one pass may see: images [N, C, H, W] and labels [N, H, W]."""
    sizes = list(zip(images.height.tolist(), images.width.tolist(), strict=True))
    dtype = next(session.method.parameters()).dtype
    start = 0
    while start < len(images):
        stop = start + 1
        most = most_at_once(math.prod(sizes[start]), session.config.training)
        while stop < len(images) and stop - start < most and sizes[stop] == sizes[start]:
            stop += 1
        group = torch.stack([images.image(index) for index in range(start, stop)]).to(session.engine.device, dtype)
        label = None
        if labels is not None:
            label = torch.stack([labels.raw(index)[0].long() for index in range(start, stop)]).to(session.engine.device)
        yield group, label
        session.stores.host.release()
        start = stop


def most_at_once(pixels: int, training: TrainingSettings) -> int:
    """Images of so many pixels that are swept together; where a method enlarges them, the pass is cut inside."""
    return max(1, min(max(SWEEP_BATCH, _SWEEP_LEAST // pixels), training.sweep_pixels // pixels))


def restarted(session: Session, maps: dict[str, PixelMaps]) -> Session:
    """Fresh optimizers and a batch maker that hands out the maps."""
    engine = build_engine(session.config, session.method, session.engine.device, session.world)
    engine.sums = session.engine.sums
    session.maker.close()
    maker = build_maker(session.config, session.stores, engine, maps)
    return replace(session, engine=engine, maker=maker, stepper=Stepper(session.config, engine, maker))
