"""Strides that are really obtained, how, and the errors when they cannot be had."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F

from fewmask.determinism import deterministic
from fewmask.errors import ConfigError
from fewmask.networks.backbones import available_strides, create_backbone, enlarged
from fewmask.networks.catalog import BACKBONES, HEADS, list_networks
from tests.networks.small import NARROW, images, network, settings, vit_settings


@pytest.mark.parametrize("stride", [4, 8, 16, 32])
@pytest.mark.parametrize("backbone", ["resnet10t", "mobilenetv2_050", "convnext_atto", "pvt_v2_b0"])
def test_features_come_at_exactly_the_asked_stride(backbone, stride):
    net = network(backbone=backbone, head="sum2", stride=stride, options={})
    features = net(images(1, 3, 64, 128)).features
    assert features.shape[2:] == (64 // stride, 128 // stride)
    assert net.stride == stride


def test_sizes_are_rounded_up():
    assert network()(images(1, 3, 41, 67)).logits.shape[2:] == (6, 9)
    assert network(stride=4)(images(1, 3, 41, 67)).logits.shape[2:] == (11, 17)


def test_stride_4_joins_the_dilated_features_with_the_fine_ones():
    backbone = create_backbone(settings(stride=4), 3).eval()
    plain = timm.create_model("resnet10t", features_only=True, output_stride=8, **NARROW).eval()
    plain.load_state_dict(backbone.body.state_dict())
    pictures = images(2, 3, 40, 56)
    levels = plain(pictures)
    enlarged = F.interpolate(levels[4], size=levels[1].shape[2:], mode="bilinear", align_corners=False)
    (joined,) = backbone(pictures)
    assert torch.equal(joined, torch.cat([enlarged, levels[1]], 1))


def test_cells_of_two_levels_lie_over_each_other_at_any_size():
    """A ramp along the image, seen at cells of 16 pixels, is the same ramp at cells of 4, but near the ends."""
    fine, deep = torch.zeros(1, 1, 23, 25), torch.arange(7.0).expand(1, 1, 6, 7)  # 90 x 100 pixels
    middle = (torch.arange(7) + 0.5) * 16
    ramp = enlarged(middle[deep.long()], 4, like=fine)
    expected = (torch.arange(25) + 0.5) * 4
    assert ramp.shape == fine.shape
    torch.testing.assert_close(ramp[0, 0, 11, 2:], expected[2:])


@pytest.mark.parametrize("size", [(24, 28), (23, 25)])
def test_features_are_enlarged_alike_in_deterministic_mode(size: tuple[int, int]):
    """There as matrix products; the values and their gradient are those of interpolation, at any size."""
    deep, fine = torch.randn(2, 3, 6, 7, dtype=torch.float64, requires_grad=True), torch.zeros(2, 1, *size)
    weight = torch.randn(2, 3, *size, dtype=torch.float64)
    found = []
    for wanted in (False, True):
        with deterministic(wanted, torch.device("cpu")):
            maps = enlarged(deep, 4, like=fine)
            found.append((maps, *torch.autograd.grad((maps * weight).sum(), deep)))
    for plain, ordered in zip(*found, strict=True):
        torch.testing.assert_close(ordered, plain, rtol=0, atol=1e-12)


def test_heads_that_refine_get_both_levels():
    net = network(head="deeplabv3plus", stride=4, deep_stride=16)
    plain = timm.create_model("resnet10t", features_only=True, output_stride=16, **NARROW).eval()
    plain.load_state_dict(net.backbone.body.state_dict())
    pictures = images(2, 3, 40, 56)
    deep, fine = net.backbone(pictures)
    levels = plain(pictures)
    assert torch.equal(deep, levels[4])
    assert torch.equal(fine, levels[1])
    assert (net.stride, net.backbone.deep_stride, net.backbone.level_channels) == (4, 16, (24, 8))
    assert net(images(1, 3, 41, 67)).logits.shape[2:] == (11, 17)


def test_levels_that_cannot_be_had_apart_are_named():
    with pytest.raises(ConfigError) as caught:
        create_backbone(settings(head="deeplabv3plus", stride=32), 3)
    assert caught.value.what == "resnet10t has no features at stride 32 beside coarser ones, which deeplabv3plus joins"
    assert caught.value.fix == "4, 8, 16"
    assert create_backbone(settings(head="deeplabv3plus", stride=16, deep_stride=16), 3).deep_stride == 32
    with pytest.raises(ConfigError) as caught:
        create_backbone(vit_settings(head="deeplabv3plus", stride=4), 3)
    assert caught.value.fix == "network.head=setr_naive network.stride=16"
    assert create_backbone(vit_settings(head="setr_naive", stride=16), 3).deep_stride == 16


def test_a_network_that_cannot_be_dilated_is_refined_from_its_own_stride():
    backbone = create_backbone(
        settings(
            head="deeplabv3plus", stride=4, backbone="swin_tiny_patch4_window7_224", options={"depths": (1, 1, 1, 1)}
        ),
        3,
    )
    assert (backbone.stride, backbone.deep_stride, backbone.level_channels) == (4, 32, (768, 96))
    deep, fine = backbone.eval()(images(1, 3, 72, 40))
    assert (deep.shape, fine.shape) == ((1, 768, 3, 2), (1, 96, 18, 10))


def test_a_pyramid_transformer_is_joined_at_the_asked_stride():
    backbone = create_backbone(settings(backbone="swin_tiny_patch4_window7_224", options={"depths": (1, 1, 1, 1)}), 3)
    assert (backbone.stride, backbone.deep_stride, backbone.channels) == (8, 32, 768 + 192)
    assert [maps.shape for maps in backbone.eval()(images(1, 3, 72, 40))] == [(1, 960, 9, 5)]


def test_a_stride_that_cannot_be_had_lists_those_that_can():
    with pytest.raises(ConfigError) as caught:
        create_backbone(vit_settings(stride=8), 3)
    assert "cannot give features at stride 8" in caught.value.what
    assert (caught.value.where, caught.value.fix) == ("network.stride", "16")
    with pytest.raises(ConfigError) as caught:
        create_backbone(settings(stride=32, options={**NARROW, "out_indices": (0, 1, 2, 3)}), 3)
    assert caught.value.fix == "4, 8, 16"


def test_a_patch_of_14_pixels_has_no_stride_to_offer():
    options = {"embed_dim": 24, "depth": 3, "num_heads": 2, "img_size": 56}
    with pytest.raises(ConfigError, match="another backbone"):
        create_backbone(settings(backbone="vit_small_patch14_dinov2", stride=16, options=options), 3)


def test_a_network_can_stop_at_an_earlier_level():
    backbone = create_backbone(settings(options={**NARROW, "out_indices": (0, 1, 2, 3)}), 3)
    assert (backbone.channels, backbone.residual_blocks) == (16, 3)


def test_an_unknown_backbone_gets_close_names():
    with pytest.raises(ConfigError) as caught:
        create_backbone(settings(backbone="resnet5O"), 3)
    assert "resnet50" in caught.value.fix


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_stride": 8}, "use network.stride"),
        ({"drop_path_rate": 0.1}, "survival"),
        ({"patch_drop_rate": 0.1}, "a map needs all of its patches"),  # in train mode it has a part of them
        ({"depht": 3}, "unexpected keyword argument 'depht'"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(ConfigError, match=message):
        create_backbone(settings(options=options), 3)


def test_a_backbone_of_one_image_size_says_so():
    options = {"img_size": 64, "embed_dim": 24, "depth": 3, "num_heads": 2}
    net = network(backbone="beit_base_patch16_224", stride=16, head="setr_naive", options=options)
    assert net.backbone.only_size == (64, 64)
    net(images(1, 3, 64, 64))
    with pytest.raises(ConfigError, match=r"takes images of \(64, 64\) only, not \(64, 80\)"):
        net(images(1, 3, 64, 80))


def test_probing_leaves_batchnorm_statistics_at_their_start():
    state = create_backbone(settings(), 3).state_dict()
    assert all((value == 0).all() for name, value in state.items() if name.endswith(("running_mean", "tracked")))


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv2_100", "vit_tiny_patch16_224"])
def test_the_catalog_tells_the_truth(name):
    millions, strides, _ = BACKBONES[name]
    asked = settings(backbone=name, stride=strides[-1], options={})
    assert tuple(available_strides(asked)) == strides
    count = sum(parameter.numel() for parameter in create_backbone(asked, 3).parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.05)


def test_the_catalog_names_real_models_and_all_heads():
    rows = list_networks()
    assert all(timm.is_model(row["name"]) for row in rows if row["kind"] == "backbone")
    assert (
        {row["name"] for row in rows if row["kind"] == "head"}
        == set(HEADS)
        == {"deeplabv2", "deeplabv3plus", "sum4", "sum2", "setr_naive"}
    )
    assert "features_only" in rows[-1]["about"]
