"""report.html of a run: which validation images it shows."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewmask.commands.report import write_run_report
from fewmask.training.observer import Observer
from fewmask.training.run import run_training
from fewmask.training.run_folder import RunFolder
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


def test_without_validation_images_the_answers_for_unlabeled_ones_are_shown(fewmask: Fewmask, tmp_path: Path) -> None:
    """There was nothing to see, where people have the fewest masks."""
    data, run = write_folder(tmp_path / "data", labeled=2, unlabeled=3, val=0), tmp_path / "run"
    assert fewmask("train", data, "--out", run, "--method", "mean_teacher", *TINY).code == 0
    page = (run / "report.html").read_text()
    assert re.findall(r'<p class="column">(.*)</p>', page) == ["unlabeled image", "teacher_1"]
    assert re.findall(r'<p class="file">(.*)</p>', page) == [f"unlabeled/more {index}" for index in range(3)]
    assert fewmask("predict", run, data / "unlabeled", "--out", tmp_path / "masks").code == 0
    pictures = re.findall(r'<img class="label" src="data:image/png;base64,([^"]+)"', page)
    for index, each in enumerate(pictures):
        predicted = np.asarray(Image.open(tmp_path / f"masks/more {index}.png").convert("RGB"))
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB"))
        np.testing.assert_array_equal(shown, predicted)


def test_a_run_stands_beside_the_baselines_that_it_trained(fewmask: Fewmask, tmp_path: Path) -> None:
    data, run = write_folder(tmp_path / "data", val=2), tmp_path / "run"
    words = ("settings.stages=1", "settings.baselines=two", "baseline.training.steps=1")
    assert fewmask("train", data, "--out", run, "--preset", "demo", "--method", "rml", *TINY, *words).code == 0
    page = (run / "report.html").read_text()
    assert re.findall(r'<p class="column">(.*)</p>', page)[:3] == ["image", "truth", "baseline"]
    assert re.findall(r'<span class="name">(.*?)</span>', page) == ["baseline", "baseline_2", "rml"]
    found = [json.loads((run / name / "evaluation.json").read_text()) for name in ("baseline", "baseline_2", "")]
    scores = [f"{100 * each['networks'][each['selected']]['miou']:.1f}" for each in found]
    assert re.findall(r'<td class="number(?: best)?">([\d.]+)</td>', page)[::3][:3] == scores


def test_the_baseline_is_pictured_by_its_own_network(fewmask: Fewmask, tmp_path: Path) -> None:
    """What predict makes of the images with the baseline's folder."""
    data, run, masks = write_folder(tmp_path / "data", val=1), tmp_path / "run", tmp_path / "masks"
    words = (
        "settings.stages=1",
        "baseline.training.steps=8",
        "training.steps=8",
        "network.options={zero_init_last: false}",
    )
    assert fewmask("train", data, "--out", run, "--preset", "demo", "--method", "rml", *TINY[:2], *words).code == 0
    for name in ("baseline", ""):
        assert fewmask("predict", run / name, data / "val/images", "--out", masks / (name or "run")).code == 0
    pictures = re.findall(r'<img class="label" src="data:image/png;base64,([^"]+)"', (run / "report.html").read_text())
    _, *shown = (np.asarray(Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB")) for each in pictures)
    for picture, name in zip(shown, ("baseline", "run"), strict=True):
        predicted = np.asarray(Image.open(masks / name / "photo 0.png").convert("RGB"))
        np.testing.assert_array_equal(picture, predicted)


def test_what_ships_is_pictured_beside_the_baseline_that_it_started_from(fewmask: Fewmask, tmp_path: Path) -> None:
    data, run = write_folder(tmp_path / "data", val=1), tmp_path / "run"
    words = ("settings.stages=1", "settings.baselines=two", "baseline.training.steps=1")
    assert fewmask("train", data, "--out", run, "--preset", "demo", "--method", "rml", *TINY, *words).code == 0
    config = RunFolder(run).read_config()
    outcome = run_training(config, run, device="cpu", resume=True, init=None, observer=Observer())
    for selected, baseline in (("teacher_1", "baseline"), ("student_2", "baseline_2"), ("teacher_2", "baseline_2")):
        page = write_run_report(replace(outcome, selected=selected)).read_text()
        assert re.findall(r'<p class="column">(.*)</p>', page) == ["image", "truth", baseline, selected]


def test_unlabeled_images_are_shown_as_a_network_of_one_size_takes_them(fewmask: Fewmask, tmp_path: Path) -> None:
    """Of which training saw crops only: those that are smaller are left out."""
    data, run = write_folder(tmp_path / "data", labeled=2, unlabeled=3, val=0), tmp_path / "run"
    Image.new("RGB", (30, 40)).save(data / "unlabeled/more 1.png")
    options = "{img_size: 32, embed_dim: 12, depth: 3, num_heads: 2}"
    network = ("network.backbone=beit_base_patch16_224", "network.head=setr_naive", "network.stride=16")
    words = (*network, f"network.options={options}", "network.width=8", "training.steps=2", "training.batch=2")
    result = fewmask("train", data, "--out", run, "--method", "mean_teacher", *words, "views.crop=32x32")
    assert result.code == 0, result.err
    page = (run / "report.html").read_text()
    assert re.findall(r'<p class="file">(.*)</p>', page) == ["unlabeled/more 0", "unlabeled/more 2"]
