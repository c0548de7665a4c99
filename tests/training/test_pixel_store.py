"""The sweep writes every map where it belongs, in bounded memory, and says beforehand how large the maps will be."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from fewmask.labels import IGNORE
from fewmask.methods.rml import P0, RobustMutualLearning
from fewmask.training.observer import Observer
from fewmask.training.pixel_store import MapForm, empty_maps, map_forms, stored_bytes, write_maps
from fewmask.training.plan import describe_plan
from fewmask.training.session import Session, build_maker
from fewmask.training.stages import sweep
from fewmask.types import FlatImages
from fewmask.views.soft_label_codes import CODES
from tests.training.runs import tiny_session, write_data

SIZES = ((32, 48), (41, 50), (41, 50), (70, 90))


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unlabeled images of several sizes, two neighbors alike."""
    data = write_data(tmp_path_factory.mktemp("ragged") / "data", labeled=3, unlabeled=0, val=0)
    (data / "unlabeled").mkdir()
    for number, size in enumerate(SIZES):
        pixels = np.random.default_rng(number).integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(data / "unlabeled" / f"u{number}.png")
    return data


def session_of(data: Path, *words: str) -> Session:
    session = tiny_session(data, *words, method="rml")
    session.method.start_stage(0)
    return session


def of_sizes(*sizes: tuple[int, int]) -> FlatImages:
    height, width = (torch.tensor(side) for side in zip(*sizes, strict=True))
    pixels = height * width
    values = torch.zeros(int(pixels.sum()), dtype=torch.uint8)
    return FlatImages(values, pixels.cumsum(0) - pixels, height, width, 1)


@pytest.mark.parametrize("code", CODES)
def test_every_cell_is_where_it_belongs(code: str):
    images = of_sizes((16, 24), (33, 8), (33, 8))
    maps = empty_maps(MapForm(code, classes=4, stride=8), images)
    found = [torch.randn(1, 4, 2, 3).log_softmax(1), torch.randn(2, 4, 5, 1).log_softmax(1)]
    write_maps(maps, 0, found[0])
    write_maps(maps, 1, found[1])
    every = [found[0][0], *found[1]]
    assert len(maps.values) == 6 + 5 + 5
    for index, each in enumerate(every):
        for y in range(each.shape[1]):
            for x in range(each.shape[2]):
                row = maps.values[int(maps.offset[index]) + y * int(maps.width[index]) + x]
                assert torch.equal(row, CODES[code].encode(each[:, y, x][None])[0])


def test_a_map_of_another_size_is_an_error():
    maps = empty_maps(MapForm("fp16", classes=4, stride=8), of_sizes((16, 24)))
    with pytest.raises(AssertionError, match="3, 3"):
        write_maps(maps, 0, torch.zeros(1, 4, 3, 3))


@pytest.mark.parametrize("code", ["fp16", "uint8", "topk"])
def test_two_sweeps_store_the_same_bits(ragged: Path, code: str):
    session = session_of(ragged, f"training.soft_labels={code}")
    first = sweep(session, Observer())[P0]
    session.method.start_stage(0)
    second = sweep(session, Observer())[P0]
    assert torch.equal(first.values, second.values)
    assert first.code == code
    assert first.height.tolist() == [4, 6, 6, 9]
    assert first.width.tolist() == [6, 7, 7, 12]


class Unlike(RobustMutualLearning):
    """Stores two maps of different strides, as learners of different architecture do."""

    def sweep(self, images: Tensor, label: Tensor | None, *rest: object) -> dict[str, Tensor]:
        found = super().sweep(images, label, *rest)
        size = tuple(-(-side // 32) for side in images.shape[2:])
        return {"fine": found[P0], "coarse": F.adaptive_avg_pool2d(found[P0], size)} if found else {}

    def stored_strides(self) -> dict[str, int]:
        return {"fine": 8, "coarse": 32}


def test_maps_of_different_strides(ragged: Path):
    session = session_of(ragged)
    session.method.__class__ = Unlike
    maps = sweep(session, Observer())
    assert maps["fine"].height.tolist() == [4, 6, 6, 9]
    assert maps["coarse"].height.tolist() == [1, 2, 2, 3]
    maker = build_maker(session.config, session.stores, session.engine, maps)
    stored = maker(torch.tensor(0)).stored
    assert stored["fine"].shape[2:] == (4, 6)  # a crop of 32 x 48
    assert stored["coarse"].shape[2:] == (1, 2)


def passes(session: Session) -> Iterator[tuple[int, ...]]:
    """The shapes that the first teacher's backbone is shown during a sweep."""
    seen: list[tuple[int, ...]] = []
    hook = session.method.teacher_1.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    sweep(session, Observer())
    hook.remove()
    yield from seen


def test_large_images_are_swept_in_tiles(ragged: Path):
    """No pass sees more than the bound, and every cell that is not ignored counts once for the prototypes."""
    session = session_of(ragged, "training.sweep_pixels=1024")
    shapes = list(passes(session))
    assert max(n * height * width for n, _, height, width in shapes) <= 1024
    assert len(set(shapes)) > 2  # tiles at the border are cut
    labels = torch.stack([session.stores.labels.raw(index)[0].long() for index in range(3)])  # [3, 32, 48]
    known = (labels[:, 4::8, 4::8] != IGNORE).sum().item()
    assert known < labels.numel() // 64
    cells = sum(-(-height // 8) * -(-width // 8) for height, width in SIZES) + known
    for prototypes in session.method.prototypes:
        assert prototypes.predicted_pixels.sum() == cells


def test_a_pass_takes_as_many_images_as_the_bound_allows(ragged: Path):
    assert (2, 3, 41, 50) in set(passes(session_of(ragged)))
    assert (2, 3, 41, 50) not in set(passes(session_of(ragged, "training.sweep_pixels=4000")))


def test_the_plan_says_how_large_soft_labels_are(ragged: Path):
    """Three classes, 24 + 42 + 42 + 108 cells."""
    for words, text in (
        ((), "log_p0: soft labels as fp16 at stride 8, 324 bytes per image"),
        (("training.soft_labels=uint8",), "log_p0: soft labels as uint8 at stride 8, 162 bytes per image"),
    ):
        session = session_of(ragged, *words)
        assert text in describe_plan(session, 0)
        forms = map_forms(session.method, session.config.training.soft_labels)
        maps = sweep(session, Observer())[P0]
        assert stored_bytes(forms, session.stores.unlabeled) == maps.values.numel() * maps.values.element_size()
    assert "soft labels" not in describe_plan(tiny_session(ragged), 0)
