"""Batches from a store that reaches the device step by step are those from a store that lies there."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from pictures import flat_images, noise_images, random_sizes
from test_sampler import EVERYTHING, maker, tensors
from torch import Tensor

from fewmask.types import Batch, PixelMaps, ViewRequest
from fewmask.views.sampler import BatchMaker
from fewmask.views.soft_label_codes import CODES
from fewmask.views.staging import Staging

STEPS = (0, 1, 2, 2, 9, 10, 3, 1000)  # in order, again, a jump ahead as after a resume, and one back
CPU = torch.device("cpu")


def all_tensors(batch: Batch) -> dict[str, Tensor]:
    return tensors(batch) | dict(batch.stored)


def maps_of(sizes: list[tuple[int, int]], code: str) -> PixelMaps:
    """Random soft labels of three classes at stride 8."""
    height, width = (-(-torch.tensor(side) // 8) for side in zip(*sizes, strict=True))
    cells = height * width
    rows = torch.randn(int(cells.sum()), 3, generator=torch.Generator().manual_seed(5)).log_softmax(1)
    return PixelMaps(CODES[code].encode(rows), cells.cumsum(0) - cells, height, width, code, 3)


def stored_maker(**options: Any) -> BatchMaker:
    """The pool of `maker`, which has images of nine sizes, with soft labels."""
    sizes = random_sizes(9, seed=3, low=12, high=40)
    maps = {"half": maps_of(sizes, "fp16"), "bytes": maps_of(sizes, "uint8")}
    return maker(maps=maps, strides={"half": 8, "bytes": 8}, **options)


def staged(made: BatchMaker) -> BatchMaker:
    made.stage_unlabeled()
    made.stage_labeled()
    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"request": ViewRequest(mixing="box", pairs="independent")},
        {"batch": 4, "rank": 1, "world": 2},
        {"unlabeled_batch": 20},  # more than there are
    ],
)
def test_batches_are_those_of_a_resident_store(options: dict[str, Any]) -> None:
    resident, other = stored_maker(**options), staged(stored_maker(**options))
    for step in STEPS:
        wanted, found = all_tensors(resident.at(step)), all_tensors(other.at(step))
        assert wanted.keys() == found.keys()
        for name, tensor in wanted.items():
            assert torch.equal(tensor, found[name]), (step, name)
        mine, theirs = (each.unlabeled_windows(torch.tensor(step)) for each in (resident, other))
        assert torch.equal(mine.index, theirs.index)
        assert torch.equal(mine.left, theirs.left)
    other.close()


def test_a_batch_of_labeled_images_alone() -> None:
    request = replace(EVERYTHING, unlabeled=False, mixing="none", strong=0)
    resident, other = maker(request=request), maker(request=request)
    other.stage_labeled()
    for name, tensor in tensors(resident.at(3)).items():
        assert torch.equal(tensor, tensors(other.at(3))[name]), name


def test_sixteen_bits_reach_the_slots_as_they_are() -> None:
    images = flat_images(noise_images([(5, 7), (9, 4), (3, 3)], seed=8, high=65536), gap=11)
    stage = Staging({"images": images}, {}, lambda step: torch.tensor([2, 0, 1, 0]).roll(step), device=CPU)
    for step in (0, 1, 5):
        stage.hold(step)
        for slot, index in enumerate(torch.tensor([2, 0, 1, 0]).roll(step).tolist()):
            assert torch.equal(stage.images["images"].raw(slot), images.raw(index))
    stage.close()


def watched() -> tuple[Staging, list[int]]:
    """A stage, and the steps that were asked for; step 7 has an image that does not exist."""
    images, asked = flat_images(noise_images([(2, 3), (4, 2)])), list[int]()

    def choose(step: int) -> Tensor:
        asked.append(step)
        return torch.tensor([step % 2 if step != 7 else 99])

    return Staging({"images": images}, {}, choose, device=CPU), asked


def test_the_next_step_is_fetched_before_it_is_asked_for() -> None:
    stage, asked = watched()
    del asked[:]
    stage.hold(3)
    stage.settle()
    assert asked == [3, 4]
    stage.hold(4)
    stage.hold(4)
    stage.settle()
    assert asked == [3, 4, 5]
    stage.close()


def test_slots_stay_where_they_are_and_keep_their_step_until_the_next() -> None:
    stage, _ = watched()
    images = stage.images["images"]
    stage.hold(0)
    before, place = images.raw(0).clone(), images.values.data_ptr()
    stage.settle()  # the next one has been gathered
    assert torch.equal(images.raw(0), before)
    stage.hold(1)
    assert stage.images["images"].values.data_ptr() == place
    assert images.raw(0).shape == (3, 4, 2)
    stage.close()


def test_an_error_in_the_thread_is_raised_in_the_step_that_needs_the_images() -> None:
    stage, _ = watched()
    stage.hold(6)  # sends for 7, which goes wrong, and nobody needs it yet
    with pytest.raises(IndexError):
        stage.hold(7)
    stage.hold(8)
    assert stage.images["images"].raw(0).shape == (3, 2, 3)
    stage.close()


def test_the_thread_ends_with_the_stage() -> None:
    def threads() -> int:
        return sum(thread.name.startswith("staging") for thread in threading.enumerate())

    before = threads()
    stage, _ = watched()
    assert threads() == before
    stage.hold(0)
    assert threads() == before + 1
    stage.close()
    assert threads() == before
    stage.hold(1)  # as when a finished run is looked at again
    stage.close()
    assert threads() == before


def test_pixels_of_another_step_are_never_taken_for_the_one_asked_for() -> None:
    made = staged(maker())
    made.stage(2)
    made(torch.tensor(2))
    with pytest.raises(AssertionError, match="step 3 was asked for"):
        made(torch.tensor(3))
    made.close()
