"""`--baseline RUN` and `--init RUN`: classes that are others, and labels that the new run hides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fewmask.cli import run
from fewmask.commands.train_layers import spoken_layers
from fewmask.data.dataset import Sample
from fewmask.data.splits import choose_labeled
from fewmask.settings import preset as read_preset
from fewmask.settings import resolve
from tests.commands.conftest import Fewmask
from tests.commands.folders import TINY, write_folder

RML = ("--method", "rml", "settings.stages=1", *TINY)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight labeled images, photo 0 to photo 7; val has images of the same names, which are others."""
    return write_folder(tmp_path_factory.mktemp("starts") / "data", labeled=8, val=1)


@pytest.fixture(scope="module")
def baseline(data: Path) -> Path:
    """Trained on three labels that seed 1 draws."""
    out = data.parent / "baseline"
    words = ["--method", "supervised", "--labels", "3", "--seed", "1", "--device", "cpu", *TINY]
    assert run(["train", str(data), "--out", str(out), *words]) == 0
    return out


def classes_of(baseline: Path) -> list[str]:
    return [each["name"] for each in json.loads((baseline / "model.json").read_text())["classes"]]


def with_classes(data: Path, folder: Path, names: list[str]) -> Path:
    shutil.copytree(data, folder)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    return folder


def drawn(seed: int) -> set[str]:
    samples = [Sample(f"photo {index}", Path()) for index in range(8)]
    return {sample.name for sample in choose_labeled(samples, labels="3", seed=seed)[0]}


@pytest.mark.parametrize("option", ["--baseline", "--init"])
@pytest.mark.parametrize("case", ["another order", "one more"])
def test_a_baseline_of_other_classes_is_refused(
    fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path, case: str, option: str
) -> None:
    names = classes_of(baseline)
    changed, what = {
        "another order": (
            [names[1], names[0], *names[2:]],
            f"the same in another order, class 0 is {names[0]} there and {names[1]} here",
        ),
        "one more": (
            [*names, "new"],
            f"{len(names)} there and {len(names) + 1} here, class {len(names)} is none there and new here",
        ),
    }[case]
    other = with_classes(data, tmp_path / "data", changed)
    result = fewmask("train", other, "--out", tmp_path / "run", option, baseline, *RML)
    assert result.code == 2
    assert result.err.splitlines()[-3:] == [
        f"error: the run to start from has other classes: {what}",
        f"  where: {baseline / 'model.json'}",
        "  valid: a run on the same classes in the same order, or none: the baseline is then trained",
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--baseline", "--init"])
def test_learners_that_would_stay_identical_are_refused_before_anything_is_written(
    fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path, option: str
) -> None:
    """The advice can be followed in the same folder: with a noise, or without the option."""
    out = tmp_path / "run"
    quiet = ("settings.photometric=false", "settings.dropout=0", "settings.stochastic_depth=1", *RML)
    refused = fewmask("train", data, "--out", out, option, baseline, *quiet)
    assert refused.code == 2
    assert refused.err.splitlines()[-3:] == [
        "error: both learners start from the same weights and get no noise, so they would stay identical",
        "  where: settings.photometric, settings.dropout, settings.stochastic_depth",
        "  valid: one of these noises, a --baseline for each, or none: two are then trained",
    ]
    assert not out.exists()
    more = ("settings.dropout=0.1", option, baseline) if option == "--init" else ()
    assert fewmask("train", data, "--out", out, *quiet, *more).code == 0
    assert (out / "baseline_2").exists() == (option == "--baseline")


@pytest.mark.parametrize(
    ("places", "word"),
    [("reversed", "the classifier is taken over as it is, class by number"), ("more", "the classifier starts fresh")],
)
def test_init_from_other_classes_says_what_becomes_of_the_classifier(
    fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path, places: str, word: str
) -> None:
    names = classes_of(baseline)
    other = with_classes(data, tmp_path / "data", names[::-1] if places == "reversed" else [*names, "new"])
    result = fewmask("train", other, "--out", tmp_path / "run", "--init", baseline, "--method", "mean_teacher", *TINY)
    assert result.code == 0, result.err
    (line,) = [line for line in result.err.splitlines() if "has other classes" in line]
    assert line.startswith(f"warning: {baseline} has other classes (")
    assert word in line
    assert ("; fresh start for head.classifier" in result.err) == (places == "more")


def test_a_baseline_that_knows_hidden_labels_is_told_of_everywhere(
    fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path
) -> None:
    """On the console, in split.json, and in the report, also after the run was resumed without the option."""
    leaked = sorted(drawn(1) - drawn(0))
    assert len(leaked) == 1
    words = (*RML, "--labels", "3", "--seed", "0")
    result = fewmask("train", data, "--out", tmp_path / "run", "--baseline", baseline, *words)
    assert result.code == 0, result.err
    note = (
        f"{baseline} learned from the labels of 1 image that is unlabeled here: {leaked[0]}; "
        "results here are not those of 3 labels"
    )
    assert [line for line in result.err.splitlines() if line.startswith("warning: ") and "learned" in line] == [
        f"warning: {note}"
    ]
    assert json.loads((tmp_path / "run/split.json").read_text())["notes"] == [note]
    (tmp_path / "run/report.html").unlink()
    assert fewmask("train", "--out", tmp_path / "run", "--resume").code == 0
    assert note in (tmp_path / "run/report.html").read_text()


def test_a_baseline_that_held_out_other_images_is_told_of(fewmask: Fewmask, tmp_path: Path) -> None:
    """Validation images that the baseline has learned flatter every score."""
    data = write_folder(tmp_path / "data", labeled=4)
    words = ("data.holdout=0.25", *TINY)
    for seed in (0, 1):
        out = tmp_path / f"baseline_{seed}"
        assert fewmask("train", data, "--out", out, "--method", "supervised", "--seed", seed, *words).code == 0
    held = [json.loads((tmp_path / f"baseline_{seed}/split.json").read_text())["val"]["names"] for seed in (0, 1)]
    assert held[0] != held[1]
    start = ("--baseline", tmp_path / "baseline_1")
    result = fewmask("train", data, "--out", tmp_path / "run", *start, "--seed", 0, *RML, *words)
    assert result.code == 0, result.err
    assert f"learned from the labels of 1 image that is for validation here: {held[0][0]};" in result.err


def test_a_baseline_of_the_same_draw_needs_no_word(
    fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path
) -> None:
    words = (*RML, "--labels", "3", "--seed", "1")
    result = fewmask("train", data, "--out", tmp_path / "run", "--baseline", baseline, *words)
    assert result.code == 0, result.err
    assert "learned from the labels" not in result.err
    assert json.loads((tmp_path / "run/split.json").read_text())["notes"] == []


def test_a_model_without_its_split_is_taken_with_a_word(
    fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("model.json", "model.safetensors"):
        shutil.copy(baseline / name, bare / name)
    words = (*RML, "--labels", "3", "--seed", "0")
    result = fewmask("train", data, "--out", tmp_path / "run", "--baseline", bare, *words)
    assert result.code == 0, result.err
    assert f"warning: {bare} has no split.json" in result.err
    (bare / "split.json").write_text("{}")
    result = fewmask("train", data, "--out", tmp_path / "other", "--baseline", bare, *words)
    assert result.code == 2
    assert f"the split cannot be read (KeyError: 'labeled')\n  where: {bare / 'split.json'}\n" in result.err


def test_networks_start_from_one_thing_only(fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path) -> None:
    both = ("--init", baseline, "--baseline", baseline)
    result = fewmask("train", data, "--out", tmp_path / "run", *both, *RML)
    assert (result.code, result.err) == (
        2,
        "error: networks start from one thing only\n  where: --init, --baseline\n  valid: one of the two\n",
    )


def test_what_a_run_could_have_started_from_is_not_used_later(
    fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path
) -> None:
    """A job that may be stopped before it begins has one command, which says so when it has begun."""
    command = ("train", data, "--out", tmp_path / "run", "--resume", "--init", baseline, *RML, "--labels", "3")
    first, again = fewmask(*command), fewmask(*command)
    assert (first.code, again.code) == (0, 0)
    told = f"not used, as the run has begun already: {baseline}\n"
    assert told not in first.err
    assert told in again.err


def test_the_plan_says_where_weights_come_from(fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path) -> None:
    """It said `drawn at random`, and advised ImageNet's weights, whatever the run started from."""
    drawn_note = "weights start at random; network.pretrained=hub"
    command = ("train", data, "--out", tmp_path / "run", "--labels", "3", *RML)
    started = fewmask(*command, "--baseline", baseline)
    assert f"\n             weights: student_1 of {baseline}\n" in started.err
    again = fewmask("train", "--out", tmp_path / "run", "--resume")
    assert "\n             weights: those of the checkpoint\n" in again.err
    assert all(words not in started.err + again.err for words in (drawn_note, "drawn at random"))
    assert drawn_note in fewmask("train", data, "--out", tmp_path / "fresh", "--labels", "3", *RML).err


def test_a_file_wins_over_a_preset_options_over_both_and_words_over_all(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("training: {steps: 70, batch: 6, keep: 5}\nseed: 1\ndata: {labels: 3}\n")
    flags = {"seed": 2, "data": {"labels": "4"}}
    layers = spoken_layers(None, tmp_path / "run", "camvid", file, flags, ["steps=80", "seed=9"], False)
    config, preset = resolve(*layers), resolve(read_preset("camvid"))
    assert (config.training.keep, config.training.batch, config.training.steps) == (5, 6, 80)
    assert (config.seed, config.data.labels) == (9, "4")
    assert (preset.training.batch, preset.training.keep) != (6, 5)  # the file has changed something
    assert config.network == preset.network


def test_a_run_remembers_what_it_started_from_and_says_what_it_gained(
    fewmask: Fewmask, data: Path, baseline: Path, tmp_path: Path
) -> None:
    """Where both were scored on the same images, and not on others that happen to lie there."""
    out = tmp_path / "run"
    labels = ("--labels", "3", "--seed", "1")
    result = fewmask("train", data, "--out", out, "--baseline", baseline, *labels, *RML)
    assert result.code == 0, result.err
    started = json.loads((out / "environment.json").read_text())["started_from"]
    assert started == dict.fromkeys(["student_1", "student_2"], str(baseline))
    had, ours = (json.loads((each / "evaluation.json").read_text()) for each in (baseline, out))
    before = had["networks"]["student_1"]["miou"]
    points = 100 * (ours["networks"][ours["selected"]]["miou"] - before)
    assert f"{baseline} had {100 * before:.1f} % mIoU: {points:+.1f} points since then\n" in result.err
    other = with_classes(data, tmp_path / "other", classes_of(baseline))  # the same names, but who knows which images
    result = fewmask("train", other, "--out", tmp_path / "second", "--baseline", baseline, *labels, *RML)
    assert (result.code, "since then" in result.err) == (0, False), result.err
    strange = shutil.copytree(baseline, tmp_path / "strange")
    (strange / "evaluation.json").write_text("[]")
    result = fewmask("train", data, "--out", tmp_path / "third", "--baseline", strange, *labels, *RML)
    assert (result.code, "since then" in result.err, "next: " in result.err) == (0, False, True), result.err
