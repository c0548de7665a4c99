"""Matrix products give the numbers and the gradients of nn.Conv2d, with fewer operations where rows fall outside."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fewmask.networks.compilation import compile_blocks
from fewmask.networks.deeplab import ConcatenatedBranches, choose_algorithm
from fewmask.networks.dilation import convolved, shifted_sum
from tests.networks.small import images, network

OTHERS = ["product", "joined", "rows"]


def layers(bias: bool = True) -> list[nn.Conv2d]:
    made = [nn.Conv2d(6, 5, 1, bias=bias)]
    made += [nn.Conv2d(6, 4 + rate % 3, 3, padding=rate, dilation=rate, bias=bias) for rate in (1, 3, 7, 9, 20)]
    return [layer.double() for layer in made]


@pytest.mark.parametrize("algorithm", OTHERS)
@pytest.mark.parametrize("size", [(9, 13), (8, 4), (1, 1), (21, 30)])  # some taps reach nothing, or single rows
def test_answers_and_gradients_are_those_of_the_library(algorithm: str, size: tuple[int, int]):
    torch.manual_seed(0)
    mine = layers(bias=size != (8, 4))
    theirs = copy.deepcopy(mine)
    maps = images(2, 6, *size, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    twin = maps.detach().clone().requires_grad_()
    pairs = zip(convolved(maps, mine, algorithm), convolved(twin, theirs, "direct"), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
        pull = torch.randn_like(other)
        (one * pull).sum().backward(retain_graph=True)
        (other * pull).sum().backward()
    torch.testing.assert_close(maps.grad, twin.grad, atol=1e-12, rtol=0)
    for one, other in zip(mine, theirs, strict=True):
        for parameter, expected in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad, atol=1e-12, rtol=0)


def test_a_shifted_sum_by_hand():
    taps = torch.zeros(1, 1, 4, 1, 3, 1)
    taps[0, 0, :, 0, 0, 0] = torch.tensor([1.0, 2, 3, 4])  # counts two places further on
    taps[0, 0, :, 0, 1, 0] = torch.tensor([10.0, 20, 30, 40])
    taps[0, 0, :, 0, 2, 0] = torch.tensor([100.0, 200, 300, 400])  # counts two places before
    assert shifted_sum(taps, 2).flatten().tolist() == [310, 420, 31, 42]
    assert shifted_sum(taps, 4).flatten().tolist() == [10, 20, 30, 40]


def test_products_by_row_leave_out_what_falls_outside():
    layer = nn.Conv2d(3, 2, 3, padding=6, dilation=6)
    work = {}
    for algorithm in ("direct", "product", "rows"):
        with FlopCounterMode(display=False) as counter:
            convolved(images(1, 3, 8, 8), [layer], algorithm)
        work[algorithm] = counter.get_total_flops()
    assert work["direct"] == work["product"] == 2 * 64 * 9 * 3 * 2
    assert work["rows"] * 24 == work["direct"] * (8 + 2 * 2)  # the outer rows reach two of eight


@pytest.mark.parametrize("algorithm", OTHERS)
def test_a_network_keeps_its_names_and_its_numbers(algorithm: str):
    net = network().double()
    other = copy.deepcopy(net)
    choose_algorithm(other, algorithm)
    assert [m.algorithm for m in other.modules() if isinstance(m, ConcatenatedBranches)] == [algorithm]
    assert list(other.state_dict()) == list(net.state_dict())
    pictures = images(2, 3, 64, 96, dtype=torch.float64)
    for each in (net, other):
        each(pictures).logits.square().sum().backward()
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("algorithm", OTHERS)
def test_bfloat16_is_about_as_exact_as_the_library(algorithm: str):
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 8, 3, padding=2, dilation=2)
    maps = images(2, 64, 12, 12).requires_grad_()
    exact = layer(maps)
    errors = {}
    for name in ("direct", algorithm):
        with torch.autocast("cpu", torch.bfloat16):
            (rounded,) = convolved(maps, [layer], name)
        assert rounded.dtype == torch.bfloat16
        errors[name] = (rounded - exact).abs().mean().item()
    assert 0 < errors[algorithm] < 2 * errors["direct"]


@pytest.mark.parametrize("algorithm", ["joined", "rows"])
def test_a_compiled_head_computes_the_same(algorithm: str):
    net = network().double()
    other = copy.deepcopy(net)
    choose_algorithm(other, algorithm)
    maps = images(2, net.backbone.channels, 5, 6, dtype=torch.float64)
    compile_blocks(other, backend="aot_eager")  # traces forward and backward as inductor would
    for each in (net, other):
        each.head.embedding(maps).square().sum().backward()
    for one, two in zip(net.head.embedding.parameters(), other.head.embedding.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-10, rtol=0)
