"""The images and masks of a run, checked and read into memory, and the crop that suits them."""

from __future__ import annotations

import gc
import shlex
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fewmask.config import Config
from fewmask.data.check import check_opened
from fewmask.data.check_files import SplitBuffers
from fewmask.data.check_report import Report, shortened
from fewmask.data.check_unopened import check_unopened
from fewmask.data.dataset import Dataset
from fewmask.data.host_memory import HostMemory, available_memory
from fewmask.data.opening import open_dataset
from fewmask.data.store import image_buffer, label_buffer, read_headers
from fewmask.errors import ConfigError, DataError
from fewmask.training.observer import Observer
from fewmask.training.placement import Stores
from fewmask.types import FlatImages

_LARGEST_CROP = 512
_CROP_MULTIPLE = 32
_WARNINGS_PER_CODE = 3  # `fewmask check` has more of them


def load_data(config: Config, observer: Observer, cache: Path | None = None) -> tuple[Dataset, Stores]:
    """The data set of the settings and its pixels, after the same check that `fewmask check` runs."""
    if config.data.root is None:
        raise ConfigError("no data folder given", where="data.root", fix="fewmask train DATA --out RUN")
    root = Path(config.data.root)
    try:
        dataset = open_dataset(root, config.data, config.seed)
    except DataError as error:
        _require_trainable(check_unopened(root.resolve(), error, config.data.max_pixels), root, observer)
        raise
    return dataset, load_stores(config, dataset, observer, cache)


def load_stores(config: Config, dataset: Dataset, observer: Observer, cache: Path | None = None) -> Stores:
    """Every file is decoded once: checked, and put into its place. What is not fit to train on is an error.

    What takes more main memory than `training.host_share` lies in files in `cache`, unless the settings say where.
    """
    root, training = Path(config.data.root or dataset.root), config.training
    folder = Path(training.cache) if training.cache else cache
    host = HostMemory(int(training.host_share * available_memory()), folder)
    buffers, unread = _buffers(config, dataset, host)
    report = check_opened(
        dataset,
        root.resolve(),
        config.data,
        buffers=buffers,
        progress=partial(observer.advance, "reading and checking"),
    )
    gc.collect()  # decoding leaves cycles, which would keep the memory of the check from being used again
    _require_trainable(report, root, observer)
    if unread:
        raise unread
    return _stores(buffers, host)


def _buffers(config: Config, dataset: Dataset, host: HostMemory) -> tuple[dict[str, SplitBuffers], DataError | None]:
    """Room for what training reads. None where a file says nothing of itself: the check tells which files do not.

    The unlabeled images, which may be many, come last and take what the others leave.
    """
    limits: dict[str, Any] = {"resize": config.data.resize, "max_pixels": config.data.max_pixels, "memory": host}
    splits = {"labeled": dataset.labeled, "val": dataset.val, "unlabeled": dataset.unlabeled}
    try:
        headers = {name: read_headers(samples, max_pixels=config.data.max_pixels) for name, samples in splits.items()}
        channels = max(int(each.channels.max(initial=0)) for each in headers.values())
        buffers = {}
        for name, samples in splits.items():
            images = image_buffer(samples, name=f"{name} images", channels=channels, headers=headers[name], **limits)
            labels = label_buffer(samples, name=f"{name} masks", **limits) if name != "unlabeled" else None
            buffers[name] = SplitBuffers(images, labels)
    except DataError as error:
        return {}, error
    return buffers, None


def _require_trainable(report: Report, root: Path, observer: Observer) -> None:
    for finding in shortened(report.warnings, _WARNINGS_PER_CODE):
        observer.warn(": ".join(filter(None, (finding.code, finding.path, finding.message))))
    if report.trainable:
        return
    first, more = report.errors[0], len(report.errors) - 1
    rest = f"\n({more} more: `fewmask check {shlex.quote(str(root))}` lists everything)" if more else ""
    raise DataError(f"{first.message} ({first.code})", where=str(root / first.path), fix=f"{first.fix}{rest}")


def _stores(buffers: Mapping[str, SplitBuffers], host: HostMemory) -> Stores:
    images = {name: each.images.images() for name, each in buffers.items() if each.images}
    labels = {name: each.labels.images() for name, each in buffers.items() if each.labels}

    def some(found: FlatImages) -> FlatImages | None:
        return found if len(found) else None

    return Stores(
        labeled=images["labeled"],
        labels=labels["labeled"],
        val=some(images["val"]),
        val_labels=some(labels["val"]),
        unlabeled=some(images["unlabeled"]),
        host=host,
    )


def choose_crop(config: Config, images: FlatImages) -> tuple[int, int]:
    """The asked crop, or the images' median size rounded down to a multiple of 32, 512 at most."""
    if config.views.crop is not None:
        return config.views.crop
    sides = [int(statistics.median(side.tolist())) for side in (images.height, images.width)]
    height, width = (min(_LARGEST_CROP, max(_CROP_MULTIPLE, side // _CROP_MULTIPLE * _CROP_MULTIPLE)) for side in sides)
    return height, width
