"""Compiles the kernels of fused norms for Hopper, and prints how wide each one's passes over memory are."""

import json
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fewmask.networks import norm_kernels as kernels
from fewmask.networks.norm_passes import MAPS, STAGES, SUMS, Tile

HOPPER = GPUTarget("cuda", 90, 32)
COUNTS = dict.fromkeys(("rows", "channels", "pixels", "parts", "turns", "step"), "i32")
MAP_NAMES = dict.fromkeys(("maps", "shortcut", "answer", "pull", "more", "through", "to_maps"), "*bf16")
TYPES = COUNTS | MAP_NAMES | {"batches": "*i64", "keep": "*fp64", "momentum": "fp32", "eps": "fp32"}


def widths(kernel: Any, tile: Tile, **constants: int) -> list[str]:
    constants |= {"ROWS": tile.rows, "CHANNELS": tile.channels}
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else TYPES.get(name, "*fp32") for name in names}
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name == "channels"]
    source = ASTSource(
        kernel,
        types,
        {(names.index(name),): value for name, value in constants.items() if name in names},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    code = triton.compile(source, target=HOPPER, options={"num_warps": tile.warps}).asm["ptx"]
    return sorted(set(re.findall(r"(?:ld|st)\.global\S*\.(v\d\.b\d+)", code)))


def main() -> dict[str, list[str]]:
    found = {"moment_sums": widths(kernels.moment_sums, SUMS, STAGES=STAGES)}
    for more in (False, True):
        found[f"apply_moments, more={more}"] = widths(kernels.apply_moments, MAPS, RELU=True, ADDED=more, GATED=more)
        found[f"gradient_sums, more={more}"] = widths(
            kernels.gradient_sums, SUMS, RELU=True, ADDED=more, FORKED=more, GATED=more, STAGES=STAGES
        )
        found[f"apply_gradients, more={more}"] = widths(kernels.apply_gradients, MAPS, RELU=not more, GATED=more)
    for kernel in (kernels.settle_moments, kernels.settle_gradients):
        widths(kernel, Tile(1, 32, 4), SPLITS=64)  # over sums, which are few
    return found


if __name__ == "__main__":
    print(json.dumps(main()))  # noqa: T201
