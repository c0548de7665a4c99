"""A folded twin says what its network says, whatever the weights do in the meantime."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from fewmask.learning.ema import ema_update, teacher_of
from fewmask.learning.statistics import watched_inputs
from fewmask.networks.compilation import compile_blocks
from fewmask.networks.folding import FoldedTwin, find_pairs
from fewmask.networks.fused_layers import FusedBlock
from fewmask.networks.segmentation import SegmentationNetwork
from tests.networks.small import images, network, vit_settings

BOTH = pytest.mark.parametrize("fused", [False, True])


def lived_in(net: SegmentationNetwork, seed: int = 0) -> SegmentationNetwork:
    """Norms as training leaves them; at the start they do nothing, and anything would pass."""
    generator = torch.Generator().manual_seed(seed)
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.5, generator=generator)
            norm.running_var.uniform_(0.5, 2, generator=generator)
            nn.init.normal_(norm.weight, 1, 0.3, generator=generator)
            nn.init.normal_(norm.bias, 0, 0.3, generator=generator)
    return net.eval()


def largest_difference(net: SegmentationNetwork, twin: FoldedTwin, pictures: Tensor) -> float:
    """Relative to the features of the backbone, which no later norm has scaled."""
    with torch.no_grad():
        scaled = (pictures - net.mean) / net.std
        (one,), (other,) = net.backbone(scaled), twin.network.backbone(scaled)
        torch.testing.assert_close(twin(pictures).logits, net(pictures).logits)
    assert one.abs().max() > 0
    return float(((one - other).abs().max() / one.abs().max()).item())


@pytest.mark.parametrize(
    ("backbone", "folded"),  # of all norms, where conv and norm are neighbors; counted by hand from timm's definitions
    [
        ("resnet50", 53),  # 16 blocks of 3, a stem, 4 shortcuts
        ("mobilenetv2_050", 51),  # 17 blocks of 3 less the expansion of the first, and a stem
        ("tf_efficientnet_lite0", 48),  # padding that depends on the image
        ("resnetv2_18", 8),  # norms come first: of each block's two, only the second follows a convolution directly
        ("convnext_atto", 0),
    ],
)
def test_the_same_answers_in_double_precision(backbone: str, folded: int):
    net = lived_in(network(backbone=backbone, options={})).double()
    assert len(find_pairs(net)) == folded
    for fused in (False, True):
        assert largest_difference(net, FoldedTwin(net, fused=fused), images(1, 3, 24, 32, dtype=torch.float64)) < 1e-12


@BOTH
def test_the_same_answers_in_single_precision(fused: bool):
    net = lived_in(network()).to(memory_format=torch.channels_last)
    assert largest_difference(net, FoldedTwin(net, fused=fused), images(2, 3, 48, 64)) < 1e-5


def test_nothing_but_convolutions_is_left_of_a_fused_residual_network():
    twin = FoldedTwin(lived_in(network()), fused=True)
    assert sum(isinstance(module, FusedBlock) for module in twin.network.modules()) == 4
    kinds = {type(module) for module in twin.network.backbone.modules()}
    assert not kinds & {nn.BatchNorm2d, nn.ReLU}


@BOTH
def test_a_convolution_that_others_read_or_that_is_a_feature_map_is_left_alone(fused: bool):
    class Stem(nn.Module):
        def __init__(self, read_twice: bool) -> None:
            super().__init__()
            self.convolution, self.norm, self.read_twice = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), read_twice
            self.last = nn.Conv2d(4, 24, 8, stride=8)

        def forward(self, values: Tensor) -> list[Tensor]:
            first = self.convolution(values)
            answer = self.norm(first).relu()
            return [answer, self.last(answer + first)] if self.read_twice else [first, self.last(answer)]

    for read_twice in (True, False):
        net = network()
        net.backbone.body = Stem(read_twice)
        lived_in(net).double()
        assert find_pairs(net) == []
        assert largest_difference(net, FoldedTwin(net, fused=fused), images(1, 3, 48, 64, dtype=torch.float64)) == 0


@BOTH
def test_a_teacher_answers_with_its_newest_weights_and_statistics(fused: bool):
    student = lived_in(network())
    teacher, plain = teacher_of(student), teacher_of(student)
    teacher.twin = FoldedTwin(teacher, fused=fused)
    places = [layer.weight.data_ptr() for layer in teacher.twin.layers]
    names, pictures = list(plain.state_dict()), images(2, 3, 32, 32)
    with torch.no_grad():
        before = teacher(pictures).logits.clone()
        for seed in (1, 2):
            lived_in(student, seed)
            for net in (teacher, plain):
                ema_update(net, student, 0.5)
            torch.testing.assert_close(teacher(pictures).logits, plain(pictures).logits)
        assert not torch.allclose(before, teacher(pictures).logits)
    assert [layer.weight.data_ptr() for layer in teacher.twin.layers] == places  # a captured graph reads these
    assert list(teacher.state_dict()) == names
    assert len(list(teacher.parameters())) == len(list(plain.parameters()))


def test_a_network_answers_itself_where_its_twin_cannot():
    net = lived_in(network())
    net.twin = FoldedTwin(net)
    asked = []
    net.twin.network.register_forward_hook(lambda *_: asked.append(1))
    pictures = images(2, 3, 32, 32)
    assert net(pictures).logits.requires_grad
    with torch.no_grad():
        with watched_inputs(net) as inputs:
            net(pictures)
        assert all(moments[-1] > 0 for moments in inputs)  # BatchNorm statistics of weak images
        net.train()(pictures)
        assert asked == []
        net.eval()(pictures)
    assert asked == [1]


def test_a_network_with_a_twin_can_get_another():
    net = lived_in(network())
    pictures = images(2, 3, 32, 32)
    with torch.no_grad():
        expected = net(pictures).logits
        net.twin = FoldedTwin(net)
        again = FoldedTwin(net, fused=True)
        assert len(again.layers) == len(net.twin.layers) == 14
        assert again.network.twin is None
        torch.testing.assert_close(again(pictures).logits, expected)


def test_bfloat16_weights_are_as_good_as_autocast_ones():
    net = lived_in(network())
    pictures = images(2, 3, 64, 64)
    with torch.no_grad():
        exact = net(pictures).logits
        with torch.autocast("cpu", torch.bfloat16):
            rounded = net(pictures).logits
            folded = [FoldedTwin(net, dtype=torch.bfloat16, fused=fused)(pictures).logits for fused in (False, True)]
    error = (rounded - exact).abs().mean()
    assert 0 < error < 0.1 * exact.abs().mean()
    assert all((each - exact).abs().mean() < 1.5 * error for each in folded)


def test_a_transformer_with_one_norm_in_its_head():
    net = lived_in(network(**vit_settings().model_dump(include={"backbone", "head", "stride", "options"})))
    twin = FoldedTwin(net, fused=True)
    assert [pair.norm for pair in find_pairs(net)] == ["head.embedding.2"]
    with torch.no_grad():
        torch.testing.assert_close(twin(images(1, 3, 64, 64)).logits, net(images(1, 3, 64, 64)).logits)


def test_a_compiled_twin_computes_the_same():
    net = lived_in(network())
    twin = FoldedTwin(net)
    compile_blocks(twin.network, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(twin(images(2, 3, 32, 32)).logits, copy.deepcopy(net)(images(2, 3, 32, 32)).logits)


@BOTH
def test_refreshing_and_answering_never_ask_the_host(fused: bool):
    """Fake tensors hold no values, so a host sync would raise."""
    twin = FoldedTwin(network(), fused=fused)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        assert twin(torch.zeros(2, 3, 32, 32)).logits.shape == (2, 5, 4, 4)
