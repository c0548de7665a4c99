"""A look at pseudo labels as the console tells it."""

from __future__ import annotations

import pytest

from fewmask.console import ConsoleObserver
from fewmask.looks import is_look, look_words

TAUGHT = {"loss/labeled": 0.5, "pseudo/taught": 0.9}
CLASSES = {"pseudo/accuracy": 0.914, "pseudo/miou": 0.632, "pseudo_iou/road": 0.96, "pseudo_iou/pole": 0.08}
SHARES = {
    "pseudo/from_prior": 0.06,
    **{f"pseudo_share/{name}": share for name, share in (("road", 0.50), ("sky", 0.20), ("car", 0.22), ("pole", 0.08))},
    **{f"prior_share/{name}": share for name, share in (("road", 0.49), ("sky", 0.26), ("car", 0.18), ("pole", 0.07))},
}
FLIPS = {"rectification/flipped": 0.047, "prototypes/drift": 0.02}
TRUE_FLIPS = {"rectification/flips_right": 0.39, "rectification/flips_from_right": 0.501}
COUPLING = {"coupling/total_variation": 0.043, "coupling/same_label": 0.97}


def test_a_look_with_truth_says_everything_that_is_measured():
    assert list(look_words(TAUGHT | CLASSES | SHARES | FLIPS | TRUE_FLIPS | COUPLING)) == [
        "pseudo labels of one batch: 90.0 % of the pixels have one, 91.4 % of these are right, mIoU 63.2 %",
        "  IoU in %: pole 8, road 96",
        "  classes 6.0 % off the labeled shares: sky 20.0 for 26.0, car 22.0 for 18.0, road 50.0 for 49.0 %",
        "  rectification flips 4.7 % of the labels, 39.0 % of the flips are right, 50.1 % were right before",
        "  the two teachers are 4.3 % apart, both learners teach the same on 97.0 %, prototypes have moved by 2.0 %",
    ]


def test_what_nobody_knows_is_left_out():
    assert list(look_words(TAUGHT)) == ["pseudo labels of one batch: 90.0 % of the pixels have one"]
    assert list(look_words(TAUGHT | FLIPS))[1:] == [
        "  rectification flips 4.7 % of the labels",
        "  prototypes have moved by 2.0 %",
    ]
    assert not is_look({"loss/labeled": 0.5, "coupling/total_variation": 0.1})


def test_of_many_classes_the_worst_are_named():
    many = {f"pseudo_iou/breed {number:02}": 0.9 - number / 50 for number in range(38)}
    (line,) = list(look_words(TAUGHT | many))[1:]
    assert line.startswith("  IoU in %: breed 37 16, breed 36 18,")
    assert line.endswith(", breed 26 38 and 26 more")


@pytest.mark.parametrize(("seconds", "told"), [(3600.0, ["20/90"]), (0.0, ["20/90", "40/90"])])
def test_looks_are_told_once_in_a_while(capsys, monkeypatch, seconds: float, told: list[str]):
    monkeypatch.setattr("fewmask.console._LOOK_SECONDS", seconds)
    with ConsoleObserver() as observer, ConsoleObserver(looks=False) as silent:
        for step, values in ((10, {"loss/labeled": 0.5}), (20, TAUGHT), (40, TAUGHT)):
            for each in (observer, silent):
                each.metrics(step, 90, values)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"step {step}, {next(look_words(TAUGHT))}" for step in told]
