"""The script that times tiles tries each of them with the others as they are, and puts everything back."""

import json
from collections import Counter

import pytest
import timm
import torch
from torch import nn

from tests.networks.interpreter import require_kernels  # before what imports Triton

# isort: split
from scripts import norm_tiles

from fewmask.networks.norm_passes import Tile

TILES = ((Tile(4, 16, 4), 8), (Tile(8, 16, 4), 4)), (Tile(4, 32, 4),)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few calls of small kernels, which are interpreted where there is no GPU."""
    for name, value in {"_CALLS": 1, "_REPEATS": 1, "SUMS": TILES[0], "MAPS": TILES[1]}.items():
        monkeypatch.setattr(norm_tiles, name, value)


def test_the_norms_are_those_of_paper_voc():
    with torch.device("meta"):
        body = timm.create_model("resnet101", features_only=True, output_stride=8)
        found: Counter[tuple[int, int, bool]] = Counter()
        for name, layer in body.named_modules():
            if isinstance(layer, nn.BatchNorm2d):
                added = name.endswith("bn3")
                layer.register_forward_hook(lambda *given, added=added: found.update([(*given[2].shape[1:3], added)]))
        body(torch.empty(2, 3, 321, 321))
    stated = {(each.channels, each.side, False): each.alone for each in norm_tiles.NORMS}
    stated |= {(each.channels, each.side, True): each.added for each in norm_tiles.NORMS if each.added}
    assert found == stated


def test_each_choice_is_timed_alone(few, monkeypatch):
    seen = []
    monkeypatch.setattr(norm_tiles, "step_ms", lambda *_: seen.append(now()) or float(len(seen)))
    before = now()
    rows = norm_tiles.measure(norm_tiles.NORMS, 1, torch.device("cpu"))
    assert now() == before
    assert seen == [(*TILES[0][0], before[2]), (*TILES[0][1], before[2]), (*before[:2], TILES[1][0])]
    assert [row["ms"] for row in rows] == [1.0, 2.0, 3.0]
    assert json.loads(json.dumps(rows))[2]["MAPS"] == [4, 32, 4]


def test_all_norms_of_both_students_are_added_up(few, monkeypatch):
    require_kernels()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    norms = (norm_tiles.Norms(16, 3, 2, 0), norm_tiles.Norms(32, 3, 1, 3))
    assert norm_tiles.step_ms(norms, 2, device) > 0
    monkeypatch.setattr(norm_tiles, "_call_ms", lambda call, added, _: 10.0 if added else 1.0)
    assert norm_tiles.step_ms(norms, 2, device) == 2 * (2 * 2 + (1 + 30) * 2)


def now() -> tuple[object, ...]:
    return norm_tiles.norm_passes.SUMS, norm_tiles.norm_passes.PROGRAMS, norm_tiles.norm_passes.MAPS
