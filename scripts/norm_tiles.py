"""Which tiles the kernels of fused norms like on this GPU: `python scripts/norm_tiles.py [--images 20] [--out FILE]`.

Times them over maps of the sizes that the norms of `paper-voc` have, a ResNet-101 at stride 8 with crops of 321x321,
and adds up what all norms of both students take in a step. Each time is that of 20 calls captured as one graph.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewmask.benchmarks.timing import captured, median_ms, surroundings
from fewmask.networks import norm_passes
from fewmask.networks.norm_passes import Moments, Tile
from fewmask.training.engine import choose_device

_CALLS, _REPEATS, _STUDENTS = 20, 5, 2


class Norms(NamedTuple):
    """Of one size of maps, and how many of them stand alone or have a shortcut added."""

    channels: int
    side: int
    alone: int
    added: int


NORMS = (
    Norms(64, 161, 1, 0),
    Norms(64, 81, 6, 0),
    Norms(128, 81, 1, 0),
    Norms(256, 81, 1, 3),
    Norms(128, 41, 7, 0),
    Norms(512, 41, 7, 4),
    Norms(256, 41, 46, 0),
    Norms(1024, 41, 1, 23),
    Norms(2048, 41, 1, 3),
)
SUMS = (
    (Tile(64, 64, 8), 512),
    (Tile(64, 64, 8), 1024),
    (Tile(32, 128, 8), 512),
    (Tile(32, 64, 4), 1024),
    (Tile(64, 128, 8), 512),
    (Tile(16, 256, 8), 512),
    (Tile(64, 64, 4), 1024),
    (Tile(128, 64, 8), 1024),
    (Tile(32, 64, 4), 2048),
)
MAPS = (Tile(64, 64, 8), Tile(32, 64, 4), Tile(32, 128, 8), Tile(16, 256, 8), Tile(64, 128, 8), Tile(16, 128, 4))
MAPS += (Tile(64, 64, 4),)


class Maps:
    """Random ones of one size, and everything that the passes over them want."""

    def __init__(self, norms: Norms, images: int, device: torch.device) -> None:
        shape = (images, norms.channels, norms.side, norms.side)
        self.maps, self.pull, self.more, self.answer = (_maps(shape, device) for _ in range(4))
        self.weight, self.bias = (torch.rand(norms.channels, device=device) for _ in range(2))
        statistics = (torch.zeros(norms.channels, device=device), torch.ones(norms.channels, device=device))
        self.running = (*statistics, torch.zeros((), dtype=torch.int64, device=device))
        self.found = self.moments()

    def moments(self) -> Moments:
        return norm_passes.moments(self.maps, self.weight, self.bias, self.running, momentum=0.1, eps=1e-5)

    def forward(self, added: bool) -> None:
        self.moments()
        norm_passes.applied(self.maps, self.found, True, self.answer if added else None, None)

    def backward(self, added: bool) -> None:
        more, answer = (self.more, self.answer) if added else (None, None)
        norm_passes.gradients(self.pull, more, self.maps, self.found, self.weight, True, answer, None)


def _maps(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)


def step_ms(norms: Sequence[Norms], images: int, device: torch.device) -> float:
    """All norms of both students, forwards and backwards, one after the other, with the tiles as they are."""
    total = 0.0
    for each in norms:
        maps = Maps(each, images, device)
        for count, added in ((each.alone, False), (each.added, True)):
            if count:
                total += count * (_call_ms(maps.forward, added, device) + _call_ms(maps.backward, added, device))
    return _STUDENTS * total


def _call_ms(call: Callable[[bool], None], added: bool, device: torch.device) -> float:
    def calls() -> None:
        for _ in range(_CALLS):
            call(added)

    replay = captured(calls) if device.type == "cuda" else calls
    return median_ms(lambda _: replay(), _REPEATS, device) / _CALLS


def measure(norms: Sequence[Norms], images: int, device: torch.device) -> list[dict[str, Any]]:
    """One row for each choice of tiles; the others stay as they are in the package meanwhile."""
    names = ("SUMS", "PROGRAMS", "MAPS")
    usual = {name: getattr(norm_passes, name) for name in names}
    tried = [{"SUMS": tile, "PROGRAMS": programs} for tile, programs in SUMS] + [{"MAPS": tile} for tile in MAPS]
    rows = []
    for chosen in tried:
        _set_tiles(usual | chosen)
        rows.append({**chosen, "ms": step_ms(norms, images, device)})
    _set_tiles(usual)
    return rows


def _set_tiles(chosen: dict[str, Any]) -> None:
    for name, value in chosen.items():
        setattr(norm_passes, name, value)


def main(given: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=20, help="of a student's pass")
    parser.add_argument("--out", type=Path, help="write the result to this file, too")
    asked = parser.parse_args(given)
    device = choose_device("cuda")
    found = {"benchmark": "norm_tiles", "images": asked.images, "rows": measure(NORMS, asked.images, device)}
    text = json.dumps(
        [found | surroundings(device, f"python scripts/norm_tiles.py {' '.join(given)}".strip())], indent=1
    )
    if asked.out:
        asked.out.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
