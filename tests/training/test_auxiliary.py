"""Runs with auxiliary heads: a DeepLab beside a SETR that has them, what ships, and runs that start from others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewmask.cli import run
from fewmask.errors import ConfigError
from fewmask.training.checkpoint import load_checkpoint
from fewmask.training.model_file import load_model
from fewmask.training.networks import load_networks
from fewmask.training.plan import describe_plan
from fewmask.training.run_folder import RunFolder
from tests.training.rank_checks import PAIR, WEIGHT
from tests.training.runs import newest_state, started_session, step_metrics, tiny_session, train_here

STEPS = 2
SHORT = (f"training.steps={STEPS}", "training.log_every=1", f"baseline.training.steps={STEPS}", "settings.stages=1")
EARLIER = ("loss/labeled_auxiliary_1", "loss/labeled_auxiliary_2")  # of three layers


def setr(weight: float, *learners: str) -> tuple[str, ...]:
    """Words that give these learners the transformer of the pair, with heads of this weight."""
    own = [word.replace("student_2", learner) for learner in learners for word in (PAIR[0], WEIGHT)]
    return *(word.replace("0.4", str(weight)) for word in own), f"training.steps={STEPS}"


@pytest.fixture(scope="module")
def pair(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("auxiliary") / "run"
    train_here(data, out, *PAIR, WEIGHT, *SHORT, method="rml")
    return out


@pytest.fixture(scope="module")
def starts(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Supervised runs of one SETR, without the heads and with them."""
    folder = tmp_path_factory.mktemp("starts")
    runs = {"off": folder / "off", "on": folder / "on"}
    for out, weight in zip(runs.values(), (0.0, 0.4), strict=True):
        train_here(data, out, *setr(weight, "student_1"), method="supervised")
    return runs


def test_a_deeplab_beside_a_setr_with_auxiliary_heads_trains(pair: Path):
    lines = [json.loads(line) for line in (pair / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line[name] > 0 for line in lines for name in EARLIER)
    start = load_checkpoint(pair / "checkpoints" / "step_00000000.pt")
    end = newest_state(pair)
    weights = [key for key in end if ".auxiliary." in key and key.endswith("weight")]
    assert {key.split(".")[1] for key in weights} == {"student_2", "teacher_2"}
    assert all(not torch.equal(end[key], start[key]) for key in weights)
    baseline = [json.loads(line) for line in (pair / "baseline_2" / "metrics.jsonl").read_text().splitlines()]
    assert all(name in baseline[-1] for name in EARLIER)
    assert not any(name in (pair / "baseline" / "metrics.jsonl").read_text() for name in EARLIER)


def test_the_plan_says_which_layers_have_a_head(data: Path):
    rows = describe_plan(tiny_session(data, *PAIR, WEIGHT, method="rml"), 0).splitlines()
    notes = [row.strip() for row in rows if "auxiliary" in row]
    assert notes == ["auxiliary heads after layers 1, 2 of 3, each with weight 0.4, in training only"]


def test_every_network_of_the_run_predicts_without_them(data: Path, pair: Path, tmp_path: Path):
    """Networks are loaded with their heads, and what these hold changes no answer."""
    assert run(["evaluate", str(pair), "--device", "cpu"]) == 0
    networks, _, _ = load_networks(RunFolder(pair))
    heads = {name: len(network.auxiliary) for name, network in networks.items()}
    assert heads == {"teacher_1": 0, "teacher_2": 2, "student_1": 0, "student_2": 2}
    source = data / "unlabeled" / "u0.png"
    words = ["predict", str(pair), str(source), "--out", str(tmp_path), "--network", "teacher_2", "--device", "cpu"]
    assert run(words) == 0
    for parameter in networks["teacher_2"].auxiliary.parameters():
        parameter.data.fill_(torch.nan)
    image = torch.from_numpy(np.asarray(Image.open(source)).astype(np.float32) / 255).permute(2, 0, 1)[None]
    with torch.no_grad():
        logits = torch.nn.functional.interpolate(networks["teacher_2"](image).logits, image.shape[-2:], mode="bilinear")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "u0.png")), logits.argmax(1)[0].numpy())


def test_a_shipped_model_is_loaded_with_the_settings_of_its_card(starts: dict[str, Path]):
    network, card = load_model(starts["on"])
    assert card.network.auxiliary_weight == network.auxiliary.weight == 0.4
    state = newest_state(starts["on"])
    for key, value in network.state_dict().items():
        assert torch.equal(value, state[f"network.student_1.{key}"])


@pytest.mark.parametrize(("source", "weight"), [("off", 0.4), ("on", 0.0), ("on", 0.4)])
def test_a_run_starts_from_one_with_or_without_them(
    data: Path, starts: dict[str, Path], tmp_path: Path, source: str, weight: float
):
    """What both have is taken over; heads that are missing start fresh, and those that nobody wants are left out."""
    out = tmp_path / "run"
    options = (*setr(weight, "student_1", "student_2"), "settings.stages=1")
    heard = train_here(data, out, *options, method="rml", init=starts[source])
    there, _ = load_model(starts[source])
    tensors = there.state_dict()
    fresh = tiny_session(data, *options, method="rml").method.state_dict()
    start = load_checkpoint(out / "checkpoints" / "step_00000000.pt")
    for key, value in start.items():
        if not key.startswith("network."):
            continue
        own = key.removeprefix("network.").partition(".")[2]
        assert torch.equal(value, tensors[own] if own in tensors else fresh[key.removeprefix("network.")]), key
    assert any(".auxiliary." in key for key in start) == (weight > 0)
    assert heard.lines[0].endswith("; fresh start for auxiliary") == (source == "off")


@pytest.mark.parametrize("words", [("training.checkpointing=true",), ("training.fold_teachers=folded",)])
def test_steps_are_the_same_where_blocks_are_computed_again_or_teachers_folded(data: Path, words: tuple[str, ...]):
    exact = (*PAIR, WEIGHT, *SHORT, "training.precision=fp64", "settings.dropout=0.5", "settings.stochastic_depth=0.8")
    plain = started_session(data, *exact, method="rml")
    other = started_session(data, *exact, *words, method="rml")
    for one, two in zip(step_metrics(plain, STEPS), step_metrics(other, STEPS), strict=True):
        assert two == pytest.approx(one, rel=1e-9, abs=1e-12)
        assert set(EARLIER) < set(one)
    state = other.method.state_dict()
    for key, value in plain.method.state_dict().items():
        torch.testing.assert_close(state[key], value, atol=1e-9, rtol=1e-9, msg=key)


def test_micro_batches_give_the_step_of_the_whole_batch(data: Path):
    exact = (*setr(0.4, "student_1"), "training.precision=fp64", "learners.student_1.network.frozen_norm=true")
    found = []
    for parts in (1, 2):
        session = tiny_session(data, *exact, f"training.accumulate={parts}", method="supervised")
        found.append((step_metrics(session, STEPS), session.method.state_dict()))
    (lines, state), (parted_lines, parted) = found
    for one, two in zip(lines, parted_lines, strict=True):
        assert two == pytest.approx(one, rel=1e-9)
    for key, value in state.items():
        torch.testing.assert_close(parted[key], value, atol=1e-10, rtol=1e-10, msg=key)


def test_another_head_refuses_them(data: Path, tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        train_here(data, tmp_path / "run", "network.auxiliary_weight=0.4", method="supervised")
    assert caught.value.what == "auxiliary heads belong to setr_naive, and the head is deeplabv2"
    assert (caught.value.where, caught.value.fix) == ("network.auxiliary_weight", "0, or network.head=setr_naive")
    assert not (tmp_path / "run").exists()
