"""A cell every `stride` pixels from the image's edge, whatever the network and the image's size."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from fewmask.errors import ConfigError
from fewmask.networks.backbones import Backbone, create_backbone
from fewmask.networks.build import build_network, network_report
from fewmask.networks.catalog import BACKBONES, HEADS
from fewmask.networks.compilation import compile_blocks
from fewmask.networks.folding import FoldedTwin
from fewmask.networks.recomputation import recompute_blocks, split_passes
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.networks.whole_cells import Filling
from tests.networks.small import TINY_VIT, images, noise, settings, vit_settings

ODD = (65, 97)  # one more than a multiple of every stride
SHORTENED: dict[str, dict[str, Any]] = {  # large ones are shown whole to one head, and with few layers to the others
    "resnet50": {"layers": (1, 1, 1, 1)},
    "resnet101": {"layers": (1, 1, 1, 1)},
    "convnext_tiny": {"depths": (1, 1, 1, 1)},
    "vit_base_patch16_384": {"depth": 3},
}
FREE = ("test_resnet", "mobilenetv2_050", "test_efficientnet")  # all cells by themselves
BOUND = ("test_convnext", "hrnet_w18_small", "edgenext_xx_small", "legacy_seresnet18")


def cells(size: tuple[int, int], stride: int) -> tuple[int, ...]:
    return tuple(-(-side // stride) for side in size)


def body(name: str, **changes: Any) -> Backbone:
    return create_backbone(settings(**{"backbone": name, "options": {}, **changes}), 3).eval()


def convnext(**changes: Any) -> SegmentationNetwork:
    changes = {"backbone": "test_convnext", "head": "deeplabv3plus", "stride": 4, "options": {}, **changes}
    return build_network(settings(**changes), num_classes=3)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", BACKBONES)
@torch.no_grad()
def test_every_network_of_the_catalog_has_all_cells(name, head):
    strides = BACKBONES[name][1]
    whole = head == ("deeplabv2" if len(strides) > 1 else "setr_naive")
    stride = strides[0] if head == "deeplabv3plus" or len(strides) == 1 else 8
    asked = settings(backbone=name, head=head, stride=stride, options={} if whole else SHORTENED.get(name, {}))
    if head == "deeplabv3plus" and len(strides) == 1:
        with pytest.raises(ConfigError, match="setr_naive"):
            build_network(asked, num_classes=3)
        return
    prediction = build_network(asked, num_classes=3).eval()(images(1, 3, *ODD))
    assert prediction.logits.shape[2:] == prediction.features.shape[2:] == cells(ODD, stride)
    assert prediction.logits.isfinite().all()


@pytest.mark.parametrize("name", [*FREE, *BOUND, "pvt_v2_b0", "resnetblur18"])
@torch.no_grad()
def test_both_levels_have_all_cells_at_any_size(name):
    backbone = body(name, head="deeplabv3plus", stride=4)
    for size in (ODD, (1, 1), (5, 40), (31, 33), (90, 120)):
        deep, fine = backbone(images(1, 3, *size))
        assert deep.shape[2:] == cells(size, backbone.deep_stride)
        assert fine.shape[2:] == cells(size, 4)


@pytest.mark.parametrize("name", FREE)
@torch.no_grad()
def test_networks_that_round_up_get_the_image_as_it_is(name):
    backbone, pictures = body(name, stride=8), images(2, 3, *ODD)
    untouched = timm.create_model(name, features_only=True, output_stride=8).eval()
    untouched.load_state_dict(backbone.body.state_dict())
    assert backbone.filling == Filling(1, 1)
    assert backbone.filling.filled(pictures) is pictures
    assert torch.equal(backbone(pictures)[0], untouched(pictures)[-1])


@pytest.mark.parametrize("name", BOUND)
@torch.no_grad()
def test_other_networks_get_it_with_the_mean_color_around(name):
    backbone, pictures = body(name, head="deeplabv3plus", stride=4), images(2, 3, *ODD)
    multiple = backbone.filling.multiple
    assert 1 < multiple <= backbone.deep_stride
    missing = [-side % multiple for side in ODD]
    *_, last = backbone.body(F.pad(pictures, (0, missing[1], 0, missing[0])))
    deep, _ = backbone(pictures)
    assert torch.equal(deep, last[:, :, : deep.shape[2], : deep.shape[3]])
    even = images(1, 3, 2 * multiple, 3 * multiple)
    assert backbone.filling.filled(even) is even


@pytest.mark.parametrize("name", ["test_convnext", "edgenext_xx_small"])
@torch.no_grad()
def test_a_cell_answers_for_its_own_pixels(name):
    """The last row and column, too, of which only one pixel is inside the image."""
    backbone, dark = body(name, head="deeplabv3plus", stride=4), torch.zeros(1, 3, *ODD)
    for row, column in ((0, 0), (7, 20), (16, 3), (2, 24), (16, 24)):
        bright = dark.clone()
        bright[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 3
        changed = (backbone(bright)[1] - backbone(dark)[1]).norm(dim=1)[0]  # [h, w]
        assert divmod(int(changed.argmax()), changed.shape[1]) == (row, column)


@torch.no_grad()
def test_cells_are_those_of_the_same_image_on_a_larger_canvas():
    """Of one block a stage, the deepest cells see about 200 pixels beside them and the fine ones 16."""
    shallow = {"depths": (1, 1, 1, 1), "ls_init_value": None}
    backbone, (height, width) = body("test_convnext", head="deeplabv3plus", stride=4, options=shallow), (351, 383)
    draws = torch.Generator().manual_seed(0)
    for parameter in backbone.parameters():
        parameter.uniform_(-0.3, 0.3, generator=draws)  # a fresh network makes zeros of the mean color, as of nothing
    pictures = images(1, 3, height, width)
    canvas = F.pad(pictures, (0, 416 - width, 0, 416 - height))
    for small, large, reach, stride in zip(backbone(pictures), backbone(canvas), (200, 16), (16, 4), strict=True):
        alike = (small - large[:, :, : small.shape[2], : small.shape[3]]).abs().amax((0, 1)) < 1e-3  # [h, w]
        inside = ((height - reach) // stride, (width - reach) // stride)
        assert alike[: inside[0], : inside[1]].all()
        assert not alike[-1].any()  # the test can tell


def test_a_training_pass_asks_the_host_for_nothing():
    net = convnext().train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        prediction = net(torch.rand(2, 3, *ODD), noise([0, 1], dropout=0.5, survival=0.8))
        prediction.logits.sum().backward()
    assert prediction.logits.shape == (2, 3, *cells(ODD, 4))


def test_recomputed_and_split_passes_have_the_same_gradients():
    plain, saving = (convnext(head="deeplabv2", stride=8) for _ in range(2))
    recompute_blocks(saving)
    split_passes(saving, 2)
    pictures, draws = images(3, 3, *ODD), noise([0, 1, 2], dropout=0.5, survival=0.8)
    answers = [net(pictures, draws).logits for net in (plain, saving)]
    torch.testing.assert_close(*answers)
    for answer in answers:
        answer.square().sum().backward()
    gradients = [[parameter.grad for parameter in net.parameters()] for net in (plain, saving)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_compiled_blocks_and_folded_norms_answer_the_same():
    pictures, net = images(1, 3, *ODD), convnext().eval()
    answer = net(pictures).logits
    compile_blocks(net, backend="eager")
    torch.testing.assert_close(net(pictures).logits, answer)

    net = convnext(backbone="legacy_seresnet18").eval()
    twin = FoldedTwin(net, fused=True)
    assert len(twin.layers) > 15
    torch.testing.assert_close(twin(pictures).logits, net(pictures).logits, rtol=1e-4, atol=1e-5)


def test_auxiliary_heads_of_a_transformer_that_wants_whole_patches():
    options = {**TINY_VIT, "depth": 4}
    asked = vit_settings(backbone="samvit_base_patch16_224", auxiliary_weight=0.4, options=options)
    net = build_network(asked, num_classes=3)
    assert net.backbone.filling == Filling(16, 16)
    prediction = net(images(2, 3, *ODD))
    maps = (prediction.logits, *prediction.auxiliary)
    assert [each.shape for each in maps] == [(2, 3, *cells(ODD, 16))] * 4


def test_a_stride_that_only_looks_right_is_refused():
    """Patches of 7 pixels, joined in pairs, are 14, but give as many cells of 64 x 96 as a stride of 16."""
    options = {"layers": (1, 1, 1, 1)}
    with pytest.raises(ConfigError, match="no cell every 16 pixels"):
        body("sequencer2d_s", head="setr_naive", stride=16, options=options)


def test_a_level_that_divides_its_own_size_by_chance_is_no_stride():
    with pytest.raises(ConfigError) as caught:  # 14, 7 and 4 cells of 224 pixels: 56 is no multiple of 16
        body("levit_128s", head="setr_naive", stride=16)
    assert "cannot give features at stride 16" in caught.value.what


def test_a_table_of_positions_that_ends_is_found_out():
    """Smaller images would pass, and larger ones end in an index that is out of bounds."""
    assert body("mvitv2_tiny").only_size == (224, 224)


def test_the_report_says_what_becomes_of_images():
    net = convnext()
    assert "filled up to multiples of 16 pixels" in network_report(net, settings()).text()
    free = build_network(settings(), num_classes=3)
    assert "filled up" not in network_report(free, settings()).text()
