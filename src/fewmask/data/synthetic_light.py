"""Time of day, weather and the photographic development of the synthetic street scenes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewmask.data.synthetic_canvas import FAR, Array
from fewmask.data.synthetic_texture import Rng, blend, hsv, smoothstep

UP, TOWARD = (0.0, 1.0, 0.0), (0.0, 0.0, -1.0)
Normal = tuple[float, float, float]


@dataclass(frozen=True)
class Light:
    """What falls on surfaces, and what the sky looks like."""

    zenith: Array  # sky color overhead, [3]
    horizon: Array  # sky color at the horizon, [3]
    ambient: Array
    sun: Array
    direction: Array  # unit vector toward the sun
    cloud: float  # 0 clear, 1 overcast
    night: float  # 0 day, 1 night
    fog: float  # extinction per meter
    snow: float  # how much of the ground is white
    wet: float

    def on(self, normal: Normal) -> Array:
        """The light on a surface of this orientation, [3]."""
        facing = max(float(np.dot(normal, self.direction)), 0.0)
        return np.asarray(self.ambient * (0.85 + 0.15 * normal[1]) + self.sun * facing, dtype=np.float32)

    @property
    def shadow(self) -> Array:
        """What remains of the light on the ground where the sun does not reach, [3]."""
        return np.asarray(self.ambient / (self.on(UP) + 1e-6), dtype=np.float32)

    def cast(self, x: float, y: float, z: float) -> tuple[float, float, float]:
        """Where the shadow of a point falls on the ground."""
        reach = min(y / max(float(self.direction[1]), 0.15), 25.0)
        return x - float(self.direction[0]) * reach, 0.0, z - float(self.direction[2]) * reach


def sample_light(rng: Rng) -> Light:
    """Any time of day in any weather, all continuous, so that every mood has neighbors."""
    elevation = rng.uniform(-0.2, 1.0)
    day = float(smoothstep(-0.25, 0.2, elevation))
    warm = float(np.exp(-(((elevation - 0.02) / 0.18) ** 2)) * rng.uniform(0.2, 1.0))
    cloud = rng.beta(0.6, 0.7)
    zenith, horizon = _sky(rng, day, warm, cloud)
    azimuth, height = rng.uniform(0, 2 * np.pi), 0.25 + 0.7 * max(elevation, 0.0)
    flat = np.sqrt(max(1.0 - height**2, 0.0))
    direction = np.array([flat * np.cos(azimuth), height, flat * np.sin(azimuth)], dtype=np.float32)
    ambient = blend(hsv(rng.uniform(0.55, 0.7), 0.35, 0.22), blend(np.ones(3), zenith, 0.35) * 0.55, day)
    if rng.random() < 0.5:  # a street lit by lamps
        ambient = ambient + (1 - day) * hsv(rng.uniform(0.05, 0.14), rng.uniform(0.2, 0.7), rng.uniform(0.05, 0.3))
    sun = hsv(rng.uniform(0.04, 0.12), 0.08 + 0.6 * warm, 1.0) * day * (1 - cloud) ** 1.5 * rng.uniform(0.6, 1.0)
    fog = rng.exponential(0.003) + (rng.uniform(0.01, 0.03) if rng.random() < 0.12 else 0.0)
    snow = rng.uniform(0.2, 1.0) if rng.random() < 0.1 else 0.0
    wet = rng.uniform(0.2, 1.0) * (0.3 + 0.7 * cloud) if rng.random() < 0.3 else 0.0
    return Light(zenith, horizon, ambient, sun.astype(np.float32), direction, cloud, 1.0 - day, fog, snow, wet)


def _sky(rng: Rng, day: float, warm: float, cloud: float) -> tuple[Array, Array]:
    """Colors overhead and at the horizon."""
    gray = rng.uniform(0.45, 0.9) * np.array([0.97, 0.99, 1.03], dtype=np.float32)
    zenith = blend(hsv(rng.uniform(0.53, 0.63), rng.uniform(0.4, 0.85), rng.uniform(0.55, 0.95)), gray, cloud)
    horizon = blend(blend(zenith, np.ones(3), rng.uniform(0.2, 0.7)), gray * rng.uniform(0.9, 1.15), cloud)
    zenith = blend(zenith, hsv(rng.uniform(0.62, 0.95), 0.45, 0.55), 0.6 * warm)
    horizon = blend(horizon, hsv(rng.uniform(0.96, 1.12), 0.65, 0.95), 0.9 * warm)
    night = hsv(rng.uniform(0.55, 0.75), rng.uniform(0.2, 0.8), rng.uniform(0.03, 0.16))
    glow = blend(night, hsv(rng.uniform(0.03, 0.8), 0.45, 0.4), rng.uniform(0.0, 0.7))
    return blend(night, zenith, day), blend(glow, horizon, day)


def fogged(image: Array, depth: Array, light: Light) -> Array:
    """Distance fades into the color of the horizon; the sky itself is already what it is."""
    share = np.where(depth < FAR, 1.0 - np.exp(-light.fog * depth), min(light.fog * 12.0, 0.9))[..., None]
    return blend(image, light.horizon * 0.8 + light.ambient * 0.25, share)


def developed(rng: Rng, image: Array) -> Array:
    """Lens, sensor and processing: exposure, contrast, color cast, vignette, blur and noise, [H, W, 3] uint8."""
    height, width = image.shape[:2]
    target = rng.uniform(0.35, 0.6)
    image = image * (target / max(float(image.mean()), 0.02)) ** rng.uniform(0.75, 1.0)
    image = image / (1.0 + np.maximum(image - 0.7, 0.0))  # highlights roll off
    image = np.maximum(image, 0.0) ** rng.uniform(0.75, 1.15)
    gray = image.mean(axis=2, keepdims=True)
    image = gray + (image - gray) * rng.uniform(0.5, 1.45)
    image = 0.5 + (image - rng.uniform(0.42, 0.52)) * rng.uniform(0.8, 1.3)
    image = image * (1.0 + rng.uniform(-0.09, 0.09, size=3)) + rng.uniform(-0.025, 0.03, size=3)
    rows, columns = np.linspace(-1, 1, height)[:, None], np.linspace(-1, 1, width)[None, :]
    image = image * (1.0 - rng.uniform(0.0, 0.35) * (rows**2 + columns**2) / 2)[..., None]
    image = _blurred(image, rng.uniform(0.0, 0.15))
    image = image + rng.standard_normal((height, width, 3)) * rng.uniform(0.003, 0.022)
    return np.asarray((image * 255.0).round().clip(0, 255).astype(np.uint8))


def _blurred(image: Array, weight: float) -> Array:
    """A three-tap blur along both axes."""
    wide = np.pad(image, ((1, 1), (0, 0), (0, 0)), mode="edge")
    image = image * (1 - 2 * weight) + (wide[:-2] + wide[2:]) * weight
    wide = np.pad(image, ((0, 0), (1, 1), (0, 0)), mode="edge")
    return np.asarray(image * (1 - 2 * weight) + (wide[:, :-2] + wide[:, 2:]) * weight)
