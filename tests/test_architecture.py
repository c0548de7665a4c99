"""The rooms and their one-way imports, and what no room may do."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fewmask"
GROUND = {"", "types", "errors", "labels", "randomness", "determinism", "alignment", "config", "layers", "settings"}
LEVELS: dict[str, set[str]] = {  # room -> the rooms it may import, besides itself
    **dict.fromkeys(GROUND, GROUND),
    **dict.fromkeys(("data", "views", "networks", "learning"), GROUND),
    "methods": GROUND | {"data", "views", "networks", "learning"},
}
LEVELS["evaluation"] = LEVELS["methods"] | {"methods"}
LEVELS["training"] = LEVELS["evaluation"] | {"evaluation"}
TOP = {"report", "experiments", "benchmarks", "console", "looks", "commands", "cli", "__main__"}
for _room in TOP:
    LEVELS[_room] = LEVELS["training"] | {"training"} | TOP
METHOD_FORBIDS = (r"\.cuda\(", r"\.item\(", r"\.backward\(", r"torch\.distributed", r"\bopen\(", r"\bPath\b")


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(path: Path) -> Iterator[str]:
    """The fewmask modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "fewmask")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "fewmask":
                yield from (f"fewmask.{alias.name}" for alias in node.names)
            elif node.module and node.module.startswith("fewmask."):
                yield node.module


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    room = room_of(path)
    assert room in LEVELS, f"{room} has no place in the order of rooms"
    for module in imported(path):
        target = module.split(".")[1]
        if (PACKAGE / target).is_dir() or (PACKAGE / f"{target}.py").is_file():
            assert target == room or target in LEVELS[room], f"{room} may not import {module}"


def test_every_file_is_reached_and_named_for_what_it_holds():
    assert len(sources()) > 50
    assert not [path for path in sources() if path.stem in ("utils", "util", "helpers", "misc", "common")]
    others = [path for folder in ("scripts", "tests") for path in (PACKAGE.parents[1] / folder).rglob("*.py")]
    assert not [path for path in (*sources(), *others) if len(path.read_text().splitlines()) > 300]


def test_files_are_utf_8_whatever_the_locale():
    """But for those of the kernel, which are ASCII."""
    bare = re.compile(r"\.(read_text\(\)|write_text\([^\"\n]*\)|open\((\"[rwa]\")?\))")
    found = {path.name for path in sources() if bare.search(path.read_text(encoding="utf-8"))}
    assert found == {"host_memory.py", "device_memory.py"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "methods").glob("*.py")), ids=lambda path: path.name)
def test_methods_know_neither_devices_nor_ranks_nor_files(path):
    found = [pattern for pattern in METHOD_FORBIDS if re.search(pattern, path.read_text())]
    assert found == []


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_help_starts_without_torch():
    code = """
import sys
from fewmask.cli import run
codes = [run(words) for words in (["--help"], ["train", "--help"], ["--version"])]
heavy = sorted(name for name in ("torch", "timm", "numpy", "matplotlib") if name in sys.modules)
sys.exit(f"{codes} {heavy}" if any(codes) or heavy else 0)
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    assert "--resume" in result.stdout


def test_the_package_runs_uninstalled():
    """`PYTHONPATH=src python -m fewmask`, from the file that lies here."""
    result = python("-m", "fewmask", "--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "fewmask")


def test_a_run_opens_no_connection(tmp_path, monkeypatch):
    """Reading, training, scoring and the report, while every way out raises."""
    import socket

    from fewmask.cli import run
    from tests.training.runs import words, write_data

    def refuse(*arguments, **options):
        pytest.fail(f"network access: {arguments}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    data = write_data(tmp_path / "data")
    assert run(words(data, tmp_path / "run", "training.steps=2")) == 0
    assert (tmp_path / "run" / "report.html").exists()
    with pytest.raises(pytest.fail.Exception):
        socket.create_connection(("127.0.0.1", 9))  # the guard itself works
