"""Parameter groups, clipping and the optimizers' memory."""

import pytest
import torch

from fewmask.config import NetworkSettings, OptimizerSettings
from fewmask.networks.build import build_network
from fewmask.training.checkpoint import load_checkpoint, save_checkpoint
from fewmask.training.optimizers import build_optimizer, set_rates
from fewmask.training.state import collect_state, restore_state
from tests.miniature import CLASSES, NETWORK, make_batch, make_engine, make_method, make_progress

SGD = OptimizerSettings(lr=0.01, head_lr=0.03, momentum=0.9, weight_decay=0.1, schedule="constant")
ADAMW = SGD.model_copy(update={"name": "adamw", "lr": 1e-3})


def group_of(optimizer, parameter):
    return next(group for group in optimizer.param_groups if any(each is parameter for each in group["params"]))


@pytest.mark.parametrize(("settings", "head_lr"), [(SGD, 0.03), (SGD.model_copy(update={"head_lr": None}), 0.1)])
def test_head_and_backbone_have_their_own_rates(settings, head_lr):
    network = build_network(NETWORK, num_classes=CLASSES)
    optimizer = build_optimizer([network], settings)
    for name, parameter in network.named_parameters():
        expected = head_lr if name.startswith("head.") else 0.01
        assert group_of(optimizer, parameter)["lr"] == pytest.approx(expected), name
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in network.parameters())  # each exactly once


def test_weights_that_timm_does_not_train_stay_out():
    """EfficientViM has one for each level, which only its classifier would read."""
    options = {"out_indices": (0, 1)}
    settings = NetworkSettings(backbone="efficientvim_m1", head="sum2", stride=16, options=options)
    method = make_method("supervised", settings)
    engine = make_engine(method, SGD)
    fixed = [name for name, value in method.student_1.named_parameters() if not value.requires_grad]
    assert fixed == ["backbone.body.model.weights"]
    before = {name: value.detach().clone() for name, value in method.student_1.named_parameters()}
    engine.step(make_batch(size=(64, 64), stride=16), make_progress())
    assert engine.bad_step.item() == -1
    moved = [name for name, value in method.student_1.named_parameters() if not torch.equal(value, before[name])]
    assert "backbone.body.model.patch_embed.conv.0.conv.weight" in moved
    assert fixed[0] not in moved


@pytest.mark.parametrize("decay_norms", [True, False])
def test_norms_and_biases_are_spared_on_request(decay_norms):
    network = build_network(NETWORK, num_classes=CLASSES)
    optimizer = build_optimizer([network], SGD.model_copy(update={"decay_norms": decay_norms}))
    norms = (torch.nn.BatchNorm2d, torch.nn.GroupNorm, torch.nn.LayerNorm)
    spared = 0
    for module in network.modules():
        for name, parameter in module.named_parameters(recurse=False):
            free = not decay_norms and (isinstance(module, norms) or name == "bias")
            spared += free
            assert group_of(optimizer, parameter)["weight_decay"] == (0.0 if free else 0.1), (module, name)
    assert (spared > 0) == (not decay_norms)


def test_the_schedule_scales_every_group():
    network = build_network(NETWORK, num_classes=CLASSES)
    settings = SGD.model_copy(update={"schedule": "poly", "power": 2.0, "decay_norms": False})
    optimizer = build_optimizer([network], settings)
    for step in (5, 3):  # a pure function of the step, whatever came before
        assert set_rates(optimizer, settings, step, 10) == pytest.approx(0.01 * (1 - step / 10) ** 2)
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(group["base_lr"] * (1 - step / 10) ** 2)


def test_two_sgd_steps_by_hand():
    """v <- momentum * v + (g + decay * w);  w <- w - rate * v."""
    method = make_method("supervised")
    engine = make_engine(method, SGD)
    velocity = {name: torch.zeros_like(value) for name, value in method.student_1.named_parameters()}
    for step in range(2):
        before = {name: value.detach().clone() for name, value in method.student_1.named_parameters()}
        engine.step(make_batch(step), make_progress(step))
        for name, value in method.student_1.named_parameters():
            assert value.grad is not None
            velocity[name] = 0.9 * velocity[name] + value.grad + 0.1 * before[name]
            rate = 0.03 if name.startswith("head.") else 0.01
            torch.testing.assert_close(value.detach(), before[name] - rate * velocity[name], rtol=1e-5, atol=1e-7)


def test_two_adamw_steps_are_torchs_with_the_betas_asked_for():
    """w <- w - rate * (m / (sqrt(v) + eps) + decay * w), with both averages corrected for their start."""
    method = make_method("supervised")
    engine = make_engine(method, ADAMW.model_copy(update={"betas": (0.6, 0.7)}))
    first = {name: torch.zeros_like(value) for name, value in method.student_1.named_parameters()}
    second = {name: torch.zeros_like(value) for name, value in method.student_1.named_parameters()}
    for step in range(2):
        before = {name: value.detach().clone() for name, value in method.student_1.named_parameters()}
        engine.step(make_batch(step), make_progress(step))
        for name, value in method.student_1.named_parameters():
            first[name] = 0.6 * first[name] + 0.4 * value.grad
            second[name] = 0.7 * second[name] + 0.3 * value.grad.square()
            moved = first[name] / (1 - 0.6 ** (step + 1)) / ((second[name] / (1 - 0.7 ** (step + 1))).sqrt() + 1e-8)
            rate = 0.03 if name.startswith("head.") else 1e-3
            torch.testing.assert_close(
                value.detach(), before[name] - rate * (moved + 0.1 * before[name]), rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_clipping_is_what_torch_does(clip):
    """The engine's update against backward, clip_grad_norm_ and a plain optimizer."""
    method, twin = make_method("supervised"), make_method("supervised")
    engine = make_engine(method, SGD, clip=clip)
    batch, progress = make_batch(), make_progress()
    engine.step(batch, progress)

    parameters = list(twin.student_1.parameters())
    next(twin.step(batch, progress)).loss.value().backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    groups = [
        {"params": list(part), "lr": rate}
        for part, rate in ((twin.student_1.backbone_parameters(), 0.01), (twin.student_1.head_parameters(), 0.03))
    ]
    torch.optim.SGD(groups, momentum=0.9, weight_decay=0.1).step()
    for one, other in zip(method.student_1.parameters(), parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert engine.flush()["student_1/gradient_norm"] == pytest.approx(norm.item(), rel=1e-5)  # before clipping
    total = torch.nn.utils.get_total_norm([parameter.grad for parameter in method.student_1.parameters()])
    assert total.item() == pytest.approx(min(clip, norm.item()), rel=1e-4)


@pytest.mark.parametrize("settings", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_a_restored_optimizer_goes_on_exactly(settings, tmp_path):
    def steps(engine, numbers):
        for step in numbers:
            engine.step(make_batch(step), make_progress(step))

    def engine():
        return make_engine(make_method("mean_teacher", dropout=0.5, stochastic_depth=0.8, threshold=0.3), settings)

    whole = engine()
    steps(whole, range(6))
    first = engine()
    steps(first, range(3))
    path = save_checkpoint(tmp_path, 3, collect_state(first, {"data": "x"}), keep=1)
    second = engine()
    restore_state(second, load_checkpoint(path), {"data": "x"})
    steps(second, range(3, 6))
    for key, value in whole.method.state_dict().items():
        assert torch.equal(second.method.state_dict()[key], value), key
    assert second.flush() == whole.flush()
    state, expected = (each.optimizers["student_1"].state_dict()["state"] for each in (second, whole))
    assert len(state) == len(list(whole.method.student_1.parameters()))
    assert all(torch.equal(state[index][key], value) for index in expected for key, value in expected[index].items())
