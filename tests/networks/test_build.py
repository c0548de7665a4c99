"""Seeds, normalization, precision and the report."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fewmask.errors import ConfigError
from fewmask.networks.build import build_network, network_report
from tests.networks.small import images, network, noise, settings, vit_settings


def flat(net):
    return torch.cat([parameter.flatten() for parameter in net.parameters()])


def test_a_seed_fixes_the_weights_and_disturbs_no_one():
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first, again, other = (build_network(settings(), num_classes=5, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(flat(first), flat(again))
    assert torch.equal(flat(first), flat(build_network(settings(), num_classes=5, seed=3)))
    assert not torch.equal(flat(first), flat(other))


def test_the_input_is_normalized_by_the_backbones_own_numbers():
    net = network()
    color = torch.tensor([0.485, 0.456, 0.406])[:, None, None].expand(1, 3, 32, 32)
    assert torch.equal((color - net.mean) / net.std, torch.zeros(1, 3, 32, 32))
    torch.testing.assert_close(net.std.flatten(), torch.tensor([0.229, 0.224, 0.225]))
    assert torch.equal(build_network(vit_settings(), num_classes=2).mean.flatten(), torch.full((3,), 0.5))


@pytest.mark.parametrize("channels", [1, 4])
def test_other_images_than_rgb_get_the_average(channels):
    net = network(channels=channels)
    assert net.mean.flatten().tolist() == pytest.approx([0.449] * channels)
    assert net(images(1, channels, 32, 32)).logits.isfinite().all()


def test_asked_mean_and_deviation_are_used():
    plain, shifted = network(mean=(0.0,), std=(1.0,)), network(mean=(0.25, 0.5, 0.75), std=(0.5, 0.5, 0.5))
    pictures = images(1, 3, 32, 32)
    moved = (pictures - torch.tensor([0.25, 0.5, 0.75])[:, None, None]) / 0.5
    torch.testing.assert_close(shifted(pictures).logits, plain(moved).logits)
    with pytest.raises(ConfigError, match="1 or 3 values"):
        network(mean=(0.1, 0.2))


@pytest.mark.parametrize("settings_for", [settings, vit_settings])
def test_double_precision_end_to_end(settings_for):
    net = build_network(settings_for(), num_classes=5)
    pictures, draws = images(2, 3, 64, 64, dtype=torch.float64), noise([0, 1], dropout=0.5, survival=0.5)
    single = net.eval()(pictures.float(), draws)
    double = net.double()(pictures, draws)
    assert {double.logits.dtype, double.features.dtype} == {torch.float64}
    torch.testing.assert_close(single.logits.double(), double.logits, atol=1e-4, rtol=1e-4)


def test_scores_are_not_rounded_to_bfloat16():
    net, pictures = network(), images(2, 3, 32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = net(pictures)
    exact = torch.einsum("kd,ndhw->nkhw", net.head.classifier.weight[:, :, 0, 0], prediction.features)
    torch.testing.assert_close(prediction.logits, exact)
    assert (prediction.logits != prediction.logits.bfloat16().float()).any()


def test_a_noisy_pass_asks_the_host_for_nothing():
    with FakeTensorMode(allow_non_fake_inputs=True):
        net = network(dropout_kind="element").train()
        prediction = net(torch.rand(2, 3, 32, 32), noise([0, 1], dropout=0.5, survival=0.8))
        prediction.logits.sum().backward()
    assert prediction.logits.shape == (2, 5, 4, 4)


def test_the_report_counts_by_hand():
    asked = settings(head="sum4", stride=4)
    net = build_network(asked, num_classes=5)
    report = network_report(net, asked)
    assert report.parameters - report.backbone_parameters == 4 * (5 * (24 + 8) * 9 + 5)
    assert (report.stride, report.feature_channels, report.residual_blocks) == (4, 32, 4)
    assert "features at stride 8, enlarged and joined with those at stride 4" in report.text()
    assert "weights: drawn at random" in report.text()


@pytest.mark.parametrize("settings_for", [settings, vit_settings])
def test_frozen_norms_answer_as_in_evaluation_and_still_learn(settings_for):
    net = build_network(settings_for(frozen_norm=True), num_classes=5)
    assert all(module.training for module in (net, net.backbone, net.head))
    norms = list(net.batch_norms())
    for norm in norms:
        torch.nn.init.uniform_(norm.running_mean, -0.2, 0.2)
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    pictures = images(3, 3, 64, 64)
    answer = net.eval().train()(pictures).logits
    answer.square().sum().backward()
    torch.testing.assert_close(dict(net.named_buffers()), before, rtol=0, atol=0)
    assert all(norm.weight.grad.any() and norm.bias.grad.any() for norm in norms)
    assert torch.equal(net.eval()(pictures).logits, answer)
    assert f"{len(norms)} BatchNorm layers keep their statistics" in network_report(net, settings_for()).text()
    assert "keep their statistics" not in network_report(network(), settings()).text()
