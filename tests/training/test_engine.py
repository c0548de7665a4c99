"""The engine serves what a step yields: one optimizer at a time, sums for all, and a flag for what is not finite."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fewmask.config import LossSettings, OptimizerSettings
from fewmask.errors import ConfigError
from fewmask.learning.losses import LabeledLoss
from fewmask.methods.method import Method, MethodSettings
from fewmask.training.engine import Engine, choose_device, choose_precision
from fewmask.types import Loss, Measure, Reduce, Update, ViewRequest
from tests.miniature import make_batch, make_engine, make_method, make_progress


class Couple(Method):
    """Two numbers, each of whose losses holds both: a = 2, b = 3."""

    predictors = ()

    def __init__(self) -> None:
        super().__init__(MethodSettings(), LabeledLoss(LossSettings()))
        self.a, self.b = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))
        self.seen: list[float] = []

    views = ViewRequest(unlabeled=False)

    def trained(self):
        return {}

    def step(self, batch, progress):
        yield Update("a", Loss.mean("product", self.a * self.b * 4, torch.tensor(2.0)))
        self.seen.append(self.a.detach().item())  # after a yield the update has happened
        yield Measure("hits", torch.tensor(3.0), torch.tensor(4.0))
        yield Update("b", 0.5 * Loss.mean("square", (self.a * self.b) ** 2, torch.tensor(1.0)))
        total = yield Reduce(torch.tensor([1.0, 2.0]))
        self.seen += total.tolist()
        yield Measure("hits", torch.tensor(1.0), torch.tensor(12.0))


def couple(rate: float = 0.1) -> Engine:
    method = Couple()
    optimizers = {name: torch.optim.SGD([getattr(method, name)], lr=rate, fused=True) for name in "ab"}
    return Engine(method, optimizers, device=torch.device("cpu"))


def test_each_update_moves_its_own_parameters_only():
    """d(4ab/2)/da = 2b = 6, so a = 2 - 0.6 = 1.4; then d(a²b²/2)/db = a²b = 5.88, so b = 3 - 0.588 = 2.412."""
    engine = couple()
    engine.step(make_batch(), make_progress())
    method = engine.method
    assert method.a.item() == pytest.approx(1.4)
    assert method.b.item() == pytest.approx(2.412)
    assert method.seen == pytest.approx([1.4, 1.0, 2.0])  # one process: the sum over all ranks is its own
    assert method.a.grad.item() == pytest.approx(6.0)  # nothing of b's loss was added
    assert method.b.grad.item() == pytest.approx(5.88)


def test_a_line_of_metrics_holds_the_means_since_the_last():
    """Loss terms without their weight, one value per step; measures as total over count."""
    engine = couple(rate=1e-9)
    for step in range(2):
        engine.step(make_batch(), make_progress(step))
    line = engine.flush()
    assert line["loss/product"] == pytest.approx(12.0)
    assert line["loss/square"] == pytest.approx(36.0)
    assert line["hits"] == pytest.approx((3 + 1 + 3 + 1) / (4 + 12 + 4 + 12))
    assert line["a/gradient_norm"] == pytest.approx(6.0)
    assert list(line) == sorted(line)
    with torch.no_grad():
        engine.method.b.fill_(1.0)
    engine.step(make_batch(), make_progress(2))
    assert engine.flush()["loss/product"] == pytest.approx(4.0)  # the mean of one step: the sums had started anew


def test_the_loss_in_the_metrics_is_the_mean_over_steps():
    method = make_method("supervised")
    engine = make_engine(method)
    losses = []
    for step in range(3):
        twin = make_method("supervised")
        twin.load_state_dict(method.state_dict())
        losses.append(next(twin.step(make_batch(step), make_progress(step))).loss.value().item())
        engine.step(make_batch(step), make_progress(step))
    assert engine.flush()["loss/labeled"] == pytest.approx(sum(losses) / 3, rel=1e-6)


def test_a_teacher_is_in_no_optimizer():
    method = make_method("mean_teacher")
    engine = make_engine(method)
    held = {id(each) for opt in engine.optimizers.values() for group in opt.param_groups for each in group["params"]}
    assert held == {id(parameter) for parameter in method.student_1.parameters()}
    engine.step(make_batch(), make_progress())
    assert all(parameter.grad is None for parameter in method.teacher_1.parameters())


def snapshot(engine: Engine) -> dict[str, torch.Tensor]:
    found = {f"network.{key}": value.detach().clone() for key, value in engine.method.student_1.named_parameters()}
    for index, memory in engine.optimizers["student_1"].state_dict()["state"].items():
        found |= {f"{index}.{key}": value.clone() for key, value in memory.items()}
    return found


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_that_is_not_finite_changes_nothing(name, clip):
    """A NaN among the pixels: parameters, momentum and step counters stay bit for bit; the first such step is kept."""
    engine = make_engine(make_method("supervised"), OptimizerSettings(name=name, lr=0.01), clip=clip)
    for step in range(3):
        engine.step(make_batch(step), make_progress(step))
    assert engine.bad_step.item() == -1
    before = snapshot(engine)
    batch = make_batch(3)
    image = batch.image.clone()
    image[0, 0, 0, 0] = torch.nan
    engine.step(replace(batch, image=image), make_progress(3))
    after = snapshot(engine)
    assert before.keys() == after.keys()
    assert [key for key, value in before.items() if not torch.equal(value, after[key])] == []
    assert engine.bad_step.item() == 3
    engine.step(replace(batch, image=image), make_progress(4))
    assert engine.bad_step.item() == 3


def test_a_gradient_that_is_not_finite_is_masked_though_the_loss_is():
    """sqrt has the value 0 and an infinite slope at 0."""

    class Root(Couple):
        def step(self, batch, progress):
            yield Update("a", Loss.mean("root", (self.a - 2.0).sqrt(), torch.tensor(1.0)))

    method = Root()
    optimizers = {"a": torch.optim.SGD([method.a], lr=0.1, momentum=0.9, fused=True)}
    engine = Engine(method, optimizers, device=torch.device("cpu"))
    engine.step(make_batch(), make_progress(5))
    assert method.a.item() == 2.0
    assert engine.bad_step.item() == 5


def test_a_loss_that_is_not_finite_is_masked_though_its_gradient_is():
    """Its step is counted on from stage to stage, as the run's other steps are."""

    class Shifted(Couple):
        def step(self, batch, progress):
            yield Update("a", Loss.mean("shifted", self.a + torch.inf, torch.tensor(1.0)))

    method = Shifted()
    optimizers = {"a": torch.optim.SGD([method.a], lr=0.1, fused=True)}
    engine = Engine(method, optimizers, device=torch.device("cpu"))
    engine.step(make_batch(), replace(make_progress(5), step=torch.tensor(1)))
    assert method.a.grad.item() == 1.0
    assert method.a.item() == 2.0
    assert engine.bad_step.item() == 5


@pytest.mark.parametrize("bad", ["a", "b"])
def test_one_update_that_is_not_finite_is_masked_and_makes_a_bad_step(bad):
    """The other one of the same step goes on."""

    class Pair(Couple):
        def step(self, batch, progress):
            for name in "ab":
                value = getattr(self, name) * (torch.nan if name == bad else 1.0)
                yield Update(name, Loss.mean("value", value, torch.tensor(1.0)))

    method = Pair()
    optimizers = {name: torch.optim.SGD([getattr(method, name)], lr=0.5, fused=True) for name in "ab"}
    engine = Engine(method, optimizers, device=torch.device("cpu"))
    engine.step(make_batch(), make_progress(7))
    assert engine.bad_step.item() == 7
    assert (method.a.item(), method.b.item()) == ((2.0, 2.5) if bad == "a" else (1.5, 3.0))


def test_each_optimizer_is_clipped_at_its_own_norm():
    """Gradients of 6 and 5.88 (above): the first is cut to 0.5, the second follows from it and is left alone."""
    engine = couple()
    engine.clip = {"a": 0.5}
    engine.step(make_batch(), make_progress())
    assert engine.method.a.item() == pytest.approx(2 - 0.1 * 0.5, rel=1e-5)
    assert engine.method.b.item() == pytest.approx(3 - 0.1 * 1.95**2 * 3, rel=1e-5)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_loss_from_before_the_update_of_a_network_it_went_through_is_refused(kind):
    """b's loss holds the old a, so its gradient would mix both; fused optimizers change weights without saying so."""

    class Stale(Couple):
        def step(self, batch, progress):
            product = self.a * self.b
            yield Update("a", Loss.mean("first", 2 * self.a, torch.tensor(1.0)))
            yield Update("b", Loss.mean("stale", product, torch.tensor(1.0)))

    method = Stale()
    optimizers = {name: kind([getattr(method, name)], lr=0.1, fused=True) for name in "ab"}
    engine = Engine(method, optimizers, device=torch.device("cpu"))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine.step(make_batch(), make_progress())


def test_a_sum_over_ranks_has_no_gradient_with_one_process_either():
    """d(sum * a)/da = 2, and not 4: with several processes only this one's part could have a gradient."""

    class Summed(Couple):
        def step(self, batch, progress):
            total = yield Reduce(self.a)
            assert total is not None
            yield Update("a", Loss.mean("square", total * self.a, torch.tensor(1.0)))

    method = Summed()
    optimizers = {"a": torch.optim.SGD([method.a], lr=0.1, fused=True)}
    Engine(method, optimizers, device=torch.device("cpu")).step(make_batch(), make_progress())
    assert method.a.grad.item() == 2.0


def test_a_yield_without_gradients_is_a_mistake():
    class Quiet(Couple):
        def step(self, batch, progress):
            with torch.no_grad():
                yield Reduce(self.a)

    engine = Engine(Quiet(), {}, device=torch.device("cpu"))
    with pytest.raises(RuntimeError, match="no_grad"):
        engine.step(make_batch(), make_progress())


def test_mixed_precision_is_the_gpus_choice_and_nobody_elses():
    found = {kind: choose_precision("auto", torch.device(kind)) for kind in ("cpu", "cuda")}
    assert found == {"cpu": "fp32", "cuda": "bf16"}
    assert [choose_precision(asked, torch.device("cuda")) for asked in ("fp32", "fp64")] == ["fp32", "fp64"]


def test_a_gpu_named_by_its_number_becomes_the_current_one(monkeypatch):
    """Two GPUs that are not here: whatever asks for the current one, as events do, must mean the one that was named."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    for name in ("cuda:1", "cuda", "cpu", None, "cuda:0"):
        choose_device(name)
    assert current == [torch.device("cuda:1"), torch.device("cuda:0")]
    with pytest.raises(ConfigError, match="there is no cuda:2"):
        choose_device("cuda:2")
