"""Each head against a recomputation with plain functional calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fewmask.networks.build import seeded
from fewmask.networks.deeplab import deeplabv2, dilations, summed
from fewmask.networks.deeplab_plus import deeplabv3plus
from tests.networks.small import images, network


@pytest.mark.parametrize(
    ("stride", "expected"),
    [(4, (12, 24, 36, 48)), (8, (6, 12, 18, 24)), (16, (3, 6, 9, 12)), (32, (1, 3, 4, 6))],
)
def test_rates_keep_their_size_in_the_image(stride, expected):
    assert dilations(stride) == expected


def test_the_papers_head_is_what_the_text_says():
    head = deeplabv2(6, 5, width=64, stride=16).double()
    state = head.state_dict()
    maps = images(2, 6, 9, 7, dtype=torch.float64)
    outputs = []
    for index, rate in enumerate((0, 3, 6, 9, 12)):  # the first is 1x1
        weight, bias = state[f"embedding.branches.{index}.0.weight"], state[f"embedding.branches.{index}.0.bias"]
        assert weight.shape[2:] == ((1, 1) if rate == 0 else (3, 3))
        wide = F.conv2d(maps, weight, bias, padding=rate, dilation=max(rate, 1))
        outputs.append(wide.reshape(2, 8, 8 * 9 * 7))  # groups of eight channels
        mean = outputs[-1].mean(-1, keepdim=True)
        variance = outputs[-1].var(-1, unbiased=False, keepdim=True)
        outputs[-1] = ((outputs[-1] - mean) / (variance + 1e-5).sqrt()).reshape(2, 64, 9, 7).clamp(min=0)
    stacked = torch.cat(outputs, 1)
    squeezed = F.linear(
        stacked.mean((2, 3)), state["embedding.excitation.gate.0.weight"], state["embedding.excitation.gate.0.bias"]
    )
    assert squeezed.shape == (2, 5 * 64 // 16)
    gate = F.linear(
        squeezed.relu(), state["embedding.excitation.gate.2.weight"], state["embedding.excitation.gate.2.bias"]
    )
    stacked = stacked * torch.sigmoid(gate)[:, :, None, None]
    merged = F.conv2d(stacked, state["embedding.merge.0.weight"], state["embedding.merge.0.bias"], padding=1)
    feature = F.group_norm(merged, 8)
    assert (feature < 0).any()  # no activation after the last norm
    torch.testing.assert_close(head.embedding(maps), feature, atol=1e-10, rtol=0)
    scores = torch.einsum("kd,ndhw->nkhw", state["classifier.weight"][:, :, 0, 0], feature)
    torch.testing.assert_close(head.classifier(feature), scores, atol=1e-10, rtol=0)
    assert "classifier.bias" not in state


def test_group_norm_takes_groups_of_eight_or_what_divides_the_width():
    for width, groups in ((256, 32), (48, 6), (20, 2), (7, 1)):
        head = deeplabv2(3, 2, width=width, stride=8)
        assert {module.num_groups for module in head.modules() if isinstance(module, nn.GroupNorm)} == {groups}


def test_only_the_papers_head_knows_the_scale_of_its_feature():
    """GroupNorm sets it; that of other heads is the backbone's or BatchNorm's and has to be measured."""
    assert network(head="deeplabv2").temperature == 1.0
    assert [network(head=head).temperature for head in ("sum4", "sum2", "setr_naive")] == [None] * 3
    assert network(head="deeplabv3plus", stride=4).temperature is None


@pytest.mark.parametrize("branches", [2, 4])
def test_summed_heads_add_up_their_rates(branches):
    head = summed(3, 4, stride=8, branches=branches).double()
    maps = images(2, 3, 40, 40, dtype=torch.float64)
    state = head.classifier.state_dict()
    expected = torch.zeros(2, 4, 40, 40, dtype=torch.float64)
    for index, rate in enumerate((6, 12, 18, 24)[:branches]):
        weight, bias = state[f"branches.{index}.weight"], state[f"branches.{index}.bias"]
        expected += F.conv2d(maps, weight, bias, padding=rate, dilation=rate)
    torch.testing.assert_close(head.classifier(head.embedding(maps)), expected)
    assert len(state) == 2 * branches


def test_sum2_reaches_no_further_than_its_second_rate():
    reach = {}
    for name in ("sum2", "sum4"):
        head = summed(1, 1, stride=8, branches=int(name[-1]))
        maps = torch.zeros(1, 1, 61, 61, requires_grad=True)
        head.classifier(maps)[0, 0, 30, 30].backward()
        touched = maps.grad[0, 0].nonzero() - 30
        reach[name] = int(touched.abs().max())
    assert reach == {"sum2": 12, "sum4": 24}


def test_classic_heads_start_small_and_their_feature_is_the_backbones():
    net = network(head="sum4")
    assert net.feature_channels == net.backbone.channels == 24
    weights = torch.cat([parameter.flatten() for parameter in net.head_parameters() if parameter.ndim == 4])
    assert weights.std().item() == pytest.approx(0.01, rel=0.1)
    pictures = images(2, 3, 32, 32)
    (maps,) = net.backbone((pictures - net.mean) / net.std)
    assert torch.equal(net(pictures).features, maps)


def test_the_refined_pyramid_is_what_its_text_says():
    with seeded(0):
        head = deeplabv3plus((6, 5), 3, width=8, strides=(16, 4)).double().eval()
        state = {name: value + 0.1 * torch.rand_like(value) for name, value in head.state_dict().items() if value.ndim}
    head.load_state_dict(state, strict=False)  # norms that do something
    deep, fine = images(2, 6, 5, 7, dtype=torch.float64), images(2, 5, 18, 27, seed=1, dtype=torch.float64)

    def layer(name: str, maps: torch.Tensor, dilation: int = 1) -> torch.Tensor:
        weight = state[f"embedding.{name}.0.weight"]
        wide = F.conv2d(maps, weight, padding=dilation * (weight.shape[2] // 2), dilation=dilation)
        norm = [state[f"embedding.{name}.1.{part}"][:, None, None] for part in ("running_mean", "running_var")]
        scale = [state[f"embedding.{name}.1.{part}"][:, None, None] for part in ("weight", "bias")]
        return (wide - norm[0]) / (norm[1] + 1e-5).sqrt() * scale[0] + scale[1]

    branches = [layer(f"branches.{place}", deep, rate).relu() for place, rate in enumerate((1, 3, 6, 9))]
    weight, bias = (state[f"embedding.branches.4.project.0.{part}"] for part in ("weight", "bias"))
    mean = F.linear(deep.mean((2, 3)), weight[:, :, 0, 0], bias).relu()
    context = layer("merge", torch.cat([*branches, mean[:, :, None, None].expand(-1, -1, 5, 7)], 1)).relu()
    large = F.interpolate(context, size=(20, 28), mode="bilinear", align_corners=False)[:, :, :18, :27]
    feature = layer("refine.1", layer("refine.0", torch.cat([large, layer("reduce", fine).relu()], 1)).relu())
    assert (feature < 0).any()  # no activation after the last norm
    torch.testing.assert_close(head.embedding(deep, fine), feature, atol=1e-10, rtol=0)


def test_fine_features_are_cut_down_to_48_channels():
    """As in DeepLabv3+; narrow heads cut them down to their own width."""
    for width, left in ((256, 48), (32, 32)):
        state = deeplabv3plus((6, 64), 3, width=width, strides=(16, 4)).state_dict()
        assert state["embedding.reduce.0.weight"].shape == (left, 64, 1, 1)
        assert state["embedding.refine.0.0.weight"].shape == (width, width + left, 3, 3)


@pytest.mark.parametrize("head", ["deeplabv2", "deeplabv3plus", "sum4", "sum2", "setr_naive"])
def test_every_parameter_is_trained_and_belongs_to_one_group(head):
    net = network(head=head, stride=4).train()
    net(images(2, 3, 64, 64)).logits.square().sum().backward()
    groups = [*net.backbone_parameters(), *net.head_parameters()]
    assert {id(parameter) for parameter in groups} == {id(parameter) for parameter in net.parameters()}
    assert len(groups) == len(list(net.parameters()))
    assert all(parameter.grad is not None for parameter in groups)


@pytest.mark.parametrize("head", ["deeplabv2", "deeplabv3plus", "setr_naive"])
def test_all_classes_are_about_equally_likely_at_the_start(head):
    net = network(head=head, stride=4, width=256).train()
    probability = net(images(4, 3, 64, 64)).logits.softmax(1)
    assert 0.05 < probability.min().item() < probability.max().item() < 0.5
