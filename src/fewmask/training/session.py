"""From settings and a data set to everything a training loop needs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch

from fewmask.config import Config, TrainingSettings
from fewmask.data.dataset import Dataset
from fewmask.data.splits import split_record
from fewmask.data.store import data_checksum, load_hidden_masks
from fewmask.errors import ConfigError
from fewmask.labels import IGNORE
from fewmask.learning.losses import LabeledLoss, inverse_frequency_weights
from fewmask.methods.method import Method
from fewmask.methods.table import create_method, read_method_settings
from fewmask.networks.build import build_network, seeded
from fewmask.networks.compilation import compile_blocks, compile_problem
from fewmask.networks.recomputation import recompute_blocks, split_passes
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.networks.weight_matching import WeightReport
from fewmask.training.clock import Clock
from fewmask.training.diagnostics import Diagnostics
from fewmask.training.distributed import World, check_divisible, sync_batch_norms
from fewmask.training.engine import Engine, choose_precision, set_tf32
from fewmask.training.learners import learner_config, optimizer_settings
from fewmask.training.observer import Observer
from fewmask.training.optimizers import build_optimizer
from fewmask.training.pixel_store import map_forms, stored_bytes
from fewmask.training.placement import Stores, place_stores, stage_elsewhere
from fewmask.training.refusals import check_networks
from fewmask.training.rewriting import rewrite_networks
from fewmask.training.stepper import Stepper
from fewmask.types import FlatImages, PixelMaps
from fewmask.views.sampler import BatchMaker


@dataclass(frozen=True)
class Owner:
    """The run that a baseline belongs to."""

    config: Config
    learners: tuple[str, ...]  # those that start from the baseline


@dataclass(frozen=True)
class Session:
    config: Config
    dataset: Dataset
    stores: Stores
    method: Method
    engine: Engine
    maker: BatchMaker
    stepper: Stepper
    checksums: dict[str, str]
    diagnostics: Diagnostics | None = None  # None: not wanted, or the method has no unlabeled images
    owner: Owner | None = None  # of a baseline
    clock: Clock = field(default_factory=Clock)  # of the run

    @property
    def world(self) -> World:
        return self.engine.world

    @property
    def total_steps(self) -> int:
        """Over all stages."""
        return self.config.training.steps * self.method.stages

    def timed(self, what: str, count: int = 1) -> AbstractContextManager[None]:
        """What happens inside is told in timing.json as a part of the run, or as more of its last one."""
        return self.clock.part(what, self.engine.device, count)


def with_all_settings(config: Config) -> Config:
    """The method's settings with those that nobody named: other versions may have other defaults."""
    complete = read_method_settings(config.method, config.settings).complete()
    return config.model_copy(update={"settings": complete})


def build_session(
    config: Config,
    dataset: Dataset,
    stores: Stores,
    *,
    device: torch.device,
    world: World,
    observer: Observer,
    known_checksums: dict[str, str] | None = None,
    saved: bool = False,
) -> Session:
    """`config` has its crop. Checksums that are known already spare reading all files again.

    `saved`: the weights will be those of a checkpoint, so nothing pretrained is looked for, which may be gone by now.
    """
    config = with_all_settings(config)
    _choose_kernels(config.training, device)
    method = build_method(config, dataset, stores, saved)
    _require_images(config, method, dataset, stores)
    check_divisible(world, batch=config.training.batch, unlabeled_batch=_unlabeled_batch(config))
    check_networks(config, method, stores, world)
    _prepare_networks(method, config.training, device, world, observer)
    engine = build_engine(config, method.train(), device, world)
    kept = stored_bytes(map_forms(method, config.training.soft_labels), stores.unlabeled)
    placed = place_stores(stores, device, config.training.store_share, observer, kept)
    maker = build_maker(config, placed, engine)
    stepper = Stepper(config, engine, maker)
    diagnosed = method.views.unlabeled and config.training.diagnose_every
    diagnostics = build_diagnostics(config, dataset, stores, observer) if diagnosed else None
    sums = known_checksums or checksums(dataset)
    return Session(config, dataset, placed, method, engine, maker, stepper, sums, diagnostics)


def _choose_kernels(training: TrainingSettings, device: torch.device) -> None:
    set_tf32(training.tf32)
    # Crops have one size, so the fastest kernels stay so; but a measurement may end otherwise next time. Whole images
    # have many sizes: their passes do without (`for_any_size`).
    torch.backends.cudnn.benchmark = device.type == "cuda" and not training.deterministic


def _require_images(config: Config, method: Method, dataset: Dataset, stores: Stores) -> None:
    if method.views.unlabeled and stores.unlabeled is None:
        ways = "--labels N to hide some masks, or --method supervised"
        raise ConfigError(
            f"the method {config.method} needs unlabeled images and there are none",
            where=str(dataset.root),
            fix=f"images in unlabeled/, {ways}" if dataset.layout == "folder" else ways,
        )


def _prepare_networks(
    method: Method, training: TrainingSettings, device: torch.device, world: World, observer: Observer
) -> None:
    """Onto the device, in the form in which they compute there."""
    dtype = torch.float64 if training.precision == "fp64" else torch.float32
    method.to(device=device, dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if world.size > 1:
        sync_batch_norms(method)
    twins = rewrite_networks(method, training, device)
    if training.compile and device.type == "cuda":
        compile_networks([*method.networks().values(), *twins], device, observer)
    save_memory(method, training)


def compile_networks(networks: Sequence[SegmentationNetwork], device: torch.device, observer: Observer) -> None:
    """A machine that cannot compile trains all the same, only slower."""
    problem = compile_problem(device)
    if problem is not None:
        observer.say(f"blocks are not compiled, so steps take longer; torch.compile does not work here: {problem}")
        return
    observer.say("blocks are compiled: the first step takes a minute or two, less if it was done before")
    for network in networks:
        compile_blocks(network)


def save_memory(method: Method, settings: TrainingSettings) -> None:
    """Blocks that compute twice and passes in parts, where they are asked for; encloses what was compiled before."""
    for network in method.trained().values() if settings.checkpointing else ():
        recompute_blocks(network)
    for network in method.networks().values() if settings.accumulate > 1 else ():
        split_passes(network, settings.accumulate)


def build_diagnostics(config: Config, dataset: Dataset, stores: Stores, observer: Observer) -> Diagnostics:
    """Hidden masks are read here and go nowhere else."""
    pixels = class_pixels(stores.labels, len(dataset.classes)).double().cpu()
    stores.host.release()
    truth = None
    if stores.unlabeled is not None and any(sample.mask for sample in dataset.unlabeled):
        truth = load_hidden_masks(
            dataset.unlabeled,
            stores.unlabeled,
            dataset.coding,
            resize=config.data.resize,
            max_pixels=config.data.max_pixels,
            progress=lambda done, total: observer.advance("reading hidden masks", done, total),
            memory=stores.host,
        )
    return Diagnostics(dataset.classes.names, pixels / pixels.sum().clamp(min=1), truth, stores.host.release)


def build_engine(config: Config, method: Method, device: torch.device, world: World) -> Engine:
    settings = optimizer_settings(config, method.updated())
    optimizers = {name: build_optimizer(modules, settings[name]) for name, modules in method.updated().items()}
    precision = choose_precision(config.training.precision, device)
    clip = {name: each.clip for name, each in settings.items() if each.clip is not None}
    training = config.training
    captured = training.capture and device.type == "cuda" and world.size == 1  # eager steps wait for the host anyway
    lanes = len(method.trained()) if captured and training.lanes else 0
    return Engine(method, optimizers, device=device, precision=precision, world=world, clip=clip, lanes=lanes)


def build_maker(
    config: Config, stores: Stores, engine: Engine, maps: Mapping[str, PixelMaps] | None = None
) -> BatchMaker:
    """`maps` are what a sweep over the unlabeled images stored, where there was one."""
    assert config.views.crop is not None
    network = next(iter(engine.method.trained().values()))
    maker = BatchMaker(
        stores.labeled,
        stores.labels,
        stores.unlabeled if engine.method.views.unlabeled else None,
        settings=config.views,
        crop=config.views.crop,
        request=replace(engine.method.views, without_mixing=engine.method.Settings.without_mixing),
        seed=_view_seed(config, engine.method),
        batch=config.training.batch,
        unlabeled_batch=_unlabeled_batch(config),
        rank=engine.world.rank,
        world=engine.world.size,
        device=engine.device,
        dtype=next(network.parameters()).dtype,
        num_classes=network.num_classes,
        maps=maps,
        strides=engine.method.stored_strides(),
    )
    stores.host.release()  # class-aware crops have looked at all labels
    return stage_elsewhere(maker, stores, engine.device)


def _view_seed(config: Config, method: Method) -> int:
    """Stages draw other crops than the baseline did, which has learned its own; it may have been given this seed."""
    return zlib.crc32(f"{config.seed}/stages".encode()) if method.needs_baseline else config.seed


def _unlabeled_batch(config: Config) -> int:
    return config.training.unlabeled_batch or config.training.batch


def build_method(config: Config, dataset: Dataset, stores: Stores, saved: bool) -> Method:
    def build(learner: str, *, channels: int | None = None, num_classes: int | None = None) -> SegmentationNetwork:
        seed = zlib.crc32(f"{config.seed}/{learner}".encode())
        shape = {"channels": channels or stores.channels, "num_classes": num_classes or len(dataset.classes)}
        settings = learner_config(config, learner).network
        if saved:
            settings = settings.model_copy(update={"pretrained": "none"})
        try:
            network = build_network(settings, seed=seed, **shape)
        except ConfigError as error:
            if learner not in config.learners and learner not in config.companions:
                raise
            raise ConfigError(error.what, where=f"{error.where} of {learner}", fix=error.fix) from None
        if saved:
            network.weights = WeightReport("those of the checkpoint")
        return network

    loss = LabeledLoss(config.loss, _class_weights(config, len(dataset.classes), stores.labels))
    stores.host.release()
    with seeded(zlib.crc32(f"{config.seed}/{config.method}".encode())):  # what a method makes beside its networks
        return create_method(config.method, config.settings, build, loss)


def checksums(dataset: Dataset) -> dict[str, str]:
    return {
        "split": str(split_record(dataset)["sha256"]),
        "data": data_checksum([*dataset.labeled, *dataset.unlabeled]),
    }


def class_pixels(labels: FlatImages, num_classes: int) -> torch.Tensor:
    """How many pixels each class has, [K]."""
    return torch.bincount(labels.values, minlength=IGNORE + 1)[:num_classes]  # bytes: int64 would take eight times more


def _class_weights(config: Config, num_classes: int, labels: FlatImages) -> torch.Tensor | None:
    asked = config.loss.class_weights
    if asked is None:
        return None
    if config.loss.kind == "ohem":
        raise ConfigError(
            "ohem counts the pixels that it keeps alike, so class weights would do nothing",
            where="loss.class_weights, loss.kind",
            fix="loss.class_weights=none, or loss.kind=cross_entropy or dice",
        )
    if asked == "inverse_frequency":
        return inverse_frequency_weights(class_pixels(labels, num_classes))
    if len(asked) != num_classes:
        raise ConfigError(
            f"{len(asked)} class weights for {num_classes} classes",
            where="loss.class_weights",
            fix=f"{num_classes} numbers",
        )
    return torch.tensor(asked)
