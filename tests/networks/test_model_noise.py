"""Dropout and stochastic depth against numpy and against the blocks themselves."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch

from fewmask.errors import ConfigError
from fewmask.networks.build import build_network
from fewmask.networks.model_noise import ResidualGate
from tests.networks.small import NARROW, TINY_VIT, images, network, noise, settings, vit_settings


@pytest.mark.parametrize(("kind", "size"), [("channel", (1, 1)), ("element", (4, 6))])
def test_dropout_switches_off_exactly_what_the_addressed_numbers_say(kind, size):
    net, draws = network(dropout_kind=kind), noise([4, 9], dropout=0.3)
    prediction = net(images(2, 3, 32, 48), draws)
    uniform = draws.uniform("dropout", 16, *size).numpy()
    features = prediction.features.detach().numpy()
    kept = np.where(uniform >= 0.3, features / 0.7, 0.0)
    weight = net.head.classifier.weight.detach().numpy()[:, :, 0, 0]
    assert np.mean(uniform < 0.3) == pytest.approx(0.3, abs=0.2)
    np.testing.assert_allclose(prediction.logits.detach().numpy(), np.einsum("kd,ndhw->nkhw", weight, kept), atol=1e-5)


def test_features_are_those_before_dropout():
    net, pictures = network(), images(2, 3, 32, 48)
    assert torch.equal(net(pictures, noise([0, 1], dropout=0.5)).features, net(pictures).features)


@pytest.mark.parametrize("training", [False, True])
def test_without_noise_train_and_eval_give_the_same_bits(training):
    net = network(backbone="convnext_atto", options={"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)})
    pictures = images(2, 3, 32, 64)
    expected = net.eval()(pictures)
    net.train(training)
    for silent in (None, noise([0, 1], dropout=0.0, survival=1.0)):
        assert torch.equal(net(pictures, silent).logits, expected.logits)


def test_batchnorm_is_all_that_train_changes():
    net, pictures = network().train(), images(4, 3, 32, 32)
    assert torch.equal(net(pictures).logits, net(pictures).logits)
    assert not torch.allclose(net(pictures).logits, net.eval()(pictures).logits)


def test_a_pass_with_noise_leaves_torchs_generator_alone_and_repeats():
    net, pictures = network(), images(2, 3, 32, 32)
    state = torch.random.get_rng_state()
    first = net(pictures, noise([0, 1], dropout=0.5, survival=0.5)).logits
    again = net(pictures, noise([0, 1], dropout=0.5, survival=0.5)).logits
    other = net(pictures, noise([0, 1], step=4, dropout=0.5, survival=0.5)).logits
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("settings_for", [settings, vit_settings], ids=["resnet", "vit"])
def test_a_samples_noise_does_not_depend_on_its_batch(settings_for):
    net = build_network(settings_for(), num_classes=5).double().eval()
    pictures, rates = images(3, 3, 64, 96, dtype=torch.float64), {"dropout": 0.4, "survival": 0.6}
    together = net(pictures, noise([0, 1, 5], **rates)).logits
    for row, position in enumerate((0, 1, 5)):
        alone = net(pictures[row : row + 1], noise([position], **rates)).logits
        torch.testing.assert_close(alone[0], together[row], atol=1e-12, rtol=0)


def test_a_dropped_block_is_its_shortcut_exactly():
    net = network()
    block = net.backbone.body.layer2[0]
    seen = {}
    block.register_forward_hook(lambda module, inputs, output: seen.update(given=inputs[0], got=output))
    block.downsample.register_forward_hook(lambda module, inputs, output: seen.update(shortcut=output))
    net(images(2, 3, 32, 32), noise([0, 1], survival=1e-9))
    assert torch.equal(seen["got"], torch.relu(seen["shortcut"]))


def test_each_block_draws_for_itself_and_scales_what_it_keeps():
    net, draws = network(), noise(list(range(6)), survival=0.5)
    gates = [module for module in net.modules() if isinstance(module, ResidualGate)]
    branch = images(6, 2, 3, 3) + 1
    kept = draws.uniform("depth", 4).numpy().T < 0.5  # [gates, N]
    with net.backbone.noise.set_to(draws):
        for gate, row in zip(gates, kept, strict=True):
            expected = branch.numpy() * (row / np.float32(0.5))[:, None, None, None]
            np.testing.assert_array_equal(gate(branch).numpy(), expected)
    assert len({tuple(row) for row in kept}) == len(gates) == 4


@pytest.mark.parametrize("survival", [0.3, 0.8])
def test_the_mean_over_many_samples_is_the_undisturbed_branch(survival):
    backbone = network().backbone
    with backbone.noise.set_to(noise(list(range(20000)), survival=survival)):
        mean = backbone.noise.gates[0](torch.ones(20000, 1)).mean()
    deviation = ((1 - survival) / survival / 20000) ** 0.5
    assert mean.item() == pytest.approx(1.0, abs=4 * deviation)


def test_linear_depth_falls_from_one_to_the_survival_rate():
    net = network(stochastic_depth_rule="linear")
    gates = [module for module in net.modules() if isinstance(module, ResidualGate)]
    np.testing.assert_allclose([gate.survival(0.7) for gate in gates], [1.0, 0.9, 0.8, 0.7])
    net.backbone.body.layer1[0].drop_path.register_forward_hook(
        lambda module, inputs, output: None if output is inputs[0] else pytest.fail("the first block was disturbed")
    )
    net(images(1, 3, 32, 32), noise([0], survival=0.1))


def test_linear_depth_drops_at_each_blocks_own_rate():
    net, draws = network(stochastic_depth_rule="linear"), noise(list(range(8)), survival=0.1)
    gates = net.backbone.noise.gates
    uniform = draws.uniform("depth", 4).numpy().T  # [gates, N]
    with net.backbone.noise.set_to(draws):
        assert gates[0].keep is None
        for gate, row, rate in zip(gates[1:], uniform[1:], (0.7, 0.4, 0.1), strict=True):
            np.testing.assert_allclose(gate(torch.ones(8, 1)).numpy()[:, 0], (row < rate) / rate, rtol=1e-6)


def test_constant_depth_is_the_same_everywhere():
    gates = [module for module in network().modules() if isinstance(module, ResidualGate)]
    assert [gate.survival(0.8) for gate in gates] == [pytest.approx(0.8)] * 4


@pytest.mark.parametrize(
    ("backbone", "blocks", "gates"),
    [
        ("resnet18", 8, 8),
        ("resnet50", 16, 16),
        ("mobilenetv2_100", 10, 10),  # 17 blocks, 7 of which change size and have no shortcut
        ("mobilenetv3_small_100", 6, 6),
        ("convnext_atto", 12, 12),
        ("vit_tiny_patch16_224", 12, 24),
        ("lcnet_035", 0, 0),
    ],
)
def test_every_residual_block_is_gated_once_per_branch(backbone, blocks, gates):
    head = {"head": "sum2", "stride": 16, "options": {}}
    net = network(backbone=backbone, **head)
    found = [module for module in net.modules() if isinstance(module, ResidualGate)]
    assert net.backbone.residual_blocks == blocks
    assert len(found) == gates
    assert set(net.backbone.noise.gates) == set(found)


def test_a_vit_whose_blocks_are_all_dropped_is_its_embedded_patches():
    net = build_network(vit_settings(), num_classes=2).eval()
    pictures = images(2, 3, 64, 64)
    model = net.backbone.body.model
    with torch.no_grad(), net.backbone.noise.set_to(noise([0, 1], survival=1e-9)):
        tokens = model._pos_embed(model.patch_embed(pictures))[:, 1:]
        expected = tokens.transpose(1, 2).reshape(2, 24, 4, 4)
        (maps,) = net.backbone(pictures, noise([0, 1], survival=1e-9))
        torch.testing.assert_close(maps, expected, atol=0, rtol=0)


def test_gates_change_nothing_of_timms_own_network():
    net = network()
    plain = timm.create_model("resnet10t", features_only=True, output_stride=8, **NARROW).eval()
    plain.load_state_dict(net.backbone.body.state_dict())
    pictures = images(2, 3, 32, 32)
    (maps,) = net.backbone(pictures)
    assert torch.equal(maps, plain(pictures)[-1])


def test_the_noise_is_forgotten_after_an_error():
    net = network()
    with pytest.raises(RuntimeError):
        net(images(2, 2, 32, 32)[:, :1].expand(2, 4, 32, 32)[:, :3, :1, :0], noise([0, 1], survival=0.5))
    assert all(gate.keep is None for gate in net.backbone.noise.gates)


def test_a_copy_has_its_own_noise():
    net = network()
    twin = copy.deepcopy(net)
    with net.backbone.noise.set_to(noise([0], survival=1e-9)):
        for own, other in zip(net.backbone.noise.gates, twin.backbone.noise.gates, strict=True):
            assert torch.equal(own(torch.ones(1, 1)), torch.zeros(1, 1))
            assert torch.equal(other(torch.ones(1, 1)), torch.ones(1, 1))
    assert {*twin.backbone.noise.gates} <= {*twin.modules()}


def test_stochastic_depth_without_residual_blocks_is_an_error():
    net = network(backbone="lcnet_035", head="sum2", stride=16, options={})
    assert not net.supports_stochastic_depth
    net(images(1, 3, 32, 32), noise([0], dropout=0.5))
    with pytest.raises(ConfigError, match="no residual blocks"):
        net(images(1, 3, 32, 32), noise([0], survival=0.8))


def test_noise_that_leaves_nothing_or_fits_another_batch_is_an_error():
    with pytest.raises(ConfigError, match="dropout from 0 to below 1"):
        network()(images(1, 3, 32, 32), noise([0], dropout=1.0))
    with pytest.raises(ValueError, match="1 images but noise for 2"):
        network()(images(1, 3, 32, 32), noise([0, 1], dropout=0.5))


@pytest.mark.parametrize(
    "asked",
    [
        vit_settings(options={**TINY_VIT, "attn_drop_rate": 0.5, "proj_drop_rate": 0.5, "pos_drop_rate": 0.5}),
        settings(options={**NARROW, "drop_block_rate": 0.5}),
    ],
    ids=["vit", "resnet"],
)
def test_timms_own_dropout_is_off(asked):
    net = build_network(asked, num_classes=2).train()
    net.head.eval()
    pictures = images(1, 3, 64, 64)
    assert torch.equal(net(pictures).logits, net(pictures).logits)
