"""The script that times ways to compute the networks' parts: every way runs, and all ways of a thing agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts import kernel_check

QUICK = ("--tiny", "--repeats", "1", "--seconds", "200")


def agreeing(words: list[str], out: Path, printed) -> list[dict[str, Any]]:
    assert kernel_check.main([*QUICK, "--out", str(out), *words]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [json.loads(line) for line in printed.readouterr().out.splitlines()] == rows
    assert [row for row in rows if "error" in row] == []
    assert max(row["difference"] for row in rows) < 1e-4
    assert all(row["ms"] > 0 for row in rows)
    return rows


def test_every_way_runs_and_says_the_same(tmp_path: Path, capsys):
    rows = agreeing(["--no-compile"], tmp_path / "kernels.json", capsys)
    assert {row["part"] for row in rows} == set(kernel_check.PARTS)
    assert {row["way"] for row in rows if row["thing"] == "head, student"} == {"direct", "product", "joined", "rows"}


def test_compiled_ways_are_held_against_the_plain_ones(tmp_path: Path, capsys):
    rows = agreeing(["--part", "teacher", "--backend", "eager"], tmp_path / "kernels.json", capsys)
    assert [row["compiled"] for row in rows] == [False] * 4 + [True] * 4
    assert rows[0]["difference"] == 0 < rows[1]["difference"]


def test_rows_that_the_time_does_not_allow_for_say_so(capsys):
    kernel_check.main(["--tiny", "--part", "layouts", "--no-compile", "--seconds", "-1"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 9
    assert {row["error"] for row in rows} == {"TimeoutError: no time left"}
