"""Codes of soft labels: what each keeps, by hand and by a loop, how large it is, and that it never asks the host."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from fewmask.config import TrainingSettings
from fewmask.training.pixel_store import MapForm
from fewmask.types import FlatImages
from fewmask.views.soft_label_codes import CODES, SAFE, TOP


def soft(seed: int, cells: int, classes: int, sharpness: float = 4.0) -> torch.Tensor:
    """Log-probabilities [n, K], from nearly even to nearly certain."""
    scores = torch.randn(cells, classes, generator=torch.Generator().manual_seed(seed))
    return (scores * torch.linspace(0.1, sharpness, cells)[:, None]).log_softmax(1).clamp(min=math.log(1e-12))


def kept(code: str, log_probability: torch.Tensor) -> torch.Tensor:
    return CODES[code].decode(CODES[code].encode(log_probability), log_probability.shape[1])


def test_settings_and_codes_have_the_same_names():
    names = TrainingSettings.model_json_schema()["properties"]["soft_labels"]["enum"]
    assert set(names) == set(CODES) - {"fp32"} | {"auto"}  # fp32 is what the others are compared with


@pytest.mark.parametrize("code", CODES)
@given(seed=st.integers(0, 999), classes=st.integers(2, 40), sharpness=st.sampled_from([0.1, 2.0, 9.0]))
@settings(max_examples=30, deadline=None)
def test_probabilities_come_back(code: str, seed: int, classes: int, sharpness: float):
    log_probability = soft(seed, 20, classes, sharpness)
    rows = CODES[code].encode(log_probability)
    assert rows.shape[1] * rows.element_size() == CODES[code].bytes_per_cell(classes)
    got = CODES[code].decode(rows, classes)
    assert got.dtype == torch.float32
    assert got.sum(1).tolist() == pytest.approx([1.0] * 20, abs=2e-2 if code == "fp16" else 1e-5)
    likeliest = log_probability.argmax(1, keepdim=True)
    assert torch.equal(got.gather(1, likeliest), got.amax(1, keepdim=True))  # rounding may tie it with another
    cut = 1 / (TOP + 1) if code == "topk" and classes > TOP + 1 else 0.0  # what the largest class that is cut may have
    torch.testing.assert_close(got, log_probability.exp(), atol=0.005 + cut, rtol=0.0)


@given(seed=st.integers(0, 999), sharpness=st.sampled_from([0.5, 3.0, 9.0]))
@settings(max_examples=30, deadline=None)
def test_a_byte_keeps_distances_to_one_and_a_half_percent_of_themselves(seed: int, sharpness: float):
    """The steps of log(1 + distance) are 0.0132, so a distance is off by 0.66 % of (1 + distance) at most."""
    log_probability = soft(seed, 30, 12, sharpness)
    wanted = log_probability.amax(1, keepdim=True) - log_probability
    got = kept("uint8", log_probability).log()
    got = got.amax(1, keepdim=True) - got
    assert ((got - wanted).abs() <= 0.0067 * (1 + wanted) + 1e-4).all()
    assert (got.gather(1, wanted.argsort(1)).diff() >= -1e-4).all()  # classes keep their order


def test_a_byte_by_hand():
    """Distance 1 is byte round(log 2 / step) = 53, step = log(1 + 27.63) / 255; the least probability is byte 255."""
    log_probability = torch.tensor([[0.0, -1.0, math.log(1e-12)]])
    assert CODES["uint8"].encode(log_probability).tolist() == [[0, 53, 255]]
    ratios = [1.0, math.exp(1 - math.exp(53 * math.log1p(12 * math.log(10)) / 255)), 1e-12]
    assert kept("uint8", log_probability)[0].tolist() == pytest.approx(
        [each / sum(ratios) for each in ratios], rel=1e-4
    )


def test_the_largest_classes_by_a_loop():
    """The likeliest twelve one by one as `uint8` has them, all others at their mean."""
    log_probability = soft(3, 40, 30)
    got = kept("topk", log_probability)
    for cell, row in enumerate(log_probability.exp().tolist()):
        order = sorted(range(30), key=lambda k: -row[k])
        others = sum(row[k] for k in order[TOP:]) / (30 - TOP)
        wanted = [row[k] if k in order[:TOP] else others for k in range(30)]
        ratios = [got[cell, k].item() / got[cell, order[0]].item() for k in range(30)]
        for k in range(30):
            distance = math.log(row[order[0]] / max(wanted[k], 1e-12))
            assert -math.log(ratios[k]) == pytest.approx(distance, abs=0.0067 * (1 + distance) + 1e-4)
        assert len({ratios[k] for k in order[TOP:]}) == 1


def test_two_classes_are_kept_by_any_code():
    log_probability = soft(0, 9, 2)
    torch.testing.assert_close(kept("topk", log_probability), kept("uint8", log_probability))


@pytest.mark.parametrize(
    ("size", "classes", "fp16", "uint8", "topk"),
    [
        ((360, 480), 11, 59_400, 29_700, 54_000),  # CamVid: 45 x 60 cells
        ((375, 500), 21, 124_362, 62_181, 71_064),  # VOC: 47 x 63
        ((512, 1024), 19, 311_296, 155_648, 196_608),  # Cityscapes at half size: 64 x 128
        ((256, 256), 38, 77_824, 38_912, 24_576),  # Pets: 32 x 32
    ],
)
def test_bytes_per_image(size: tuple[int, int], classes: int, fp16: int, uint8: int, topk: int):
    """The table in docs/training.md, at stride 8."""
    height, width = (torch.tensor([side]) for side in size)
    image = FlatImages(torch.zeros(0, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), height, width, 3)
    found = [MapForm(code, classes, stride=8).bytes(image) for code in ("fp16", "uint8", "topk")]
    assert found == [fp16, uint8, topk]
    assert SAFE == "fp16"


@pytest.mark.parametrize("code", CODES)
def test_decoding_never_asks_the_host(code: str):
    rows = CODES[code].encode(soft(0, 6, 21))
    with FakeTensorMode() as mode:
        assert CODES[code].decode(mode.from_tensor(rows), 21).shape == (6, 21)
