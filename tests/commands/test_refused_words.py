"""Settings that `fewmask train` refuses: one error block, code 2, and nothing left where the run would have been."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY


def refused(fewmask: Fewmask, folder: Path, *words: object) -> str:
    """The error; the data folder is missing as well, so this was found before the data were touched."""
    data, out = folder / "no data", folder / "run"
    result = fewmask("train", data, "--out", out, *TINY, *words)
    assert result.code == 2, result.err
    assert not out.exists()
    assert result.err.startswith("error: ")
    return " ".join(result.err.split())


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("baseline.trainin.steps=4", ("unknown setting 'trainin'", "baseline", "did you mean training")),
        ("baseline.training.steps=0", ("training.steps cannot be 0", "baseline", "greater than 0")),
        ("baseline.settings.photometrc=true", ("unknown setting 'photometrc'", "did you mean photometric")),
        ("baseline.method=rml", ("cannot have a 'method' of its own", "baseline without method")),
        ("baseline.seed=4", ("cannot have a 'seed' of its own", "baseline without seed")),
        ("baseline.data.labels=3", ("cannot have a 'data' of its own", "baseline without data")),
        ("learners.student_2.baseline.seed=4", ("cannot have a 'seed' of its own", "learners.student_2.baseline")),
    ],
)
def test_a_wrong_baseline_is_refused_before_the_run_folder_is_claimed(
    fewmask: Fewmask, tmp_path: Path, word: str, parts: tuple[str, ...]
) -> None:
    text = refused(fewmask, tmp_path, word)
    for part in parts:
        assert part in text
