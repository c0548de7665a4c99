"""Weight files: what matches, what is reported, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file

from fewmask.errors import CheckpointError, ConfigError
from fewmask.networks.build import build_network, network_report
from fewmask.networks.weight_matching import fitted_to_channels, match_weights
from tests.networks.small import NARROW, TINY_VIT, images, network, settings

SHARED = Path(__file__).parents[2] / ".." / "shared" / "weights"


def whole_model(backbone="resnet10t", **options):
    """A classifier as published weights come from, with other values than any seed of ours gives."""
    model = timm.create_model(backbone, **(options or NARROW))
    return {name: value + 0.125 if value.is_floating_point() else value for name, value in model.state_dict().items()}


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_file_replaces_every_backbone_tensor(tmp_path, ending):
    state, path = whole_model(), tmp_path / f"weights.{ending}"
    save_file(state, path) if ending == "safetensors" else torch.save(state, path)
    net = network(pretrained=str(path))
    for name, value in net.backbone.body.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert sorted(net.weights.unexpected) == ["fc.bias", "fc.weight"]
    assert not net.weights.missing
    count = sum(not name.endswith("tracked") for name in net.backbone.body.state_dict())
    assert f"{count} of {count} backbone tensors; 2 unexpected (fc." in net.weights.text()


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.backbone.", "network.teacher_1.encoder."])
def test_wrappers_and_prefixes_are_seen_through(tmp_path, wrapper, prefix):
    state = {prefix + name: value for name, value in whole_model().items()}
    state["classifier.4.weight"] = torch.zeros(3)
    torch.save(state if wrapper is None else {"epoch": 3, wrapper: state}, tmp_path / "weights.pt")
    net = network(pretrained=str(tmp_path / "weights.pt"))
    assert not net.weights.missing
    assert torch.equal(net.backbone.body.layer3[0].conv2.weight, state[prefix + "layer3.0.conv2.weight"])


def test_of_two_networks_in_a_file_every_process_takes_the_same():
    """Neither name is shorter; sets of words have another order in each process."""
    own = timm.create_model("resnet10t", features_only=True, **NARROW).state_dict()
    given = {f"{who}.{name}": torch.full_like(own[name], place) for place, who in enumerate("zyxab") for name in own}
    fitting, report = match_weights(own, given, "file")
    assert all((value == 3).all() for value in fitting.values())
    assert not report.missing
    assert len(report.unexpected) == 4 * report.total


@pytest.mark.parametrize(
    ("backbone", "stride", "options"),
    [
        ("convnext_atto", 8, {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}),  # stages.0 becomes stages_0
        ("mobilenetv3_small_050", 8, {}),
        ("vit_tiny_patch16_224", 16, TINY_VIT),  # moves below model.
        ("densenet121", 8, {}),
    ],
)
def test_timms_renamed_modules_are_found(tmp_path, backbone, stride, options):
    state = whole_model(backbone, **(options or {"num_classes": 2}))
    save_file(state, tmp_path / "weights.safetensors")
    net = network(backbone=backbone, stride=stride, options=options, pretrained=str(tmp_path / "weights.safetensors"))
    assert not net.weights.missing
    assert len(net.weights.matched) > 8
    total = sum(value.double().sum() for name, value in net.backbone.body.state_dict().items() if "tracked" not in name)
    unused = {*net.weights.unexpected, *(name for name in state if "tracked" in name)}
    assert total.item() == pytest.approx(sum(v.double().sum().item() for n, v in state.items() if n not in unused))


def test_half_precision_files_become_single_precision(tmp_path):
    state = {name: value.half() if value.is_floating_point() else value for name, value in whole_model().items()}
    save_file(state, tmp_path / "weights.safetensors")
    weight = network(pretrained=str(tmp_path / "weights.safetensors")).backbone.body.layer1[0].conv1.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, state["layer1.0.conv1.weight"].float())


def test_less_than_half_needs_to_be_asked_for(tmp_path):
    state = {name: value for name, value in whole_model().items() if name.startswith(("conv1", "bn1", "layer1"))}
    save_file(state, tmp_path / "weights.safetensors")
    asked = settings(pretrained=str(tmp_path / "weights.safetensors"))
    with pytest.raises(CheckpointError, match="less than half of resnet10t") as caught:
        build_network(asked, num_classes=2)
    assert "missing (layer2.0.conv1.weight" in caught.value.what
    net = build_network(asked.model_copy(update={"partial": True}), num_classes=2)
    assert torch.equal(net.backbone.body.layer1[0].conv1.weight, state["layer1.0.conv1.weight"])
    untouched = network().backbone.body.layer4[0].conv1.weight
    assert torch.equal(net.backbone.body.layer4[0].conv1.weight, untouched)
    assert "missing" in network_report(net, asked).text()


def test_more_than_half_is_enough_and_the_rest_is_named(tmp_path):
    """A file that ends before the last stage, which starts at random."""
    state = {name: value for name, value in whole_model().items() if not name.startswith(("layer4", "fc"))}
    save_file(state, tmp_path / "weights.safetensors")
    net = network(pretrained=str(tmp_path / "weights.safetensors"))
    last = [name for name in network().backbone.body.state_dict() if name.startswith("layer4")]
    assert list(net.weights.missing) == [name for name in last if not name.endswith("tracked")]
    assert net.weights.unexpected == net.weights.wrong_shape == ()
    assert f"{len(net.weights.missing)} missing (layer4.0.conv1.weight, " in net.weights.text()


def test_another_architecture_with_the_same_names_is_refused(tmp_path):
    save_file(whole_model(**{**NARROW, "channels": (8, 8, 16, 32)}), tmp_path / "wide.safetensors")
    with pytest.raises(
        CheckpointError, match=r"other shapes than resnet10t.*wrong shape \(layer4.0.conv1.weight"
    ) as caught:
        network(pretrained=str(tmp_path / "wide.safetensors"))
    assert "missing" not in caught.value.what


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("weights.safetensors", b"not a weight file", "cannot read weights"),
        ("weights.pt", b"not a weight file", "cannot read weights"),
        ("empty.pt", b"", "cannot read weights"),
    ],
)
def test_files_that_hold_no_weights(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        network(pretrained=str(tmp_path / name))


def test_a_pickled_object_is_not_executed(tmp_path):
    torch.save({"model": torch.nn.Linear(2, 2)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="cannot read weights"):
        network(pretrained=str(tmp_path / "model.pt"))
    torch.save({"epoch": 3}, tmp_path / "nothing.pt")
    with pytest.raises(CheckpointError, match="no named tensors"):
        network(pretrained=str(tmp_path / "nothing.pt"))


def test_a_misspelled_word_is_not_taken_for_a_file():
    with pytest.raises(CheckpointError, match="none, hub, coco-voc-classes, or"):
        network(pretrained="imagenet")


def test_gray_images_respond_as_gray_shown_in_rgb():
    weight = images(4, 3, 5, 5)
    gray = images(2, 1, 9, 9, seed=1)
    expected = torch.nn.functional.conv2d(gray.expand(2, 3, 9, 9), weight)
    torch.testing.assert_close(torch.nn.functional.conv2d(gray, fitted_to_channels(weight, 1)), expected)


def test_more_channels_take_the_filters_in_turn_and_keep_the_response():
    weight = images(2, 3, 1, 1)
    five = fitted_to_channels(weight, 5)
    assert torch.equal(five[:, 3], weight[:, 0] * (3 / 5))
    torch.testing.assert_close(five[:, [0, 3]].sum(1) / 2, weight[:, 0] * 0.6)


@pytest.mark.parametrize("channels", [1, 4])
def test_a_file_for_rgb_fits_other_images(tmp_path, channels):
    state = whole_model()
    save_file(state, tmp_path / "weights.safetensors")
    net = network(channels=channels, pretrained=str(tmp_path / "weights.safetensors"))
    assert net.weights.adapted == ("conv1.0.weight",)
    expected = fitted_to_channels(state["conv1.0.weight"], channels)
    assert torch.equal(net.backbone.body.conv1[0].weight, expected)


def test_torchvisions_deeplab_fills_timms_resnet101():
    donor = torchvision.models.segmentation.deeplabv3_resnet101(weights=None, weights_backbone=None, aux_loss=True)
    given = donor.state_dict()
    body = timm.create_model("resnet101", features_only=True, output_stride=8)
    fitting, report = match_weights(body.state_dict(), given, "torchvision")
    assert len(report.matched) == report.total == 520
    assert all(name.startswith(("classifier.", "aux_classifier.")) for name in report.unexpected)
    body.load_state_dict(fitting, strict=False)
    pictures = images(1, 3, 64, 64)
    # the first dilated block of a stage keeps the old dilation in timm and torchvision alike
    torch.testing.assert_close(body.eval()(pictures)[-1], donor.eval().backbone(pictures)["out"], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("backbone", ["convnext_atto", "vit_tiny_patch16_224", "hrnet_w18_small"])
def test_a_cut_down_model_fits_itself_as_hub_weights_do(backbone):
    donor = timm.create_model(backbone, features_only=True)
    fitting, report = match_weights(donor.state_dict(), donor.state_dict(), "hub")
    assert (report.missing, report.wrong_shape, report.unexpected) == ((), (), ())
    assert all(torch.equal(value, donor.state_dict()[name]) for name, value in fitting.items())


def test_coco_weights_are_for_resnet101_only():
    with pytest.raises(ConfigError, match="weights of resnet101, not of resnet10t"):
        network(pretrained="coco-voc-classes")


def test_a_backbone_without_published_weights_says_how_to_use_a_file():
    with pytest.raises(ConfigError, match="timm could not load its weights for lcnet_035") as caught:
        network(backbone="lcnet_035", options={}, pretrained="hub")
    assert "pretrained: FILE" in caught.value.fix


@pytest.mark.parametrize(
    ("file", "backbone", "matched", "total"),
    [
        ("resnet50_layers1to3", "resnet50", 215, 265),
        ("mobilenetv2_100", "mobilenetv2_100", 255, 255),
        ("tf_efficientnet_lite4", "tf_efficientnet_lite4", 450, 450),
    ],
)
def test_real_weight_files(file, backbone, matched, total):
    path = SHARED / f"{file}.safetensors"
    if not path.is_file():
        pytest.skip("the shared weight files are not here")
    net = network(backbone=backbone, head="sum2", options={}, pretrained=str(path))
    assert (len(net.weights.matched), net.weights.total) == (matched, total)
    state = net.backbone.body.state_dict()
    for name, value in load_file(path).items():
        if name in state:
            assert torch.equal(state[name], value.float()), name
