"""Rectification and prototypes against plain numpy loops (RML, Eqs. 6 to 12)."""

import numpy as np
import pytest
import torch

from fewmask.labels import IGNORE
from fewmask.learning.prototypes import FEWEST_PIXELS, PAPER_SPREAD, Prototypes, class_sums, coarse_label
from fewmask.learning.rectification import (
    hard_label,
    mean_log_probability,
    prototype_confidence,
    prototype_distance,
    rectified,
    total_variation,
)

K, D = 4, 6


def example(seed: int = 0, size: tuple[int, int] = (3, 5)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, D, *size, generator=generator)
    center = torch.randn(K, D, generator=generator)
    soft = torch.randn(2, K, *size, generator=generator).softmax(1)
    return features, center, soft


def loop_confidence(features, center, temperature, prior):
    """Eq. 10, pixel by pixel."""
    features, center = features.double().numpy(), center.double().numpy()
    result = np.zeros((len(features), K, *features.shape[2:]))
    for n, y, x in np.ndindex(len(features), *features.shape[2:]):
        weights = [prior[k] * np.exp(-temperature * np.linalg.norm(features[n, :, y, x] - center[k])) for k in range(K)]
        result[n, :, y, x] = np.array(weights) / np.sum(weights)
    return result


def test_distance_is_the_unsquared_norm():
    features, center, _ = example()
    expected = (features[:, None] - center[None, :, :, None, None]).norm(dim=2)
    torch.testing.assert_close(prototype_distance(features, center), expected, atol=1e-5, rtol=1e-5)


def test_distances_and_sums_stay_float32_under_autocast():
    """Two prototypes whose distances differ by less than bfloat16 can tell must not swap places on a GPU."""
    features, center, _ = example()
    label = torch.randint(0, K, (2, 3, 5), generator=torch.Generator().manual_seed(7))
    with torch.autocast("cpu", torch.bfloat16):
        distance, sums = prototype_distance(features, center), class_sums(features, label, K)
    assert torch.equal(distance, prototype_distance(features, center))
    assert torch.equal(sums, class_sums(features, label, K))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("prior", [(0.25,) * 4, (0.7, 0.1, 0.1, 0.1)])
def test_confidence_is_equation_10(temperature, prior):
    features, center, _ = example()
    given = None if len(set(prior)) == 1 else torch.tensor(prior)
    got = prototype_confidence(features, center, torch.ones(K, dtype=torch.bool), temperature=temperature, prior=given)
    np.testing.assert_allclose(got.exp().numpy(), loop_confidence(features, center, temperature, prior), atol=1e-5)


def test_rectified_label_is_equation_6():
    features, center, soft = example(1)
    weight = loop_confidence(features, center, 1.0, (0.25,) * 4)
    expected = (weight * soft.double().numpy()).argmax(1)
    confidence = prototype_confidence(features, center, torch.ones(K, dtype=torch.bool), temperature=1.0)
    probability = rectified(soft.log(), confidence)
    label = hard_label(probability, torch.ones(2, 3, 5, dtype=torch.bool))
    assert np.array_equal(label.numpy(), expected)
    assert (expected != soft.argmax(1).numpy()).any()  # the example does flip some labels
    np.testing.assert_allclose(probability.sum(1).numpy(), 1, atol=1e-6)


def test_a_class_without_a_prototype_gets_no_weight():
    features, center, soft = example(2)
    known = torch.tensor([True, False, True, True])
    confidence = prototype_confidence(features, center, known, temperature=1.0)
    assert float(confidence[:, 1].exp().max()) == 0.0
    assert not (rectified(soft.log(), confidence).argmax(1) == 1).any()


def test_threshold_and_padding_become_ignore():
    probability = torch.tensor([[[[0.9, 0.6, 0.9]], [[0.1, 0.4, 0.1]]]])
    valid = torch.tensor([[[True, True, False]]])
    assert hard_label(probability, valid, 0.7).tolist() == [[[0, IGNORE, IGNORE]]]
    assert hard_label(probability, valid).tolist() == [[[0, 0, IGNORE]]]


def test_total_variation_by_hand():
    one = torch.tensor([0.5, 0.5, 0.0]).reshape(1, 3, 1, 1)
    other = torch.tensor([0.2, 0.5, 0.3]).reshape(1, 3, 1, 1)
    assert total_variation(one, other).item() == pytest.approx(0.3)
    assert total_variation(one, one).item() == 0.0


def test_mean_log_probability_is_the_mean_of_softmaxes():
    one, other = torch.randn(2, K, 2, 2).softmax(1), torch.randn(2, K, 2, 2).softmax(1)
    torch.testing.assert_close(mean_log_probability([one, other]), ((one + other) / 2).log())


def test_class_sums_by_loop():
    features, _, _ = example(3)
    label = torch.randint(0, K, (2, 3, 5), generator=torch.Generator().manual_seed(4))
    label[0, 0] = IGNORE
    got = class_sums(features, label, K)
    for n in range(2):
        for k in range(K):
            cells = [features[n, :, y, x] for y in range(3) for x in range(5) if label[n, y, x] == k]
            expected = torch.stack(cells).sum(0) if cells else torch.zeros(D)
            torch.testing.assert_close(got[n, k, :-1], expected, atol=1e-5, rtol=1e-5)
            assert got[n, k, -1] == len(cells)


def test_prototypes_are_the_mean_over_images_of_class_means():
    """Eq. 11 with equal weight per image, not per pixel, and at least ten pixels of the class."""
    prototypes = Prototypes(2, 1)
    features = torch.zeros(2, 1, 5, 5)
    features[0], features[1] = 1.0, 4.0
    prediction = torch.ones(2, 5, 5, dtype=torch.int64)
    prediction[0, 0] = 0  # five pixels of class 0: too few to count
    prediction[1, :, :3] = 0  # fifteen
    prototypes.clear()
    prototypes.collect(features, prediction, None)
    prototypes.settle()
    assert prototypes.center[1].item() == pytest.approx((1.0 + 4.0) / 2)  # 20 and 10 pixels weigh the same
    assert prototypes.center[0].item() == pytest.approx(4.0)
    assert prototypes.known.tolist() == [True, True]


def test_a_class_hardly_predicted_starts_from_labeled_truth():
    prototypes = Prototypes(3, 1)
    features = torch.full((1, 1, 4, 4), 2.0)
    features[0, 0, 0, 0] = 7.0
    prediction = torch.zeros(1, 4, 4, dtype=torch.int64)
    truth = torch.zeros(1, 4, 4, dtype=torch.int64)
    truth[0, 0, 0] = 1
    prototypes.clear()
    prototypes.collect(features, prediction, truth)
    prototypes.settle()
    assert prototypes.center[1].item() == pytest.approx(7.0)
    assert prototypes.known.tolist() == [True, True, False]
    assert FEWEST_PIXELS == 10


def test_moving_is_equation_12_and_leaves_absent_classes_alone():
    prototypes = Prototypes(3, 2)
    prototypes.center.copy_(torch.tensor([[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]))
    prototypes.known.copy_(torch.tensor([True, True, False]))
    sums = torch.tensor([[30.0, 0.0, 10.0], [0.0, 0.0, 0.0], [8.0, 4.0, 4.0]])
    prototypes.move(sums, 0.9)
    torch.testing.assert_close(prototypes.center[0], 0.9 * torch.tensor([1.0, 1.0]) + 0.1 * torch.tensor([3.0, 0.0]))
    assert prototypes.center[1].tolist() == [2.0, 2.0]
    assert prototypes.center[2].tolist() == [2.0, 1.0]  # first seen now: starts at the batch's mean
    assert prototypes.known.tolist() == [True, True, True]


def swept(*features: torch.Tensor) -> Prototypes:
    prototypes = Prototypes(2, features[0].shape[1])
    prototypes.clear()
    for each in features:
        prototypes.collect(each, torch.zeros(len(each), *each.shape[2:], dtype=torch.int64), None)
    prototypes.settle()
    return prototypes


def test_the_temperature_brings_features_to_the_scale_of_the_papers():
    """Cells at 10 + 3 and 10 - 3 in one channel and at 0 in the other lie 3 from their mean: T = 16 / 3."""
    features = torch.zeros(1, 2, 1, 2)
    features[0, 0, 0] = torch.tensor([13.0, 7.0])
    prototypes = swept(features)
    assert prototypes.spread.item() == pytest.approx(3.0)
    assert prototypes.temperature().item() == pytest.approx(16 / 3)
    assert Prototypes(2, 2).temperature().item() == 1.0  # nothing was measured yet


def test_the_spread_counts_every_cell_of_the_sweep_once():
    many = [5 + 2 * torch.randn(n, D, 3, 4, generator=torch.Generator().manual_seed(n)) for n in (1, 3, 2)]
    cells = torch.cat([each.movedim(1, -1).reshape(-1, D) for each in many]).double().numpy()
    expected = np.sqrt(np.mean(np.sum((cells - cells.mean(0)) ** 2, 1)))
    assert swept(*many).spread.item() == pytest.approx(expected, rel=1e-5)


def test_confidence_does_not_depend_on_the_scale_of_the_features():
    """softmax(-T * d) with the measured T is the same for features and prototypes that are seven times as large."""
    features, center, _ = example(5)
    known = torch.ones(K, dtype=torch.bool)
    got = [
        prototype_confidence(s * features, s * center, known, temperature=swept(s * features).temperature())
        for s in (1.0, 7.0)
    ]
    torch.testing.assert_close(got[0], got[1], atol=1e-4, rtol=1e-4)


def test_a_group_norm_feature_of_256_channels_has_the_papers_spread():
    normalized = torch.nn.GroupNorm(32, 256)(torch.randn(4, 256, 9, 9, generator=torch.Generator().manual_seed(0)))
    assert swept(normalized.detach()).spread.item() == pytest.approx(PAPER_SPREAD, rel=0.01)


def test_features_that_are_all_the_same_leave_a_finite_temperature():
    prototypes = swept(torch.full((2, D, 3, 3), 4.0))
    assert torch.isfinite(prototypes.temperature())


def test_coarse_label_reads_cell_centers():
    label = torch.arange(16).reshape(1, 4, 4)
    assert coarse_label(label, (2, 2)).tolist() == [[[5, 7], [13, 15]]]


def test_drift_is_relative_to_the_start_of_the_stage():
    """Classes that the sweep found: one has moved by half its length, one by nothing; one came later."""
    prototypes = Prototypes(3, 2)
    prototypes.labeled.copy_(torch.tensor([[6.0, 8.0, 2.0], [0.0, 5.0, 1.0], [0.0, 0.0, 0.0]]))
    prototypes.settle()
    assert prototypes.center.tolist() == [[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]
    assert prototypes.drift().item() == 0.0
    prototypes.center.copy_(torch.tensor([[4.5, 6.0], [0.0, 5.0], [9.0, 9.0]]))
    assert prototypes.drift().item() == pytest.approx((2.5 / 5 + 0) / 2)
    assert "start" not in prototypes.state_dict()  # a resumed stage sweeps again
    assert Prototypes(3, 2).drift().item() == 0.0
