"""All broken data sets; each differs from the healthy one in exactly one thing."""

from __future__ import annotations

from tests.data import broken_files, broken_masks
from tests.data.healthy import Broken

BROKEN: list[Broken] = [*broken_masks.CASES, *broken_files.CASES]
