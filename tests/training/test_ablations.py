"""Each row of the paper's ablation tables and figures as words: two steps of it, and no two rows do the same."""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.rank_checks import PAIR
from tests.training.runs import started_session, step_metrics, train_here, write_data

QUIET = ("photometric=false", "cutmix=false", "dropout=0", "stochastic_depth=1")
IML = ("confidence=none", "stages=1")  # pseudo labels are the teachers' own argmax (Eq. 4)
ONE = ("stages=1",)
# A vision transformer under AdamW in place of the first learner's network, too
SETR = tuple(word.replace("student_2", "student_1") for word in PAIR)
Row = tuple[str, ...]  # words, of the method's settings where they have no section
TABLES: dict[str, dict[str, Row]] = {
    "components": {
        "IML": (*IML, *QUIET),
        "IML, model noises": (*IML, *QUIET[:2]),
        "IML, input noises": (*IML, *QUIET[2:]),
        "IML, full noises": IML,
        "RML": ONE,
    },
    "learning from": {
        "the peer student": (*IML, "coupling=direct"),
        "the peer teacher": (*IML, "coupling=indirect"),
        "both teachers": IML,
    },
    "architectures": {
        "Deeplabv2-Deeplabv2 IML": (*IML, *QUIET),
        "SETR-SETR IML": (*IML, *QUIET, *SETR, *PAIR),
        "Deeplabv2-SETR IML": (*IML, *QUIET, *PAIR),
    },
    "lambda": {"1e-4": ONE, "1e-3": (*ONE, "momentum=0.999"), "1e-5": (*ONE, "momentum=0.99999")},
    # Of the paper's seven those that differ here: no largest share of three classes is below 0.2, nor any above 0.8
    "thresholds": {"0.0": ONE, **{each: (*ONE, f"threshold={each}") for each in ("0.4", "0.6", "0.95")}},
    "confidence and prior": {
        "prototypes": ONE,
        "softmax": (*ONE, "confidence=softmax"),
        "none": (*ONE, "confidence=none"),
        "static": (*ONE, "confidence=static"),
        "class ratio": (*ONE, "prior=pixel_count"),
    },
    "partners": {"of the batch": ONE, "a second draw": (*ONE, "pairs=independent")},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("ablations") / "data")


@cache
def after_two_steps(data: Path, row: Row) -> dict[str, Tensor]:
    session = started_session(data, "training.batch=2", *_named(row), method="rml")
    for line in step_metrics(session, 2):
        assert all(math.isfinite(value) for value in line.values())
        assert line["student_1/gradient_norm"] > 0
        assert line["student_2/gradient_norm"] > 0
    return session.method.state_dict()


def _named(row: Row) -> list[str]:
    return [word if word.startswith("learners.") else f"settings.{word}" for word in row]


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_configurations_that_differ(data: Path, table: str) -> None:
    states = {name: after_two_steps(data, row) for name, row in TABLES[table].items()}
    same = [pair for pair in combinations(states, 2) if _equal(*(states[name] for name in pair))]
    assert same == []


def test_there_may_be_a_third_stage(data: Path, tmp_path: Path) -> None:
    """One step each, with the schedule's first rate and soft labels of its own."""
    words = ("settings.stages=3", "training.batch=2", "training.steps=1", "training.log_every=1")
    train_here(data, tmp_path / "run", *words, method="rml")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["lr"]) for line in lines if "lr" in line] == [(1, 0.01), (2, 0.01), (3, 0.01)]
