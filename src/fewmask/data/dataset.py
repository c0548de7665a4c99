"""What a data set is, once its folder has been read: names and paths, no pixels."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Color = tuple[int, int, int]
_NAME = "\0"  # stands for a sample's name; no path can hold it


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


@dataclass(frozen=True, slots=True, init=False)
class Sample:
    """One image; `mask` of an unlabeled image is its hidden truth, for diagnostics only, where it is known.

    There may be very many: a path is kept as a form that the images of a folder share, with a place for the name.
    """

    name: str
    image_form: str
    mask_form: str | None

    def __init__(self, name: str, image: Path | str, mask: Path | str | None = None) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "image_form", _form(image, name))
        object.__setattr__(self, "mask_form", mask and _form(mask, name))

    @property
    def image(self) -> Path:
        return Path(self.image_form.replace(_NAME, self.name))

    @property
    def mask(self) -> Path | None:
        return None if self.mask_form is None else Path(self.mask_form.replace(_NAME, self.name))

    def with_mask(self, mask: Path | None) -> Sample:
        return Sample(self.name, self.image, mask)


def _form(path: Path | str, name: str) -> str:
    """The path with a mark where the name stands in it, if it does; equal forms are one string."""
    before, found, after = os.fspath(path).rpartition(name)
    return sys.intern(f"{before}{_NAME}{after}" if found else os.fspath(path))


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
