"""scripts/forecast_check.py with a tiny network: a whole run, foreseen as any other, and what came of it."""

import json
from pathlib import Path

import pytest
from scripts.forecast_check import main

from fewmask.errors import ConfigError
from fewmask.training import costs

TINY = (
    "network.backbone=test_resnet",
    "network.width=16",
    "network.options={}",
    "data.resize=32x32",
    "views.crop=32x32",
    "training.batch=2",
    "training.diagnose_every=3",
)
WORDS = ("--preset", "demo", "--val", "3", "--device", "cpu", *TINY)


def test_all_parts_of_a_run_are_foreseen_and_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(costs, "SHARE", 1)  # six steps are tried, of six
    main([*WORDS, "--steps", "6", "--out", str(tmp_path / "found.json")])
    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert json.loads(capsys.readouterr().out) == found
    counts = {part["what"]: part["count"] for part in found["parts"]}
    assert counts["steps"] == counts["baseline steps"] == 6
    assert counts["looks at pseudo labels"] == 2
    assert counts["sweeps"] == counts["validations"] == counts["baseline validations"] == 1
    came = {part["what"]: part["count"] for part in found["parts_that_came"]}
    assert counts.items() <= came.items()
    assert came["starts of a stage"] == 1
    predicted = sum(part["count"] * part["each"] for part in found["parts"])
    assert found["predicted_seconds"] == pytest.approx(predicted)
    assert found["time_error_percent"] == pytest.approx(100 * (predicted / found["seconds"] - 1))
    off = 100 * (found["predicted_peak_gib"] / found["peak_gib"] - 1)
    assert found["memory_error_percent"] == pytest.approx(off)
    assert (found["preset"], found["steps"], found["captured"]) == ("demo", 6, False)
    assert found["looking_ahead_seconds"] > 0


def test_a_run_that_is_too_short_for_a_forecast_is_said():
    with pytest.raises(ConfigError, match="6 steps"):
        main([*WORDS, "--steps", "6"])
