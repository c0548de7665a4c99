"""The MNIST experiment on a miniature: its parts against hand-made numbers, and the whole command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fewmask.cli import run
from fewmask.errors import DataError
from fewmask.experiments.mnist import VARIANTS, Curve, Plan, batches, build_pair, measure, split_labels, train_pair
from fewmask.experiments.mnist_data import Digits, read_digits
from fewmask.experiments.mnist_summary import Order, at_end, band, order, over_training, teacher_accuracy
from fewmask.training.observer import Observer
from tests.experiments.digits import write_digits

TINY = Plan(seeds=1, steps=4, width=8, batch=3, unlabeled_batch=6, measured=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def train(folder: Path) -> Digits:
    return read_digits(folder, "train")


def curve(variant: str, seed: int, *values: float) -> Curve:
    return Curve(variant, seed, list(range(len(values))), list(values), [0.5] * len(values), {"teacher_1": 0.5})


def test_one_image_in_sixty_keeps_its_label():
    split = split_labels(180, 60, seed=0)
    assert (len(split.labeled), len(split.unlabeled)) == (3, 177)
    assert sorted([*split.labeled.tolist(), *split.unlabeled.tolist()]) == list(range(180))
    assert split.labeled.tolist() != split_labels(180, 60, seed=1).labeled.tolist()
    with pytest.raises(DataError, match="59 training images are too few"):
        split_labels(59, 60, seed=0)


def test_batches_pass_over_each_part_and_bring_the_labels_of_the_labeled_only(train):
    split = split_labels(len(train), 60, seed=0)
    made = list(batches(train, split, replace(TINY, steps=59), seed=0))  # 2 passes over 177 images
    assert [sorted(batch.image_index.tolist()) for batch in made] == [sorted(split.labeled.tolist())] * 59
    seen = torch.cat([batch.weak_index for batch in made]).bincount(minlength=180)
    assert seen[split.unlabeled].tolist() == [2] * 177
    for batch in made[:3]:
        assert torch.equal(batch.label, train.labels[batch.image_index][:, None, None])
        assert torch.equal((batch.weak * 255).round().byte(), train.images[batch.weak_index])
        assert batch.valid.all()
        assert not batch.box.any()


def test_the_index_is_half_the_distance_of_the_teachers_softmax_outputs(train):
    method, _ = build_pair(VARIANTS[1], TINY, seed=0)
    watched = Digits(train.images[:20], train.labels[:20])
    with torch.no_grad():
        for weights in (each for student in method.students for each in student.parameters()):
            weights.zero_()  # who learns is not who is measured
    outputs = []
    for teacher in (method.teacher_1, method.teacher_2):
        scores = np.exp(teacher(watched.images / 255.0).logits.detach().numpy()[:, :, 0, 0].astype(np.float64))
        outputs.append(scores / scores.sum(1, keepdims=True))
    apart = np.mean([sum(abs(p - q) for p, q in zip(*rows, strict=True)) / 2 for rows in zip(*outputs, strict=True)])
    right = np.mean([output.argmax(1) == watched.labels.numpy() for output in outputs])
    assert measure(method, watched) == (pytest.approx(apart, rel=1e-5), pytest.approx(right))
    assert apart > 0.01  # two initializations


def test_variants_differ_in_the_coupling_and_the_noise_alone():
    direct, indirect, noise = (build_pair(variant, TINY, seed=0)[0] for variant in VARIANTS)
    assert [each.settings.coupling for each in (direct, indirect, noise)] == ["direct", "indirect", "indirect"]
    assert [each.settings.dropout for each in (direct, indirect, noise)] == [0.0, 0.0, 0.5]
    same = {"coupling": "indirect", "dropout": 0.0}
    assert len({each.settings.model_copy(update=same).model_dump_json() for each in (direct, indirect, noise)}) == 1
    for name, weights in direct.state_dict().items():
        assert torch.equal(weights, indirect.state_dict()[name])
        assert torch.equal(weights, noise.state_dict()[name])


def test_a_baseline_learns_before_the_curve_begins(train):
    plan = replace(TINY, steps=2, width=32, batch=8, labels=6, measured=60)
    fresh, taught = (
        train_pair(VARIANTS[0], train, train, replace(plan, baseline_steps=steps), 0, Observer()) for steps in (0, 30)
    )
    assert fresh.label_accuracy[0] < 0.4
    assert taught.label_accuracy[0] > 0.8
    assert taught.steps == [0, 1, 2]


def test_curves_are_measured_on_unlabeled_digits_and_scores_on_the_test_digits(train):
    """Both learners are taught that everything is a 0, which all labeled digits are, no unlabeled one and no more."""
    plan = replace(TINY, steps=2, batch=8, labels=6, measured=60, baseline_steps=30)
    labels = torch.ones_like(train.labels)
    labels[split_labels(len(train), plan.labels, seed=0).labeled] = 0
    test = Digits(train.images[:20], torch.arange(20) % 4)  # a quarter of them are 0
    taught = train_pair(VARIANTS[1], Digits(train.images, labels), test, plan, 0, Observer())
    assert taught.label_accuracy == [0.0, 0.0, 0.0]
    assert set(taught.test_accuracy) == {"student_1", "student_2", "teacher_1", "teacher_2"}
    assert list(taught.test_accuracy.values()) == [0.25] * 4


def test_the_accuracy_that_is_told_is_that_of_the_teachers():
    networks = {"student_1": 0.1, "student_2": 0.2, "teacher_1": 0.5, "teacher_2": 0.8}
    assert teacher_accuracy(replace(curve("direct", 0, 0.5), test_accuracy=networks)) == pytest.approx(0.65)


def test_the_order_is_counted_by_seed():
    rows = {
        "direct": [(0.4, 0.1), (0.5, 0.3)],
        "indirect": [(0.4, 0.2), (0.4, 0.1)],
        "indirect_noise": [(0.4, 0.3)] * 2,
    }
    curves = [curve(name, seed, *values) for name, pair in rows.items() for seed, values in enumerate(pair)]
    assert order(curves, at_end) == Order(direct_lowest=1, noise_highest=1, both=1)  # of seed 1 two are equal
    assert order(curves, over_training) == Order(direct_lowest=1, noise_highest=1, both=1)
    other_name = {"direct": "indirect", "indirect": "direct", "indirect_noise": "indirect_noise"}
    swapped = [replace(each, variant=other_name[each.variant]) for each in curves]
    assert order(swapped, at_end) == Order(direct_lowest=1, noise_highest=1, both=0)


def test_a_band_is_mean_and_deviation_over_seeds():
    mean, deviation = band([[1.0, 0.2], [3.0, 0.2]])
    assert (mean, deviation) == ([2.0, 0.2], [pytest.approx(2**0.5), 0.0])
    assert band([[1.0]]) == ([1.0], [0.0])


@pytest.fixture
def reproduce(tmp_path: Path) -> Callable[..., dict[str, object]]:
    def call(data: Path, name: str, *words: str) -> dict[str, object]:
        code = run(["reproduce", "mnist", "--data", str(data), "--out", str(tmp_path / name), "--steps", "3", *words])
        assert code == 0
        content: dict[str, object] = json.loads((tmp_path / name / "mnist.json").read_text())
        assert content.pop("seconds") > 0  # type: ignore[operator]
        return content

    return call


def test_the_command_leaves_curves_a_picture_and_a_table(reproduce, folder, tmp_path, capsys):
    content = reproduce(folder, "out", "--seeds", "2")
    assert content["steps"] == [0, 1, 2, 3]
    variants = content["variants"]
    assert list(variants) == ["direct", "indirect", "indirect_noise"]
    for found in variants.values():
        curves = [seed["total_variation"] for seed in found["seeds"]]
        assert found["total_variation"]["mean"] == pytest.approx(np.mean(curves, axis=0), abs=1e-4)
        assert found["at_end"]["mean"] == pytest.approx(np.mean([values[-1] for values in curves]), abs=1e-4)
        assert all(0 < value < 1 for values in curves for value in values)
    starts = [[seed["total_variation"][0] for seed in found["seeds"]] for found in variants.values()]
    assert starts[0] == starts[1] == starts[2]  # the same two initializations
    assert starts[0][0] != starts[0][1]
    assert len({json.dumps(found["seeds"][0]["total_variation"]) for found in variants.values()}) == 3
    with Image.open(tmp_path / "out" / "mnist.png") as picture:
        assert min(picture.size) > 400
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 100  # lines, bands, text
    shown = capsys.readouterr().err
    assert "indirect + model noise" in shown
    assert "of 2 seeds" in shown
    assert "fewmask train DATA" in shown


def test_a_seed_gives_the_same_numbers_from_plain_and_compressed_files(reproduce, folder, tmp_path, capsys):
    packed = write_digits(tmp_path / "packed", compressed=True)
    plain = reproduce(folder, "plain", "--seeds", "1")
    capsys.readouterr()
    again = reproduce(packed, "again", "--seeds", "1", "--json")
    printed = json.loads(capsys.readouterr().out)
    assert again == plain
    assert {key: value for key, value in printed.items() if key != "seconds"} == again


def test_results_are_not_overwritten_and_wrong_words_are_one_block(reproduce, folder, tmp_path, capsys):
    reproduce(folder, "out", "--seeds", "1")
    before = (tmp_path / "out" / "mnist.json").read_bytes()
    assert run(["reproduce", "mnist", "--data", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert "already holds this experiment" in capsys.readouterr().err
    assert (tmp_path / "out" / "mnist.json").read_bytes() == before
    assert run(["reproduce", "figure9", "--data", str(folder), "--out", str(tmp_path / "other")]) == 2
    assert "mnist" in capsys.readouterr().err
    assert run(["reproduce", "mnist", "--data", str(tmp_path), "--out", str(tmp_path / "other")]) == 2
    assert "train-images-idx3-ubyte is not there" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
