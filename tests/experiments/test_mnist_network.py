"""The perceptron keeps the contract of a segmentation network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fewmask.errors import ConfigError
from fewmask.experiments.mnist_network import digit_network
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.randomness import Noise, Randomness

WIDTH = 12


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def noise(learner: str, dropout: float = 0.5, survival: float = 1.0) -> Noise:
    return Noise(Randomness(0, torch.tensor(4)), learner, torch.arange(3), dropout, survival)


def numpy_layers(network: SegmentationNetwork) -> list[tuple[np.ndarray, np.ndarray]]:
    layers = [network.backbone.layer, network.head.embedding[0], network.head.classifier]
    return [
        (layer.weight.detach().numpy().reshape(len(layer.bias), -1), layer.bias.detach().numpy()) for layer in layers
    ]


def test_three_layers_against_numpy():
    network = digit_network(WIDTH, seed=3)
    prediction = network(images())
    (one, a), (two, b), (three, c) = numpy_layers(network)
    flat = (images().numpy().reshape(3, -1) - 0.1307) / 0.3081
    features = np.maximum(np.maximum(flat @ one.T + a, 0) @ two.T + b, 0)
    assert prediction.features.shape == (3, WIDTH, 1, 1)
    assert prediction.logits.shape == (3, 10, 1, 1)
    np.testing.assert_allclose(prediction.features.detach().numpy()[:, :, 0, 0], features, atol=1e-4)
    np.testing.assert_allclose(prediction.logits.detach().numpy()[:, :, 0, 0], features @ three.T + c, atol=1e-4)


def test_what_methods_ask_of_it():
    network = digit_network(WIDTH, seed=0)
    assert isinstance(network, SegmentationNetwork)
    assert (network.num_classes, network.feature_channels, network.stride) == (10, WIDTH, 28)
    trained = [*network.backbone_parameters(), *network.head_parameters()]
    assert {id(one) for one in trained} == {id(one) for one in network.parameters()}


def test_a_seed_is_an_initialization_and_leaves_the_generator_alone():
    before = torch.random.get_rng_state()
    one, same, other = (digit_network(WIDTH, seed=seed)(images()).logits for seed in (7, 7, 8))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_only_noise_makes_a_pass_random_and_each_learner_has_its_own():
    network = digit_network(WIDTH, seed=0).train()
    clean = network(images())
    assert torch.equal(clean.logits, network(images()).logits)
    first, again, second = (network(images(), noise(f"student_{i}")) for i in (1, 1, 2))
    assert torch.equal(first.logits, again.logits)
    assert not torch.equal(first.logits, second.logits)
    assert not torch.equal(first.logits, clean.logits)
    assert torch.equal(first.features, clean.features)  # dropout acts behind the features


def test_it_has_no_residual_block_to_drop():
    with pytest.raises(ConfigError, match="no residual blocks"):
        digit_network(WIDTH, seed=0)(images(), noise("student_1", survival=0.8))
