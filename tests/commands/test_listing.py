"""`fewmask methods`, `networks` and `presets`: shapes that programs rely on, and text that people read."""

from __future__ import annotations

import json

from fewmask.methods.table import METHODS
from fewmask.settings import list_presets, resolve
from tests.commands.conftest import Fewmask


def test_methods_as_json(fewmask: Fewmask) -> None:
    result = fewmask("methods", "--json")
    methods = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert [method["name"] for method in methods] == list(METHODS)
    for method in methods:
        assert list(method) == ["name", "summary", "loss", "paper", "predictors", "settings"]
        assert all(method[key] for key in ("summary", "loss", "paper", "predictors"))
        for entry in method["settings"].values():
            assert list(entry) == ["default", "paper", "meaning"]
            assert entry["meaning"]
    mean_teacher = methods[1]
    assert mean_teacher["predictors"] == ["teacher_1", "student_1"]
    assert mean_teacher["settings"]["threshold"]["default"] == 0.95
    assert mean_teacher["settings"]["threshold"]["meaning"].startswith("tau: ")


def test_rml_lists_its_switches_with_what_the_paper_sets(fewmask: Fewmask) -> None:
    """Values of the paper's sections 4 and 5 and its supplement; null where it does not say."""
    rml = next(each for each in json.loads(fewmask("methods", "--json").out) if each["name"] == "rml")["settings"]
    stated = {
        "coupling": "indirect_self",
        "photometric": True,
        "cutmix": True,
        "pairs": "independent",
        "dropout": 0.5,
        "stochastic_depth": 0.8,
        "confidence": "prototypes",
        "temperature": 1,
        "prior": "uniform",
        "threshold": 0,
        "momentum": 0.9999,
        "stages": 2,
    }
    assert {key: rml[key]["paper"] for key in stated} == stated
    differing = {key for key in stated if rml[key]["default"] != rml[key]["paper"]}
    assert differing == {"pairs", "temperature"}  # cheaper partners; the head's own temperature, the paper's head has 1
    assert rml["decay"]["paper"] is None
    assert set(METHODS["rml"].paper_settings) <= set(rml)


def test_methods_as_text_show_settings_as_they_are_typed(fewmask: Fewmask) -> None:
    lines = fewmask("methods").out.splitlines()
    assert lines[0] == "supervised"
    block = lines[lines.index("mean_teacher") :]
    assert "  scored networks: teacher_1, student_1" in block
    assert any(line.startswith("    threshold=0.95 ") for line in block)
    assert any(line.startswith("    photometric=true ") for line in block)
    assert lines[-1] == "use: fewmask train DATA --out RUN --method rml stages=3 threshold=0.9"


def test_networks_as_text_have_a_line_each(fewmask: Fewmask) -> None:
    result = fewmask("networks")
    rows = [line.split() for line in result.out.splitlines() if line.startswith("  ")]
    by_name = {row[0]: row for row in rows}
    assert by_name["resnet50"][1:7] == ["23.5", "M", "4,", "8,", "16,", "32"]
    assert by_name["vit_base_patch16_384"][1:4] == ["86.1", "M", "16"]
    assert {"deeplabv2", "sum4", "sum2", "setr_naive"} < set(by_name)
    starts = {line.index(by_name[name][1]) for name in ("deeplabv2", "sum4") for line in _lines(result.out, name)}
    assert len(starts) == 1  # the sentences stand below each other
    assert "other timm models with features_only work as network.backbone" in result.out


def _lines(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"  {name} ")]


def test_networks_as_json(fewmask: Fewmask) -> None:
    entries = {entry["name"]: entry for entry in json.loads(fewmask("networks", "--json").out)}
    assert entries["resnet18"] == {
        "kind": "backbone",
        "name": "resnet18",
        "about": "small and quick",
        "parameters": 11_200_000,
        "strides": [4, 8, 16, 32],
    }
    assert entries["sum4"]["kind"] == "head"


def test_presets_have_a_sentence_and_can_be_resolved(fewmask: Fewmask) -> None:
    presets = json.loads(fewmask("presets", "--json").out)
    assert list(presets) == list_presets()
    assert {"camvid", "demo"} < set(presets)
    lines = fewmask("presets").out.splitlines()
    for name, values in presets.items():
        config = resolve(values)
        assert config.preset == name
        sentence, summary = lines[lines.index(name) + 1 : lines.index(name) + 3]
        assert sentence.startswith("  ")
        assert sentence.endswith((".", ")"))
        assert summary.startswith(f"  {config.method}, {config.network.head} on {config.network.backbone}, crop ")
        assert summary.endswith(f" + 2 x {config.training.steps} steps")
    assert lines[lines.index("pets") + 2].endswith(", 4000 + 2 x 2500 steps")
    assert lines[lines.index("camvid") + 2].endswith(", 4000 + 4000 + 2 x 2000 steps")  # each learner's own baseline
