"""Operations counted by hand, and the paper's networks against known numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fewmask.benchmarks.least_work import forward_flop, least_flop
from fewmask.benchmarks.workloads import benchmark_config, workload_of
from fewmask.networks.build import build_network
from fewmask.networks.compilation import compile_blocks
from fewmask.networks.model_noise import gated_blocks
from tests.miniature import make_method
from tests.networks.small import images
from tests.networks.small import network as small


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1, stride=2), nn.Flatten(), nn.Linear(4 * 3 * 4, 5)
    )


def test_a_network_counted_by_hand():
    network = small_network().train()
    first, second, third = 6 * 8 * 8 * 3 * 9, 3 * 4 * 4 * 8, 5 * 4 * 3 * 4  # multiplications, each with an addition
    assert forward_flop(network, (6, 8)) == 2 * (first + second + third)
    assert network.training


def test_compiled_blocks_stay_compiled_after_counting():
    calls = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        return lambda *inputs: (calls.append(graph), graph(*inputs))[1]

    network = small()
    compile_blocks(network, backend=backend)
    blocks = len(gated_blocks(network)) + 1  # and the head
    with torch.no_grad():
        network(images(1, 3, 32, 32))
        assert len(calls) == blocks
        forward_flop(network, (32, 32))
        network(images(1, 3, 32, 32))
    assert len(calls) == 2 * blocks


@pytest.mark.parametrize("restart", ["teacher", "baseline"])
def test_students_count_three_passes_teachers_one_and_kept_weights_none(restart: str):
    method = make_method("rml", restart=restart)
    assert len(method.networks()) == (6 if restart == "baseline" else 4)
    one = forward_flop(method.student_1, (32, 48))
    assert one > 0
    assert least_flop(method, (32, 48), labeled=4, unlabeled=2) == 2 * one * (3 * (4 + 2) + 2)


@pytest.mark.parametrize(("preset", "without_merge"), [("paper-voc", 29.5), ("paper-cityscapes", 14.4)])
def test_the_papers_networks(preset: str, without_merge: float):
    """29.5 and 14.4 TFLOP were counted without the 3x3 convolution by which our head merges its branches."""
    config = benchmark_config(preset)
    network = build_network(config.network, num_classes=workload_of(config).num_classes)
    crop, batch = config.views.crop, config.training.batch
    with FakeTensorMode(allow_non_fake_inputs=True):
        one = forward_flop(network, crop)
    cells = -(-crop[0] // 8) * -(-crop[1] // 8)
    merge = 2 * cells * 5 * 256 * 256 * 9
    passes = 2 * (3 * 2 * batch + batch)
    assert passes * (one - merge) / 1e12 == pytest.approx(without_merge, abs=0.05)
