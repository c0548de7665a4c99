"""Times the parts of the paper's networks in every way that there is to compute them, to choose settings by.

    PYTHONPATH=src python scripts/kernel_check.py                         # everything, about a minute on a large GPU
    PYTHONPATH=src python scripts/kernel_check.py --part teacher --seconds 120 --out kernels.json

One JSON object per line: what was timed, milliseconds (median over replays of a captured graph), TFLOP/s of the plain
way's work, and how far the answer is from that of the first way. What the time does not allow for says so.
`training.branches` and `training.fold_teachers` are what the rows under `branches` and `teacher` decide.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.resnet import BasicBlock, Bottleneck
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from fewmask.benchmarks.timing import captured, median_ms, surroundings
from fewmask.config import NetworkSettings
from fewmask.networks.build import build_network
from fewmask.networks.compilation import compile_blocks
from fewmask.networks.deeplab import ConcatenatedBranches
from fewmask.networks.dilation import Algorithm, convolved
from fewmask.networks.folding import FoldedTwin, sharing_copy
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.device_memory import release

ALGORITHMS: tuple[Algorithm, ...] = ("direct", "product", "joined", "rows")
_TRAINED = 3  # a forward pass, and a backward pass of twice its work
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A preset's crops: how many a teacher and a student see at once."""

    size: tuple[int, int]
    teacher: int
    student: int
    network: NetworkSettings


_PAPER = NetworkSettings(backbone="resnet101.tv_in1k", stride=8)
CASES = {"voc": Case((321, 321), 10, 20, _PAPER), "cityscapes": Case((256, 512), 4, 8, _PAPER)}
_SMALL = NetworkSettings(backbone="resnet10t", width=16, options={"channels": (8, 8, 16, 24), "stem_width": 4})
TINY = {"tiny": Case((32, 48), 1, 2, _SMALL)}


@dataclass(frozen=True)
class Way:
    """One way to compute a thing. `make` builds and compiles it, so that what does not fit the time costs nothing."""

    thing: str
    name: str
    make: Callable[[], Call]
    flop: float
    compiled: bool = False


@dataclass(frozen=True)
class Place:
    """Where and how everything runs."""

    device: torch.device
    backend: str  # torch.compile's
    repeats: int

    def maps(self, *shape: int) -> Tensor:
        """Random maps [N, C, h, w] as they come out of a network under autocast."""
        values = torch.randn(*shape, generator=torch.Generator(self.device).manual_seed(0), device=self.device)
        return values.to(self.precision, memory_format=torch.channels_last)

    @property
    def precision(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def placed(self, module: Any) -> Any:
        return module.to(device=self.device, memory_format=torch.channels_last)


def forward(module: Callable[[Tensor], Any], maps: Tensor, place: Place) -> Call:
    @torch.no_grad()
    def call() -> Any:
        with place.autocast():
            return module(maps)

    return call


def trained(module: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], maps: Tensor, place: Place) -> Call:
    """Forward and backward, to the input as well."""
    maps = maps.detach().requires_grad_()
    pull: list[Tensor] = []

    def call() -> Any:
        with place.autocast():
            answer = module(maps)
        if not pull:  # always the same, as answers are compared
            pull.append(torch.randn(answer.shape, generator=torch.Generator().manual_seed(0)).to(answer))
        return answer, *torch.autograd.grad(answer, [maps, *parameters], pull[0])

    return call


def forward_flop(call: Call) -> float:
    with FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())


def head_maps(case: Case, count: int, channels: int, place: Place) -> Tensor:
    height, width = (-(-side // case.network.stride) for side in case.size)
    return place.maps(count, channels, height, width)


def branches(case: Case, place: Place) -> Iterator[Way]:
    """The head as a whole, for a student and for a teacher, plain and compiled."""
    network = build_network(case.network, num_classes=21)
    head = place.placed(network.head.embedding)
    maps = head_maps(case, case.student, network.backbone.channels, place)
    flop = forward_flop(forward(head, maps, place))

    def made(algorithm: Algorithm, learns: bool, compiled: bool) -> Call:
        module: Any = sharing_copy(head)
        module.algorithm = algorithm
        if compiled:
            module.compile(dynamic=False, backend=place.backend)
        if learns:
            return trained(module, list(module.parameters()), maps, place)
        return forward(module, maps[: case.teacher], place)

    for compiled, learns, algorithm in product((False, True), (True, False), ALGORITHMS):
        work = _TRAINED * flop if learns else flop * case.teacher / case.student
        thing = f"head, {'student' if learns else 'teacher'}"
        yield Way(thing, algorithm, partial(made, algorithm, learns, compiled), work, compiled)


def teacher(case: Case, place: Place) -> Iterator[Way]:
    """A teacher's pass; folded weights are refreshed in each."""
    network = place.placed(build_network(case.network, num_classes=21)).eval().requires_grad_(False)
    images = torch.rand(case.teacher, 3, *case.size, device=place.device).to(memory_format=torch.channels_last)
    flop = forward_flop(forward(network, images, place))

    def made(options: dict[str, Any] | None, compiled: bool) -> Call:
        answerer: Any = sharing_copy(network) if options is None else FoldedTwin(network, **options)
        if compiled:
            compile_blocks(answerer if options is None else answerer.network, backend=place.backend)
        return forward(answerer, images, place)

    ways: dict[str, dict[str, Any] | None] = {
        "plain": None,
        "fused, bf16 weights": {"dtype": place.precision, "fused": True},
        "folded, bf16 weights": {"dtype": place.precision},
        "folded": {},
    }
    for compiled, (name, options) in product((False, True), ways.items()):
        yield Way("teacher", name, partial(made, options, compiled), flop, compiled)


def student(case: Case, place: Place) -> Iterator[Way]:
    """Forward and backward of a student, part by part."""
    network = place.placed(build_network(case.network, num_classes=21)).train()
    images = torch.rand(case.student, 3, *case.size, device=place.device).to(memory_format=torch.channels_last)
    parts = _parts(network)
    sizes = _input_sizes(network, parts, images[:1])

    def made(name: str, compiled: bool) -> Call:
        part = sharing_copy(parts[name])
        for module in part.modules() if compiled else ():
            if isinstance(module, (BasicBlock, Bottleneck, ConcatenatedBranches)):
                module.compile(dynamic=False, backend=place.backend)
        return trained(part, list(part.parameters()), place.maps(case.student, *sizes[name]), place)

    for compiled, (name, part) in product((False, True), parts.items()):
        flop = case.student * forward_flop(forward(part.eval(), place.maps(1, *sizes[name]), place))
        part.train()
        yield Way(f"student, {name}", "direct", partial(made, name, compiled), _TRAINED * flop, compiled)


def _parts(network: SegmentationNetwork) -> dict[str, nn.Module]:
    children = dict(network.backbone.body.named_children())
    layers = {name: child for name, child in children.items() if name.startswith("layer")}
    stem = nn.Sequential(*(child for name, child in children.items() if name not in layers))
    return {"stem": stem, **layers, "head": network.head.embedding}


@torch.no_grad()
def _input_sizes(network: nn.Module, parts: dict[str, nn.Module], image: Tensor) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {"stem": tuple(image.shape[1:])}
    handles = [
        part.register_forward_pre_hook(lambda _, inputs, name=name: sizes.update({name: tuple(inputs[0].shape[1:])}))
        for name, part in parts.items()
    ]
    network.eval()(image)
    network.train()
    for handle in handles:
        handle.remove()
    return sizes


def layers(case: Case, place: Place) -> Iterator[Way]:
    """Each convolution of the head by itself, forward and backward."""
    network = build_network(case.network, num_classes=21)
    head: Any = place.placed(network.head.embedding)
    for layer in (*(branch[0] for branch in head.branches), head.merge[0]):
        maps = head_maps(case, case.student, layer.in_channels, place)
        flop = forward_flop(forward(layer, maps, place))
        thing = f"{layer.in_channels} to {layer.out_channels}, {layer.kernel_size[0]}x, dilation {layer.dilation[0]}"
        for learns, algorithm in product((False, True), ("direct", "product", "rows")):
            way = partial(_one, layer, algorithm)
            make = partial(trained, way, list(layer.parameters())) if learns else partial(forward, way)
            what = f"{thing}, {'forward and backward' if learns else 'forward'}"
            yield Way(what, algorithm, partial(make, maps, place), _TRAINED * flop if learns else flop)


def _one(layer: nn.Conv2d, algorithm: Algorithm, maps: Tensor) -> Tensor:
    return convolved(maps, [layer], algorithm)[0]


def layouts(case: Case, place: Place) -> Iterator[Way]:
    """1x1 convolutions of the deep blocks, forward and backward, in both memory formats and as a matrix product."""
    deep = build_network(case.network, num_classes=21).backbone.channels
    for channels, width in ((deep // 2, deep // 8), (deep // 8, deep // 2), (deep, deep // 4)):
        layer = place.placed(nn.Conv2d(channels, width, 1, bias=False))
        maps = head_maps(case, case.student, channels, place)
        flop = _TRAINED * forward_flop(forward(layer, maps, place))

        def multiplied(maps: Tensor, layer: nn.Conv2d = layer) -> Tensor:
            return F.linear(maps.permute(0, 2, 3, 1), layer.weight[:, :, 0, 0]).permute(0, 3, 1, 2)

        weights, thing = list(layer.parameters()), f"1x1 convolution, {channels} to {width}"
        yield Way(thing, "channels last", partial(trained, layer, weights, maps, place), flop)
        yield Way(thing, "matrix product", partial(trained, multiplied, weights, maps, place), flop)
        yield Way(thing, "contiguous", partial(trained, layer, weights, maps.contiguous(), place), flop)


PARTS: dict[str, Callable[[Case, Place], Iterator[Way]]] = {
    "branches": branches,
    "teacher": teacher,
    "student": student,
    "layouts": layouts,
    "layers": layers,
}


def measured(way: Way, place: Place, plain: list[Tensor]) -> dict[str, Any]:
    """Time and exactness; `plain` is what another way answered, and is filled where there was none yet."""
    last: dict[str, Any] = {}
    call = way.make()

    def keep() -> None:
        last["answer"] = call()

    replay = captured(keep) if place.device.type == "cuda" else keep
    ms = median_ms(lambda _: replay(), place.repeats, place.device)
    answer = [value.detach() for value in tree_leaves(last["answer"]) if isinstance(value, Tensor)]
    plain += [] if plain else [value.clone() for value in answer]
    pairs = [(one.float(), two.float()) for one, two in zip(answer, plain, strict=True)]
    apart = [float((one - two).norm() / two.norm()) for one, two in pairs]
    return {"ms": round(ms, 4), "tflops": round(way.flop / ms / 1e9, 1), "difference": float(f"{max(apart):.3g}")}


def check(parts: Sequence[str], cases: dict[str, Case], place: Place, *, compiles: bool, seconds: float) -> list[Any]:
    """All rows, compiled ways last; a way that fails says so, and the others go on."""
    end, rows = time.monotonic() + seconds, []
    plain: dict[Any, list[Tensor]] = {}
    for compiled, part, case in product((False, True) if compiles else (False,), parts, cases):
        torch.manual_seed(0)
        for way in PARTS[part](cases[case], place):
            if way.compiled != compiled:
                continue
            row: dict[str, Any] = {"part": part, "case": case, "thing": way.thing, "way": way.name}
            row["compiled"] = compiled
            try:
                if time.monotonic() > end:
                    raise TimeoutError("no time left")
                row |= measured(way, place, plain.setdefault((part, case, way.thing), []))
            except Exception as error:  # a kernel that this machine does not have is a result, too
                row["error"] = f"{type(error).__name__}: {str(error)[:200]}"
            rows.append(row)
            print(json.dumps(row), flush=True)  # noqa: T201
        release(place.device)
    return rows


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given several times")
    parser.add_argument("--case", action="append", choices=CASES, help="only this preset's shapes")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile away")
    parser.add_argument("--backend", default="inductor", help="torch.compile's backend")
    parser.add_argument("--seconds", type=float, default=55, help="no new row is begun after this time")
    parser.add_argument("--repeats", type=int, default=20, help="replays, of which the median counts")
    parser.add_argument("--tiny", action="store_true", help="a very small case, to try the script itself on a CPU")
    parser.add_argument("--out", type=Path, help="file for all rows as one JSON object")
    asked = parser.parse_args(words)
    device = torch.device("cuda" if torch.cuda.is_available() and not asked.tiny else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    cases = TINY if asked.tiny else {name: CASES[name] for name in asked.case or CASES}
    place = Place(device, asked.backend, asked.repeats)
    rows = check(asked.part or list(PARTS), cases, place, compiles=not asked.no_compile, seconds=asked.seconds)
    if asked.out:
        content = {**surroundings(device, "python scripts/kernel_check.py"), "rows": rows}
        asked.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
