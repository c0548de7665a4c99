"""`fewmask train`: run folders that it refuses, so that nothing lands where nobody wanted it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, files, write_folder


@pytest.mark.parametrize("made", [False, True])
def test_without_a_run_there_is_nothing_to_resume(fewmask: Fewmask, scenes: Path, tmp_path: Path, made: bool) -> None:
    out = tmp_path / "frist"
    if made:
        out.mkdir()
    result = fewmask("train", "--out", out, "--resume", *TINY)
    assert (result.code, result.out, result.err) == (
        2,
        "",
        f"error: there is no run to resume in {out}\n  where: --resume\n"
        "  valid: the --out of the run, or DATA to start one\n",
    )
    assert (out.exists(), files(tmp_path)) == (made, [])


def test_one_command_with_data_starts_and_goes_on(fewmask: Fewmask, scenes: Path, tmp_path: Path) -> None:
    """As a job has it that may be stopped at any time, also before it began."""
    words = ("train", scenes, "--out", tmp_path / "run", "--resume", "--method", "supervised", *TINY)
    first, second = fewmask(*words), fewmask(*words)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert first.err.startswith(f"there is no run in {tmp_path / 'run'} yet, so one starts\n")
    assert "continuing" in second.err


@pytest.mark.parametrize("word", ["", " "])
def test_an_empty_name_is_not_the_current_folder(
    fewmask: Fewmask, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = fewmask("train", scenes, "--out", word, *TINY)
    assert (result.code, result.err) == (
        2,
        "error: the name of the folder is empty\n  where: --out\n  valid: a folder, e.g. --out runs/first\n",
    )
    assert files(tmp_path) == []


def test_a_run_does_not_lie_among_its_data(fewmask: Fewmask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_folder(tmp_path / "data")
    (tmp_path / "link").symlink_to(data)
    before = files(data)
    monkeypatch.chdir(data)
    for words in ((data, "--out", data), (data, "--out", "."), (f"data.root={data}", "--out", tmp_path / "link")):
        result = fewmask("train", *words, *TINY)
        assert (result.code, result.err) == (
            2,
            f"error: the run would lie among the data\n  where: --out {words[-1]}\n  valid: another folder for --out\n",
        )
    assert files(data) == before


def test_data_that_have_moved_are_asked_for(fewmask: Fewmask, tmp_path: Path) -> None:
    data, run, new = write_folder(tmp_path / "data"), tmp_path / "a run", tmp_path / "new"
    words = ("--out", run, "--method", "supervised")
    assert fewmask("train", data, *words, *TINY).code == 0
    data.rename(new)
    result = fewmask("train", "--out", run, "--resume")
    assert (result.code, result.err) == (
        2,
        f"error: the run's data are not there\n  where: {data}\n"
        f"  valid: fewmask train NEW --out '{run}' --resume, if they have moved to NEW\n",
    )
    assert fewmask("train", new, "--out", run, "--resume", "training.steps=3").code == 0
