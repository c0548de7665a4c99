"""Compiled blocks compute what the plain ones do, with and without noise."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from fewmask.learning.statistics import move_statistics, watched_inputs
from fewmask.networks.compilation import compile_blocks, compile_problem, for_any_size
from fewmask.networks.model_noise import ResidualGate
from tests.networks.small import TINY_VIT, images, network, noise


@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_network_gives_the_same_numbers_gradients_and_statistics(training):
    plain = network().train(training)
    compiled = copy.deepcopy(plain)
    compile_blocks(compiled, backend="aot_eager")  # traces forward and backward as inductor would; no C compiler needed
    pictures, draws = images(2, 3, 32, 32), noise([0, 1], dropout=0.5, survival=0.5)
    for net in (plain, compiled):
        net(pictures, draws).logits.square().sum().backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(dict(plain.named_buffers()), dict(compiled.named_buffers()))


def test_every_gated_block_and_the_head_are_compiled_and_keep_their_names():
    net = network()
    names = list(net.state_dict())
    compile_blocks(net, backend="eager")
    owners = [module for module in net.modules() if any(isinstance(each, ResidualGate) for each in module.children())]
    assert len(owners) == net.backbone.residual_blocks == 4
    assert all(module._compiled_call_impl is not None for module in (*owners, net.head.embedding))
    assert list(net.state_dict()) == names


def test_auxiliary_heads_are_compiled_with_the_head_and_give_the_same():
    vit = {"backbone": "vit_tiny_patch16_224", "head": "setr_naive", "stride": 16, "options": TINY_VIT}
    plain = network(**vit, auxiliary_weight=0.4).train()
    compiled = copy.deepcopy(plain)
    compile_blocks(compiled, backend="aot_eager")
    assert all(head.embedding._compiled_call_impl is not None for head in (compiled.head, *compiled.auxiliary))
    answers = [net(images(2, 3, 64, 64), noise([0, 1], survival=0.5)) for net in (plain, compiled)]
    for one, other in zip(*(answer.auxiliary for answer in answers), strict=True):
        torch.testing.assert_close(one, other)


def test_another_step_does_not_compile_again():
    net = network().train()
    compile_blocks(net, backend="eager")
    torch._dynamo.utils.counters.clear()
    counts = []
    for step in range(3):
        net(images(2, 3, 32, 32), noise([0, 1], step=step, survival=0.5))
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[0] > 0
    assert counts[1:] == counts[:1] * 2


def test_for_any_size_nothing_is_compiled_and_compiled_code_stays():
    net, seen = network().eval(), []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        return lambda *inputs: (seen.append(graph), graph(*inputs))[1]

    compile_blocks(net, backend=backend)
    small, large = images(1, 3, 32, 32), images(2, 3, 64, 96)
    with torch.no_grad():
        net(small)
        first = list(seen)
        with for_any_size():
            answer = net(large).logits
        assert seen == first
        net(small)
        assert seen == 2 * first
        torch.testing.assert_close(net(large).logits, answer)
    assert len(set(map(id, seen))) == 2 * len(set(map(id, first)))  # and outside each size has code of its own


@pytest.mark.parametrize("trials", [True, False])
def test_for_any_size_kernels_are_not_tried_and_then_as_before(monkeypatch, trials):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", trials)
    with for_any_size():
        assert not torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark is trials


def test_a_watched_pass_compiles_nothing_and_counts_what_a_plain_one_counts():
    plain = network().eval()
    compiled = copy.deepcopy(plain)
    compile_blocks(compiled, backend="aot_eager")
    with torch.no_grad():
        compiled(images(2, 3, 32, 32))
        torch._dynamo.utils.counters.clear()
        for step in range(3):
            pictures, counted = images(2, 3, 32, 32, seed=step), []
            for net in (plain, compiled):
                with watched_inputs(net) as moments:
                    net(pictures)
                counted.append(torch.cat(moments))
                move_statistics(net, counted[-1])
            torch.testing.assert_close(*counted)
            assert counted[0].abs().sum() > 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0


def test_what_keeps_torch_from_compiling_is_said():
    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        raise RuntimeError("Failed to find C compiler.\nmore about it")

    found = compile_problem(torch.device("cpu"), backend=backend)
    assert found == "RuntimeError: Failed to find C compiler."
    assert compile_problem(torch.device("cpu"), backend="aot_eager") is None
