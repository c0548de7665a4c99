"""What a data set is, once its folder has been read: names and paths, no pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Color = tuple[int, int, int]


@dataclass(frozen=True)
class Classes:
    """Names and colors, in index order; they travel with the model."""

    names: tuple[str, ...]
    colors: tuple[Color, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class MaskCoding:
    """How the numbers in mask files become class indices.

    index: pixel values are looked up in `lookup`; color: RGB triples in `color_lookup`. A value in neither, and not in
    `ignore`, is an error that names it: labels are never clipped.
    """

    kind: Literal["index", "color"]
    lookup: Mapping[int, int] = field(default_factory=dict)  # file value -> class
    color_lookup: Mapping[Color, int] = field(default_factory=dict)  # file color -> class
    ignore: frozenset[int] = frozenset({255})  # file values that mean ignore
    ignore_colors: frozenset[Color] = frozenset()


@dataclass(frozen=True)
class Sample:
    """One image; `mask` of an unlabeled image is its hidden truth, for diagnostics only, where it is known."""

    name: str
    image: Path
    mask: Path | None = None


@dataclass(frozen=True)
class Dataset:
    root: Path
    layout: str
    classes: Classes
    coding: MaskCoding
    labeled: tuple[Sample, ...]
    unlabeled: tuple[Sample, ...]
    val: tuple[Sample, ...] = ()
    test: tuple[Sample, ...] = ()
    notes: tuple[str, ...] = ()  # what was decided on the user's behalf; the plan prints it
