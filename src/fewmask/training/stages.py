"""Stages: a sweep over all images fills the store of soft labels, then optimizers, schedule and step start anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fewmask.training.checkpoint import load_checkpoint, save_checkpoint
from fewmask.training.observer import Observer
from fewmask.training.run_folder import RunFolder
from fewmask.training.session import Session, build_engine, build_maker
from fewmask.training.state import load_method, method_state
from fewmask.training.stepper import Stepper
from fewmask.types import FlatImages, PixelMaps

_SWEEP_BATCH = 8


def begin_stage(session: Session, folder: RunFolder, stage: int, observer: Observer) -> Session:
    """Set the networks up, keep their weights (so that the sweep can be done again), sweep, and start anew."""
    session.method.start_stage(stage)
    if session.world.main:
        save_checkpoint(folder.stages, stage, method_state(session.method), keep=session.method.stages)
    session.world.barrier()
    return _restarted(session, sweep(session, observer))


def rejoin_stage(session: Session, folder: RunFolder, stage: int, observer: Observer) -> Session:
    """The session of a stage that was interrupted: the same sweep over the same weights gives the same soft labels."""
    load_method(session.method, load_checkpoint(folder.stages / f"step_{stage:08d}.pt"))
    return _restarted(session, sweep(session, observer))


def sweep(session: Session, observer: Observer) -> dict[str, PixelMaps]:
    """One pass over labeled and unlabeled images in eval mode, without augmentation; what it stores is the pool's."""
    method, stores = session.method.eval(), session.stores
    assert stores.unlabeled is not None
    total = len(stores.labeled) + len(stores.unlabeled)
    done = 0
    for images, label in _groups(session, stores.labeled, stores.labels):
        with session.engine.autocast():
            method.sweep(images, label)
        done += len(images)
        observer.advance("sweeping", done, total)
    collected: dict[str, list[Tensor]] = {}
    for images, _ in _groups(session, stores.unlabeled, None):
        with session.engine.autocast():
            maps = method.sweep(images, None)
        for name, values in maps.items():
            collected.setdefault(name, []).extend(values.half().permute(0, 2, 3, 1))  # each [h, w, K]
        done += len(images)
        observer.advance("sweeping", done, total)
    method.finish_sweep()
    method.train()
    return {name: flat_maps(values) for name, values in collected.items()}


def flat_maps(maps: list[Tensor]) -> PixelMaps:
    """Maps [h, w, K] of any sizes in one buffer."""
    device = maps[0].device
    height = torch.tensor([len(each) for each in maps], device=device)
    width = torch.tensor([each.shape[1] for each in maps], device=device)
    cells = height * width
    return PixelMaps(torch.cat([each.flatten(0, 1) for each in maps]), cells.cumsum(0) - cells, height, width)


def _groups(session: Session, images: FlatImages, labels: FlatImages | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Neighbors of equal size, a few at a time: images [N, C, H, W] and labels [N, H, W]."""
    sizes = list(zip(images.height.tolist(), images.width.tolist(), strict=True))
    dtype = next(session.method.parameters()).dtype
    start = 0
    while start < len(images):
        stop = start + 1
        while stop < len(images) and stop - start < _SWEEP_BATCH and sizes[stop] == sizes[start]:
            stop += 1
        group = torch.stack([images.image(index) for index in range(start, stop)]).to(session.engine.device, dtype)
        label = None
        if labels is not None:
            label = torch.stack([labels.raw(index)[0].long() for index in range(start, stop)]).to(session.engine.device)
        yield group, label
        start = stop


def _restarted(session: Session, maps: dict[str, PixelMaps]) -> Session:
    """Fresh optimizers and a batch maker that hands out the maps."""
    engine = build_engine(session.config, session.method, session.engine.device, session.world)
    engine.sums = session.engine.sums
    on_device = {name: each.to(session.stores.labeled.values.device) for name, each in maps.items()}
    maker = build_maker(session.config, session.stores, engine, on_device)
    return replace(session, engine=engine, maker=maker, stepper=Stepper(session.config, engine, maker))
