"""The documents say what is true: links, commands, settings, codes, and the method of CONTRIBUTING."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from PIL import Image
from scripts import benchmarks_page, camvid_picture, results_page
from scripts.settings_page import PAGE, page

from fewmask.cli import app
from fewmask.commands.demo import Scale
from fewmask.data.check import CODES
from fewmask.data.synthetic import write_scenes
from fewmask.methods.table import METHODS
from fewmask.settings import all_keys, list_presets, parse_word, preset, resolve
from fewmask.training.learners import baseline_config
from fewmask.training.observer import Observer
from fewmask.training.run import run_training
from tests.methods import test_contract

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), benchmarks_page.PAGE])
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def anchors(text: str) -> set[str]:
    """The anchors that headings get on the usual hosts."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_links_between_documents_resolve(name):
    path = ROOT / name
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file) if file else path
        assert linked.is_file(), target
        if anchor:
            assert anchor in anchors(linked.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_pictures_are_there(name):
    for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / name).parent.joinpath(target).is_file(), f"{target}; `make demo` draws it"


def command_lines(text: str) -> Iterator[str]:
    """Lines of shell blocks, and inline code, that call fewmask or make."""
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        yield from (line.partition("  #")[0].strip() for line in block.splitlines())
    yield from re.findall(r"`((?:fewmask|make|torchrun) [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def settings_of_methods() -> set[str]:
    return {key for kind in METHODS.values() for key in kind.Settings.model_fields}


def check_words(words: list[str]) -> None:
    """`--preset NAME` and key=value words that are really understood."""
    for place, word in enumerate(words):
        if word == "--preset":
            assert words[place + 1] in [*list_presets(), "P"], words
        if "=" not in word or word.startswith("-"):
            continue
        merged = parse_word(word)
        if set(merged) == {"settings"}:
            assert set(merged["settings"]) <= settings_of_methods(), word
        else:
            resolve(words=[word])


@pytest.mark.parametrize("name", names(DOCUMENTS))
def test_commands_exist_with_their_options_and_settings(name):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for line in command_lines((ROOT / name).read_text(encoding="utf-8")):
        words = shlex.split(line)
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        if "fewmask" not in words:
            continue
        called, *rest = words[words.index("fewmask") + 1 :] or [""]
        if called.startswith("-") or not called:
            continue
        assert called in COMMANDS, line
        command = COMMANDS[called]
        if rest and hasattr(command, "commands"):
            called, *rest = rest
            assert called in command.commands, line
            command = command.commands[called]
        known = {option for parameter in command.params for option in parameter.opts}
        unknown = [word for word in rest if word.startswith("--") and word not in known | {"--help"}]
        assert not unknown, line
        check_words(rest)


def test_the_readme_knows_every_command_target_method_and_contestant():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for called in ("check", "train", "evaluate", "predict", "methods", "networks", "presets"):
        assert f"fewmask {called}" in text
    assert "make demo" in text
    assert "make test" in text
    table = text.partition("<!-- demo:begin -->")[2].partition("<!-- demo:end -->")[0]
    assert re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE) == [each.name for each in Scale().contestants]
    assert f"{Scale().labeled} labeled and {Scale().unlabeled} unlabeled" in table
    assert f"{Scale().val} held-out scenes" in text
    assert len(text.splitlines()) < 120


def test_the_twin_of_general_takes_as_many_steps_as_a_learner():
    config = resolve(preset("general"))
    steps = baseline_config(config, "student_1", 0).training.steps + config.settings["stages"] * config.training.steps
    (line,) = [line for line in command_lines((ROOT / "docs/training.md").read_text()) if "photometric=true" in line]
    assert shlex.split(line)[-1] == f"training.steps={steps}"


def test_the_table_of_codes_is_that_of_the_checker():
    section = (ROOT / "docs/data.md").read_text(encoding="utf-8").partition("## What the check reports")[2]
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| (.+) \|$", section, flags=re.MULTILINE)
    assert {code: meaning for code, _, meaning in rows} == CODES
    assert [code for code, _, _ in rows] == list(CODES)


def test_the_settings_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python scripts/settings_page.py`"


def test_measured_numbers_come_from_their_files():
    assert results_page.PAGE.read_text(encoding="utf-8") == results_page.page(), "run `python scripts/results_page.py`"
    assert results_page.README.read_text(encoding="utf-8") == results_page.readme(), (
        "run `python scripts/results_page.py`"
    )
    camvid = json.loads((results_page.RESULTS / "camvid_comparison.json").read_text())
    with Image.open(ROOT / "docs" / camvid["picture"]) as picture:
        assert picture.info["Description"] == camvid_picture.source(camvid), "run `python scripts/results_page.py`"


def test_measured_speed_comes_from_its_files():
    assert benchmarks_page.PAGE.read_text(encoding="utf-8") == benchmarks_page.page(), (
        "run `python scripts/benchmarks_page.py`"
    )


def test_the_speed_page_shows_every_kind_of_measurement(tmp_path, monkeypatch):
    where = {"machine": "one GPU", "torch": "2.15", "date": "2026-11-16"}
    step = {
        "benchmark": "step", "preset": "camvid", "batch": [8, 8], "crop": [256, 320], "precision": "bf16", "ms": 20.04,
        "images_per_second": 800.0, "tflops": 250.0, "least_tflop": 5.01, "share_of_matrix_rate": 0.33,
        "matrix_tflops": 760.0, "peak_memory_gib": 9.0, "data_ms": 0.5, "data_share": 0.025, "reference_ms": 60.0,
        "ratio": 2.994, "independent_ms": 24.0, "independent_ratio": 2.5,
    }  # fmt: skip
    alone = step | {"preset": "pets", "reference_ms": None, "reserved_memory_gib": 12.34}
    profiled = step | {"preset": "paper-voc", "reference_busy_ms": 31.04, "launch_us": 6.34, "note": "Hot that day."}
    on_cpu = step | {"preset": "demo", "reference_ms": None, "reserved_memory_gib": 9.0} | where | {"machine": "a CPU"}
    rows = [{"batch": 1, "ms_per_image": 4.0, "images_per_second": 250.0}]
    predict = {"benchmark": "predict", "preset": "camvid", "size": [360, 480], "mode": "whole", "precision": "bf16"}
    yardstick = {"benchmark": "yardstick", "preset": "camvid", "expected_ms": 200, "bound": "the host", "note": "Slow."}
    once, twice = yardstick | {"way": "bf16", "ms": 250.0}, yardstick | {"way": "fp32", "ms": [190.0, 210.0]}
    differences = {"captured_from_computed": [0.0, 0.00023], "captured_from_itself": [0.0, 0.002]}
    capture = {"benchmark": "capture", "preset": "camvid", "precision": "bf16", "ms": 58.756, "deterministic": False}
    files = {
        "step.json": [step | where, alone | where, profiled | where, on_cpu],
        "predict.json": [predict | where | {"batches": rows}],
        "yardstick.json": [once | where, twice | where],
        "capture.json": [capture | differences | {"note": "Not compiled."} | where],
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    monkeypatch.setattr(benchmarks_page, "RESULTS", tmp_path)
    text = benchmarks_page.page()
    assert text.count("2026-11-16, one GPU, torch 2.15.") == len(files)
    rates = "250 (5.01 TFLOP) | 33% of 760"
    assert f"| `camvid` | 8 + 8 of 256x320, bf16 | **20.0** | 800 | {rates} | 9.0 | 0.50 ms" in text
    assert "| `camvid` | 60.0 | 20.0 | **2.99** | 24.0 | 2.50 |" in text
    assert "| `paper-voc` | 60.0, the GPU busy for 31.0, 6.3 µs a launch | 20.0 |" in text
    assert "0.50 ms, 2.5% |\n\nHot that day.\n\n| preset |" in text
    assert text.count("`pets`") == 1
    assert "| 9.0, 12.3 taken |" in text
    assert "| 9.0, the process |" in text
    assert "| `camvid` | 360x480, whole, bf16 | 1 | 4.00 | 250 |" in text
    assert "| `camvid` | bf16 | 250 | 200 | +25% | the host |" in text
    assert "| `camvid` | fp32 | 190 to 210 | 200 | -5% to +5% | the host |" in text
    assert text.count("Slow.") == 1
    assert "from a second captured run. Not compiled.\n" in text
    assert "| `camvid`, bf16 | no | 58.76 | 0, 0.00023 | 0, 0.002 |" in text


def test_the_settings_page_names_every_key():
    text = PAGE.read_text(encoding="utf-8")
    missing = [key for key in all_keys() if f"| `{key}` |" not in text]
    missing += [key for key in sorted(settings_of_methods()) if f"| `settings.{key}` |" not in text]
    assert missing == ["preset"]  # an option, not a setting


@pytest.fixture
def example_method(tmp_path, monkeypatch):
    """The method of CONTRIBUTING.md as a module of its own, entered into the table under the name used there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code, entry = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert max(map(len, code.splitlines())) <= 120
    path = tmp_path / "self_training.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("self_training", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "self_training", module)
    spec.loader.exec_module(module)
    name, kind = re.fullmatch(r'\s*"(\w+)": (\w+),\s*', entry).groups()
    monkeypatch.setitem(METHODS, name, getattr(module, kind))
    return name


def test_the_example_method_keeps_the_contract(example_method):
    """All of it, as it will run over a file that is saved as the page says."""
    tests = [each for key, each in vars(test_contract).items() if key.startswith("test_")]
    for_methods = [each for each in tests if "name" in inspect.signature(each).parameters]
    assert len(for_methods) >= 10
    for each in for_methods:
        each(example_method)


def test_the_example_method_trains_and_ships_a_model(example_method, tmp_path):
    write_scenes(tmp_path / "data", labeled=4, unlabeled=6, val=2, size=(32, 48))
    config = resolve(
        {"method": example_method, "data": {"root": str(tmp_path / "data")}, "settings": {"threshold": 0.1}},
        words=["network.backbone=test_resnet", "network.width=16", "steps=2", "training.batch=4", "log_every=1"],
    )
    run = tmp_path / "run"
    run_training(config, run, device="cpu", resume=False, init=None, observer=Observer())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["trusted"] > 0.9 and line["loss/unlabeled"] > 0 for line in lines)
    assert json.loads((run / "evaluation.json").read_text())["selected"] == "student_1"
    assert (run / "model.safetensors").is_file()
