"""report.html of a run: which validation images it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, write_folder

SHOWN = {1: [0], 2: [0, 1], 3: [0, 1, 2], 4: [0, 1, 2, 3], 7: [0, 2, 4, 6]}


@pytest.mark.parametrize("val", SHOWN)
def test_four_images_are_shown_or_all_where_there_are_fewer(fewmask: Fewmask, tmp_path: Path, val: int) -> None:
    data = write_folder(tmp_path / "data", labeled=2, val=val)
    assert fewmask("train", data, "--out", tmp_path / "run", "--method", "supervised", *TINY).code == 0
    page = (tmp_path / "run/report.html").read_text()
    assert re.findall(r'<p class="file">(.*)</p>', page) == [f"photo {index}" for index in SHOWN[val]]


def test_a_run_that_nothing_can_score_shows_no_scores_and_advises_no_evaluation(
    fewmask: Fewmask, tmp_path: Path
) -> None:
    data, run = write_folder(tmp_path / "data", labeled=2, val=0), tmp_path / "run"
    assert fewmask("train", data, "--out", run, "--method", "supervised", *TINY).code == 0
    page = (run / "report.html").read_text()
    assert "IoU per class" not in page  # empty bars, and a note that the class is absent from a truth there is not
    assert f"fewmask predict {run} IMAGES" in page
    assert "fewmask evaluate" not in page
    assert fewmask("evaluate", run).code == 2
