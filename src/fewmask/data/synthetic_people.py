"""People of the synthetic street scenes: grown-ups and children, walking or standing, dressed in anything."""

from __future__ import annotations

import numpy as np

from fewmask.data.synthetic_canvas import PERSON, Array, Point
from fewmask.data.synthetic_light import Normal
from fewmask.data.synthetic_street import Stage
from fewmask.data.synthetic_texture import Rng, hsv

_FRONT: Normal = (0.0, 0.35, -0.93)
Shape = list[tuple[float, float]]


def draw_person(stage: Stage, x: float, z: float) -> None:
    """A figure in shares of its height, built from limbs, trunk and head."""
    rng = stage.rng
    x = x + float(stage.camera.bend(z))
    child = rng.random() < 0.2
    height = rng.uniform(1.0, 1.35) if child else rng.uniform(1.55, 1.95)
    girth = rng.uniform(1.25, 1.7) * (1.2 if child else 1.0)
    _shadow(stage, x, z, height)
    light = stage.light.on(_FRONT)
    for shape, color in _figure(rng, girth, child):
        points: list[Point] = [(x + across * height, up * height, z) for across, up in shape]
        stage.fill(points, color * light, PERSON, z)


def _figure(rng: Rng, girth: float, child: bool) -> list[tuple[Shape, Array]]:
    """Shapes from back to front with their colors."""
    skin = hsv(rng.uniform(0.04, 0.09), rng.uniform(0.25, 0.65), rng.uniform(0.25, 0.9))
    coat, trousers = _cloth(rng), _cloth(rng)
    hair = hsv(rng.uniform(0.04, 0.12), rng.uniform(0.0, 0.7), rng.uniform(0.05, 0.7))
    stride, swing = rng.uniform(0.0, 0.14), rng.uniform(-0.12, 0.12)
    hip, shoulder, leg = 0.075 * girth, 0.115 * girth, 0.042 * girth
    head = 0.075 if child else 0.062
    parts = [
        (_limb((-hip * 0.5, 0.5), (-hip * 0.5 - stride, 0.0), leg), trousers * 0.85),
        (_limb((hip * 0.5, 0.5), (hip * 0.5 + stride, 0.0), leg), trousers),
        (_limb((-shoulder, 0.8), (-shoulder - 0.04 + swing, 0.45), 0.028 * girth), coat * 0.8),
        (_limb((shoulder, 0.8), (shoulder + 0.04 - swing, 0.45), 0.028 * girth), coat * 0.9),
        ([(-hip, 0.46), (hip, 0.46), (shoulder, 0.82), (0.04, 0.86), (-0.04, 0.86), (-shoulder, 0.82)], coat),
        (_disk(0.0, 0.93, head, head * 1.2), hair),
        (_disk(rng.uniform(-0.02, 0.02), 0.915, head * 0.85, head), skin if rng.random() < 0.65 else hair),
    ]
    if rng.random() < 0.3:  # a skirt or a long coat
        low = rng.uniform(0.2, 0.38)
        parts.insert(4, ([(-hip * 1.6, low), (hip * 1.6, low), (hip, 0.55), (-hip, 0.55)], _cloth(rng)))
    if rng.random() < 0.35:  # a bag
        side = rng.choice([-1.0, 1.0]) * shoulder
        parts.append(([(side - 0.05, 0.4), (side + 0.05, 0.4), (side + 0.04, 0.58), (side - 0.04, 0.58)], _cloth(rng)))
    if rng.random() < 0.25:  # a hat
        parts.append(([(-head, 0.95), (head, 0.95), (head * 0.8, 1.02), (-head * 0.8, 1.02)], _cloth(rng)))
    return parts


def _cloth(rng: Rng) -> Array:
    return hsv(rng.random(), rng.beta(1.3, 1.0), rng.uniform(0.12, 0.95))


def _limb(top: tuple[float, float], bottom: tuple[float, float], width: float) -> Shape:
    return [
        (top[0] - width, top[1]),
        (top[0] + width, top[1]),
        (bottom[0] + width * 0.8, bottom[1]),
        (bottom[0] - width * 0.8, bottom[1]),
    ]


def _disk(x: float, y: float, wide: float, tall: float) -> Shape:
    return [
        (x + wide * float(np.cos(t)), y + tall * float(np.sin(t)))
        for t in np.linspace(0, 2 * np.pi, 10, endpoint=False)
    ]


def _shadow(stage: Stage, x: float, z: float, height: float) -> None:
    stage.shade([(x - 0.3, 0, z - 0.15), (x + 0.3, 0, z - 0.15), (x + 0.3, 0, z + 0.15), (x - 0.3, 0, z + 0.15)], 0.6)
    if stage.light.sun.max() > 0.15:
        tip = stage.light.cast(x, height, z)
        if tip[2] > 1.5:
            stage.shade(
                [(x - 0.18, 0, z), (x + 0.18, 0, z), (tip[0] + 0.18, 0, tip[2]), (tip[0] - 0.18, 0, tip[2])],
                stage.light.shadow,
            )
