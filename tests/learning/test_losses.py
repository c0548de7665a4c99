"""Losses against hand-computed numbers, numpy loops and torch."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fewmask.config import LossSettings
from fewmask.labels import IGNORE
from fewmask.learning.losses import (
    LabeledLoss,
    cross_entropies,
    cross_entropy,
    dice,
    hard_cross_entropy,
    inverse_frequency_weights,
)
from fewmask.types import Loss, Scores


def example(seed: int = 0, size: tuple[int, int] = (5, 6), classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, classes, *size, generator=generator, dtype=torch.float64)
    label = torch.randint(0, classes, (2, *size), generator=generator)
    label[0, :2, :3] = IGNORE
    return logits, label


def pixel_losses(logits: torch.Tensor, label: torch.Tensor) -> np.ndarray:
    values = np.full(label.shape, np.nan)
    for n, y, x in np.ndindex(*label.shape):
        if label[n, y, x] != IGNORE:
            scores = logits[n, :, y, x].numpy()
            values[n, y, x] = np.log(np.exp(scores).sum()) - scores[int(label[n, y, x])]
    return values


def test_two_pixels_by_hand():
    logits = torch.tensor([[[[0.0, 0.0]], [[math.log(3), 0.0]]]])  # p(class 1) = 3/4, then 1/2
    loss = cross_entropy(logits, torch.tensor([[[1, 0]]]))
    assert loss.terms[0].count == 2
    assert loss.value().item() == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)


def test_mean_over_labeled_pixels_only():
    logits, label = example()
    assert cross_entropy(logits, label).value().item() == pytest.approx(
        np.nanmean(pixel_losses(logits, label)), abs=1e-12
    )


def test_several_labels_at_once_give_each_label_its_own_loss():
    logits, label = example()
    other = torch.where(label == IGNORE, 1, (label + 1) % 4)
    coarse = logits[:, :, ::2, ::2]
    counted = torch.rand(label.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    for together, alone in zip(cross_entropies(coarse, [label, other], counted), (label, other), strict=True):
        expected = cross_entropy(coarse, alone)
        assert together.terms[0].total.item() == pytest.approx(expected.terms[0].total.item(), abs=1e-12)
        assert together.terms[0].count.item() == counted.sum().item()


def test_dropped_pixels_stay_in_the_denominator():
    logits, label = example()
    kept = torch.rand(label.shape, generator=torch.Generator().manual_seed(1)) > 0.5
    losses = pixel_losses(logits, label)
    expected = np.nansum(losses * kept.numpy()) / np.isfinite(losses).sum()
    assert cross_entropy(logits, label, pixel_weight=kept.double()).value().item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-6])  # 1e-6: such as one over the pixels of a class
def test_class_weights_follow_torch(scale: float):
    logits, label = example()
    weights = scale * torch.tensor([1.0, 0.2, 3.0, 0.0], dtype=torch.float64)
    expected = F.cross_entropy(logits, label, weight=weights, ignore_index=IGNORE)
    assert cross_entropy(logits, label, class_weights=weights).value().item() == pytest.approx(
        expected.item(), abs=1e-12
    )


def test_nothing_labeled_is_zero_and_has_a_gradient():
    logits = torch.randn(1, 3, 2, 2, requires_grad=True)
    loss = cross_entropy(logits, torch.full((1, 2, 2), IGNORE)).value()
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_coarse_logits_are_enlarged_to_the_label():
    logits, label = example(size=(8, 8))
    coarse = logits[:, :, ::2, ::2]
    enlarged = F.interpolate(coarse, size=(8, 8), mode="bilinear", align_corners=False)
    expected = F.cross_entropy(enlarged, label, ignore_index=IGNORE)
    assert cross_entropy(coarse, label).value().item() == pytest.approx(expected.item(), abs=1e-12)


def test_enlarged_scores_are_not_rounded_in_mixed_precision():
    logits, label = example(size=(8, 8))
    coarse = logits[:, :, ::2, ::2].float()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = cross_entropy(coarse, label).value()
    assert mixed.item() == cross_entropy(coarse, label).value().item()


@pytest.mark.parametrize(
    ("threshold", "keep"), [(0.7, 0.1), (0.05, 0.5), (0.01, 0.3), (0.3, 0.0), (0.0, 0.5), (1.0, 1.0)]
)
def test_hard_pixels_by_loop(threshold: float, keep: float):
    logits, label = example(3)
    losses = pixel_losses(logits, label).reshape(2, -1)
    total, count = 0.0, 0
    for row in losses:
        row = np.sort(row[np.isfinite(row)])[::-1]
        fewest = max(1, math.ceil(len(row) * keep))
        easy = -math.log(threshold) if threshold > 0 else math.inf  # losses from here on are hard
        hard = [value for rank, value in enumerate(row) if rank < fewest or value >= easy]
        total, count = total + sum(hard), count + len(hard)
    loss = hard_cross_entropy(logits, label, threshold=threshold, keep=keep)
    assert loss.terms[0].count == count
    assert loss.value().item() == pytest.approx(total / count, abs=1e-12)


def test_dice_by_loop():
    logits, label = example(4)
    label[1] = torch.where(label[1] == 2, 0, label[1])  # a class that is in one image only
    probability = logits.softmax(1).numpy()
    values = []
    for n in range(2):
        valid = label[n].numpy() != IGNORE
        for k in np.unique(label[n].numpy()[valid]):
            truth = (label[n].numpy() == k) & valid
            shared = probability[n, k][truth].sum()
            values.append(1 - 2 * shared / (probability[n, k][valid].sum() + truth.sum()))
    assert dice(logits, label).value().item() == pytest.approx(np.mean(values), abs=1e-9)


def test_perfect_prediction_has_no_dice_loss():
    label = torch.randint(0, 3, (1, 6, 6))
    logits = 100.0 * F.one_hot(label, 3).permute(0, 3, 1, 2).double()
    assert dice(logits, label).value().item() == pytest.approx(0, abs=1e-9)


def test_labeled_loss_adds_dice_with_its_weight():
    logits, label = example()
    combined = LabeledLoss(LossSettings(kind="dice", dice_weight=0.5))(Scores(logits), label)
    expected = cross_entropy(logits, label).value() + 0.5 * dice(logits, label).value()
    assert combined.value().item() == pytest.approx(expected.item())
    assert [term.name for term in combined.terms] == ["labeled", "labeled_dice"]


def test_labeled_loss_follows_its_settings():
    logits, label = example()
    weights = torch.tensor([1.0, 0.2, 3.0, 0.5], dtype=torch.float64)
    for kind in ("cross_entropy", "dice"):
        (first, *_) = LabeledLoss(LossSettings(kind=kind), weights)(Scores(logits), label).terms
        expected = F.cross_entropy(logits, label, weight=weights, ignore_index=IGNORE)
        assert (first.total / first.count).item() == pytest.approx(expected.item(), abs=1e-12)
    hard = LabeledLoss(LossSettings(kind="ohem", ohem_threshold=0.02, ohem_keep=0.6))(Scores(logits), label)
    expected = hard_cross_entropy(logits, label, threshold=0.02, keep=0.6)
    assert hard.terms[0].count == expected.terms[0].count == 18 + 15  # of 30 and 24 pixels
    assert hard.value() == expected.value()


def test_auxiliary_scores_add_their_weight_of_the_same_loss():
    """Two pixels by hand: p of the label is 3/4 and 1/2; in one earlier layer 1/4 and 1/2, in the other 1/2 twice."""
    label = torch.tensor([[[1, 0]]])
    main, one, other = (torch.tensor([[[[0.0, 0.0]], [[odds, 0.0]]]]) for odds in (math.log(3), -math.log(3), 0.0))
    loss = LabeledLoss(LossSettings())(Scores(main, (one, other), 0.4), label)
    by_hand = [(math.log(4 / 3) + math.log(2)) / 2, (math.log(4) + math.log(2)) / 2, math.log(2)]
    assert [term.name for term in loss.terms] == ["labeled", "labeled_auxiliary_1", "labeled_auxiliary_2"]
    assert [term.weight for term in loss.terms] == [1.0, 0.4, 0.4]
    assert [(term.total / term.count).item() for term in loss.terms] == pytest.approx(by_hand)
    assert loss.value().item() == pytest.approx(by_hand[0] + 0.4 * by_hand[1] + 0.4 * by_hand[2])


@pytest.mark.parametrize("kind", ["cross_entropy", "ohem", "dice"])
def test_auxiliary_scores_have_the_loss_that_the_settings_ask_for(kind: str):
    (logits, label), (earlier, _) = example(), example(5)
    weights = torch.tensor([1.0, 0.2, 3.0, 0.5], dtype=torch.float64)
    labeled_loss = LabeledLoss(LossSettings(kind=kind, dice_weight=0.5), weights)
    together = labeled_loss(Scores(logits, (earlier,), 0.4), label).value()
    alone = [labeled_loss(Scores(each), label).value() for each in (logits, earlier)]
    assert together.item() == pytest.approx((alone[0] + 0.4 * alone[1]).item(), abs=1e-12)


def test_scores_are_split_along_the_batch():
    logits, earlier = (torch.arange(12.0).reshape(6, 2, 1, 1) + start for start in (0, 100))
    first, second, third = Scores(logits, (earlier, -earlier), 0.4).split([1, 2, 3])
    for part, rows in ((first, slice(0, 1)), (second, slice(1, 3)), (third, slice(3, 6))):
        assert torch.equal(part.logits, logits[rows])
        assert [each.tolist() for each in part.auxiliary] == [earlier[rows].tolist(), (-earlier)[rows].tolist()]
        assert part.auxiliary_weight == 0.4
    assert [part.auxiliary for part in Scores(logits).split([2, 4])] == [(), ()]


def test_inverse_frequency_by_hand():
    weights = inverse_frequency_weights(torch.tensor([90, 10, 0]))
    # 1/0.9 and 1/0.1 scaled to a mean of 1 over the two classes that occur
    scale = 2 / (1 / 0.9 + 1 / 0.1)
    assert weights.tolist() == pytest.approx([scale / 0.9, scale / 0.1, 0.0])


def test_loss_algebra_keeps_sums_and_counts():
    one = Loss.mean("a", torch.tensor(6.0), torch.tensor(3.0))
    two = Loss.mean("b", torch.tensor(1.0), torch.tensor(0.0))
    combined = 2.0 * one + 0.5 * two
    assert combined.value().item() == pytest.approx(2 * 2 + 0.5 * 1)  # an empty count divides by one
    assert [(term.name, float(term.weight)) for term in combined.terms] == [("a", 2.0), ("b", 0.5)]
