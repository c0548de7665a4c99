"""The drawing board of the synthetic street scenes: a pinhole camera over a ground plane, and a picture with its truth.

World coordinates are meters: x to the right, y up from the ground, z forward from the camera. Everything is drawn from
far to near, so what is drawn later hides what was drawn before, in the image and in the label alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Array = NDArray[Any]
Point = tuple[float, float, float]

SKY, BUILDING, ROAD, PAVEMENT, TREE, CAR, PERSON, POLE = range(8)
SCALE = 2  # scenes are drawn at twice their size and averaged down, which softens edges
FAR = 1e4
NEAR = 0.8


@dataclass(frozen=True)
class Camera:
    """A pinhole at height `height`; lengths on the picture are in drawing-board pixels."""

    focal: float
    height: float
    horizon: float  # row of the vanishing point
    center: float  # column of the vanishing point
    curve: float  # how strongly the street bends

    def bend(self, z: Any) -> Any:
        """How far the street has moved sideways at depth z."""
        return self.curve * z * z / (1.0 + z / 40.0)

    def project(self, points: Sequence[Point] | Array) -> Array:
        """Columns and rows of world points, [n, 2]; points behind the camera are moved to just before it."""
        x, y, z = np.asarray(points, dtype=np.float64).T
        z = np.maximum(z, NEAR)
        return np.stack([self.center + self.focal * x / z, self.horizon - self.focal * (y - self.height) / z], axis=1)


@dataclass(frozen=True)
class Region:
    """Pixels of a window of the board."""

    rows: slice
    columns: slice
    inside: Array  # [h, w] bool

    def pixels(self) -> tuple[Array, Array]:
        """Column and row centers of the pixels inside, each [n] float32."""
        rows, columns = np.nonzero(self.inside)
        return (columns + (self.columns.start + 0.5)).astype(np.float32), (rows + (self.rows.start + 0.5)).astype(
            np.float32
        )

    def where(self, keep: Array) -> Region:
        """The pixels inside for which `keep` ([n] bool, in the order of `pixels`) holds."""
        inside = np.zeros_like(self.inside)
        inside[self.inside] = keep
        return Region(self.rows, self.columns, inside)


class Canvas:
    """A picture that knows class, depth and whether the sun reaches each ground pixel."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.image = np.zeros((height, width, 3), dtype=np.float32)
        self.label = np.full((height, width), SKY, dtype=np.uint8)
        self.depth = np.full((height, width), FAR, dtype=np.float32)
        self.lit = np.ones((height, width), dtype=bool)

    def window(self, points: Array) -> tuple[slice, slice] | None:
        """The part of the board that holds all points, or None where they lie outside of it."""
        left, top = np.maximum(np.floor(points.min(axis=0)), 0).astype(int)
        right, bottom = np.minimum(np.ceil(points.max(axis=0)) + 1, (self.width, self.height)).astype(int)
        if left >= right or top >= bottom:
            return None
        return slice(top, bottom), slice(left, right)

    def polygon(self, points: Array) -> Region | None:
        """The pixels of a filled polygon, given as [n, 2] columns and rows."""
        window = self.window(points)
        if window is None:
            return None
        rows, columns = window
        board = Image.new("1", (columns.stop - columns.start, rows.stop - rows.start))
        corners = (points - (columns.start, rows.start)).clip(-20000, 20000)
        ImageDraw.Draw(board).polygon([(x, y) for x, y in corners.tolist()], fill=1)
        return Region(rows, columns, np.array(board))

    def paint(self, region: Region | None, color: Array, label: int, depth: float | Array) -> None:
        """Cover a region with one color [3] or with a color per pixel [n, 3]."""
        if region is None:
            return
        self.image[region.rows, region.columns][region.inside] = color
        self.label[region.rows, region.columns][region.inside] = label
        self.depth[region.rows, region.columns][region.inside] = depth
        self.lit[region.rows, region.columns][region.inside] = False

    def shade(self, region: Region | None, factor: float | Array) -> None:
        """Darken the ground that no shadow has reached yet: shadows do not add up."""
        if region is None:
            return
        lit = self.lit[region.rows, region.columns]
        inside = region.inside & lit
        self.image[region.rows, region.columns][inside] *= np.asarray(factor, dtype=np.float32)
        lit[inside] = False

    def reduced(self) -> tuple[Array, Array, Array]:
        """Image [H, W, 3], label [H, W] and depth [H, W] at the scene's own size."""
        image = np.add.reduce(_phases(self.image)) / np.float32(SCALE**2)
        depth = np.minimum.reduce(_phases(self.depth))
        labels = _phases(self.label)
        # The majority wins; a tie goes to the later class, so that thin things keep their width.
        votes = np.stack(
            [sum((label == k).view(np.uint8) for label in labels) for k in range(POLE, -1, -1)]
        )  # [K, H, W]
        return image, (POLE - votes.argmax(axis=0)).astype(np.uint8), depth


def _phases(board: Array) -> list[Array]:
    """The SCALE x SCALE sub-pixels of every pixel, each as a picture of the scene's own size."""
    return [board[row::SCALE, column::SCALE] for row in range(SCALE) for column in range(SCALE)]
