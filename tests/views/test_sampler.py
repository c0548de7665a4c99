"""Batches as a pure function of the step, over one process and over several."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from pictures import flat_images, noise_images, random_sizes
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from fewmask.config import ViewSettings
from fewmask.errors import ConfigError, DataError
from fewmask.labels import IGNORE
from fewmask.types import Batch, FlatImages, ViewRequest
from fewmask.views.sampler import BatchMaker, describe_views

CROP = (20, 24)
SIZES = random_sizes(7, seed=1, low=12, high=40)
EVERYTHING = ViewRequest(strong=2, labeled_color=True, mixing="box")


def maker(*, request: ViewRequest = EVERYTHING, unlabeled: int = 9, **options: Any) -> BatchMaker:
    labeled, labels = flat_images(noise_images(SIZES)), flat_images(noise_images(SIZES, 1, seed=2, high=4))
    pool = flat_images(noise_images(random_sizes(unlabeled, seed=3, low=12, high=40), seed=4)) if unlabeled else None
    defaults: dict[str, Any] = {
        "settings": ViewSettings(class_crops=0.5, color_probability=1.0),
        "crop": CROP,
        "seed": 11,
        "batch": 6,
        "unlabeled_batch": 8,
    }
    return BatchMaker(labeled, labels, pool, request=request, **(defaults | options))


def tensors(batch: Batch) -> dict[str, Tensor]:
    """Every tensor of a batch by name."""
    single = {
        field.name: getattr(batch, field.name) for field in fields(batch) if field.name not in ("strong", "stored")
    }
    return single | {f"strong {view}": tensor for view, tensor in enumerate(batch.strong)}


def assert_same(one: Batch, other: Batch) -> None:
    mine, theirs = tensors(one), tensors(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_make_the_batch_of_one_process(world: int) -> None:
    sizes = {"batch": 8, "unlabeled_batch": 16}
    single = maker(**sizes)
    ranks = [maker(**sizes, rank=rank, world=world) for rank in range(world)]
    for step in (0, 1, 5, 1000):
        whole = tensors(single(torch.tensor(step)))
        parts = [tensors(rank(torch.tensor(step))) for rank in ranks]
        for rank, part in enumerate(parts):
            part["partner"] = part["partner"] + rank * 16 // world  # partners count within a process
        for name, tensor in whole.items():
            assert torch.equal(tensor, torch.cat([part[name] for part in parts])), name


def test_a_batch_is_a_pure_function_of_seed_and_step() -> None:
    one, other = maker(), maker()
    first = one(torch.tensor(3))
    one(torch.tensor(8))
    assert_same(first, one(torch.tensor(3)))
    assert_same(first, other(torch.tensor(3)))
    for changed in (one(torch.tensor(4)), maker(seed=12)(torch.tensor(3))):
        same = {name for name, tensor in tensors(changed).items() if torch.equal(tensor, tensors(first)[name])}
        assert same == {"partner", "image_position", "weak_position"}


def test_every_pass_shows_each_image_once() -> None:
    made = maker(settings=ViewSettings(), batch=6, request=ViewRequest(), unlabeled_batch=5)
    batches = [made(torch.tensor(step)) for step in range(9)]
    labeled = torch.cat([batch.image_index for batch in batches])[:49].reshape(7, 7)
    assert torch.equal(labeled.sort(1).values, torch.arange(7).expand(7, 7))
    unlabeled = torch.cat([batch.weak_index for batch in batches]).reshape(5, 9)
    assert torch.equal(unlabeled.sort(1).values, torch.arange(9).expand(5, 9))


@pytest.mark.parametrize("pairs", ["batch", "independent"])
@pytest.mark.parametrize(("pool", "batch"), [(2, 2), (2, 3), (3, 4), (5, 4), (7, 3), (5, 7)])
def test_no_image_is_ever_mixed_with_itself(pool: int, batch: int, pairs: str) -> None:
    tiny = {"crop": (2, 2), "settings": ViewSettings(), "batch": 1, "unlabeled_batch": batch, "unlabeled": pool}
    made = maker(request=ViewRequest(mixing="box", pairs=pairs), **tiny)
    repeated = 0
    for step in range(170):
        result = made(torch.tensor(step))
        first = result.weak_index[: len(result.partner)]
        assert len(first) == batch
        assert len(result.weak_index) == (2 * batch if pairs == "independent" else batch)
        assert bool((first != result.weak_index[result.partner]).all())
        assert 0 <= int(result.weak_index.min()) <= int(result.weak_index.max()) < pool
        repeated += len(set(first.tolist())) < batch
    assert (repeated > 0) == (pool % batch > 0)  # only a pass that ends within a batch can repeat an image


def test_labels_follow_their_images() -> None:
    """Images painted in the color of their labels: wherever no edge is blended, both show the same."""
    masks = [mask.repeat_interleave(8, 1).repeat_interleave(8, 2) for mask in noise_images([(4, 5)] * 5, 1, high=4)]
    labels, images = flat_images(masks), flat_images([mask * 50 for mask in masks])
    made = BatchMaker(
        images, labels, None, settings=ViewSettings(class_crops=0.3), crop=(30, 30),
        request=ViewRequest(unlabeled=False), seed=0, batch=16, unlabeled_batch=16,
    )  # fmt: skip
    batch = made(torch.tensor(0))
    shown = batch.image[:, 0] * 255 / 50
    known = (batch.label != IGNORE) & ((shown - shown.round()).abs() < 1e-4)
    assert float(known.float().mean()) > 0.4
    # A blend of classes 0 and 2 may look like class 1, but rarely
    assert float((shown.round().long() == batch.label)[known].float().mean()) > 0.97
    assert torch.equal(batch.label == IGNORE, batch.image[:, 0] == 0.5)


def test_without_unlabeled_images_their_part_is_empty() -> None:
    request = ViewRequest(unlabeled=False, strong=1)
    batch = maker(request=request, unlabeled=0)(torch.tensor(0))
    assert_same(batch, maker(request=request, unlabeled=9)(torch.tensor(0)))
    assert batch.weak.shape == batch.strong[0].shape == (0, 3, *CROP)
    assert batch.valid.shape == batch.box.shape == (0, *CROP)
    assert len(batch.partner) == len(batch.weak_index) == len(batch.weak_position) == 0


def test_without_mixing_nothing_is_pasted() -> None:
    batch = maker(request=ViewRequest(strong=1), unlabeled_batch=1)(torch.tensor(0))
    assert not bool(batch.box.any())
    assert int(batch.partner[0]) == 0


def test_strong_views_share_the_geometry_and_differ_in_color() -> None:
    batch = maker(settings=ViewSettings(color_probability=1.0))(torch.tensor(2))
    first, second = batch.strong
    assert not torch.equal(first, second)
    assert not torch.equal(first, batch.weak)
    plain = maker(settings=ViewSettings(color_probability=0.0))(torch.tensor(2))
    assert torch.equal(plain.strong[0], batch.weak)
    assert torch.equal(plain.strong[1], batch.weak)
    assert torch.equal(batch.valid, plain.valid)
    assert not torch.equal(plain.image, batch.image)  # labeled_color
    uncolored = maker(settings=ViewSettings(color_probability=1.0), request=replace(EVERYTHING, labeled_color=False))
    assert torch.equal(uncolored(torch.tensor(2)).image, plain.image)


def test_valid_marks_padding_of_the_weak_view() -> None:
    batch = maker(settings=ViewSettings(scale=(0.5, 0.5)))(torch.tensor(0))
    assert 0 < int(batch.valid.sum()) < batch.valid.numel()
    padding = batch.weak.permute(0, 2, 3, 1)[~batch.valid]
    assert bool((padding == 0.5).all())


def rare_class_store() -> tuple[FlatImages, FlatImages]:
    """Twenty images of class 0; two hold a spot of class 3, one a spot of class 5, all have an ignored edge."""
    masks = [torch.zeros(1, 64, 80, dtype=torch.uint8) for _ in range(20)]
    for mask in masks:
        mask[:, 0] = IGNORE
    masks[4][:, 10:13, 70:73] = 3
    masks[9][:, 50:53, 5:8] = 3
    masks[17][:, 30:33, 40:43] = 5
    return flat_images(noise_images([(64, 80)] * 20)), flat_images(masks)


def test_class_aware_crops_hold_a_class_drawn_evenly() -> None:
    images, labels = rare_class_store()
    options: dict[str, Any] = {"crop": (16, 16), "request": ViewRequest(unlabeled=False), "seed": 5, "batch": 600}

    def share_of(class_crops: float, label: int) -> float:
        settings = ViewSettings(class_crops=class_crops, scale=(0.7, 1.5))
        made = BatchMaker(images, labels, None, settings=settings, unlabeled_batch=1, **options)
        return float((made(torch.tensor(0)).label == label).flatten(1).any(1).float().mean())

    assert share_of(0.0, 3) < 0.02
    for class_crops in (0.6, 1.0):
        # Crops around class 0 or 3 hardly ever show class 5 by chance
        assert abs(share_of(class_crops, 5) - class_crops / 3) < 0.06
        assert abs(share_of(class_crops, 3) - class_crops / 3) < 0.06


def test_class_aware_crops_reach_all_images_and_pixels_of_a_class() -> None:
    images, labels = rare_class_store()
    settings = ViewSettings(class_crops=1.0)
    made = BatchMaker(
        images, labels, None, settings=settings, crop=(8, 8), request=ViewRequest(unlabeled=False), seed=0,
        batch=1, unlabeled_batch=1, num_classes=6,
    )  # fmt: skip
    anchors = made.choice.anchors
    assert anchors is not None
    assert anchors.count.tolist() == [4096, 18, 9]
    spots = {(int(i), int(y), int(x)) for i, y, x in zip(anchors.index[1], anchors.y[1], anchors.x[1], strict=True)}
    expected = {(4, y, x) for y in range(10, 13) for x in range(70, 73)}
    expected |= {(9, y, x) for y in range(50, 53) for x in range(5, 8)}
    assert spots - {(0, 0, 0)} == expected  # the rest of the row is not filled
    per_image = torch.bincount(anchors.index[0], minlength=20)
    assert int(per_image.min()) >= 4096 // 20
    assert bool((anchors.y[0] > 0).all())  # row 0 is ignored
    for label, row in ((0, 0), (3, 1), (5, 2)):
        for column in range(0, int(anchors.count[row]), 3):
            at = (anchors.index[row, column], anchors.y[row, column], anchors.x[row, column])
            assert int(labels.raw(int(at[0]))[0, at[1], at[2]]) == label


def test_masks_without_any_class_cannot_guide_crops() -> None:
    store = flat_images([torch.full((1, 4, 4), IGNORE, dtype=torch.uint8)])
    with pytest.raises(DataError, match="no labeled pixel"):
        BatchMaker(
            store, store, None, settings=ViewSettings(class_crops=0.1), crop=(2, 2),
            request=ViewRequest(unlabeled=False), seed=0, batch=1, unlabeled_batch=1,
        )  # fmt: skip


def test_double_precision_batches_hold_the_same_values() -> None:
    single, double = maker()(torch.tensor(1)), maker(dtype=torch.float64)(torch.tensor(1))
    assert double.image.dtype == double.weak.dtype == double.strong[0].dtype == torch.float64
    for name, tensor in tensors(single).items():
        assert torch.equal(tensor.double(), tensors(double)[name].double()), name
    assert double.label.dtype == torch.int64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unlabeled": 1}, "mixing pastes one unlabeled image into another"),
        ({"unlabeled_batch": 1}, "each of 1 gets 1"),
        ({"unlabeled_batch": 6, "world": 2}, "each of 2 gets 3"),
        ({"batch": 7, "world": 2}, "7 images per step do not divide among 2"),
        ({"unlabeled_batch": 7, "world": 2}, "7 images per step do not divide among 2"),
        ({"request": ViewRequest(mixing="cow")}, "unknown mixing 'cow'"),
        ({"unlabeled": 0}, "there are none"),
        ({"settings": ViewSettings(scale=(2.0, 1.0))}, "scale"),
        ({"settings": ViewSettings(color_magnitude=(1, 11))}, "no range out of 10"),
        ({"settings": ViewSettings(color_magnitude=(5, 4))}, "no range out of 10"),
    ],
)
def test_what_cannot_be_made_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        maker(**options)
    assert caught.value.where
    assert caught.value.fix


def test_stores_must_agree() -> None:
    images, other = flat_images(noise_images([(4, 5)])), flat_images(noise_images([(5, 4)], 1))
    options: dict[str, Any] = {"settings": ViewSettings(), "crop": (2, 2), "seed": 0, "batch": 1, "unlabeled_batch": 1}
    with pytest.raises(DataError, match="differ in size"):
        BatchMaker(images, other, None, request=ViewRequest(unlabeled=False), **options)
    labels = flat_images(noise_images([(4, 5)], 1))
    with pytest.raises(DataError, match="3 channels, unlabeled ones 1"):
        BatchMaker(images, labels, other, request=ViewRequest(), **options)


def faked(mode: FakeTensorMode, images: FlatImages) -> FlatImages:
    moved = (mode.from_tensor(tensor) for tensor in (images.values, images.offset, images.height, images.width))
    return FlatImages(*moved, channels=images.channels)


def test_a_batch_is_made_without_asking_the_host() -> None:
    """Fake tensors hold no values: whatever needs one on the host raises."""
    made = maker()
    real = tensors(made(torch.tensor(0)))
    mode = FakeTensorMode()
    made.labeled, made.labels, made.pool = (faked(mode, store) for store in (made.labeled, made.labels, made.pool))
    anchors = made.choice.anchors
    assert anchors is not None
    table = (anchors.index, anchors.y, anchors.x, anchors.count)
    faked_anchors = type(anchors)(*(mode.from_tensor(tensor) for tensor in table))
    made.choice = replace(made.choice, anchors=faked_anchors)
    with mode:
        step = torch.zeros(1, dtype=torch.int64).sum()  # a faked scalar would still know its value
        fake = tensors(made(step))
        with pytest.raises(DataDependentOutputException):
            step.item()
    for name, tensor in real.items():
        assert (fake[name].shape, fake[name].dtype) == (tensor.shape, tensor.dtype), name


def test_description() -> None:
    line = describe_views(ViewSettings(class_crops=0.25), (256, 320), EVERYTHING)
    assert line == (
        "crop 256x320, scale 0.75 to 2, flip, 25% class-aware crops, "
        "color operations (2 of magnitude 1 to 9, p 0.5) on labeled images and 2 strong views, box mixing"
    )
    plain = describe_views(ViewSettings(flip=False, scale=(1.0, 1.0)), (64, 64), ViewRequest(unlabeled=False))
    assert plain == "crop 64x64, scale 1 to 1"
