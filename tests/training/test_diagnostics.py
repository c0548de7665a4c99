"""What diagnostics say, by hand on 4x4 images, and that hidden masks reach nothing but them."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fewmask.labels import IGNORE
from fewmask.methods.method import PseudoLabels
from fewmask.training.diagnostics import Diagnostics, count, numbers
from fewmask.training.observer import Observer
from fewmask.training.run import run_training
from fewmask.types import Batch
from tests.training.runs import differing, tiny_config, tiny_session, write_data

CLASSES, PRIOR = ("a", "b", "c"), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
I = IGNORE  # noqa: E741
TRUTH = torch.tensor([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 1, I], [2, 2, 2, I]]])
LABEL = torch.tensor([[[0, 0, 1, 1], [0, 1, 1, 1], [2, 2, 2, 1], [2, 2, 0, I]]])
BEFORE = torch.tensor([[[0, 0, 1, 2], [0, 0, 1, 0], [2, 1, 1, 0], [2, 2, 1, I]]])
VALID = LABEL != I  # the last pixel is padding


def read(*found: PseudoLabels, truth: Tensor = TRUTH) -> dict[str, float]:
    counts = count(found, VALID, truth, len(CLASSES))
    return numbers(counts, [each.source for each in found], CLASSES, PRIOR)


def test_accuracy_and_iou_by_hand():
    """14 pixels are taught and known, 11 of them right: classes 3 of 4 (and one more), 4 of 5, 4 of 5."""
    values = read(PseudoLabels("teacher_1", LABEL))
    assert values["pseudo/accuracy"] == pytest.approx(11 / 14)
    iou = {"a": 3 / (4 + 4 - 3), "b": 4 / (5 + 5 - 4), "c": 4 / (5 + 5 - 4)}
    assert {name: values[f"pseudo_iou/{name}"] for name in CLASSES} == pytest.approx(iou)
    assert values["pseudo/miou"] == pytest.approx(sum(iou.values()) / 3)
    assert not [name for name in values if name.startswith(("rectification", "coupling", "prototypes", "pseudo_miou"))]


def test_flips_by_hand():
    """7 of 15 labels are flipped; of the 6 whose truth is known, 3 are right now and 2 had been right."""
    values = read(PseudoLabels("teacher_1", LABEL, BEFORE))
    assert values["rectification/flipped"] == pytest.approx(7 / 15)
    assert values["rectification/flips_right"] == pytest.approx(3 / 6)
    assert values["rectification/flips_from_right"] == pytest.approx(2 / 6)
    assert values["rectification/miou_before"] == pytest.approx((4 / 5 + 3 / 7 + 3 / 6) / 3)


def test_a_label_that_is_not_taught_is_no_flip():
    dropped = LABEL.clone()
    dropped[0, 1, 1] = dropped[0, 0, 0] = I  # below a threshold: a flip, and a pixel that was kept
    values = read(PseudoLabels("teacher_1", dropped, BEFORE))
    assert values["pseudo/taught"] == pytest.approx(13 / 15)
    assert values["rectification/flipped"] == pytest.approx(6 / 13)
    assert values["rectification/flips_right"] == pytest.approx(3 / 5)
    assert values["pseudo/accuracy"] == pytest.approx(10 / 12)
    assert values["rectification/miou_before"] == pytest.approx((2 / 3 + 3 / 7 + 3 / 6) / 3)  # on the taught pixels


def test_class_shares_by_hand():
    values = read(PseudoLabels("teacher_1", LABEL))
    share = {"a": 4 / 15, "b": 6 / 15, "c": 5 / 15}
    assert {name: values[f"pseudo_share/{name}"] for name in CLASSES} == pytest.approx(share)
    assert [values[f"prior_share/{name}"] for name in CLASSES] == PRIOR.tolist()
    assert values["pseudo/from_prior"] == pytest.approx(0.5 * (7 / 30 + 3 / 30 + 4 / 30))


def test_certain_weights_and_drift_by_hand():
    """Cells of padding do not count, and 0.99 itself is not above it; drift is the mean of both learners."""
    weight = torch.tensor([[[0.995, 0.99], [0.992, 0.999]]])  # the last cell's center is padding
    first = PseudoLabels("teacher_1", LABEL, weight=weight, drift=torch.tensor(0.2))
    second = PseudoLabels("teacher_2", LABEL, weight=torch.zeros(1, 4, 4), drift=torch.tensor(0.4))
    values = read(first, second)
    assert values["rectification/certain"] == pytest.approx(2 / (3 + 15))
    assert values["prototypes/drift"] == pytest.approx(0.3)


def test_two_sources_are_pooled_and_compared():
    other = LABEL.clone()
    other[0, 0, 0], other[0, 0, 1] = I, 2  # one pixel dropped, one wrong now
    values = read(PseudoLabels("teacher_1", LABEL), PseudoLabels("teacher_2", other))
    assert values["coupling/same_label"] == pytest.approx(13 / 14)
    assert values["pseudo/accuracy"] == pytest.approx((11 + 9) / (14 + 13))
    assert values["pseudo_miou/teacher_1"] == pytest.approx(read(PseudoLabels("x", LABEL))["pseudo/miou"])
    assert values["pseudo_miou/teacher_2"] == pytest.approx((1 / 4 + 4 / 6 + 4 / 7) / 3)


def test_without_truth_nothing_is_said_about_it():
    values = read(PseudoLabels("teacher_1", LABEL, BEFORE), truth=torch.full_like(TRUTH, I))
    assert values["rectification/flipped"] == pytest.approx(7 / 15)
    assert not [name for name in values if name.startswith(("pseudo_iou", "rectification/flips_"))]
    assert {"pseudo/accuracy", "pseudo/miou", "rectification/miou_before"}.isdisjoint(values)
    nothing = read(PseudoLabels("teacher_1", torch.full_like(LABEL, I), BEFORE))
    assert nothing == {"pseudo/taught": 0.0}  # nan is no JSON


def test_counts_of_processes_add_up():
    labels, truth = torch.cat([LABEL, LABEL.flip(1)]), torch.cat([TRUTH, TRUTH])
    valid, before = labels != I, torch.cat([BEFORE, BEFORE])

    def counted(part: slice) -> dict[str, Tensor]:
        return count([PseudoLabels("t", labels[part], before[part])], valid[part], truth[part], 3)

    whole, first, second = (counted(slice(*part)) for part in ((0, 2), (0, 1), (1, 2)))
    assert all(torch.equal(whole[name], first[name] + second[name]) for name in whole)


def write_coded(root: Path, names: str, sizes: list[tuple[int, int]]) -> Path:
    """Noise whose truth can be read off every pixel: a third of the red value."""
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        image = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        for folder, array in (("images", image), ("masks", image[:, :, 0] // 86)):
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(root / folder / f"{name}.png")
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


@pytest.mark.parametrize("pairs", ["batch", "independent"])
def test_truth_lies_under_the_same_windows_as_the_images(tmp_path: Path, pairs: str):
    """Crops, flips, padding, and an image that never had a mask."""
    data = write_coded(tmp_path / "data", "abcdef", [(40, 60), (34, 50), (24, 30), (40, 40), (50, 70), (36, 52)])
    (data / "masks" / "e.png").unlink()
    (tmp_path / "split.txt").write_text("a\n")
    words = (f"data.split={tmp_path / 'split.txt'}", "views.scale=1,1", f"settings.pairs={pairs}")
    session = tiny_session(data, *words, method="rml")
    assert session.diagnostics is not None
    blank = [sample.name for sample in session.dataset.unlabeled].index("e")
    for step in map(torch.tensor, range(3)):
        batch = session.maker(step)
        coded = ((batch.weak[:, 0] * 255).round().long() // 86).where(batch.valid, IGNORE)
        coded[batch.weak_index == blank] = IGNORE
        assert torch.equal(session.diagnostics._truth(session.maker, step, batch.valid), coded)


def reached(thing: Any, seen: set[int]) -> Iterator[Any]:
    """The object and all that its attributes, fields and items lead to."""
    if id(thing) in seen or isinstance(thing, (str, int, float, type)):
        return
    seen.add(id(thing))
    yield thing
    below: list[Any] = []
    if isinstance(thing, dict):
        below = list(thing.values())
    elif isinstance(thing, (list, tuple, set)):
        below = list(thing)
    elif is_dataclass(thing):
        below = [getattr(thing, field.name) for field in fields(thing)]
    elif isinstance(thing, nn.Module) or type(thing).__module__.startswith("fewmask"):
        below = list(vars(thing).values())
    for each in below:
        yield from reached(each, seen)


def finds_truth(diagnostics: Diagnostics, maps: Tensor, *starts: Any) -> bool:
    """Whether the store of hidden masks, or the truth `maps` of a batch, can be reached."""
    assert diagnostics.truth is not None
    seen: set[int] = set()
    for thing in (each for start in starts for each in reached(start, seen)):
        if thing is diagnostics or thing is diagnostics.truth:
            return True
        if isinstance(thing, Tensor) and thing.shape == maps.shape and torch.equal(thing.long(), maps):
            return True
        if isinstance(thing, Tensor) and thing.data_ptr() == diagnostics.truth.values.data_ptr():
            return True
    return False


@pytest.mark.parametrize("method", ["mean_teacher", "rml"])
def test_no_method_can_reach_the_truth(tmp_path: Path, method: str):
    data = write_coded(tmp_path / "data", "abcdef", [(40, 60)] * 6)
    session = tiny_session(data, "data.labels=2", method=method)
    step = torch.tensor(0)
    batch = session.maker(step)
    diagnostics = session.diagnostics
    assert diagnostics is not None
    truth = diagnostics._truth(session.maker, step, batch.valid)
    assert finds_truth(diagnostics, truth, session)  # the search itself works
    assert finds_truth(diagnostics, truth, {"batch": (batch, [truth.clone()])})
    assert isinstance(batch, Batch)
    assert not finds_truth(diagnostics, truth, batch, session.method, session.maker, session.stepper, session.engine)


RUN = ("training.steps=4", "training.log_every=2", "training.checkpoint_every=3", "training.keep=9")


def train(data: Path, out: Path, split: Path, *more: str) -> list[dict[str, float]]:
    config = tiny_config(data, *RUN, f"data.split={split}", "settings.stages=1", *more, method="rml")
    config = config.model_copy(update={"baseline": {"training": {"steps": 2}}})
    run_training(config, out, device="cpu", resume=False, init=None, observer=Observer())
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_hidden_masks_change_the_numbers_and_no_weight(tmp_path: Path):
    """The same run with hidden masks, without them, and without diagnostics."""
    data = write_data(tmp_path / "data", labeled=7, unlabeled=1, val=1)
    split = tmp_path / "split.txt"
    split.write_text("a0\na2\na3\n")
    bare = Path(shutil.copytree(data, tmp_path / "bare"))
    for name in ("a1", "a4", "a5", "a6"):
        (bare / "masks" / f"{name}.png").unlink()
    every = "training.diagnose_every=2"
    known, blind = train(data, tmp_path / "known", split, every), train(bare, tmp_path / "blind", split, every)
    silent = train(data, tmp_path / "silent", split, "training.diagnose_every=0")
    for name in ("blind", "silent"):
        assert differing(tmp_path / "known", tmp_path / name) == []
    for full, part, losses in zip(known, blind, silent, strict=True):
        assert losses.items() < part.items() < full.items()
        told = {"pseudo/accuracy", "pseudo/miou", "pseudo_miou/teacher_1", "pseudo_miou/teacher_2"}
        told |= {"rectification/flips_right", "rectification/flips_from_right", "rectification/miou_before"}
        assert {name for name in full.keys() - part.keys() if not name.startswith("pseudo_iou/")} <= told
        assert told <= full.keys() | {"rectification/flips_right", "rectification/flips_from_right"}
        both = {"rectification/flipped", "rectification/certain", "prototypes/drift", "coupling/same_label"}
        assert both | {"pseudo/taught", "pseudo/from_prior", "pseudo_share/left", "prior_share/left"} <= part.keys()
        assert part["prototypes/drift"] > 0
        assert all(0 <= value <= 1 for name, value in full.items() if name.startswith(("pseudo", "rect", "prior")))


def test_supervised_runs_have_nothing_to_diagnose(tmp_path: Path):
    data = write_data(tmp_path / "data")
    assert tiny_session(data, "data.labels=3", method="supervised").diagnostics is None
    assert tiny_session(data, "data.labels=3", "training.diagnose_every=0").diagnostics is None
