"""What trains beside students, or along with one: the whole contract holds, and runs know about it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fewmask.config import OptimizerSettings
from fewmask.errors import ConfigError
from fewmask.layers import left_out
from fewmask.settings import resolve
from fewmask.training.initialize import initialize_learners
from fewmask.training.learners import check_learners, optimizer_key, optimizer_settings
from fewmask.training.plan import describe_plan
from fewmask.training.rewriting import rewrite_networks
from tests.methods import test_contract
from tests.methods.beside import BESIDE, in_the_table
from tests.miniature import make_batch, make_engine, make_method, make_progress
from tests.training.runs import NOISY, assert_same_run, tiny_config, tiny_session, train_here, write_data

CONTRACT = [
    each
    for key, each in vars(test_contract).items()
    if key.startswith("test_") and "name" in inspect.signature(each).parameters and "auxiliary" not in key
]
PLAIN = tuple(word for word in NOISY if "threshold" not in word)


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    with in_the_table():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("beside") / "data")


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_the_contract_holds(name, check):
    assert len(CONTRACT) >= 9
    check(name)


@pytest.mark.parametrize("name", BESIDE)
def test_every_part_learns_and_nothing_else(name):
    method = make_method(name)
    before = {key: value.detach().clone() for key, value in method.named_parameters()}
    engine = make_engine(method)
    for step in range(2):
        engine.step(make_batch(step), make_progress(step))
    moved = {key.partition(".")[0] for key, value in method.named_parameters() if not torch.equal(value, before[key])}
    assert moved == {"student_1", *method.companions, *(["projector"] if name == "projected" else [])}


def test_a_companions_optimizer_is_the_papers_then_the_users():
    def settings(*words: str) -> OptimizerSettings:
        return optimizer_settings(tiny_config(Path(), *words, method="adversarial"), ["discriminator"])["discriminator"]

    usual = settings()
    assert (usual.name, usual.lr, usual.betas, usual.head_lr) == ("adamw", 1e-3, (0.9, 0.99), None)
    assert settings("companions.discriminator.optimizer.lr=0.5").model_dump() == usual.model_dump() | {"lr": 0.5}
    assert settings("optimizer.lr=0.5", "optimizer.momentum=0.1") == usual  # another optimizer's: the student's
    sgd = settings("companions.discriminator.optimizer={name: sgd, lr: 0.3}")
    assert (sgd.name, sgd.lr, sgd.momentum) == ("sgd", 0.3, 0.9)
    for words in ((), ("optimizer.name=adamw", "optimizer.lr=0.5")):
        config = tiny_config(Path(), *words, method="corrected")
        assert optimizer_settings(config, ["corrector"])["corrector"] == OptimizerSettings()  # no paper says anything
    key = optimizer_key(tiny_config(Path(), method="adversarial"), "discriminator", "lr", baseline=False)
    assert key == "companions.discriminator.optimizer.lr"


@pytest.mark.parametrize(
    ("method", "word", "message"),
    [
        ("adversarial", "companions.discriminator.network.width=4", "discriminator has no network of its own"),
        ("adversarial", "companions.discriminator.optimizer.rate=4", "rate"),
        ("corrected", "companions.corrector.baseline.training.steps=4", "corrector has no baseline of its own"),
        (
            "corrected",
            "companions.discriminator.optimizer.lr=4",
            "has no companion 'discriminator'",
        ),
    ],
)
def test_settings_that_a_companion_cannot_have(method, word, message):
    with pytest.raises(ConfigError, match=message) as caught:
        check_learners(tiny_config(Path(), word, method=method))
    assert caught.value.where.startswith("companions.")
    assert caught.value.fix


def test_words_of_companions_are_typed_as_the_runs_are():
    words = ("companions.corrector.optimizer.head_lr=none", "companions.corrector.network.pretrained=0123")
    config = tiny_config(Path(), *words, method="corrected")
    assert config.companions == {"corrector": {"optimizer": {"head_lr": None}, "network": {"pretrained": "0123"}}}


@pytest.mark.parametrize("method", ["supervised", "corrected"])
def test_a_name_that_is_no_learner_is_told_of_what_there_is(method):
    with pytest.raises(ConfigError) as caught:
        check_learners(tiny_config(Path(), "learners.corrector.optimizer.lr=1", method=method))
    assert caught.value.fix == {"supervised": "student_1", "corrected": "companions.corrector"}[method]
    with pytest.raises(ConfigError) as caught:
        check_learners(tiny_config(Path(), "companions.other.optimizer.lr=1", method=method))
    said = {"supervised": "leave it out: supervised has no companions", "corrected": "corrector"}
    assert caught.value.fix == said[method]


def test_another_optimizer_of_the_run_leaves_companions_alone():
    file = {"companions": {"discriminator": {"optimizer": {"lr": 0.5}}}, "optimizer": {"name": "sgd", "momentum": 0.5}}
    words = ["optimizer.name=adamw", "companions.discriminator.optimizer.weight_decay=0"]
    config = resolve({"method": "adversarial"}, file, words=words)
    settings = optimizer_settings(config, ["discriminator"])["discriminator"]
    assert (settings.name, settings.lr, settings.weight_decay) == ("adamw", 0.5, 0.0)
    assert [*left_out({"method": "adversarial"}, file, {"optimizer": {"name": "adamw"}})] == ["optimizer.momentum"]


def test_the_plan_tells_of_companions(data):
    plan = describe_plan(tiny_session(data, method="adversarial"), 0)
    assert "companion  discriminator, 0.0 M parameters; adamw, rate 0.001, poly, weight decay 0.0005\n" in plan
    assert "optimizer  sgd, rate 0.01 (head 0.02), poly, weight decay 0.0005\n" in plan
    session = tiny_session(data, "companions.corrector.network.width=8", method="corrected")
    assert session.method.corrector.feature_channels == 8
    assert session.method.student_1.feature_channels == 16
    plan = describe_plan(session, 0)
    assert "companion  corrector, " in plan
    assert plan.count("network    ") == 1


@pytest.mark.parametrize(
    ("name", "optimizer", "rates"),
    [
        ("projected", "student_1", {"student_1.backbone": 0.01, "student_1.head": 0.02, "projector": 0.02}),
        ("adversarial", "discriminator", {"discriminator": 0.01}),
        ("corrected", "corrector", {"corrector.backbone": 0.01, "corrector.head": 0.02}),
    ],
)
def test_what_stands_on_a_backbone_has_the_heads_rate(name, optimizer, rates):
    method = make_method(name)
    engine = make_engine(method, OptimizerSettings(lr=0.01, head_lr=0.02))
    groups = engine.optimizers[optimizer].param_groups
    found = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    parts = {part: method.get_submodule(part).parameters() for part in rates}
    assert found == {id(parameter): rates[part] for part, group in parts.items() for parameter in group}


def test_a_corrector_is_not_folded_as_a_teacher_is(data):
    method = tiny_session(data, method="corrected").method
    training = tiny_config(data, "training.fold_teachers=folded").training
    assert rewrite_networks(method, training, torch.device("cpu")) == []
    assert (method.corrector.twin, method.student_1.twin) == (None, None)


def test_companions_start_from_no_run(data, tmp_path):
    train_here(data, tmp_path / "first", "training.steps=1", method="supervised")
    method = tiny_session(data, method="corrected").method
    before = {key: value.clone() for key, value in method.corrector.state_dict().items()}
    (line,) = initialize_learners(method, {"student_1": tmp_path / "first"})
    assert line.startswith("networks start from student_1 of ")
    assert all(torch.equal(value, before[key]) for key, value in method.corrector.state_dict().items())


@pytest.mark.parametrize("name", BESIDE)
def test_a_run_resumes_exactly_and_ships_the_student(data, tmp_path, name):
    words = (*PLAIN, "training.log_every=1", "training.steps=4", "training.checkpoint_every=2")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_here(data, whole, *words, method=name)
    train_here(data, stopped, *words, method=name)
    (stopped / "checkpoints" / "step_00000004.pt").unlink()  # as if it had been killed before the last one
    train_here(data, stopped, *words, method=name, resume=True)
    assert_same_run(whole, stopped)
    assert json.loads((whole / "evaluation.json").read_text())["selected"] == "student_1"
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss/unlabeled"] > 0 for line in lines)
