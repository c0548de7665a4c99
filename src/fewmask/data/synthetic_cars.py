"""Cars of the synthetic street scenes: side profiles drawn out to a width, seen from wherever they stand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fewmask.data.synthetic_canvas import CAR, NEAR, Array, Point
from fewmask.data.synthetic_light import Normal
from fewmask.data.synthetic_street import Stage
from fewmask.data.synthetic_texture import Rng, blend, hsv

Outline = tuple[tuple[float, float], ...]
Edge = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Model:
    """A body in shares of its length and height, from the rear bumper over the roof to the front bumper."""

    profile: Outline
    panes: tuple[int, ...]  # profile edges that are glass
    side: tuple[Outline, ...]  # windows in the side
    length: tuple[float, float]
    height: tuple[float, float]


_SEDAN = Model(
    ((0, 0.2), (0, 0.62), (0.14, 0.67), (0.27, 1), (0.58, 1), (0.74, 0.66), (0.98, 0.56), (1, 0.2)),
    (2, 4),
    (((0.2, 0.68), (0.29, 0.94), (0.42, 0.94), (0.42, 0.66)), ((0.45, 0.66), (0.45, 0.94), (0.56, 0.94), (0.69, 0.66))),
    (4.1, 4.8),
    (1.35, 1.5),
)
_HATCHBACK = Model(
    ((0, 0.2), (0, 0.6), (0.04, 0.66), (0.14, 1), (0.56, 1), (0.77, 0.64), (0.98, 0.54), (1, 0.2)),
    (2, 4),
    (((0.1, 0.66), (0.17, 0.93), (0.36, 0.93), (0.36, 0.64)), ((0.4, 0.64), (0.4, 0.93), (0.55, 0.93), (0.71, 0.64))),
    (3.4, 4.2),
    (1.4, 1.6),
)
_WAGON = Model(
    ((0, 0.24), (0, 0.64), (0.03, 0.68), (0.09, 1), (0.6, 1), (0.75, 0.66), (0.98, 0.6), (1, 0.24)),
    (2, 4),
    (((0.07, 0.67), (0.11, 0.93), (0.38, 0.93), (0.38, 0.66)), ((0.42, 0.66), (0.42, 0.93), (0.59, 0.93), (0.7, 0.66))),
    (4.3, 4.9),
    (1.6, 1.85),
)
_VAN = Model(
    ((0, 0.16), (0, 0.55), (0.01, 0.95), (0.04, 1), (0.74, 1), (0.9, 0.58), (0.99, 0.46), (1, 0.16)),
    (1, 4),
    (((0.64, 0.58), (0.64, 0.9), (0.75, 0.9), (0.86, 0.58)),),
    (4.6, 5.4),
    (1.9, 2.3),
)
_MODELS = (_SEDAN, _HATCHBACK, _WAGON, _VAN)


@dataclass(frozen=True)
class Car:
    """One car on the street; `corner` is its nearest left ground point."""

    model: Model
    corner: tuple[float, float]  # x, z
    length: float
    width: float
    height: float
    forward: bool  # drives away from the camera, or to the right when it crosses
    crossing: bool
    paint: Array
    glass: Array

    def point(self, share: float, up: float, side: float) -> Point:
        """A body point: share of the length from the rear, share of the height, share of the width."""
        run, across = (share if self.forward else 1 - share) * self.length, side * self.width
        x, z = self.corner
        return (x + run, up * self.height, z + across) if self.crossing else (x + across, up * self.height, z + run)


def sample_car(stage: Stage, x: float, z: float, forward: bool, crossing: bool = False) -> Car:
    """A car whose middle is at x, and whose near end is at z."""
    rng = stage.rng
    model = _MODELS[rng.choice(len(_MODELS), p=[0.34, 0.28, 0.24, 0.14])]
    length, height, width = rng.uniform(*model.length), rng.uniform(*model.height), rng.uniform(1.65, 1.95)
    x = x + float(stage.camera.bend(z)) - (length if crossing else width) / 2
    glass = blend(np.full(3, 0.05), stage.light.horizon, rng.uniform(0.1, 0.55))
    return Car(model, (x, z), length, width, height, forward, crossing, _paint(rng), glass)


def _paint(rng: Rng) -> Array:
    if rng.random() < 0.45:
        return hsv(rng.random(), rng.uniform(0, 0.1), rng.uniform(0.05, 0.95))
    return hsv(rng.random(), rng.uniform(0.35, 0.95), rng.uniform(0.2, 0.9))


def draw_car(stage: Stage, car: Car) -> None:
    """Shadow, wheels, the visible faces along the profile, then the side that is turned to the camera."""
    _ground_shadow(stage, car)
    _undercarriage(stage, car)
    edges = list(enumerate(pairwise(car.model.profile)))
    for index, edge in sorted(edges, key=lambda item: -max(car.point(share, up, 0)[2] for share, up in item[1])):
        _face(stage, car, edge, index)
    side = _visible_side(car)
    if side is not None:
        _side(stage, car, side)


def _visible_side(car: Car) -> float | None:
    """Which flank is seen: 0 left or near, 1 right, None when the camera looks straight along the car."""
    if car.crossing or car.corner[0] > 0:
        return 0.0
    return 1.0 if car.corner[0] + car.width < 0 else None


def _normal(car: Car, edge: Edge) -> Array:
    """The outward direction of a strip of the body, [3]."""
    first, second = (np.array(car.point(share, up, 0)) for share, up in edge)
    along = (second - first) / max(float(np.linalg.norm(second - first)), 1e-6)
    axis = 0 if car.crossing else 2
    normal = np.zeros(3)
    normal[axis], normal[1] = -along[1], along[axis]
    return normal if car.forward else -normal  # the profile runs the other way round


def _face(stage: Stage, car: Car, edge: Edge, index: int) -> None:
    """One strip of the body across the car's width, if it is turned to the camera."""
    (a, low), (b, high) = edge
    normal, middle = _normal(car, edge), np.array(car.point((a + b) / 2, (low + high) / 2, 0))
    eye = np.array([middle[0] if not car.crossing else 0.0, stage.camera.height, middle[2] if car.crossing else 0.0])
    if normal @ (eye - middle) <= 0:
        return
    depth = max(min(car.point(a, low, 0)[2], car.point(b, high, 0)[2]), NEAR)
    light = stage.light.on((float(normal[0]), float(normal[1]), float(normal[2])))

    def strip(start: float, stop: float, margin: float, color: Array) -> None:
        ends = [(a + (b - a) * t, low + (high - low) * t) for t in (start, stop)]
        left, right = ([car.point(share, up, side) for share, up in ends] for side in (margin, 1 - margin))
        stage.fill([*left, *right[::-1]], color, CAR, depth)

    strip(0.0, 1.0, 0.0, car.paint * light)
    if index in car.model.panes:
        strip(0.1, 0.9, 0.1, car.glass)
    elif abs(normal[1]) < 0.7 and not car.crossing:
        _lamps(stage, car, edge, index == 0, light, depth)


def _lamps(
    stage: Stage,
    car: Car,
    edge: Edge,
    rear: bool,
    light: Array,
    depth: float,
) -> None:
    """Lamps, bumper and plate on the end of a car."""
    (share, low), (other, high) = sorted(edge, key=lambda point: point[1])
    glow = stage.light.night
    lamp = hsv(0.0, 0.9, 0.7 + 0.3 * glow) if rear else hsv(0.13, 0.15, 0.9)
    lamp = lamp * blend(light, np.ones(3), 0.3 + 0.7 * glow)
    height = high - low

    def patch(left: float, right: float, bottom: float, top: float, color: Array) -> None:
        ends = (low + bottom * height, low + top * height)
        corners = [car.point(share, ends[0], left), car.point(share, ends[0], right)]
        corners += [car.point(other, ends[1], right), car.point(other, ends[1], left)]
        stage.fill(corners, color, CAR, depth)

    patch(0.0, 1.0, 0.0, 0.25, car.paint * light * 0.45)
    patch(0.36, 0.64, 0.3, 0.52, np.full(3, 0.8) * light)
    patch(0.03, 0.22, 0.6, 0.88, lamp)
    patch(0.78, 0.97, 0.6, 0.88, lamp)


def _side(stage: Stage, car: Car, side: float) -> None:
    """The flank: body, sill, windows, door joint and wheels."""
    normal: Normal = (0.0, 0.1, -1.0) if car.crossing else ((-1.0, 0.1, 0.0) if side == 0 else (1.0, 0.1, 0.0))
    light, depth = stage.light.on(normal), max(car.corner[1], NEAR)

    def part(outline: Outline, color: Array) -> None:
        stage.fill([car.point(share, up, side) for share, up in outline], color, CAR, depth)

    part(car.model.profile, car.paint * light)
    part(((0.0, 0.2), (0.0, 0.32), (1.0, 0.32), (1.0, 0.2)), car.paint * light * 0.6)
    part(((0.425, 0.3), (0.425, 0.64), (0.435, 0.64), (0.435, 0.3)), car.paint * light * 0.6)
    for window in car.model.side:
        part(window, car.glass * 0.9)
    for center in (0.19, 0.8):
        for radius, color in ((0.34, 0.04), (0.19, 0.5)):
            turn = np.linspace(0, 2 * np.pi, 12, endpoint=False)
            wheel = [(center + radius * np.cos(t) / car.length, (0.33 + radius * np.sin(t)) / car.height) for t in turn]
            part(tuple(wheel), color * np.ones(3) * stage.light.on(normal))


def _undercarriage(stage: Stage, car: Car) -> None:
    """Tires and the dark gap below the near end."""
    near = 0.0 if car.forward or car.crossing else 1.0
    depth = max(car.corner[1], NEAR)
    if car.crossing:
        return
    for left, right in ((0.02, 0.16), (0.84, 0.98)):
        tire = [
            car.point(near, 0.0, left),
            car.point(near, 0.0, right),
            car.point(near, 0.3, right),
            car.point(near, 0.3, left),
        ]
        stage.fill(tire, np.full(3, 0.03), CAR, depth)


def _ground_shadow(stage: Stage, car: Car) -> None:
    """Dark under the car in any weather, and the sun's shadow beside it."""
    base = [(0.0, -0.06), (0.0, 1.06), (1.0, 1.06), (1.0, -0.06)]
    stage.shade([car.point(share, 0.0, side) for share, side in base], 0.35)
    if stage.light.sun.max() > 0.15:
        top = [car.point(share, 0.8, side) for share, side in base]
        for index in range(4):
            pair = (index, (index + 1) % 4)
            foot = [(top[i][0], 0.0, top[i][2]) for i in pair]
            stage.shade(
                [foot[0], foot[1], stage.light.cast(*top[pair[1]]), stage.light.cast(*top[pair[0]])], stage.light.shadow
            )
