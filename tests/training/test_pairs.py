"""A pair of a small DeepLab with SGD and a tiny SETR with AdamW: whole runs, resumed, scored, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fewmask.cli import run
from fewmask.config import Config
from fewmask.errors import CheckpointError, ConfigError
from fewmask.training.baselines import baselines_of
from fewmask.training.checkpoint import load_checkpoint
from fewmask.training.learners import baseline_config, baseline_groups, learner_config
from fewmask.training.networks import load_networks
from fewmask.training.plan import describe_plan
from fewmask.training.run import run_training
from fewmask.training.run_folder import RunFolder
from fewmask.training.state import load_method, method_state
from tests.training.rank_checks import PAIR
from tests.training.runs import Heard, assert_same_run, tensors, tiny_config, tiny_session, train_here, write_data
from tests.training.test_stages import Fuse, Stopped

STEPS, BASELINE = 4, 3
BASELINES = (f"baseline.training.steps={BASELINE}", "learners.student_2.baseline.training.steps=2")
WORDS = (
    *PAIR,
    *BASELINES,
    f"training.steps={STEPS}",
    "training.checkpoint_every=3",
    "training.log_every=1",
    "training.keep=9",
)


def pair_config(data: Path, *more: str, method: str = "rml") -> Config:
    return tiny_config(data, *WORDS, *more, method=method)


def train(data: Path, out: Path, *more: str, observer: Any = None, resume: bool = False, **start: Any) -> None:
    options = {"init": None, "observer": observer or Heard(), **start}
    run_training(pair_config(data, *more), out, device="cpu", resume=resume, **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("pairs") / "data")


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    train(data, data.parent / "whole")
    return data.parent / "whole"


def test_each_learner_starts_from_its_own_baseline(whole: Path):
    start = load_checkpoint(whole / "checkpoints" / "step_00000000.pt")
    for folder, steps, number in (("baseline", BASELINE, "1"), ("baseline_2", 2, "2")):
        baseline = load_checkpoint(whole / folder / "checkpoints" / f"step_{steps:08d}.pt")
        for key, value in baseline.items():
            if key.startswith("network.student_1."):
                for network in ("student", "teacher"):
                    assert torch.equal(start[key.replace("student_1", f"{network}_{number}", 1)], value), key
    configs = [RunFolder(whole / name).read_config() for name in ("baseline", "baseline_2")]
    assert [each.network.backbone for each in configs] == ["test_resnet", "vit_tiny_patch16_224"]
    assert [(each.optimizer.name, each.optimizer.clip) for each in configs] == [("sgd", None), ("adamw", 1.0)]
    assert [each.seed for each in configs] == [0, 1]
    assert all((each.method, each.learners, each.baseline) == ("supervised", {}, {}) for each in configs)


def test_each_learner_has_its_own_optimizer_and_schedule(whole: Path):
    """Poly from 0.01 with a head of its own, and cosine from 0.002 with a head of ten times that, anew in stage 2."""
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 2 * STEPS + 1))
    for line in lines:
        step = (line["step"] - 1) % STEPS
        assert line["student_1/lr"] == pytest.approx(0.01 * (1 - step / STEPS) ** 0.9)
        assert line["student_2/lr"] == pytest.approx(0.002 * 0.5 * (1 + np.cos(np.pi * step / STEPS)))
        assert "lr" not in line
    state = load_checkpoint(whole / "checkpoints" / f"step_{STEPS + 2:08d}.pt")
    one, other = (state[f"optimizer.student_{number}"] for number in "12")
    assert [group["lr"] for group in one["param_groups"]] == pytest.approx([base * 0.75**0.9 for base in (0.01, 0.02)])
    assert [group["lr"] for group in other["param_groups"]] == pytest.approx(
        [base * 0.5 * (1 + np.cos(np.pi / 4)) for base in (0.002, 0.02)]
    )
    assert all("momentum_buffer" in entry for entry in one["state"].values())
    assert {float(entry["step"]) for entry in other["state"].values()} == {2.0}  # steps since the stage began


def test_a_run_killed_in_stage_2_ends_the_same(data: Path, whole: Path, tmp_path: Path):
    with pytest.raises(Stopped):
        train(data, tmp_path / "run", observer=Fuse(("training", STEPS + 2)))
    train(data, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole)


def test_every_network_is_scored_and_predicts(data: Path, whole: Path, tmp_path: Path):
    before = (whole / "evaluation.json").read_bytes()
    assert run(["evaluate", str(whole), "--device", "cpu"]) == 0
    assert (whole / "evaluation.json").read_bytes() == before
    scored = json.loads(before)
    assert [*scored["networks"]] == ["teacher_1", "teacher_2", "student_1", "student_2", "ensemble"]
    networks, card, _ = load_networks(RunFolder(whole))
    assert [networks[name].stride for name in ("teacher_1", "student_2")] == [8, 16]
    ships = learner_config(pair_config(data), card.predictor.replace("teacher", "student")).network
    assert card.network == ships
    source = data / "unlabeled" / "u0.png"
    image = torch.from_numpy(np.asarray(Image.open(source)).astype(np.float32) / 255).permute(2, 0, 1)[None]
    for name, network in networks.items():
        words = ["predict", str(whole), str(source), "--out", str(tmp_path / name), "--network", name]
        assert run([*words, "--device", "cpu"]) == 0
        with torch.no_grad():
            logits = torch.nn.functional.interpolate(network(image).logits, image.shape[-2:], mode="bilinear")
        assert np.array_equal(np.asarray(Image.open(tmp_path / name / "u0.png")), logits.argmax(1)[0].numpy())


def test_the_plan_has_a_row_for_each_kind(data: Path):
    rows = [line.strip() for line in describe_plan(tiny_session(data, *WORDS, method="rml"), 0).splitlines()]
    assert [row.rpartition("(")[2] for row in rows if row.startswith("network")] == [
        "student_1, teacher_1)",
        "student_2, teacher_2)",
    ]
    assert [row for row in rows if row.startswith("optimizer")] == [
        "optimizer  sgd, rate 0.01 (head 0.02), poly, weight decay 0.0005 (student_1)",
        "optimizer  adamw, rate 0.002 (head 0.02), cosine, weight decay 0.0005 (student_2)",
    ]
    alike = [line.strip() for line in describe_plan(tiny_session(data, method="rml"), 0).splitlines()]
    assert sum(row.startswith(("network", "optimizer")) for row in alike) == 2


def test_two_baselines_serve_two_learners_and_one_does_not(data: Path, whole: Path, tmp_path: Path):
    one, other = whole / "baseline", whole / "baseline_2"
    heard = Heard()
    train(data, tmp_path / "run", "settings.stages=1", baselines=[one, other], observer=heard)
    assert heard.lines[:2] == [
        f"student_1, teacher_1 start from student_1 of {one}",
        f"student_2, teacher_2 start from student_1 of {other}",
    ]
    assert not (tmp_path / "run" / "baseline").exists()
    first, again = (
        tensors(load_checkpoint(each / "checkpoints" / "step_00000000.pt")) for each in (tmp_path / "run", whole)
    )
    assert all(torch.equal(value, again[key]) for key, value in first.items())
    for start in ({"baselines": [one]}, {"init": one}):
        with pytest.raises(ConfigError, match="cannot start learners of different kinds") as caught:
            train(data, tmp_path / "no", **start)
        assert "student_2 is setr_naive on vit_tiny_patch16_224" in caught.value.what
        assert caught.value.fix.startswith("--baseline RUN_1 --baseline RUN_2, in this order")
    with pytest.raises(ConfigError, match="3 runs to start from, and rml has 2 learners"):
        train(data, tmp_path / "no", baselines=[one, other, other])
    with pytest.raises(CheckpointError, match="less than half of its tensors fit student_1"):
        train(data, tmp_path / "no", baselines=[other, one])
    assert not (tmp_path / "no" / "config.yaml").exists()


def test_restarting_from_the_baseline_is_resumed_exactly(data: Path, whole: Path, tmp_path: Path):
    """Stage 2 starts from the baselines' weights again, and sweeps the last teachers' answers before."""
    words = ("settings.restart=baseline", "settings.buffers=weak")
    train(data, tmp_path / "whole", *words, baselines=[whole / "baseline", whole / "baseline_2"])
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / f"step_{2 * STEPS:08d}.pt").unlink()  # as if killed after step 6
    train(data, tmp_path / "run", *words, resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    first, end = (load_checkpoint(tmp_path / "run" / "checkpoints" / f"step_{step:08d}.pt") for step in (0, STEPS))
    method = tiny_session(data, *WORDS, *words, method="rml").method
    load_method(method, end)
    method.start_stage(1)
    second = method_state(method)
    for key, value in first.items():
        if key.startswith("network.teacher_"):
            assert torch.equal(second[key], value)
            assert torch.equal(second[key.replace("teacher", "student", 1)], end[key])  # whose soft labels are swept
    assert any(not torch.equal(end[key], value) for key, value in first.items() if key.startswith("network.teacher_2"))


def test_learners_that_differ_in_their_optimizer_alone_have_two_baselines(data: Path):
    method = tiny_session(data, method="rml").method
    assert len(baseline_groups(tiny_config(data, method="rml"), method)) == 1
    changed = tiny_config(data, "learners.student_2.optimizer.lr=0.1", method="rml")
    assert baseline_groups(changed, method) == [("student_1", "teacher_1"), ("student_2", "teacher_2")]


def test_the_second_baseline_of_the_last_seed_has_the_first_one(data: Path, tmp_path: Path):
    session = tiny_session(data, f"seed={2**32 - 1}", "learners.student_2.optimizer.lr=0.1", method="rml")
    seeds = [each.config.seed for each in baselines_of(session, RunFolder(tmp_path / "run"))]
    assert seeds == [2**32 - 1, 0]


def test_what_a_learner_says_wins_over_the_run_and_another_kind_starts_from_the_defaults(data: Path):
    """The run: a head rate, options and weight decay. Another rate inherits them; another optimizer does not."""
    words = ("optimizer.weight_decay=0.1", "optimizer.clip=2.0", "baseline.optimizer.lr=0.5")
    config = tiny_config(data, *words, "learners.student_2.optimizer.lr=0.3", method="rml")
    own = learner_config(config, "student_2")
    assert (own.optimizer.lr, own.optimizer.head_lr, own.optimizer.weight_decay) == (0.3, 0.02, 0.1)
    assert learner_config(config, "student_1") == config
    assert [baseline_config(config, f"student_{n}", 7).optimizer.lr for n in (1, 2)] == [0.5, 0.3]
    changes = ("learners.student_2.optimizer.name=adamw", "learners.student_2.network.backbone=resnet18")
    other = learner_config(tiny_config(data, *words, *changes, method="rml"), "student_2")
    assert (other.optimizer.head_lr, other.optimizer.weight_decay, other.optimizer.clip) == (None, 5e-4, None)
    assert (other.network.options, other.network.width) == ({}, 256)
    assert other.views == config.views
    last = "learners.student_2.baseline.optimizer.lr=0.05"
    assert baseline_config(tiny_config(data, *words, last, method="rml"), "student_2", 7).optimizer.lr == 0.05
    bare = tiny_config(data, "learners.student_2.optimizer.head_lr=none", method="rml")
    assert learner_config(bare, "student_2").optimizer.head_lr is None


@pytest.mark.parametrize(
    ("method", "word", "what", "where", "fix"),
    [
        ("mean_teacher", "learners.student_2.optimizer.lr=1", "mean_teacher has no learner 'student_2'",
         "learners.student_2", "student_1"),
        ("rml", "learners.teacher_1.optimizer.lr=1", "rml has no learner 'teacher_1'",
         "learners.teacher_1", "student_1, student_2"),
        ("rml", "learners.student_2.optimizer.nam=adamw", "unknown setting 'nam'",
         "learners.student_2.optimizer", "did you mean name"),
        ("rml", "learners.student_2.netwrok.width=8", "unknown setting 'netwrok.width'",
         "learners.student_2", "did you mean network?"),
        ("rml", "learners.student_2.baseline.training.stepz=8", "unknown setting 'training.stepz'",
         "learners.student_2.baseline", "did you mean training.steps"),
        ("rml", "learners.student_2.network.stride=5", "stride cannot be 5",
         "learners.student_2.network", "4, 8, 16 or 32"),
        ("rml", "learners.student_2.network.backbone=vit_tiny_patch16_224", "cannot give features at stride 8",
         "network.stride of student_2", "16"),
        ("rml", "learners.student_2.network.auxiliary_weight=0.4", "auxiliary heads belong to setr_naive",
         "network.auxiliary_weight of student_2", "0, or network.head=setr_naive"),
        ("rml", "learners=3", "learners cannot be 3", "settings", "a valid dictionary"),
    ],
)  # fmt: skip
def test_wrong_settings_of_a_learner(
    data: Path, tmp_path: Path, method: str, word: str, what: str, where: str, fix: str
):
    with pytest.raises(ConfigError) as caught:
        train_here(data, tmp_path / "run", word, method=method)
    assert what in caught.value.what
    assert caught.value.where == where
    assert fix in caught.value.fix
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_cannot_change_a_learner(data: Path, whole: Path):
    with pytest.raises(ConfigError, match=r"cannot change learners.student_2.optimizer.lr"):
        train(data, whole, "learners.student_2.optimizer.lr=1", resume=True)
