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
