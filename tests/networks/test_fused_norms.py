"""Fused norms compute what torch's layers do: the kernels, on a GPU or in Triton's interpreter, and what calls them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fewmask.learning.statistics import watched_inputs
from fewmask.networks import fused_norms
from fewmask.networks.fused_norms import forked, fuse_norms, normalized
from fewmask.networks.model_noise import gated_blocks
from fewmask.networks.recomputation import recompute_blocks
from fewmask.networks.segmentation import SegmentationNetwork
from tests.networks.interpreter import require_kernels
from tests.networks.small import images, network, noise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = [(False, False, False), (True, False, False), (True, True, False), (True, True, True), (False, True, True)]


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels themselves, on a GPU or in Triton's interpreter (tests/conftest.py)."""
    require_kernels()
    monkeypatch.setattr(fused_norms, "_has_kernels", lambda device: True)


def channels_last(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return draw.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)


def lived_in(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(0.5 + images(channels, seed=1))
        norm.bias.copy_(images(channels, seed=2) - 0.5)
        norm.running_mean.copy_(images(channels, seed=3))
    return norm


def both_ways(
    maps: Tensor, pull: Tensor, relu: bool, shortcut: Tensor | None, keep: Tensor | None
) -> list[dict[str, Tensor]]:
    """Answer, gradients and statistics, by torch's own layer in float64 and by the kernels."""
    found = []
    for dtype in (torch.float64, maps.dtype):
        norm = lived_in(maps.shape[1]).to(torch.float64 if dtype == torch.float64 else torch.float32)
        given = {"maps": maps.to(dtype).requires_grad_()}
        if shortcut is not None:
            given["shortcut"] = shortcut.to(dtype).requires_grad_()
        answer = normalized(norm, given["maps"], relu, given.get("shortcut"), keep)
        answer.backward(pull.to(dtype))
        values = {name: value.grad for name, value in given.items()}
        values |= {name: value.grad for name, value in norm.named_parameters()}
        found.append({"answer": answer.detach(), **values, **dict(norm.named_buffers())})
    return found


@pytest.mark.parametrize(("relu", "added", "gated"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 48, 7, 5), (2, 80, 33, 9)])
def test_kernels_compute_batch_norm_and_its_gradients(kernels, shape, dtype, relu, added, gated):
    maps = 3 * channels_last(*shape, seed=0, dtype=dtype) + 5
    shortcut = channels_last(*shape, seed=1, dtype=dtype) if added else None
    draws = torch.tensor([[0.0, 2.0], [1.25, 3.0], [1.25, 4.0]], dtype=torch.float64, device=DEVICE)
    keep = draws.unbind(1)[0][: shape[0]] if gated else None  # every second number, as gates have it
    pull = channels_last(*shape, seed=2, dtype=dtype)
    exact, fused = both_ways(maps, pull, relu, shortcut, keep)
    assert fused["num_batches_tracked"] == 1
    for name, value in exact.items():
        mapped = name in ("answer", "maps", "shortcut")
        error = (fused[name].double() - value).norm() / value.double().norm()
        assert error < (6e-3 if mapped and dtype == torch.bfloat16 else 2e-6), name
        assert fused[name].dtype in ((dtype,) if mapped else (torch.float32, torch.int64)), name


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_goes_on_in_two_ways_gets_the_gradients_of_both(kernels, dtype, gated):
    shape = (3, 48, 7, 5)
    maps, shortcut, *pulls = (channels_last(*shape, seed=seed, dtype=dtype) for seed in range(4))
    keep = torch.tensor([0.0, 1.25, 1.25], dtype=torch.float64, device=DEVICE) if gated else None
    found = []
    for precise in (torch.float64, dtype):
        norm = lived_in(48).to(torch.float64 if precise == torch.float64 else torch.float32)
        given = [each.to(precise).requires_grad_() for each in (maps, shortcut)]
        if precise == torch.float64:
            ways = [normalized(norm, given[0], relu=True, shortcut=given[1], keep=keep)] * 2
        else:
            ways = [*forked(norm, given[0], given[1], keep)]
            assert ways[0].data_ptr() == ways[1].data_ptr()
        torch.autograd.backward(ways, [pull.to(precise) for pull in pulls])
        found.append([ways[0].detach(), *(each.grad for each in (*given, norm.weight, norm.bias))])
    for value, other in zip(*found, strict=True):
        assert (other.double() - value).norm() / value.double().norm() < (6e-3 if dtype == torch.bfloat16 else 2e-6)


def test_many_parts_are_added_up(kernels, monkeypatch):
    """More parts than the settling kernel adds at a time, and several turns each."""
    from fewmask.networks import norm_passes

    monkeypatch.setattr(norm_passes, "SUMS", norm_passes.Tile(4, 16, 4))
    monkeypatch.setattr(norm_passes, "PROGRAMS", 150)
    shape = (3, 16, 20, 15)
    (_, parts), turns = norm_passes._shares(3 * 20 * 15, 16)
    assert parts > norm_passes._SETTLED["SPLITS"]
    assert turns > 1
    exact, fused = both_ways(channels_last(*shape, seed=0), channels_last(*shape, seed=1), True, None, None)
    for name, value in exact.items():
        torch.testing.assert_close(fused[name].to(value.dtype), value, atol=2e-5, rtol=2e-5, msg=name)


def test_a_value_that_is_not_a_number_stays_one(kernels):
    maps = channels_last(2, 16, 4, 4, seed=0)
    maps[0, 3, 1, 1] = torch.nan
    norm = nn.BatchNorm2d(16).to(DEVICE)
    answer = normalized(norm, maps.requires_grad_(), relu=True)
    assert answer[:, 3].isnan().all()
    assert answer[:, :3].isfinite().all()
    answer.sum().backward()
    assert norm.weight.grad[3].isnan()


def test_far_from_zero_a_variance_keeps_its_digits(kernels):
    maps = channels_last(2, 16, 9, 9, seed=0) + 1000
    norm = nn.BatchNorm2d(16, momentum=1.0).to(DEVICE)
    normalized(norm, maps.requires_grad_())
    torch.testing.assert_close(norm.running_var.double(), maps.detach().double().var((0, 2, 3)), rtol=1e-5, atol=0)


def test_a_pull_in_another_layout_gives_the_same_gradient(kernels):
    maps, pull = channels_last(2, 16, 5, 6, seed=0), channels_last(2, 16, 5, 6, seed=1)
    gradients = []
    for each in (pull, pull.contiguous()):
        leaf = maps.clone().requires_grad_()
        normalized(lived_in(16), leaf, relu=True).backward(each)
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


WIDE = {"options": {"channels": (16, 32, 32, 48), "stem_width": 8, "stem_type": "deep", "zero_init_last": False}}
BOTTLENECKS = {"backbone": "resnet26", "options": {"channels": (16, 16, 16, 16), "zero_init_last": False}}
NETWORKS = {
    "basic blocks": WIDE,
    "bottlenecks": BOTTLENECKS,
    "refining head": {**WIDE, "head": "deeplabv3plus", "stride": 4},
}


def pair(**changes: object) -> tuple[SegmentationNetwork, SegmentationNetwork]:
    plain = network(**changes).train().to(device=DEVICE, memory_format=torch.channels_last)
    fused = copy.deepcopy(plain)
    fuse_norms(fused)
    assert list(fused.state_dict()) == list(plain.state_dict())
    return plain, fused


def assert_same_step(plain: SegmentationNetwork, fused: SegmentationNetwork, tolerance: float) -> None:
    pictures = images(3, 3, 64, 96).to(DEVICE)
    draws = noise([0, 1, 2], dropout=0.5, survival=0.5, device=DEVICE)
    for net in (plain, fused):
        net(pictures, draws).logits.square().mean().backward()
    for (name, one), other in zip(plain.named_parameters(), fused.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= tolerance * one.grad.norm() + 1e-7, name
    assert_same_buffers(plain, fused)


def assert_same_buffers(plain: SegmentationNetwork, fused: SegmentationNetwork) -> None:
    for (name, one), other in zip(plain.named_buffers(), fused.buffers(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_with_fused_norms_is_trained_alike(kernels, monkeypatch, kind):
    plain, fused = pair(**NETWORKS[kind])
    calls = counted(monkeypatch)
    assert_same_step(plain, fused, tolerance=1e-2)  # a ReLU near zero may fall to either side
    assert len(calls) == sum(layer.num_features % 16 == 0 for layer in fused.batch_norms()) > 10
    followed = sum(len(layer) - 1 for name, layer in fused.backbone.body.items() if name.startswith("layer"))
    assert sum(calls) == followed
    assert (followed > 0) == (kind == "bottlenecks")


@pytest.mark.parametrize("kind", NETWORKS)
def test_without_kernels_it_is_the_layers_one_after_the_other(monkeypatch, kind):
    monkeypatch.setattr(fused_norms, "_has_kernels", lambda device: False)
    plain, fused = pair(**NETWORKS[kind])
    assert_same_step(plain, fused, tolerance=1e-5 if DEVICE == "cpu" else 1e-2)  # a GPU adds up in any order


def test_a_shortcut_of_no_layers_hands_maps_on():
    """GhostNet's is an empty nn.Sequential."""
    plain, fused = pair(backbone="ghostnet_050", options={}, stride=16)
    pictures = images(2, 3, 64, 64).to(DEVICE)
    torch.testing.assert_close(fused.eval()(pictures).logits, plain.eval()(pictures).logits)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each time that kernels are asked for, and whether the answer goes on in two ways."""
    calls: list[bool] = []
    real = fused_norms._Normalized.apply
    monkeypatch.setattr(fused_norms._Normalized, "apply", lambda *given: (calls.append(given[-1]), real(*given))[1])
    return calls


def test_passes_that_do_not_train_are_plain(kernels, monkeypatch):
    plain, fused = pair(**WIDE)
    calls = counted(monkeypatch)
    pictures = images(2, 3, 64, 64).to(DEVICE)
    with torch.no_grad():
        torch.testing.assert_close(fused(pictures).logits, plain(pictures).logits)  # as a teacher in train mode
    torch.testing.assert_close(fused.eval()(pictures).logits, plain.eval()(pictures).logits)
    assert calls == []
    assert_same_buffers(plain, fused)


def test_a_norm_that_is_watched_is_called(kernels):
    _, fused = pair(**WIDE)
    layers = list(fused.batch_norms())
    with watched_inputs(fused) as moments:
        fused(images(2, 3, 64, 64).to(DEVICE))
    assert len(moments) == len(layers)
    assert all(each[-1] > 0 for each in moments)


@pytest.mark.parametrize("beside_compiled", [False, True])
def test_maps_that_timm_reads_off_by_hooks_are_those_of_all_levels(beside_compiled):
    net = network(**{**BOTTLENECKS, "options": {**BOTTLENECKS["options"], "feature_cls": "hook"}}).to(DEVICE)
    pictures = images(2, 3, 64, 64).to(DEVICE)
    maps = net.backbone.body(pictures)
    fuse_norms(net.backbone, beside_compiled=beside_compiled)
    torch.testing.assert_close(net.backbone.body(pictures), maps)


def test_a_relu_that_is_watched_is_called():
    layers = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU()).to(DEVICE)
    seen: list[Tensor] = []
    layers[1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    fuse_norms(layers)
    answer = layers(channels_last(2, 16, 4, 4, seed=0))
    assert [each is answer for each in seen] == [True]


def test_copies_are_plain_again():
    _, fused = pair(**WIDE)
    assert any(module._compiled_call_impl is not None for module in fused.modules())
    assert all(module._compiled_call_impl is None for module in copy.deepcopy(fused).modules())


@pytest.mark.parametrize("backbone", ["seresnet18", "resnet50_gn"])
def test_beside_compiled_blocks_only_what_is_outside_of_them_is_fused(backbone):
    """Blocks that the kernels do not suit, for what else they have or their norms, are left to torch.compile."""
    net = network(backbone=backbone, options={})
    fuse_norms(net.backbone, beside_compiled=True)
    blocks = gated_blocks(net)
    assert blocks
    assert all(inner._compiled_call_impl is None for block in blocks for inner in block.modules())


def test_beside_compiled_blocks_those_of_plain_resnets_are_fused():
    net = network(**BOTTLENECKS)
    fuse_norms(net.backbone, beside_compiled=True)
    assert all(block._compiled_call_impl is not None for block in gated_blocks(net))


def test_what_is_wrong_with_triton_is_told_in_a_line(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("0 active drivers ([]).\nThere should only be one.")

    monkeypatch.setattr("fewmask.networks.norm_passes.moments", broken)
    assert fused_norms.fusing_problem(torch.device(DEVICE)) == "RuntimeError: 0 active drivers ([])."


def test_where_they_run_there_is_no_problem(kernels):
    assert fused_norms.fusing_problem(torch.device(DEVICE)) is None


def test_blocks_that_are_computed_again_keep_their_own_calls(kernels, monkeypatch):
    plain, fused = pair(**BOTTLENECKS)
    recompute_blocks(fused)
    calls = counted(monkeypatch)
    assert_same_step(plain, fused, tolerance=1e-2)
    assert not any(calls)
