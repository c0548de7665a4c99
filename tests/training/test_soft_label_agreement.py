"""Rectified labels from stored soft labels are those from float32 ones: the bound that decides how they are kept.

A network that has learned street scenes for a while gives p0 and the prototypes; some steps later it is the teacher
whose features rectify it, so that many labels change. Crops, scales, flips and padding are those of training.
"""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fewmask.data.opening import open_dataset
from fewmask.data.synthetic import write_scenes
from fewmask.labels import IGNORE
from fewmask.methods.rml import P0
from fewmask.settings import preset, resolve
from fewmask.training.distributed import World
from fewmask.training.loading import load_stores
from fewmask.training.observer import Observer
from fewmask.training.session import Session, build_maker, build_session
from fewmask.training.stages import sweep
from fewmask.types import PixelMaps
from fewmask.views.soft_label_codes import CODES

BASELINE, TEACHER, BATCHES = 50, 75, 20


def session_of(data: Path, method: str) -> Session:
    """The demo's network on its scenes; crops as large as the images, from three quarters to twice their size."""
    values = preset("demo") | {"method": method, "settings": {}, "data": {"root": str(data)}}
    words = ["views.scale=[0.75,2.0]", f"training.steps={TEACHER}", "training.batch=4", "training.soft_labels=fp16"]
    config = resolve(values, words=words)
    dataset = open_dataset(data, config.data, config.seed)
    stores, device = load_stores(config, dataset, Observer()), torch.device("cpu")
    return build_session(config, dataset, stores, device=device, world=World(), observer=Observer())


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, PixelMaps]:
    """A session in the middle of its first stage, and its p0 in float32."""
    data = tmp_path_factory.mktemp("agreement") / "data"
    write_scenes(data, seed=5, labeled=8, unlabeled=12, val=0, size=(96, 128))
    supervised, session = session_of(data, "supervised"), session_of(data, "rml")
    for step in range(TEACHER):
        if step == BASELINE:
            baseline = deepcopy(supervised.method.student_1.state_dict())
        supervised.stepper(step)
    for teacher in session.method.teachers:
        teacher.load_state_dict(baseline)
    training = session.config.training.model_copy(update={"soft_labels": "fp32"})  # no setting: for comparison only
    session = replace(session, config=session.config.model_copy(update={"training": training}))
    session.method.start_stage(0)
    maps = sweep(session, Observer())[P0]
    for teacher in session.method.teachers:
        teacher.load_state_dict(supervised.method.student_1.state_dict())
    return session, maps


def recoded(maps: PixelMaps, code: str) -> PixelMaps:
    return replace(maps, values=CODES[code].encode(maps.values), code=code)


@torch.no_grad()
def labels(session: Session, maps: PixelMaps) -> tuple[Tensor, Tensor]:
    """Every pixel's rectified label, and the label of p0 alone, over many batches, [n] each."""
    maker = build_maker(session.config, session.stores, session.engine, {P0: maps})
    found = [session.method.pseudo_labels(maker(torch.tensor(step)))[0] for step in range(BATCHES)]
    rectified, alone = zip(*((each.label.flatten(), each.before.flatten()) for each in found), strict=True)
    return torch.cat(rectified), torch.cat(alone)


@pytest.fixture(scope="module")
def exact(swept: tuple[Session, PixelMaps]) -> tuple[Tensor, Tensor]:
    return labels(*swept)


def test_rectification_changes_many_labels(exact: tuple[Tensor, Tensor]):
    """Without flips the bound would say nothing."""
    rectified, alone = exact
    flipped = (rectified != alone)[rectified != IGNORE].float().mean()
    assert 0.03 < flipped < 0.5
    assert len(rectified.unique()) > 4


@pytest.mark.parametrize("code", ["fp16", "uint8"])
def test_labels_agree_with_float32(swept: tuple[Session, PixelMaps], exact: tuple[Tensor, Tensor], code: str):
    """At least 99.9 % of all labels, and 99 % of those that rectification flips."""
    session, maps = swept
    rectified, alone = exact
    same = labels(session, recoded(maps, code))[0] == rectified
    valid = rectified != IGNORE
    flipped = valid & (rectified != alone)
    assert same[valid].float().mean() >= 0.999
    assert same[flipped].float().mean() >= 0.99
    assert same[~valid].all()
