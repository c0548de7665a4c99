"""SETR's auxiliary heads: what they read, when they answer, and that a network without them is what it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F

from fewmask.config import NetworkSettings
from fewmask.errors import ConfigError
from fewmask.learning.ema import teacher_of
from fewmask.learning.statistics import batch_statistics
from fewmask.networks.backbones import create_backbone
from fewmask.networks.build import build_network, network_report, seeded
from fewmask.networks.folding import FoldedTwin
from fewmask.networks.model_noise import dropped_out
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.networks.setr import quarters, setr_naive
from fewmask.settings import resolve
from tests.networks.small import TINY_VIT, images, noise, settings, vit_settings

DEPTH = 6
OPTIONS = TINY_VIT | {"depth": DEPTH}
LAYERS = (1, 3, 4)  # 6/4, 12/4 and 18/4, rounded down
EXACT = torch.float64


def setr(weight: float = 0.4, **changes: Any) -> SegmentationNetwork:
    asked = vit_settings(auxiliary_weight=weight, **{"options": OPTIONS, **changes})
    return build_network(asked, num_classes=5, seed=3).train()


def calls_of(net: SegmentationNetwork) -> list[str]:
    """Grows by a name whenever an auxiliary head works."""
    found: list[str] = []
    for name, module in net.auxiliary.named_modules():
        module.register_forward_hook(lambda *_, name=name: found.append(name))
    return found


@pytest.mark.parametrize(
    ("depth", "layers"),
    [(12, (3, 6, 9)), (24, (6, 12, 18)), (6, (1, 3, 4)), (4, (1, 2, 3)), (3, (1, 2)), (2, (1,)), (1, ())],
)
def test_heads_stand_at_the_quarters_of_the_depth(depth, layers):
    assert quarters(depth) == layers


def test_each_head_reads_the_tokens_after_its_layer():
    """Block after block by hand, on a crop that is not square; then LayerNorm, 1x1, BatchNorm, ReLU, classifier."""
    net = setr().to(EXACT)
    pictures = images(2, 3, 48, 112, dtype=EXACT)
    with torch.no_grad():
        model = copy.deepcopy(net.backbone.body.model)
        tokens = model._pos_embed(model.patch_embed((pictures - net.mean) / net.std))
        after = []
        for block in model.blocks:
            tokens = block(tokens)
            after.append(tokens[:, 1:].reshape(2, 3, 7, 24))  # without the class token
    answer = net(pictures, noise([0, 1], dropout=0.5))  # which is the main head's alone
    assert net.auxiliary.layers == LAYERS
    assert answer.auxiliary_weight == 0.4
    for head, layer, found in zip(net.auxiliary, LAYERS, answer.auxiliary, strict=True):
        state = head.state_dict()
        maps = after[layer - 1]
        maps = (maps - maps.mean(-1, keepdim=True)) / (maps.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        mixed = maps @ state["embedding.1.weight"][:, :, 0, 0].T + state["embedding.1.bias"]
        mean, variance = mixed.mean((0, 1, 2)), mixed.var((0, 1, 2), unbiased=False)
        feature = ((mixed - mean) / (variance + 1e-5).sqrt()).relu()
        scores = feature @ state["classifier.weight"][:, :, 0, 0].T + state["classifier.bias"]
        torch.testing.assert_close(found, scores.permute(0, 3, 1, 2), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "beit_base_patch16_224"])
def test_any_plain_transformer_hands_over_what_timm_says_of_its_layers(name):
    """One with two class tokens, and one that takes images of one size only."""
    backbone = create_backbone(vit_settings(backbone=name, options=TINY_VIT | {"depth": 4}), 3).eval()
    every = timm.create_model(name, features_only=True, out_indices=range(4), **backbone.arguments)
    every.load_state_dict(backbone.body.state_dict())
    pictures = images(2, 3, 64, 64)
    first, second, _, last = every.eval()(pictures)
    assert backbone.depth == 4
    for found, expected in zip(backbone(pictures, None, (1, 2)), (last, first, second), strict=True):
        assert torch.equal(found, expected)


def test_a_transformer_that_stops_earlier_is_parted_by_what_is_left():
    net = setr(options=OPTIONS | {"out_indices": (0, 3)})
    assert (net.backbone.depth, net.auxiliary.layers) == (4, (1, 2, 3))
    assert len(net(images(1, 3, 64, 64)).auxiliary) == 3


def test_without_the_option_the_network_is_what_it_was():
    """Drawn part by part from the seeds of backbone and head, and called part by part: bit for bit."""
    net = setr(weight=0.0)
    with seeded(3):
        backbone = create_backbone(vit_settings(options=OPTIONS), 3)
    with seeded(4):
        head = setr_naive(24, 5, width=16)
    state = {f"backbone.{key}": value for key, value in backbone.state_dict().items()}
    state |= {f"head.{key}": value for key, value in head.state_dict().items()}
    found = net.state_dict()
    assert found.keys() == state.keys() | {"mean", "std"}
    assert all(torch.equal(found[key], value) for key, value in state.items())
    pictures, draws = images(3, 3, 48, 64), noise([0, 1, 2], dropout=0.5, survival=0.8)
    (maps,) = backbone((pictures - net.mean) / net.std, draws)
    features = head.embedding(maps)
    answer = net(pictures, draws)
    assert torch.equal(answer.features, features)
    assert torch.equal(answer.logits, head.classifier(dropped_out(features, draws, "channel")))
    assert (answer.auxiliary, answer.auxiliary_weight) == ((), 0.0)


def test_with_the_option_the_rest_starts_and_answers_as_without():
    state = torch.random.get_rng_state()
    plain, net = setr(weight=0.0), setr()
    assert torch.equal(torch.random.get_rng_state(), state)
    shared = net.state_dict()
    assert shared.keys() - plain.state_dict().keys() == {key for key in shared if key.startswith("auxiliary.")}
    assert all(torch.equal(value, shared[key]) for key, value in plain.state_dict().items())
    one, two, three = (head.embedding[1].weight for head in net.auxiliary)
    assert not torch.equal(one, two)
    assert not torch.equal(two, three)
    pictures, draws = images(3, 3, 48, 64), noise([0, 1, 2], dropout=0.5, survival=0.8)
    expected, answer = plain(pictures, draws), net(pictures, draws)
    assert torch.equal(answer.logits, expected.logits)
    assert torch.equal(answer.features, expected.features)


def test_only_passes_that_train_ask_the_auxiliary_heads():
    """Not in eval mode, not without gradients even in train mode, not a teacher, not a folded twin."""
    net = setr()
    calls = calls_of(net)
    teacher, pictures = teacher_of(net), images(2, 3, 64, 64)
    assert net.eval()(pictures).auxiliary == ()
    with torch.no_grad():
        assert net.train()(pictures).auxiliary == ()
        assert FoldedTwin(net)(pictures).auxiliary == ()
        with batch_statistics(teacher):
            assert teacher.training
            assert teacher(pictures).auxiliary == ()
    assert calls == []
    net.train()(pictures)
    assert {name.partition(".")[0] for name in calls} == {"0", "1", "2"}


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_auxiliary_loss_reaches_its_head_and_the_layers_before_it(place):
    net = setr()
    net(images(2, 3, 64, 64)).auxiliary[place].square().sum().backward()
    blocks = [any(each.grad is not None for each in block.parameters()) for block in net.backbone.body.model.blocks]
    assert blocks == [True] * LAYERS[place] + [False] * (DEPTH - LAYERS[place])
    heads = [all(each.grad is not None for each in head.parameters()) for head in (*net.auxiliary, net.head)]
    assert heads == [each == place for each in range(4)]


def test_every_parameter_is_trained_and_auxiliary_heads_have_the_rate_of_the_head():
    net = setr()
    answer = net(images(2, 3, 64, 64))
    sum(logits.square().sum() for logits in (answer.logits, *answer.auxiliary)).backward()
    groups = [*net.backbone_parameters(), *net.head_parameters()]
    assert {id(parameter) for parameter in groups} == {id(parameter) for parameter in net.parameters()}
    assert len(groups) == len(list(net.parameters()))
    assert all(parameter.grad is not None for parameter in groups)
    assert {id(each) for each in net.auxiliary.parameters()} < {id(each) for each in net.head_parameters()}


def test_scores_of_earlier_layers_are_not_rounded_to_bfloat16():
    net = setr()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = net(images(2, 3, 64, 64))
    for logits in answer.auxiliary:
        assert logits.dtype == torch.float32
        assert (logits != logits.bfloat16().float()).any()


def test_the_report_names_the_layers():
    asked = vit_settings(auxiliary_weight=0.4, options=OPTIONS)
    net = build_network(asked, num_classes=5)
    report = network_report(net, asked)
    assert report.notes[-1] == "auxiliary heads after layers 1, 3, 4 of 6, each with weight 0.4, in training only"
    head = 2 * 24 + (24 * 16 + 16) + 2 * 16 + (16 * 5 + 5)
    assert report.parameters - report.backbone_parameters == 4 * head
    assert "auxiliary" not in network_report(setr(weight=0.0), asked).text()


@pytest.mark.parametrize(
    ("asked", "what", "fix"),
    [
        (settings(auxiliary_weight=0.4), "belong to setr_naive, and the head is deeplabv2", "network.head=setr_naive"),
        (
            vit_settings(auxiliary_weight=0.4, head="sum4"),
            "belong to setr_naive, and the head is sum4",
            "network.head=setr_naive",
        ),
        (settings(auxiliary_weight=0.4, head="setr_naive"), "resnet10t has no earlier layers", "vit_base_patch16_384"),
        (
            vit_settings(auxiliary_weight=0.4, options=TINY_VIT | {"depth": 1, "out_indices": (0,)}),
            "vit_tiny_patch16_224 has no earlier layers",
            "vit_base_patch16_384",
        ),
    ],
)
def test_where_there_can_be_none_the_error_says_so(asked: NetworkSettings, what: str, fix: str):
    with pytest.raises(ConfigError, match=what) as caught:
        build_network(asked, num_classes=5)
    assert caught.value.where == "network.auxiliary_weight"
    assert caught.value.fix.startswith("0, or ")
    assert fix in caught.value.fix


def test_a_weight_below_zero_is_refused():
    with pytest.raises(ConfigError, match="auxiliary_weight"):
        resolve(words=["network.auxiliary_weight=-0.4"])


def test_sizes_that_no_patch_divides_are_padded_with_the_mean():
    net = setr().to(EXACT)
    ragged = images(2, 3, 40, 75, dtype=EXACT)
    padded = F.pad((ragged - net.mean) / net.std, (0, 5, 0, 8)) * net.std + net.mean
    for one, other in zip(net(ragged).auxiliary, net(padded).auxiliary, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
