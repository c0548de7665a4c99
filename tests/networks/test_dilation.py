"""Matrix products give the gradients of several nn.Conv2d."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fewmask.networks.compilation import compile_blocks
from fewmask.networks.deeplab import ConcatenatedBranches, join_branches
from fewmask.networks.dilation import joined, tap_gradients
from tests.networks.small import images, network


def layers(bias: bool = True) -> list[nn.Conv2d]:
    made = [nn.Conv2d(6, 5, 1, bias=bias)]
    made += [nn.Conv2d(6, 4 + rate % 3, 3, padding=rate, dilation=rate, bias=bias) for rate in (1, 3, 7, 9, 20)]
    return [layer.double() for layer in made]


@pytest.mark.parametrize("size", [(9, 13), (8, 4), (1, 1), (21, 30)])  # some taps reach nothing, or single rows
def test_answers_and_gradients_are_those_of_the_library(size: tuple[int, int]):
    torch.manual_seed(0)
    mine = layers(bias=size != (8, 4))
    theirs = copy.deepcopy(mine)
    maps = images(2, 6, *size, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    twin = maps.detach().clone().requires_grad_()
    for one, other in zip(joined(maps, mine), [layer(twin) for layer in theirs], strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
        pull = torch.randn_like(other)
        (one * pull).sum().backward(retain_graph=True)
        (other * pull).sum().backward()
    torch.testing.assert_close(maps.grad, twin.grad, atol=1e-12, rtol=0)
    for one, other in zip(mine, theirs, strict=True):
        for parameter, expected in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, atol=1e-12, rtol=0)


def test_what_reaches_each_tap_by_hand():
    gradient = torch.tensor([1.0, 2, 3, 4]).reshape(1, 1, 4, 1)
    near = [tap.flatten().tolist() for tap in tap_gradients(gradient, (1, 3), 2)]
    assert near == [[3, 4, 0, 0], [1, 2, 3, 4], [0, 0, 1, 2]]  # the first tap looks two places back
    far = [tap.flatten().tolist() for tap in tap_gradients(gradient, (3, 3), 4)]
    assert far == [[0] * 4] * 4 + [[1, 2, 3, 4]] + [[0] * 4] * 4


def test_a_network_keeps_its_names_and_its_numbers():
    net = network().double()
    other = copy.deepcopy(net)
    join_branches(other)
    assert [m.joined for m in other.modules() if isinstance(m, ConcatenatedBranches)] == [True]
    assert list(other.state_dict()) == list(net.state_dict())
    pictures = images(2, 3, 64, 96, dtype=torch.float64)
    for each in (net, other):
        each(pictures).logits.square().sum().backward()
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-12, rtol=1e-10)


def test_bfloat16_gradients_are_about_as_exact_as_the_librarys():
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 8, 3, padding=2, dilation=2)
    maps, pull = images(2, 64, 12, 12).requires_grad_(), images(2, 8, 12, 12, seed=1)
    leaves = (maps, layer.weight, layer.bias)
    exact = torch.autograd.grad(layer(maps), leaves, pull)
    with torch.autocast("cpu", torch.bfloat16):
        answers = {"library": layer(maps), "joined": joined(maps, [layer])[0]}
    assert answers["joined"].dtype == torch.bfloat16
    found = {name: torch.autograd.grad(each, leaves, pull.bfloat16()) for name, each in answers.items()}
    assert [each.dtype for each in found["joined"]] == [torch.float32] * 3
    for true, library, own in zip(exact, found["library"], found["joined"], strict=True):
        assert (own - true).norm() < 1.5 * (library - true).norm() + 1e-3 * true.norm()


def test_a_compiled_head_computes_the_same():
    net = network().double()
    other = copy.deepcopy(net)
    join_branches(other)
    maps = images(2, net.backbone.channels, 5, 6, dtype=torch.float64)
    compile_blocks(other, backend="aot_eager")  # traces forward and backward as inductor would
    for each in (net, other):
        each.head.embedding(maps).square().sum().backward()
    for one, two in zip(net.head.embedding.parameters(), other.head.embedding.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-10, rtol=0)
