"""The images and masks of a run, checked and read into memory, and the crop that suits them."""

from __future__ import annotations

import gc
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewmask.config import Config
from fewmask.data.check import check_folder
from fewmask.data.check_report import shortened
from fewmask.data.dataset import Dataset, Sample
from fewmask.data.host_memory import HostMemory, available_memory
from fewmask.data.opening import open_dataset
from fewmask.data.store import load_images, load_masks, read_headers
from fewmask.errors import ConfigError, DataError
from fewmask.training.observer import Observer
from fewmask.training.placement import Stores
from fewmask.types import FlatImages

_LARGEST_CROP = 512
_CROP_MULTIPLE = 32


def open_checked(config: Config, observer: Observer) -> Dataset:
    """The data set, after the same check that `fewmask check` runs."""
    if config.data.root is None:
        raise ConfigError("no data folder given", where="data.root", fix="fewmask train DATA --out RUN")
    root = Path(config.data.root)
    report = check_folder(root, config.data, config.seed)
    gc.collect()  # decoding leaves cycles, which would keep the memory of the check from being used again
    for finding in shortened(report.warnings):
        observer.warn(": ".join(filter(None, (finding.code, finding.path, finding.message))))
    if not report.trainable:
        first, more = report.errors[0], len(report.errors) - 1
        rest = f"\n({more} more: `fewmask check {shlex.quote(str(root))}` lists everything)" if more else ""
        raise DataError(f"{first.message} ({first.code})", where=str(root / first.path), fix=f"{first.fix}{rest}")
    return open_dataset(root, config.data, config.seed)


def load_stores(config: Config, dataset: Dataset, observer: Observer, cache: Path | None = None) -> Stores:
    """What takes more main memory than `training.host_share` lies in files in `cache`, unless the settings say where.

    The unlabeled images, which may be many, come last and take what the others leave.
    """
    data, training = config.data, config.training
    limits: dict[str, Any] = {"resize": data.resize, "max_pixels": data.max_pixels}
    folder = Path(training.cache) if training.cache else cache
    host = HostMemory(int(training.host_share * available_memory()), folder)

    splits = {"labeled": dataset.labeled, "validation": dataset.val, "unlabeled": dataset.unlabeled}
    headers = {name: read_headers(samples, max_pixels=data.max_pixels) for name, samples in splits.items()}
    channels = max(int(each.channels.max(initial=0)) for each in headers.values())

    def images(split: str) -> FlatImages:
        task = f"{split} images"
        return load_images(
            splits[split],
            channels=channels,
            progress=lambda done, total: observer.advance(f"reading {task}", done, total),
            memory=host,
            name=task,
            headers=headers[split],
            **limits,
        )

    def masks(name: str, samples: Sequence[Sample]) -> FlatImages:
        return load_masks(samples, dataset.coding, memory=host, name=name, **limits)

    return Stores(
        labeled=images("labeled"),
        labels=masks("labels", dataset.labeled),
        val=images("validation") if dataset.val else None,
        val_labels=masks("validation labels", dataset.val) if dataset.val else None,
        unlabeled=images("unlabeled") if dataset.unlabeled else None,
        host=host,
    )


def choose_crop(config: Config, images: FlatImages) -> tuple[int, int]:
    """The asked crop, or the images' median size rounded down to a multiple of 32, 512 at most."""
    if config.views.crop is not None:
        return config.views.crop
    sides = [int(statistics.median(side.tolist())) for side in (images.height, images.width)]
    height, width = (min(_LARGEST_CROP, max(_CROP_MULTIPLE, side // _CROP_MULTIPLE * _CROP_MULTIPLE)) for side in sides)
    return height, width
