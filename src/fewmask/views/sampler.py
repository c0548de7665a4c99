"""From a step number to a batch: which images, which windows, which noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fewmask.config import ViewSettings
from fewmask.errors import ConfigError, DataError
from fewmask.labels import IGNORE
from fewmask.randomness import Randomness
from fewmask.types import Batch, FlatImages, PixelMaps, ViewRequest
from fewmask.views.anchors import find_anchors
from fewmask.views.choice import Choice
from fewmask.views.geometry import Center, Windows, draw_windows, inside, sample_images, sample_labels
from fewmask.views.mixing import box_mask, partners
from fewmask.views.photometric import color_noise
from fewmask.views.soft_labels import sample_maps
from fewmask.views.staging import Staging


class BatchMaker:
    """This process's part of the batch of any step, a pure function of (seed, step).

    `batch` and `unlabeled_batch` count over all `world` processes. Every draw is addressed by the sample's global
    position, so the processes' parts, one after the other, are the batch that one process would make.
    """

    def __init__(
        self,
        labeled: FlatImages,
        labels: FlatImages,
        unlabeled: FlatImages | None,
        *,
        settings: ViewSettings,
        crop: tuple[int, int],
        request: ViewRequest,
        seed: int,
        batch: int,
        unlabeled_batch: int,
        rank: int = 0,
        world: int = 1,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        num_classes: int = IGNORE,
        maps: Mapping[str, PixelMaps] | None = None,
        strides: Mapping[str, int] | None = None,
    ) -> None:
        self.labeled, self.labels = labeled, labels
        # A batch without unlabeled images draws none of this pool, whatever it holds
        self.pool = unlabeled if request.unlabeled and unlabeled is not None else labeled
        self.settings, self.crop, self.request, self.seed = settings, crop, request, seed
        self.device, self.dtype = device or labeled.values.device, dtype
        self.maps, self.strides = maps or {}, strides or {}
        sizes = {"batch": batch, "unlabeled_batch": unlabeled_batch if request.unlabeled else 0, "world": world}
        _check_settings(settings)
        _check_stores(labeled, labels, unlabeled, request)
        _check_batches(**sizes)
        if request.mixing != "none":
            _check_mixing(request, sizes["unlabeled_batch"] // world, world, len(self.pool))
        self.choice = self._choice(num_classes, rank=rank, **sizes)
        self.stages: dict[str, Staging] = {}

    def _choice(self, num_classes: int, **sizes: int) -> Choice:
        """Which images a step sees; class-aware crops have looked at all labels for it."""
        aware = self.settings.class_crops
        return Choice(
            labeled=len(self.labeled),
            unlabeled=len(self.pool),
            seed=self.seed,
            request=self.request,
            class_crops=aware,
            anchors=find_anchors(self.labels, num_classes) if aware > 0 else None,
            **sizes,
        )

    def stage_labeled(self, gathered: Callable[[], None] = lambda: None) -> None:
        """The labeled images stay where they are, and the device gets those of one step; see `stage`."""
        host, images = self.choice.to(torch.device("cpu")), {"images": self.labeled, "labels": self.labels}
        stage = Staging(
            images, {}, lambda step: host.labeled_images(torch.tensor(step))[0], device=self.device, gathered=gathered
        )
        self.pool = stage.images["images"] if self.pool is self.labeled else self.pool
        self.labeled, self.labels = stage.images["images"], stage.images["labels"]
        self.choice, self.stages["labeled"] = self.choice.to(self.device), stage

    def stage_unlabeled(self, gathered: Callable[[], None] = lambda: None) -> None:
        """The same for unlabeled images and their maps."""
        host = self.choice.to(torch.device("cpu"))
        stage = Staging(
            {"images": self.pool},
            self.maps,
            lambda step: host.unlabeled_images(torch.tensor(step)),
            device=self.device,
            gathered=gathered,
        )
        self.pool, self.maps, self.stages["unlabeled"] = stage.images["images"], stage.maps, stage

    def stage(self, step: int) -> None:
        """Bring the staged images of `step` to the device, before its batch is made; the next step's are sent for."""
        for stage in self.stages.values():
            stage.hold(step)

    def at(self, step: int) -> Batch:
        """The batch of any step, staged first where that is needed."""
        self.stage(step)
        return self(torch.tensor(step, device=self.labeled.values.device))

    def settle(self) -> None:
        for stage in self.stages.values():
            stage.settle()

    def close(self) -> None:
        for stage in self.stages.values():
            stage.close()

    def retire(self) -> None:
        """End the threads and let go of slots and maps, whoever still has this maker; it can make no batch then."""
        self.close()
        self.stages, self.maps = {}, {}
        del self.labeled, self.labels, self.pool  # slots, where they are staged

    def __call__(self, step: Tensor) -> Batch:
        """The batch of `step` [] int64, which lies on the stores' device and is the one that was staged."""
        self._require_staged(step)
        random, moved = Randomness(self.seed, step), self._moved
        position, weak_position = self.choice.positions(step.device), self.choice.weak_positions(step.device)
        index, center = self.choice.labeled_images(step)  # [B]
        windows = self._windows(random, "labeled", position, self.labeled, index, center)
        weak_windows, weak_index = self._unlabeled_windows(step)
        weak = sample_images(self.pool, weak_windows, self.crop)  # [U, C, H, W]
        box, partner = self._mixing(random, weak_position)
        return Batch(
            image=moved(self._labeled_images(random, position, windows)),
            label=moved(sample_labels(self.labels, windows, self.crop)),
            image_index=moved(index),
            image_position=moved(position),
            weak=moved(weak),
            valid=moved(inside(weak_windows, self.crop)),
            strong=tuple(
                moved(color_noise(random, f"strong/{view + 1}", weak_position, weak, self.settings))
                for view in range(self.request.strong)
            ),
            box=moved(box),
            partner=moved(partner),
            weak_index=moved(weak_index),
            weak_position=moved(weak_position),
            stored={
                name: moved(sample_maps(maps, self.pool, weak_windows, self.crop, self.strides[name]))
                for name, maps in self.maps.items()
            },
        )

    def unlabeled_windows(self, step: Tensor) -> Windows:
        """Where the unlabeled images of `step`'s batch come from; hidden truth is looked up there, never handed out."""
        self._require_staged(step)
        windows, index = self._unlabeled_windows(step)
        return replace(windows, index=index)

    def _labeled_images(self, random: Randomness, position: Tensor, windows: Windows) -> Tensor:
        images = sample_images(self.labeled, windows, self.crop)  # [B, C, H, W]
        if self.request.labeled_color:
            images = color_noise(random, "labeled/color", position, images, self.settings)
        return images

    def _unlabeled_windows(self, step: Tensor) -> tuple[Windows, Tensor]:
        """Windows into what lies on the device, and which images these are, [U]."""
        index, position = self.choice.unlabeled_images(step), self.choice.weak_positions(step.device)
        return self._windows(Randomness(self.seed, step), "unlabeled", position, self.pool, index), index

    def _windows(
        self,
        random: Randomness,
        part: str,
        position: Tensor,
        images: FlatImages,
        index: Tensor,
        center: Center | None = None,
    ) -> Windows:
        scale, flip = self.settings.scale, self.settings.flip
        if part in self.stages:
            index = torch.arange(len(index), device=index.device)  # the slots have the batch's order
        return draw_windows(
            random, part, position, images, index, crop=self.crop, scale=scale, flip=flip, center=center
        )

    def _require_staged(self, step: Tensor) -> None:
        """On a GPU nobody can ask, but the same callers run on the CPU."""
        if self.stages and step.device.type == "cpu":
            held = {stage.held for stage in self.stages.values()}
            assert held == {int(step)}, f"the batch of step {int(step)} was asked for, and {held} is staged"

    def _mixing(self, random: Randomness, position: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes [U, H, W] and partners [U]; without mixing nothing is pasted."""
        if self.request.mixing == "none":
            empty = torch.zeros(len(position), *self.crop, dtype=torch.bool, device=position.device)
            return empty, torch.arange(len(position), device=position.device)
        if self.request.pairs == "independent":
            first, second = position.chunk(2)
            return box_mask(random, "box", first, self.crop), torch.arange(len(second), device=position.device) + len(
                first
            )
        return box_mask(random, "box", position, self.crop), partners(len(position), position.device)

    def _moved(self, tensor: Tensor) -> Tensor:
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.device, dtype, non_blocking=True)


def describe_views(settings: ViewSettings, crop: tuple[int, int], request: ViewRequest) -> str:
    """One line for the plan that a run prints."""
    low, high = settings.scale
    parts = [f"crop {crop[0]}x{crop[1]}", f"scale {low:g} to {high:g}"]
    parts += ["flip"] if settings.flip else []
    parts += [f"{settings.class_crops:.0%} class-aware crops"] if settings.class_crops else []
    smallest, largest = settings.color_magnitude
    color = f"{settings.color_operations} of magnitude {smallest} to {largest}, p {settings.color_probability:g}"
    colored = ["labeled images"] if request.labeled_color else []
    colored += [f"{request.strong} strong view{'s' if request.strong > 1 else ''}"] if request.strong else []
    parts += [f"color operations ({color}) on {' and '.join(colored)}"] if colored else []
    parts += [f"{request.mixing} mixing"] if request.mixing != "none" else []
    return ", ".join(parts)


def _check_settings(settings: ViewSettings) -> None:
    if settings.scale[0] > settings.scale[1]:
        raise ConfigError(f"scale {settings.scale} is empty", where="views.scale", fix="smallest first, as (0.5, 1.5)")
    smallest, largest = settings.color_magnitude
    if not 0 <= smallest <= largest <= 10:
        what = f"color magnitude {settings.color_magnitude} is no range out of 10"
        raise ConfigError(what, where="views.color_magnitude", fix="integers from 0 to 10, smallest first, as (1, 9)")


def _check_stores(labeled: FlatImages, labels: FlatImages, unlabeled: FlatImages | None, request: ViewRequest) -> None:
    if not len(labeled):
        raise DataError("no labeled image", where="labeled images", fix="at least 1 image with a mask")
    if not (torch.equal(labeled.height, labels.height) and torch.equal(labeled.width, labels.width)):
        raise DataError("images and masks differ in size", where="labeled images", fix="a mask of its size per image")
    if not request.unlabeled:
        return
    if unlabeled is None or not len(unlabeled):
        what = "the method learns from unlabeled images and there are none"
        raise DataError(what, where="unlabeled images", fix="images in unlabeled/, or method supervised")
    if unlabeled.channels != labeled.channels:
        what = f"labeled images have {labeled.channels} channels, unlabeled ones {unlabeled.channels}"
        raise DataError(what, where="unlabeled images", fix="the same number of channels in all images")


def _check_batches(batch: int, unlabeled_batch: int, world: int) -> None:
    for name, size in (("batch", batch), ("unlabeled_batch", unlabeled_batch)):
        if size % world:
            what = f"{size} images per step do not divide among {world} processes"
            raise ConfigError(what, where=f"training.{name}", fix=f"a multiple of {world}")


def _check_mixing(request: ViewRequest, share: int, world: int, pool: int) -> None:
    if request.mixing != "box":
        raise ConfigError(f"unknown mixing {request.mixing!r}", where="mixing", fix="none or box")
    if pool < 2:
        what = f"mixing pastes one unlabeled image into another, and there is {pool}"
        raise ConfigError(what, where="unlabeled images", fix=f"at least 2 of them, or {request.without_mixing}")
    if request.pairs == "independent":
        return
    if share < 2 or (world > 1 and share % 2):
        what = f"mixing pairs the unlabeled images of one process, and each of {world} gets {share}"
        fix = "at least 2 per process" if world == 1 else f"a multiple of {2 * world}"
        raise ConfigError(what, where="training.unlabeled_batch", fix=f"{fix}, or {request.without_mixing}")
