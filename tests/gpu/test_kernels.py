"""On CUDA: fused kernels read nothing that was never written, graphs see new weights, products equal convolutions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fewmask.benchmarks.timing import busy_ms, captured, kernels, launch_us
from fewmask.networks.dilation import joined
from fewmask.networks.folding import FoldedTwin, find_pairs
from tests.networks.small import images, network
from tests.networks.test_folding import lived_in

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_gpu(dtype: torch.dtype = torch.float32):
    net = lived_in(network(backbone="resnet18", options={}))
    return net.to(device="cuda", dtype=dtype, memory_format=torch.channels_last).requires_grad_(False)


def spoil_free_memory() -> None:
    torch.full((2**26,), torch.nan, device="cuda")


@pytest.mark.parametrize("fused", [False, True])
def test_a_folded_teacher_in_bfloat16_is_as_good_as_a_plain_one(fused: bool):
    net = on_gpu()
    assert len(find_pairs(net)) == len(find_pairs(copy.deepcopy(net).cpu())) == 20
    twin = FoldedTwin(net, dtype=torch.bfloat16, fused=fused)
    pictures = images(4, 3, 97, 97).cuda().to(memory_format=torch.channels_last)
    with torch.no_grad():
        exact = copy.deepcopy(net).double()(pictures.double()).logits
        with torch.autocast("cuda", torch.bfloat16):
            plain = net(pictures).logits
            spoil_free_memory()
            folded = twin(pictures).logits
    error = (plain - exact).abs().mean()
    assert torch.isfinite(folded).all()
    assert (folded - exact).abs().mean() < 1.5 * error


def test_a_captured_teacher_answers_with_weights_that_came_later():
    net = on_gpu()
    twin, last = FoldedTwin(net, fused=True), {}
    pictures = images(2, 3, 65, 65).cuda().to(memory_format=torch.channels_last)

    def answer() -> None:
        with torch.no_grad():
            last["logits"] = twin(pictures).logits

    replay = captured(answer)
    with torch.no_grad():
        for parameter in net.backbone.parameters():
            parameter.mul_(1.1)
        replay()
        torch.testing.assert_close(last["logits"], net(pictures).logits, atol=1e-3, rtol=1e-3)


def test_a_product_equals_convolutions_in_a_captured_graph():
    torch.manual_seed(0)
    layers = [nn.Conv2d(64, 32, 3, padding=rate, dilation=rate).cuda() for rate in (6, 12, 24)]
    maps = images(4, 64, 41, 33).cuda().to(memory_format=torch.channels_last).requires_grad_()
    leaves, last = [maps, *(parameter for layer in layers for parameter in layer.parameters())], {}
    pull = images(4, 96, 41, 33, seed=1).cuda()

    def work(product: bool, bf16: bool) -> list[torch.Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            answer = torch.cat(joined(maps, layers) if product else [layer(maps) for layer in layers], dim=1)
        return [answer.detach().float(), *torch.autograd.grad(answer, leaves, pull.to(answer.dtype))]

    exact = [value.clone() for value in work(False, False)]
    rounded = [value.clone() for value in work(False, True)]
    replay = captured(lambda: last.update(found=work(True, True)))
    replay()
    for found, direct, true in zip(last["found"], rounded, exact, strict=True):
        assert (found - true).norm() < 2 * (direct - true).norm() + 1e-3 * true.norm()


def test_kernels_of_one_call_are_counted_and_their_time_is_summed():
    device, numbers = torch.device("cuda"), torch.ones(8, device="cuda")

    def call(_: int) -> None:
        for _ in range(500):
            numbers.add_(1)

    found = kernels(call, 3, device)
    assert [started for name, _, started in found if "elementwise" in name] == [500]
    busy = busy_ms(call, 3, device)
    assert busy is not None
    assert busy > 0


def test_a_host_takes_some_microseconds_to_start_a_kernel():
    started = launch_us(torch.device("cuda"))
    assert started is not None
    assert 0.1 < started < 1000
    assert launch_us(torch.device("cpu")) is None
