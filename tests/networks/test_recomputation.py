"""Blocks that compute twice and passes in parts: the same numbers, less memory."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.profiler import ProfilerActivity, profile

from fewmask.networks.compilation import compile_blocks
from fewmask.networks.recomputation import recompute_blocks, recomputed_modules, split_passes
from fewmask.networks.segmentation import SegmentationNetwork
from tests.networks.small import NARROW, TINY_VIT, images, network, noise

VIT = {"backbone": "vit_tiny_patch16_224", "head": "setr_naive", "stride": 16, "options": TINY_VIT}
MOBILE = {"backbone": "mobilenetv2_050", "stride": 16, "options": {}}  # timm's BatchNormAct2d
AUXILIARY = VIT | {"auxiliary_weight": 0.4}
EXACT = torch.float64
RATES = {"dropout": 0.5, "survival": 0.5}


def learn(net: SegmentationNetwork, step: int = 0, count: int = 3) -> dict[str, torch.Tensor]:
    """One pass with noise and its gradients: all that it gave, and the buffers that it left."""
    net.zero_grad()
    dtype = next(net.parameters()).dtype
    answer = net(images(count, 3, 64, 64, seed=step, dtype=dtype), noise(list(range(count)), step=step, **RATES))
    # As uneven weights as those of a loss, and all outputs in use
    weight = images(*answer.logits.shape, seed=50 + step, dtype=dtype)
    total = (answer.logits.square() * weight).sum() + 0.1 * (answer.features.square() * weight[:, :1]).mean()
    total = total + sum((each.square() * weight).sum() for each in answer.auxiliary)
    total.backward(inputs=list(net.parameters()))
    found = {"logits": answer.logits.detach(), "features": answer.features.detach()}
    found |= {f"auxiliary.{place}": each.detach() for place, each in enumerate(answer.auxiliary)}
    found |= {f"{name}.grad": value.grad for name, value in net.named_parameters()}
    return found | {name: value.clone() for name, value in net.named_buffers()}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


@pytest.mark.parametrize("dtype", [torch.float32, EXACT])
@pytest.mark.parametrize(
    "changes",
    [{}, MOBILE, VIT, AUXILIARY, {"frozen_norm": True}],
    ids=["resnet", "mobile", "vit", "auxiliary", "frozen"],
)
def test_recomputed_blocks_change_no_bit(changes, dtype):
    """Answers, gradients, running statistics and counters over three steps, with dropout and stochastic depth."""
    plain = network(**changes).to(dtype).train()
    saving = copy.deepcopy(plain)
    recompute_blocks(saving)
    for step in range(3):
        assert_same(learn(plain, step), learn(saving, step))


def test_blocks_compute_twice_where_gradients_are_wanted_and_once_elsewhere():
    net = network().train()
    recompute_blocks(net)
    blocks = recomputed_modules(net)
    assert len(blocks) == net.backbone.residual_blocks + 1
    calls = []
    for block in blocks:
        first = next(layer for layer in block.modules() if isinstance(layer, nn.Conv2d))
        first.register_forward_hook(lambda *_: calls.append(1))
    learn(net)
    assert len(calls) == 2 * len(blocks)
    calls.clear()
    with torch.no_grad():
        net(images(2, 3, 64, 64))
    assert len(calls) == len(blocks)


def test_auxiliary_heads_are_recomputed_as_well():
    net = network(**AUXILIARY)
    assert recomputed_modules(net)[-3:] == [head.embedding for head in (net.head, *net.auxiliary)]
    split_passes(net.train(), 2)
    assert net(images(3, 3, 64, 64)).auxiliary_weight == 0.4


def test_blocks_without_a_shortcut_are_recomputed_as_well():
    net = network(**MOBILE)
    assert (
        len(recomputed_modules(net)) == 16 + 1 > net.backbone.residual_blocks + 1
    )  # MobileNetV2 has so many of this kind


def test_names_stay_and_a_copy_is_a_plain_network():
    net = network()
    names = list(net.state_dict())
    recompute_blocks(net)
    split_passes(net, 2)
    assert list(net.state_dict()) == names
    assert not any("_compiled_call_impl" in vars(module) for module in copy.deepcopy(net).modules())


def test_compiled_blocks_compute_again_with_the_code_they_have():
    """The second computation finds the first one's code: nothing else is compiled, and no bit differs."""
    runs = []

    def counting(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            runs.append(1)
            return graph(*values)

        return run

    # Saves what its own cut of the graph needs, as inductor does
    backend = aot_autograd(fw_compiler=counting, bw_compiler=lambda graph, _: graph)
    plain = network().train()
    saving = copy.deepcopy(plain)
    for net in (plain, saving):
        compile_blocks(net, backend=backend)
    recompute_blocks(saving)
    torch._dynamo.utils.counters.clear()
    expected = [learn(plain, step) for step in range(2)]
    once, graphs = len(runs), torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for step in range(2):
        assert_same(learn(saving, step), expected[step])
    assert len(runs) == 3 * once  # as many again for the first computation, and for the second
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs > 0


@pytest.mark.parametrize(("parts", "blocks"), [(2, False), (3, True), (9, False)])
@pytest.mark.parametrize(
    "changes",
    [{"frozen_norm": True}, VIT | {"head": "deeplabv2"}, AUXILIARY | {"frozen_norm": True}],
    ids=["frozen", "none", "auxiliary"],
)
def test_parts_give_the_pass_of_the_whole_batch(changes, blocks, parts):
    """Five images in two, three or (nine asked for) five parts; BatchNorm is frozen or there is none."""
    whole = network(**changes).to(EXACT).train()
    parted = copy.deepcopy(whole)
    if blocks:
        recompute_blocks(parted)
    split_passes(parted, parts)
    one, other = learn(whole, count=5), learn(parted, count=5)
    for key, value in one.items():
        torch.testing.assert_close(other[key], value, rtol=1e-11, atol=1e-11, msg=key)


def test_live_statistics_are_those_of_each_part():
    """Running statistics move once for each part, in order, and not again when the part is computed again."""
    parted = network().to(EXACT).train()
    by_hand = copy.deepcopy(parted)
    split_passes(parted, 2)
    pictures = images(5, 3, 64, 64, dtype=EXACT)
    answer = parted(pictures)
    expected = [by_hand(part) for part in (pictures[[0, 2, 4]], pictures[[1, 3]])]
    for part, each in enumerate(expected):
        assert torch.equal(answer.logits[part::2], each.logits)
        assert torch.equal(answer.features[part::2], each.features)
    answer.logits.square().sum().backward()
    for each in expected:
        each.logits.square().sum().backward()
    for one, other in zip(parted.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-11, atol=1e-11)
    assert_same(dict(parted.named_buffers()), dict(by_hand.named_buffers()))
    assert {int(norm.num_batches_tracked) for norm in parted.batch_norms()} == {2}


def test_evaluation_is_not_cut_and_other_passes_are():
    net = network()
    split_passes(net, 3)
    sizes = []
    net.head.classifier.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    with torch.inference_mode():
        net(images(5, 3, 64, 64))
    with torch.no_grad():
        net(images(5, 3, 64, 64))
    net(images(1, 3, 64, 64))
    assert sizes == [5, 2, 2, 1, 1]


@pytest.mark.parametrize(("count", "parts"), [(8, 2), (8, 3), (7, 3), (8, 4)])
def test_every_part_that_learns_has_labeled_and_unlabeled_images(count, parts):
    """A batch is dark images, then bright ones; without gradients they pass in their order."""
    net = network().train()
    split_passes(net, parts)
    pictures = torch.arange(count).ge(4).float()[:, None, None, None].expand(count, 3, 64, 64)
    seen: list[list[float]] = []
    net.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].mean((1, 2, 3)).tolist()))
    net(pictures)
    assert len(seen) == parts
    assert all(len(set(part)) == 2 for part in seen)
    dark, bright = (sum(part.count(kind) for part in seen) for kind in sorted(set(seen[0])))
    assert (dark, bright) == (4, count - 4)
    seen.clear()
    with torch.no_grad():
        net(pictures)
    passed = [each for part in seen for each in part]
    assert (len(passed), passed) == (count, sorted(passed))


def test_gradients_of_parts_add_up_in_float32():
    """Under autocast each part casts the weights itself; a shared cast would add gradients up in bfloat16."""
    parted = network(frozen_norm=True).train()
    alone = copy.deepcopy(parted)
    split_passes(parted, 2)
    pictures = images(4, 3, 64, 64)

    def learn_from(net: SegmentationNetwork, seen: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(seen).logits
        logits.square().sum().backward()

    learn_from(parted, pictures)
    for part in (pictures[1::2], pictures[0::2]):  # a backward pass reaches the last part first
        learn_from(alone, part)
    for one, other in zip(parted.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that was allocated at any time, by the allocator's own account."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        work()
    results = log.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in results if event.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in changes))


@pytest.mark.parametrize(
    ("blocks", "parts", "share"), [(True, 1, 0.6), (False, 2, 0.6), (False, 4, 0.35), (True, 4, 0.3)]
)
def test_the_peak_of_memory_falls(blocks, parts, share):
    deep = {"backbone": "resnet50", "options": NARROW | {"channels": (8, 8, 8, 8)}}
    plain = network(**deep).train()
    saving = copy.deepcopy(plain)
    if blocks:
        recompute_blocks(saving)
    if parts > 1:
        split_passes(saving, parts)
    learn(plain)  # gradients exist from here on, so they do not count
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        other.grad = one.grad.clone()

    pictures = images(4, 3, 96, 96)

    def peak(net: SegmentationNetwork) -> int:
        return peak_bytes(lambda: net(pictures).logits.square().sum().backward())

    assert peak(saving) < share * peak(plain)
