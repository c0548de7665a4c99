"""Which images a step sees, and that whatever is drawn for a sample is drawn apart from everything else."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from pictures import flat_images
from test_sampler import CROP, EVERYTHING, maker, tensors
from torch import Tensor

from fewmask.randomness import Randomness
from fewmask.types import ViewRequest
from fewmask.views.anchors import Anchors, find_anchors
from fewmask.views.choice import Choice
from fewmask.views.geometry import draw_windows, sample_images, sample_labels
from fewmask.views.mixing import box_mask
from fewmask.views.photometric import color_noise

INDEPENDENT = ViewRequest(strong=2, mixing="box", pairs="independent")


def choice(*, seed: int = 0, request: ViewRequest = INDEPENDENT, anchors: Anchors | None = None) -> Choice:
    """A hundred images of either kind, ten of each in a step."""
    return Choice(seed, 100, 100, 10, 10, request, 0.0 if anchors is None else 0.5, anchors)


def one_pass(chosen: Choice, part: str) -> Tensor:
    """What the first ten steps see, [100]; of unlabeled images the first or the second of each pair."""
    steps = [torch.tensor(step) for step in range(10)]
    if part == "labeled":
        return torch.cat([chosen.labeled_images(step)[0] for step in steps])
    return torch.cat([chosen.unlabeled_images(step).chunk(2)[part == "partners"] for step in steps])


def test_labeled_images_unlabeled_ones_and_partners_have_an_order_each_and_so_has_every_seed() -> None:
    """Two independent orders agree in one place on average; also when one of them is shifted by a place or a number."""
    parts = ("labeled", "unlabeled", "partners")
    orders = [one_pass(choice(seed=seed), part) for seed in (0, 1) for part in parts]
    for order, part in zip(orders, parts * 2, strict=True):
        assert len(order.unique()) >= (95 if part == "partners" else 100)  # a partner may have had to give way
    for first, second in combinations(orders, 2):
        for other in (second, second.roll(1), second.roll(-1), (second + 1) % 100, (second - 1) % 100):
            assert int((first == other).sum()) <= 8


def squares() -> Anchors:
    """Two images of 64 x 64, the left half class 0 and the right one class 1."""
    label = torch.zeros(1, 64, 64, dtype=torch.uint8)
    label[..., 32:] = 1
    return find_anchors(flat_images([label, label]), 2)


def test_class_crops_are_drawn_anew_in_every_step() -> None:
    chosen = choice(anchors=squares())
    centers = [chosen.labeled_images(torch.tensor(step))[1] for step in range(40)]
    used = torch.stack([center.used for center in centers if center])  # [40, 10]
    assert 2 <= int(used.sum(0).min()) <= int(used.sum(0).max()) <= 38
    pixels = torch.stack([64 * center.y + center.x for center in centers if center])
    assert all(len(column.unique()) >= 35 for column in pixels.T)


def test_a_class_and_its_pixel_are_drawn_apart() -> None:
    """Each class shows the upper and the lower image half and both images equally often."""
    index, y, x = squares().draw(Randomness(0, torch.tensor(0)), "s", torch.arange(4000))
    for label in (x < 32, x >= 32):
        assert abs(int(label.sum()) - 2000) < 160
        for half in (index == 0, y < 32, x % 32 < 16):
            assert abs(float(half[label].float().mean()) - 0.5) < 0.06


def test_pixels_of_a_class_come_from_all_images_alike_whatever_their_size() -> None:
    sizes = ((100, 100), (40, 50), (70, 70))
    anchors = find_anchors(flat_images([torch.zeros(1, *size, dtype=torch.uint8) for size in sizes]), 1)
    assert torch.bincount(anchors.index[0]).tolist() == [1366, 1365, 1365]


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_make_the_batch_of_independent_pairs(world: int) -> None:
    sizes = {"batch": 8, "unlabeled_batch": 16, "request": INDEPENDENT}
    whole = tensors(maker(**sizes)(torch.tensor(3)))
    parts = [tensors(maker(**sizes, rank=rank, world=world)(torch.tensor(3))) for rank in range(world)]
    assert whole["weak_position"].tolist() == list(range(32))  # the second of a pair has its own crop and color
    assert whole["partner"].tolist() == list(range(16, 32))
    for name, tensor in whole.items():
        if name == "partner":
            continue
        pieces = [part[name].chunk(2) if len(tensor) == 32 else [part[name]] for part in parts]
        joined = [torch.cat(half) for half in zip(*pieces, strict=True)]
        assert torch.equal(tensor, torch.cat(joined)), name


@pytest.mark.parametrize("pairs", ["batch", "independent"])
def test_each_draw_has_a_stream_of_its_own_at_its_samples_position(pairs: str) -> None:
    """Pinned: another address changes every run and breaks resuming, and a shared one would tie two draws together."""
    made = maker(request=replace(EVERYTHING, pairs=pairs))
    batch, random, look = made(torch.tensor(5)), Randomness(11, torch.tensor(5)), made.settings
    options = {"crop": CROP, "scale": look.scale, "flip": look.flip}
    windows = draw_windows(random, "unlabeled", batch.weak_position, made.pool, batch.weak_index, **options)
    assert torch.equal(batch.weak, sample_images(made.pool, windows, CROP))
    for view, strong in enumerate(batch.strong, 1):
        assert torch.equal(strong, color_noise(random, f"strong/{view}", batch.weak_position, batch.weak, look))
    assert torch.equal(batch.box, box_mask(random, "box", torch.arange(8), CROP))
    index, center = made.choice.labeled_images(torch.tensor(5))
    windows = draw_windows(random, "labeled", torch.arange(6), made.labeled, index, **options, center=center)
    assert torch.equal(batch.label, sample_labels(made.labels, windows, CROP))
    plain = sample_images(made.labeled, windows, CROP)
    assert torch.equal(batch.image, color_noise(random, "labeled/color", torch.arange(6), plain, look))
