"""What is measured: the real session of a preset over synthetic images of the data set's true size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fewmask.config import Config
from fewmask.data.dataset import Classes, Dataset, MaskCoding
from fewmask.errors import ConfigError
from fewmask.methods.rml import RMLSettings
from fewmask.settings import list_presets, preset, resolve
from fewmask.training.distributed import World
from fewmask.training.loading import choose_crop
from fewmask.training.observer import Observer
from fewmask.training.placement import Stores
from fewmask.training.session import Session, build_session
from fewmask.training.stages import begin_stage
from fewmask.types import FlatImages

METHOD = "rml"
LABELED, UNLABELED = 64, 128  # images in the store; a step's time does not depend on them
_CHANNELS = 3
_BLOCK = 16  # labels are squares of this many pixels


@dataclass(frozen=True)
class Workload:
    """What a step or a prediction costs depends on these numbers of a data set, and on no picture in it."""

    size: tuple[int, int]  # height and width of an image as it is stored
    num_classes: int


_WORKLOADS = {
    "camvid": Workload((360, 480), 11),
    "demo": Workload((96, 128), 8),
    "paper-cityscapes": Workload((512, 1024), 19),
    "paper-voc": Workload((375, 500), 21),
    "paper-voc-coco": Workload((375, 500), 21),
    "pets": Workload((256, 256), 38),
}


def workload_of(config: Config) -> Workload:
    """The image size and the classes of the preset's data set; `data.resize` decides the size where it is set."""
    name = config.preset or ""
    if name not in _WORKLOADS:
        known = ", ".join(each for each in _WORKLOADS if each in list_presets())
        raise ConfigError(f"no image size is known for the preset {name!r}", where="--preset", fix=known)
    known_size = _WORKLOADS[name]
    return Workload(config.data.resize or known_size.size, known_size.num_classes)


def benchmark_config(name: str, words: Sequence[str] = ()) -> Config:
    """The preset's settings with method rml and weights drawn at random, then `key=value` words."""
    values = preset(name)
    if values.get("method") != METHOD:
        values = {**values, "method": METHOD, "settings": {}}
    keys = RMLSettings.model_fields.keys()
    config = resolve(values, {"network": {"pretrained": "none"}}, words=words, method_keys=keys)
    if config.method != METHOD:
        raise ConfigError(f"speed is measured for the method {METHOD}", where="method", fix=f"method={METHOD}")
    return config


def unlabeled_batch(config: Config) -> int:
    return config.training.unlabeled_batch or config.training.batch


def benchmark_session(config: Config, *, device: torch.device, observer: Observer, few: bool = False) -> Session:
    """Networks, batches with views and soft labels, prototypes and stepper, as training has them after its sweep.

    `few`: with no more images than batches need, where the sweep would take longer than what is to be measured.
    """
    session = session_before_sweep(config, device=device, observer=observer, few=few)
    return begin_stage(session, 0, observer)


def session_before_sweep(
    config: Config, *, device: torch.device, observer: Observer, val: int = 0, few: bool = False
) -> Session:
    """What a run has before its first stage; with so many validation images."""
    workload = workload_of(config)
    count = {"labeled": config.training.batch, "unlabeled": 2 * unlabeled_batch(config)} if few else {}
    stores = synthetic_stores(workload, seed=config.seed, **count)
    if val:
        scored = synthetic_stores(workload, seed=config.seed + 1, labeled=val, unlabeled=0)
        stores = replace(stores, val=scored.labeled, val_labels=scored.labels)
    views = config.views.model_copy(update={"crop": choose_crop(config, stores.labeled)})
    config = config.model_copy(update={"views": views})
    dataset = _nameless(workload.num_classes)
    return build_session(config, dataset, stores, device=device, world=World(), observer=observer)


def synthetic_stores(workload: Workload, *, seed: int, labeled: int = LABELED, unlabeled: int = UNLABELED) -> Stores:
    generator = torch.Generator().manual_seed(seed)
    return Stores(
        labeled=_random_images(labeled, workload.size, generator),
        labels=_random_labels(labeled, workload, generator),
        unlabeled=_random_images(unlabeled, workload.size, generator),
        val=None,
        val_labels=None,
    )


def _random_images(count: int, size: tuple[int, int], generator: torch.Generator) -> FlatImages:
    length = size[0] * size[1] * _CHANNELS
    values = torch.randint(0, 256, (count * length,), dtype=torch.uint8, generator=generator)
    return _flat(values, count, size, _CHANNELS)


def _random_labels(count: int, workload: Workload, generator: torch.Generator) -> FlatImages:
    height, width = workload.size
    blocks = (count, -(-height // _BLOCK), -(-width // _BLOCK))
    label = torch.randint(0, workload.num_classes, blocks, dtype=torch.uint8, generator=generator)
    label = label.repeat_interleave(_BLOCK, 1).repeat_interleave(_BLOCK, 2)[:, :height, :width]  # [N, H, W]
    return _flat(label.reshape(-1), count, workload.size, 1)


def _flat(values: torch.Tensor, count: int, size: tuple[int, int], channels: int) -> FlatImages:
    height, width = (torch.full((count,), side, dtype=torch.int64) for side in size)
    return FlatImages(values, torch.arange(count) * (size[0] * size[1] * channels), height, width, channels)


def _nameless(num_classes: int) -> Dataset:
    """A data set whose images have no files; only its classes are looked at."""
    names = tuple(f"class_{index}" for index in range(num_classes))
    classes = Classes(names, tuple((index, index, index) for index in range(num_classes)))
    return Dataset(Path(), "synthetic", classes, MaskCoding("index"), labeled=(), unlabeled=())
