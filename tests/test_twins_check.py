"""scripts/twins_check.py with tiny networks: which runs there are, what they start from, that none is trained twice."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.twins_check import arguments, main, named, trials

from fewmask.data.synthetic import write_scenes

TINY = (
    "network.backbone=test_resnet",
    "network.width=16",
    "training.batch=2",
    "training.steps=4",
    "training.diagnose_every=2",
    "settings.dropout=0.2",  # rml's alone
)


def test_variants_share_their_twins_and_go_on_where_they_were_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_scenes(tmp_path / "data", labeled=6, unlabeled=3, val=2, size=(32, 48))
    split, out = tmp_path / "draw7.txt", tmp_path / "runs"
    split.write_text("scene_0001\nscene_0004\n")
    words = [str(tmp_path / "data"), "--split", str(split), "--out", str(out), "--device", "cpu", *TINY]
    main([*words, "--seconds", "0"])
    assert not out.exists()

    main(words)
    first = json.loads((out / "rows.json").read_text())
    assert [row["run"] for row in first] == ["weak", "strong", "rml"]
    trained = {path: path.stat().st_mtime_ns for path in out.glob("draw7/*/model.safetensors")}
    assert len(trained) == 3

    more = ["--pool", "--variant", "one: settings.stages=1 training.steps=3", "--twin", "longer: training.steps=5"]
    main([*words, *more])
    rows = {row["run"]: row for row in json.loads((out / "rows.json").read_text())}
    assert list(rows) == ["weak", "strong", "longer", "rml", "one"]
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    assert [rows[name] | {"pool": {}} for name in ("weak", "strong", "rml")] == first
    assert all(rows[name]["pool"] for name in rows)  # made up for runs that were there
    assert [config_of(out, name)["settings"]["dropout"] for name in ("weak", "rml")] == [0.0, 0.2]
    configs = {name: config_of(out, name) for name in rows}
    assert [configs[name]["training"]["steps"] for name in rows] == [4, 4, 5, 4, 3]
    assert [configs[name]["settings"].get("photometric") for name in ("weak", "strong")] == [False, True]
    assert (len(rows["rml"]["stages"]), len(rows["one"]["stages"]), rows["weak"]["stages"]) == (2, 1, [])
    assert rows["rml"]["stages"][-1] == pytest.approx(rows["rml"]["miou"]["teacher_1"])
    assert set(rows["rml"]["pseudo_labels"]) > {"pseudo/miou", "rectification/flipped"}
    scored = out / "draw7" / "one" / "evaluation_unlabeled.json"
    assert rows["one"]["pool"] == {
        name: each["miou"] for name, each in json.loads(scored.read_text())["networks"].items()
    }
    assert not (out / "draw7" / "rml" / "baseline").exists()  # it starts from the twins
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"split"')]
    assert [line["run"] for line in said] == ["weak", "strong", "rml", *rows]


def config_of(out: Path, name: str) -> dict[str, Any]:
    return yaml.safe_load((out / "draw7" / name / "config.yaml").read_text())


def test_rml_may_start_from_other_twins_and_options_are_no_settings():
    words = [
        "data",
        "--split",
        "draw.txt",
        "--out",
        "runs",
        "--preset",
        "camvid",
        "training.steps=7",
        "training.batch=3",
    ]
    asked = arguments([*words, "--twin", "other: --seed 1", "--start", "other", "--variant", "two: --seed 2"])
    found = {trial.name: trial.words for trial in trials(asked, Path("runs/draw"))}
    assert found["other"] == ("training.batch=3", "--method", "supervised", "--seed", "1")  # as long as a baseline
    assert found["two"][2:4] == ("--baseline", "runs/draw/other")
    assert found["two"][4:] == ("training.evaluate_every=7", "--seed", "2")


def test_a_variant_has_a_name():
    assert named(" three stages: settings.stages=3  seed=1 ") == ("three stages", ["settings.stages=3", "seed=1"])
    with pytest.raises(SystemExit, match="is not NAME"):
        named("settings.stages=3")
