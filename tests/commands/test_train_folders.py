"""`fewmask train`: run folders that it refuses, so that nothing lands where nobody wanted it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, files, write_folder


@pytest.mark.parametrize("made", [False, True])
def test_without_a_run_there_is_nothing_to_resume(fewmask: Fewmask, scenes: Path, tmp_path: Path, made: bool) -> None:
    """A typing error in --out must not start a new run."""
    out = tmp_path / "frist"
    if made:
        out.mkdir()
    for data in ((scenes,), ()):
        result = fewmask("train", *data, "--out", out, "--resume", *TINY)
        assert (result.code, result.out, result.err) == (
            2,
            "",
            f"error: there is no run to resume in {out}\n  where: --resume\n"
            "  valid: the --out of the run, or leave --resume away to start one\n",
        )
    assert (out.exists(), files(tmp_path)) == (made, [])


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
