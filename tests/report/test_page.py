"""The page says in words what the numbers say, escapes every text and loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewmask.data.dataset import Classes
from fewmask.report.contents import PictureRow, Report, Run
from fewmask.report.page import write_report

CLASSES = Classes(("sky", "road", "pole"), ((100, 150, 250), (90, 90, 90), (250, 230, 20)))


def evaluated(*iou: float | None, network: str = "teacher_1", **others: float) -> dict[str, Any]:
    present = [value for value in iou if value is not None]
    entry = {"iou": dict(zip(CLASSES.names, iou, strict=True)), "pixel_accuracy": 0.9, "frequency_weighted_iou": 0.8}
    networks = {network: {**entry, "miou": sum(present) / len(present)}}
    networks |= {name: {**entry, "miou": miou} for name, miou in others.items()}
    return {"networks": networks, "selected": network, "selected_on": "val", "split": "val"}


TWIN = Run("supervised", evaluated(0.8, 0.6, 0.10, network="student_1"), twin=True)
STRONG = Run("strong", evaluated(0.85, 0.7, 0.25, network="student_1"), twin=True)
METHOD = Run("mean_teacher", evaluated(0.9, 0.8, 0.22), seconds=172.0)


def report(*runs: Run, **more: Any) -> Report:
    return Report("title", CLASSES, runs, **more)


class Reader(HTMLParser):
    """Collects tags, attributes that could load something, and the words of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.cells: list[tuple[str, str]] = []
        self.best = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        self.cells.append((dict(attrs).get("class") or "", ""))

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.cells:
            self.cells[-1] = (self.cells[-1][0], self.cells[-1][1] + data.strip())


def read(path: Path, content: Report) -> Reader:
    write_report(path / "report.html", content)
    return Reader((path / "report.html").read_text(encoding="utf-8"))


def test_verdict_against_both_twins() -> None:
    assert report(TWIN, STRONG, METHOD).verdict() == (
        "mean_teacher is 4.0 points above strong and 14.0 points above supervised; it is worse than strong on: pole."
    )


def test_verdict_says_that_nothing_got_worse() -> None:
    better = replace(METHOD, evaluation=evaluated(0.99, 0.98, 0.97))
    assert report(STRONG, better).verdict().endswith("above strong; no class is worse.")
    assert report(TWIN, STRONG, better).verdict().endswith("above supervised; no class is worse than with strong.")


def test_verdict_says_when_the_unlabeled_images_did_not_help() -> None:
    weak = replace(METHOD, evaluation=evaluated(0.84, 0.72, 0.15))
    assert report(STRONG, weak).verdict() == (
        "mean_teacher is 3.0 points below strong; the unlabeled images did not help here; it is better on: road."
    )
    level = replace(METHOD, evaluation=evaluated(0.85, 0.7, 0.2501))
    assert report(STRONG, level).verdict() == (
        "mean_teacher is level with strong; the unlabeled images did not help here; no class is better."
    )


def test_verdict_of_one_run_of_two_methods_and_of_none() -> None:
    assert report(METHOD).verdict() == (
        "mean_teacher reaches 64.0 % mean IoU; best on sky (90.0 %), weakest on pole (22.0 %)."
    )
    other = replace(METHOD, name="rml", evaluation=evaluated(0.9, 0.9, 0.3))
    assert report(METHOD, other).verdict() == "rml is best: 6.0 points above mean_teacher."
    assert report(Run("rml")).verdict() == "There were no held-out labels to score on."


def test_verdict_names_classes_by_how_much_they_lose() -> None:
    classes = replace(METHOD, evaluation=evaluated(0.79, 0.95, 0.05))
    assert report(TWIN, classes).verdict() == "mean_teacher is 9.7 points above supervised; it is worse on: pole, sky."
    single = replace(METHOD, evaluation=evaluated(0.5, None, None))
    assert report(single).verdict() == "mean_teacher reaches 50.0 % mean IoU."  # best and weakest would be the same


def test_a_single_run_is_not_called_the_best(tmp_path: Path) -> None:
    page = read(tmp_path, report(METHOD))
    assert not [kind for kind, _ in page.cells if kind.endswith("best")]
    assert "mean_teacher: one network, teacher_1; scored on val." in page.words


def test_each_method_is_held_against_the_strongest_twin_class_by_class(tmp_path: Path) -> None:
    other = replace(METHOD, name="rml", evaluation=evaluated(0.9, 0.9, 0.3))
    cells = read(tmp_path, report(TWIN, STRONG, METHOD, other)).cells
    pole = next(index for index, cell in enumerate(cells) if cell[1] == "22.0" and cell[0].startswith("value"))
    shown = [text for kind, text in cells[pole:] if kind.startswith("number")][:2]
    assert shown == ["+5.0", "\u22123.0"]  # rml, which is better, then mean_teacher; no twin against itself


def test_tables_hold_percentages_differences_and_the_best(tmp_path: Path) -> None:
    cells = read(tmp_path, report(TWIN, STRONG, METHOD)).cells
    assert ("number best", "64.0") in cells
    assert ("number better", "+14.0") in cells
    assert ("number worse", "\u22123.0") in cells  # pole, against the strong twin
    assert ("value best", "25.0") in cells  # the strong twin is best on pole
    assert ("value", "22.0") in cells
    assert ("number", "2 min 52 s") in cells


def test_absent_class_and_missing_evaluation_show_a_dash(tmp_path: Path) -> None:
    page = read(tmp_path, report(replace(METHOD, evaluation=evaluated(0.5, 0.7, None)), Run("unscored")))
    dashes = [kind for kind, text in page.cells if text == "\u2013"]
    assert dashes.count("value") == 4  # pole of the first run, every class of the second
    assert any(
        word == "mean_teacher reaches 60.0 % mean IoU; best on road (70.0 %), weakest on sky (50.0 %)."
        for word in page.words
    )


@pytest.mark.parametrize(
    ("selected_on", "words"),
    [
        (
            "val",
            "teacher_1 was chosen on val, the split that is scored here, which flatters it a little; scored on val.",
        ),
        ("holdout", "teacher_1 was chosen on holdout; scored on val."),
        (None, "teacher_1 was not chosen by any score; scored on val."),
    ],
)
def test_page_says_on_what_the_network_was_chosen(tmp_path: Path, selected_on: str | None, words: str) -> None:
    scored = {**evaluated(0.9, 0.8, 0.2, student_1=0.5), "selected_on": selected_on}
    page = read(tmp_path, report(replace(METHOD, evaluation=scored)))
    assert f"mean_teacher: {words}" in page.words
    assert "50.0" in page.words  # the network that was not selected


def full(text: str) -> Report:
    """A report in which every text is `text`."""
    photo, label = np.full((4, 6, 3), 7, dtype=np.uint8), np.array([[0, 1], [2, 255]])
    classes = Classes((text, text + "2", text + "3"), CLASSES.colors)
    scored = evaluated(0.9, 0.8, 0.2)
    entry = {**scored["networks"]["teacher_1"], "iou": dict.fromkeys(classes.names, 0.5)}
    networks = {"networks": {text: entry, text + "b": entry}, "selected": text, "selected_on": text, "split": text}
    metrics = {text: [(0.0, 1.0), (1.0, 2.0)], f"loss/{text}": [(0.0, 1.0), (1.0, 2.0)]}
    run = Run(text, networks, metrics, {text: {text: text}}, 3.0, note=text)
    twin = replace(run, name=text + "twin", twin=True, config={text: {text: 1}, "same": text})
    return Report(
        text,
        classes,
        [run, twin],
        [text, text],
        [PictureRow(text, [photo, label])],
        {text: text},
        [text],
        [text],
        {text: text},
    )


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "\"><img src=x onerror='alert(1)'>", "{{ 7 * 7 }}"])
def test_texts_cannot_become_markup(tmp_path: Path, text: str) -> None:
    harmless, attacked = read(tmp_path, full("plain")), read(tmp_path, full(text))
    assert attacked.tags == harmless.tags
    assert "script" not in attacked.tags
    assert "".join(attacked.words).count(text) == "".join(harmless.words).count("plain") >= 25


def test_page_loads_nothing(tmp_path: Path) -> None:
    page = read(tmp_path, full("plain"))
    assert len(page.loads) == 2
    assert all(value.startswith("data:image/") for value in page.loads)
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", source)


def test_settings_that_differ_stand_apart_from_those_that_do_not(tmp_path: Path) -> None:
    first = replace(TWIN, config={"seed": 1, "training": {"steps": 100}})
    second = replace(METHOD, config={"seed": 1, "training": {"steps": 200}, "settings": {"decay": 0.99}})
    words = [word.strip() for word in read(tmp_path, report(first, second)).words if word.strip()]
    start, shared = words.index("what differs"), words.index("What all runs share")
    assert words[start + 3 : shared] == ["training.steps", "100", "200", "settings.decay", "\u2013", "0.99"]
    assert words[shared + 1 : shared + 3] == ["seed", "1"]


def test_scores_over_time_are_drawn_in_percent(tmp_path: Path) -> None:
    drawn = replace(METHOD, metrics={"val/miou": [(0, 0.2), (10, 0.6)], "previous": [(0, 0.2), (10, 0.6)]})
    words = read(tmp_path, report(drawn)).words
    score, other = words.index("val/miou"), words.index("previous")
    assert {"20", "60", "percent"} <= set(words[score:other])
    assert "0.6" in words[other:]


def test_pseudo_labels_have_their_own_readable_charts(tmp_path: Path) -> None:
    """Two lines in one chart, one chart for all classes; nothing of it among the scores."""
    line = [(0.0, 0.2), (10.0, 0.6)]
    names = ["pseudo/accuracy", "pseudo/miou", "coupling/total_variation", "rectification/flips_right", "val_miou/t"]
    names += [f"{kind}/{name}" for kind in ("pseudo_iou", "pseudo_share", "prior_share") for name in CLASSES.names]
    drawn = replace(METHOD, metrics=dict.fromkeys([*names, "pseudo_miou/teacher_1", "prototypes/drift"], line))
    words = [word.strip() for word in read(tmp_path, report(drawn)).words if word.strip()]
    start, training, more = (words.index(word) for word in ("Pseudo labels", "Training", "More curves"))
    assert {"accuracy", "mean IoU", "after the flip", "total variation"} <= set(words[start:training])
    assert "before it" not in words
    assert "val_miou/t" in words[training:more]
    assert words[start:more].count("percent") == 4
    titles = {"pseudo_miou/teacher_1", "prototypes/drift", "IoU of pseudo labels"}
    assert titles | {"share of pseudo labels (dashed: of labeled pixels)"} <= set(words[more:])
    assert not [word for word in words if word.startswith(("pseudo_iou", "pseudo_share", "prior_share"))]
    both = [word.strip() for word in read(tmp_path, report(drawn, replace(drawn, name="rml"))).words]
    assert {"mean_teacher: accuracy", "rml: accuracy", "rml: IoU of pseudo labels"} <= set(both)


def test_classes_are_drawn_in_percent_beside_their_share_of_labeled_pixels(tmp_path: Path) -> None:
    metrics = {"pseudo_iou/sky": [(0, 0.2), (10, 0.6)], "pseudo_share/sky": [(0, 0.1), (10, 0.2)]}
    drawn = replace(METHOD, metrics=metrics | {"prior_share/sky": [(0, 0.4), (10, 0.4)]})
    words = read(tmp_path, report(drawn)).words
    iou, share = words.index("IoU of pseudo labels"), words.index("share of pseudo labels (dashed: of labeled pixels)")
    assert {"20", "60"} <= set(words[iou:share])
    assert {"10", "20", "40"} <= set(words[share:])  # the axis ends at the level


def test_large_pictures_are_shrunk(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1000, 2000, 3), dtype=np.uint8)
    label = np.random.default_rng(0).integers(0, 3, (1000, 2000))
    rows = [PictureRow("a", [noise, label])]
    write_report(tmp_path / "report.html", report(METHOD, picture_titles=["image", "truth"], pictures=rows))
    assert (tmp_path / "report.html").stat().st_size < 400_000


@pytest.mark.parametrize(("seconds", "shown"), [(None, "\u2013"), (61.0, "1 min 1 s")])
def test_how_long_a_run_took(tmp_path: Path, seconds: float | None, shown: str) -> None:
    run = replace(METHOD, seconds=seconds)
    write_report(tmp_path / "report.html", report(run))
    assert f">{shown}<" in (tmp_path / "report.html").read_text()


def test_the_legend_has_ignored_where_a_picture_has(tmp_path: Path) -> None:
    """Its gray is close to that of a first class, which was all there was to see."""
    label = np.zeros((4, 6), np.uint8)
    titles = {"picture_titles": ["truth"]}
    assert "ignored" not in read(tmp_path, report(METHOD, pictures=[PictureRow("a", [label])], **titles)).words
    label[0, 0] = 255
    assert "ignored" in read(tmp_path, report(METHOD, pictures=[PictureRow("a", [label])], **titles)).words
