"""What every method must do, whatever it is (style.md, Tests)."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from fewmask.labels import IGNORE
from fewmask.methods.method import Method
from fewmask.methods.table import METHODS, describe_methods
from fewmask.randomness import Randomness
from fewmask.types import Batch, Measure, Progress, Update
from tests.miniature import CLASSES, SETR, make_batch, make_engine, make_method, make_progress, requests

SEMI_SUPERVISED = [name for name in METHODS if name != "supervised"]
CAPTURABLE = [name for name, kind in METHODS.items() if kind.capturable]


def parameters_of(modules):
    return [parameter for module in modules for parameter in module.parameters()]


def updates(method, batch, progress):
    """The step's updates, with a backward pass for each but no optimizer."""
    found = []
    for request in requests(method, batch, progress):
        if isinstance(request, Update):
            request.loss.value().backward(inputs=parameters_of(method.updated()[request.optimizer]))
            found.append(request)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_finite_and_name_their_optimizer(name):
    method = make_method(name)
    found = updates(method, make_batch(), make_progress())
    assert {update.optimizer for update in found} == set(method.updated())
    assert all(torch.isfinite(update.loss.value()) for update in found)


@pytest.mark.parametrize("name", METHODS)
def test_measures_carry_no_graph(name):
    measures = [
        each for each in requests(make_method(name), make_batch(), make_progress()) if isinstance(each, Measure)
    ]
    assert not any(measure.total.requires_grad for measure in measures)


@pytest.mark.parametrize("name", METHODS)
def test_every_trained_parameter_gets_a_gradient_and_no_other(name):
    check_gradients(make_method(name), make_batch())


@pytest.mark.parametrize("name", METHODS)
def test_so_does_every_parameter_of_auxiliary_heads(name):
    check_gradients(make_method(name, SETR), make_batch(stride=16))


def check_gradients(method, batch):
    updates(method, batch, make_progress())
    trained = {id(parameter) for modules in method.updated().values() for parameter in parameters_of(modules)}
    for key, parameter in method.named_parameters():
        if id(parameter) in trained:
            assert parameter.grad is not None, key
            assert parameter.grad.abs().sum() > 0, key
        else:
            assert parameter.grad is None, key
            assert not parameter.requires_grad, key


@pytest.mark.parametrize("name", SEMI_SUPERVISED)
def test_unlabeled_images_alone_move_the_student(name):
    method = make_method(name, threshold=0.0)
    batch = make_batch()
    batch = replace(batch, label=torch.full_like(batch.label, IGNORE))
    updates(method, batch, make_progress())
    for network in method.trained().values():
        assert sum(parameter.grad.abs().sum() for parameter in network.parameters()) > 0


@pytest.mark.parametrize("name", SEMI_SUPERVISED)
def test_without_weight_the_unlabeled_images_change_nothing(name):
    """Unlabeled weight 0 leaves the gradient of the labeled loss, whatever the unlabeled images hold."""
    batch = make_batch()
    gradients = []
    for labels in (batch.weak, torch.zeros_like(batch.weak)):
        method = make_method(name, unlabeled_weight=0.0, dropout=0.0, stochastic_depth=1.0)
        method.student_1.eval()  # BatchNorm statistics would let the other images in
        updates(method, replace(batch, weak=labels, strong=(labels, labels)), make_progress())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in method.student_1.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)
    supervised = make_method("supervised")
    supervised.student_1.load_state_dict(make_method(name).student_1.state_dict())
    supervised.student_1.eval()
    updates(supervised, batch, make_progress())
    alone = torch.cat([parameter.grad.flatten() for parameter in supervised.student_1.parameters()])
    torch.testing.assert_close(gradients[0], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_is_a_pure_function_of_state_batch_and_step(name):
    results = []
    for _ in range(2):
        method = make_method(name, dropout=0.5, stochastic_depth=0.8)
        engine = make_engine(method)
        torch.manual_seed(len(results))  # nothing in a step may draw from torch's generator
        for step in range(3):
            engine.step(make_batch(step), make_progress(step))
        results.append(method.state_dict())
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


@pytest.mark.parametrize("name", CAPTURABLE)
def test_the_step_never_asks_the_host(name):
    method = make_method(name, dropout=0.5, stochastic_depth=0.8)
    assert updated_without_values(method, make_batch()) == list(method.updated())


@pytest.mark.parametrize("name", CAPTURABLE)
def test_nor_does_a_step_with_auxiliary_heads(name):
    method = make_method(name, SETR, dropout=0.5, stochastic_depth=0.8)
    assert updated_without_values(method, make_batch(stride=16)) == list(method.updated())


def updated_without_values(method, batch):
    """The optimizers that a step asks for; under fake tensors any .item(), nonzero or branch on a value raises."""
    progress = make_progress()
    with FakeTensorMode() as mode:
        make_fake(method, mode)
        fields = {key: fake_of(getattr(batch, key), mode) for key in batch.__dataclass_fields__}
        step = mode.from_tensor(progress.step)
        progress = Progress(step, mode.from_tensor(progress.fraction), Randomness(0, step))
        updates = [each for each in requests(method, Batch(**fields), progress) if isinstance(each, Update)]
        with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
            updates[0].loss.value().item()  # the guard itself works
        return [each.optimizer for each in updates]


@pytest.mark.parametrize("name", METHODS)
def test_diagnostics_leave_the_method_alone(name):
    """Labels where a method has any: its classes or IGNORE, IGNORE on padding; no weight, statistic or mode changes."""
    method, batch = make_method(name), make_batch()
    before = {key: value.clone() for key, value in method.state_dict().items()}
    found = method.pseudo_labels(batch)
    assert bool(found) == (type(method).pseudo_labels is not Method.pseudo_labels)
    for each in found:
        assert each.source in method.networks()
        assert each.label.shape == batch.valid.shape
        assert (each.label[~batch.valid] == IGNORE).all()
        assert ((each.label < CLASSES) | (each.label == IGNORE)).all()
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
    trained = {module for modules in method.updated().values() for module in modules}
    assert all(network.training == (network in trained) for network in method.networks().values())


def make_fake(method, mode):
    for module in method.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = mode.from_tensor(parameter)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = mode.from_tensor(buffer)


def fake_of(value, mode):
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value)
    if isinstance(value, dict):
        return {key: fake_of(each, mode) for key, each in value.items()}
    return tuple(fake_of(each, mode) for each in value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", METHODS)
def test_only_networks_that_train_are_in_train_mode(name):
    method = make_method(name).train()
    trained = {module for modules in method.updated().values() for module in modules}
    assert all(network.training == (network in trained) for network in method.networks().values())
    assert set(method.predictors) <= set(method.networks())


def test_every_setting_is_described():
    for method in describe_methods():
        assert method["summary"].endswith(".")
        assert all(entry["meaning"] for entry in method["settings"].values()), method["name"]
