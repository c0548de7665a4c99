"""What only a real process shows: exit codes, starting without torch, closed pipes and signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fewmask as package
from tests.commands.conftest import Fewmask

COMMANDS = ("demo", "check", "train", "evaluate", "predict", "methods", "networks", "presets")


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)


def test_help_lists_every_command_in_the_order_of_use(fewmask: Fewmask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    result = fewmask("--help")
    assert (result.code, result.err) == (0, "")
    places = [result.out.index(f"│ {name}") for name in COMMANDS]
    assert places == sorted(places)
    assert fewmask("-h").out == result.out


def test_train_help_shows_first_what_everyone_needs(fewmask: Fewmask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = fewmask("train", "--help").out
    words = (
        "DATA",
        "KEY=VALUE",
        "--out",
        "--method",
        "--preset",
        "--labels",
        "--resume",
        "Reading the data",
        "--split",
    )
    places = [text.index(f" {word}") for word in (*words, "--ignore", "More options", "--config", "--init")]
    assert places == sorted(places)
    assert "Example: fewmask train data --out runs/first --labels 1/8 training.steps=2000" in text
    for name in COMMANDS:
        result = fewmask(name, "--help")
        assert result.code == 0
        assert f"Usage: fewmask {name} " in result.out


def test_version(fewmask: Fewmask) -> None:
    result = fewmask("--version")
    assert (result.code, result.out) == (0, f"fewmask {package.__version__}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("bogus",), "No such command 'bogus'."),
        (("train", "--bogus"), "No such option: --bogus"),
        (("predict",), "Missing argument 'RUN'."),
        (("predict", "run"), "Missing argument 'IMAGES'."),
        (("predict", "run", "a.png"), "Missing option '--out'."),
        (("check",), "Missing argument 'DATA'."),
        (("check", "data", "--foreground", "x"), "Invalid value for '--foreground'"),
        (("methods", "extra"), "Got unexpected extra argument"),
    ],
)
def test_usage_errors(fewmask: Fewmask, words: tuple[str, ...], message: str) -> None:
    result = fewmask(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: fewmask")
    assert f"Error: {message}" in result.err
    assert "Traceback" not in result.err


def started(*commands: list[str]) -> tuple[list[int], set[str]]:
    """The exit codes of commands that share a process, and the top modules that they have loaded."""
    code = (
        "import json, sys; from fewmask.cli import run\n"
        "codes = [run(words) for words in json.loads(sys.argv[1])]\n"
        "print(json.dumps([codes, [name for name in sys.modules if '.' not in name]]), file=sys.stderr)"
    )
    codes, names = json.loads(python(code, json.dumps(commands)).stderr.splitlines()[-1])
    return codes, set(names)


def test_help_and_plain_lists_start_without_torch() -> None:
    lists = [["networks"], ["networks", "--json"], ["presets"]]
    codes, loaded = started(["--help"], ["train", "--help"], ["--version"], ["bogus"], *lists)
    assert codes == [0, 0, 0, 2, 0, 0, 0]
    assert not loaded & {"torch", "numpy", "timm", "PIL"}


def test_check_reads_images_without_torch(scenes: Path, tmp_path: Path) -> None:
    codes, loaded = started(["check", str(scenes)], ["check", str(scenes), "--json"], ["check", str(tmp_path)])
    assert codes == [0, 0, 1]
    assert not loaded & {"torch", "timm"}
    assert loaded >= {"numpy", "PIL"}


def test_methods_are_listed_without_timm() -> None:
    codes, loaded = started(["methods"], ["methods", "--json"])
    assert codes == [0, 0]
    assert not loaded & {"timm", "torchvision", "sympy"}  # sympy: what torch.compile loads


def test_training_with_wrong_words_is_refused_without_torch() -> None:
    train = ["train", "no data", "--out", "no run"]
    wrong = (["training.stepz=3"], ["training.steps=many"], ["batch=3"], ["steps:3"], ["--seed", "-1"])
    codes, loaded = started(*([*train, *words] for words in wrong))
    assert codes == [2] * len(wrong)
    assert not loaded & {"torch", "numpy", "timm", "PIL"}


def test_training_with_wrong_settings_is_refused_without_timm(scenes: Path, tmp_path: Path) -> None:
    """Which takes longer to start than torch; only whether there is such a backbone has to be asked of it."""
    train = ["train", str(scenes), "--out", str(tmp_path / "run")]
    (tmp_path / "old").mkdir()
    (tmp_path / "old/config.yaml").touch()
    wrong = (["treshold=0.8"], ["--method", "nope"], ["--preset", "nope"], ["--out", str(tmp_path / "old")])
    codes, loaded = started(*([*train, *words] for words in wrong))
    assert codes == [2] * len(wrong)
    assert not loaded & {"timm", "torchvision", "sympy"}
    assert started([*train, "network.backbone=nope"])[1] >= {"timm"}


def test_the_module_runs_and_its_exit_code_is_the_commands(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fewmask", "check", str(tmp_path), "--layout", "coco"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: data.layout cannot be 'coco'\n")


@pytest.mark.parametrize("words", [("networks", "--json"), ("presets",), ("--help",)])
def test_a_reader_that_has_had_enough_is_no_error_to_print(words: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fewmask", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # as `head` does, long before the first line is written
    errors = process.stderr.read()
    assert process.wait(timeout=120) in (1, 141)
    assert errors == ""


@pytest.mark.parametrize("module", ["fewmask.cli", "torch"])
def test_an_interrupt_while_starting_is_quiet(module: str) -> None:
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background hands on that it is ignored
class Interrupt:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{signal.SIGINT.name})
sys.meta_path.insert(0, Interrupt())
sys.argv = ["fewmask", "methods"]
from fewmask.__main__ import main
main()
"""
    result = python(code)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_an_interrupt_that_an_import_swallows_is_quiet_as_well() -> None:
    """The module then lacked what it had not come to, and a traceback said so."""
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Swallow:
    def find_spec(self, name, *rest):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass
            raise AttributeError("module 'numpy' has no attribute 'matrix'")
sys.meta_path.insert(0, Swallow())
sys.argv = ["fewmask", "methods"]
from fewmask.__main__ import main
main()
"""
    result = python(code)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
