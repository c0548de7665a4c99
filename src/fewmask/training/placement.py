"""Where pixels and soft labels lie: on the GPU if they fit, else in main memory, else in a mapped file.

What does not lie where the step is computed is staged (views/staging.py): labeled and unlabeled images each for
themselves, since the few labeled ones nearly always fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fewmask.data.host_memory import HostMemory
from fewmask.training.observer import Observer
from fewmask.types import FlatImages
from fewmask.views.sampler import BatchMaker

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class Stores:
    """Decoded once: the pixels of every split that training touches."""

    labeled: FlatImages
    labels: FlatImages
    unlabeled: FlatImages | None
    val: FlatImages | None
    val_labels: FlatImages | None
    host: HostMemory = field(default_factory=HostMemory)  # where all that is not on a GPU lies

    @property
    def channels(self) -> int:
        return self.labeled.channels


def place_stores(stores: Stores, device: torch.device, share: float, observer: Observer, kept: int = 0) -> Stores:
    """Training images on a GPU, as far as they fit into the stated share of its free memory; labeled ones first.

    `kept` are the bytes of the soft labels, which will lie beside the unlabeled images.
    """
    if device.type != "cuda":
        return stores
    room = share * torch.cuda.mem_get_info(device)[0]
    labeled = _size(stores.labeled.values) + _size(stores.labels.values)
    if labeled <= room:
        stores = replace(stores, labeled=stores.labeled.to(device), labels=stores.labels.to(device))
        room -= labeled
    if stores.unlabeled is None:
        return stores
    pool = _size(stores.unlabeled.values) + kept
    if pool <= room:
        return replace(stores, unlabeled=stores.unlabeled.to(device))
    what = f"unlabeled images{' and their soft labels' if kept else ''} take {_size_text(pool)}"
    observer.say(f"{what}, more than is left of {share:.0%} of the free GPU memory: they come step by step")
    return stores


def stage_elsewhere(maker: BatchMaker, stores: Stores, device: torch.device) -> BatchMaker:
    """Stage what the device cannot read, and what lies in a mapped file, where a step would wait for the disk."""

    def here(*tensors: Tensor) -> bool:
        return all(each.device.type == device.type and not stores.host.is_mapped(each) for each in tensors)

    if maker.request.unlabeled and not here(maker.pool.values, *(maps.values for maps in maker.maps.values())):
        maker.stage_unlabeled(stores.host.release)
    if not here(maker.labeled.values, maker.labels.values):
        maker.stage_labeled(stores.host.release)
    return maker


def describe_placement(stores: Stores, maker: BatchMaker) -> Iterator[str]:
    """Where the images of a run lie, a line for each part."""
    yield _line("labeled", [stores.labeled, stores.labels], stores, maker)
    if stores.unlabeled is not None and maker.request.unlabeled:
        yield _line("unlabeled", [stores.unlabeled], stores, maker)


def _line(name: str, parts: list[FlatImages], stores: Stores, maker: BatchMaker) -> str:
    line = f"{name}: {_size_text(sum(_size(part.values) for part in parts))} {_place(parts[0].values, stores)}"
    if name not in maker.stages:
        return line
    through = " through pinned memory" if maker.device.type == "cuda" else ""
    return f"{line}, staged{through}: {_size_text(_size(maker.stages[name].kept))} a step, during the step before"


def place_of_soft_labels(stores: Stores, size: int) -> str:
    """Where `size` bytes of soft labels will lie, beside the unlabeled images if these are on a GPU."""
    if stores.unlabeled is not None and stores.unlabeled.values.is_cuda:
        return "on the GPU"
    return "in main memory" if stores.host.has_room(size) else f"in a mapped file in {stores.host.folder}"


def _place(values: Tensor, stores: Stores) -> str:
    if values.is_cuda:
        return "on the GPU"
    return f"in a mapped file in {stores.host.folder}" if stores.host.is_mapped(values) else "in main memory"


def _size(values: Tensor) -> int:
    return values.numel() * values.element_size()


def _size_text(size: float) -> str:
    """In the largest unit of which there is one."""
    unit, name = next((pair for pair in _UNITS if size >= pair[0]), _UNITS[-1])
    return f"{size / unit:.1f} {name}"
