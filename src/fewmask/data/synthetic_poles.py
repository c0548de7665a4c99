"""Lamp posts, signs, traffic lights and utility poles of the synthetic street scenes."""

from __future__ import annotations

import numpy as np

from fewmask.data.synthetic_canvas import POLE, Array
from fewmask.data.synthetic_light import Normal
from fewmask.data.synthetic_street import Stage
from fewmask.data.synthetic_texture import hsv

_FRONT: Normal = (0.0, 0.3, -0.95)


def draw_pole(stage: Stage, x: float, z: float, toward_road: float) -> None:
    """A post with what it carries; its arm points toward the road (-1 or 1)."""
    rng, light = stage.rng, stage.light.on(_FRONT)
    x = x + float(stage.camera.bend(z))
    metal = hsv(rng.random(), rng.uniform(0.0, 0.5), rng.uniform(0.08, 0.75))
    kind = str(rng.choice(["lamp", "sign", "signal", "utility", "bollard"], p=[0.36, 0.22, 0.18, 0.16, 0.08]))
    height = {"lamp": 5.5, "sign": 2.7, "signal": 3.4, "utility": 7.5, "bollard": 1.2}[kind] * rng.uniform(0.85, 1.25)
    # A post is never thinner than what the picture can show.
    half = max(rng.uniform(0.11, 0.18), 0.0135 * stage.canvas.width * z / stage.camera.focal)
    _shadow(stage, x, z, height, half)

    def bar(left: float, right: float, bottom: float, top: float, color: Array) -> None:
        corners = [(x + left, bottom, z), (x + right, bottom, z), (x + right, top, z), (x + left, top, z)]
        stage.fill(corners, color, POLE, z)

    bar(-half, half * 0.2, 0.0, height, metal * light * 1.15)
    bar(half * 0.2, half, 0.0, height, metal * light * 0.75)
    if kind == "lamp":
        reach = rng.uniform(0.8, 2.0) * toward_road
        bar(min(0.0, reach), max(0.0, reach), height - 1.6 * half, height, metal * light)
        shine = stage.light.night * hsv(0.12, 0.35, 1.2)
        bar(reach - 0.4, reach + 0.4, height - 0.3 - half, height - half, metal * light + shine)
    elif kind == "sign":
        plate = hsv(float(rng.choice([0.0, 0.6, 0.13, 0.35])), rng.uniform(0.0, 0.9), rng.uniform(0.4, 0.95)) * light
        size = rng.uniform(0.24, 0.36)
        bar(-size, size, height - 2 * size, height, plate)
        bar(-size * 0.6, size * 0.6, height - 1.3 * size, height - 0.7 * size, np.full(3, 0.85) * light)
    elif kind == "signal":
        bar(-0.26, 0.26, height - 1.1, height, np.full(3, 0.06) * light)
        lamp, hue = [(0, 0.0), (1, 0.12), (2, 0.38)][int(rng.integers(0, 3))]
        bar(-0.14, 0.14, height - 0.38 - 0.34 * lamp, height - 0.08 - 0.34 * lamp, hsv(hue, 0.9, 0.95))
    elif kind == "utility":
        bar(-1.1, 1.1, height * 0.88, height * 0.88 + 1.8 * half, metal * light * 0.8)


def _shadow(stage: Stage, x: float, z: float, height: float, half: float) -> None:
    if stage.light.sun.max() < 0.15:
        return
    tip = stage.light.cast(x, height, z)
    if tip[2] > 1.5:
        stage.shade(
            [(x - half, 0, z), (x + half, 0, z), (tip[0] + half, 0, tip[2]), (tip[0] - half, 0, tip[2])],
            stage.light.shadow,
        )
