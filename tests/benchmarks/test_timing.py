"""What a profile of a call says, held against calls whose work is known."""

from __future__ import annotations

import torch

from fewmask.benchmarks.timing import busy_ms, kernels

CPU = torch.device("cpu")


def test_kernels_of_one_call():
    """Two products and a sum in each of three calls; what is counted is one call's."""
    matrix, seen = torch.rand(8, 8), []

    def call(number: int) -> None:
        seen.append(number)
        (matrix @ matrix @ matrix).sum()

    found = {name: (ms, started) for name, ms, started in kernels(call, 3, CPU)}
    assert seen == [0, 1, 2]
    assert found["aten::mm"][1] == 2
    assert found["aten::sum"][1] == 1
    assert all(ms > 0 for ms, _ in found.values())


def test_a_cpu_does_not_wait_for_itself():
    assert busy_ms(lambda _: torch.ones(2).sum(), 1, CPU) is None
