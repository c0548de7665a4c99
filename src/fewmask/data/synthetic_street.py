"""The stage of a synthetic street scene: who sees it, under which light, and how the street is laid out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewmask.data.synthetic_canvas import PAVEMENT, ROAD, SCALE, Array, Camera, Canvas, Point
from fewmask.data.synthetic_light import Light, sample_light
from fewmask.data.synthetic_texture import Grain, Rng


@dataclass(frozen=True)
class Layout:
    """Where things are across the street, in meters from the camera's own line."""

    left: float  # left curb
    right: float  # right curb
    lanes: int
    pavement: tuple[float, float]  # width of the left and the right pavement
    walled: tuple[bool, bool]  # whether buildings line the left and the right side
    end: float  # depth at which a building closes the street; far away for an open one


@dataclass(frozen=True)
class Stage:
    """Everything a thing needs to draw itself."""

    rng: Rng
    canvas: Canvas
    camera: Camera
    light: Light
    layout: Layout
    rough: Grain
    smooth: Grain
    leaf_hue: float  # the season
    bare: float  # share of trees without leaves

    def fill(self, points: list[Point], color: Array, label: int, depth: float) -> None:
        """Paint a polygon given in world coordinates."""
        self.canvas.paint(self.canvas.polygon(self.camera.project(points)), color, label, depth)

    def shade(self, points: list[Point], factor: float | Array) -> None:
        """Darken the ground under a polygon given in world coordinates."""
        region = self.canvas.polygon(self.camera.project(points))
        if region is None:
            return
        label = self.canvas.label[region.rows, region.columns][region.inside]
        self.canvas.shade(region.where((label == ROAD) | (label == PAVEMENT)), factor)


def sample_stage(rng: Rng, size: tuple[int, int]) -> Stage:
    """A street of its own: camera, light, layout and season."""
    height, width = size[0] * SCALE, size[1] * SCALE
    camera = Camera(
        focal=width * rng.uniform(0.8, 1.15),
        height=rng.uniform(1.3, 2.8),
        horizon=height * rng.uniform(0.36, 0.54),
        center=width * rng.uniform(0.3, 0.7),
        curve=float(rng.normal(0.0, 0.003)),
    )
    season = rng.random()
    leaf_hue = float(np.interp(season, [0.0, 0.5, 0.75, 0.9, 1.0], [0.36, 0.24, 0.13, 0.05, -0.06]))
    bare = rng.uniform(0.5, 1.0) if rng.random() < 0.12 else 0.0
    return Stage(
        rng=rng,
        canvas=Canvas(height, width),
        camera=camera,
        light=sample_light(rng),
        layout=_sample_layout(rng),
        rough=Grain(rng, slope=0.7),
        smooth=Grain(rng, slope=1.7),
        leaf_hue=leaf_hue,
        bare=bare,
    )


def _sample_layout(rng: Rng) -> Layout:
    lanes = int(rng.integers(1, 4))
    width = lanes * rng.uniform(2.7, 3.4) + rng.uniform(0.5, 2.0)
    left = -width * rng.uniform(0.1, 0.9)
    walled = (bool(rng.random() < 0.82), bool(rng.random() < 0.82))
    end = rng.uniform(22, 60) if rng.random() < 0.3 else 1000.0
    pavement = (rng.uniform(2.0, 6.5), rng.uniform(2.0, 6.5))
    return Layout(left, left + width, lanes, pavement, walled, end)
