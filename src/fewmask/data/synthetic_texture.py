"""Colors and surface patterns of the synthetic street scenes."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np

from fewmask.data.synthetic_canvas import Array

Rng = np.random.Generator


def hsv(hue: float, saturation: float, value: float) -> Array:
    """An RGB color, [3] float32 in [0, 1]."""
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, min(max(saturation, 0.0), 1.0), max(value, 0.0)), dtype=np.float32)


def blend(first: Any, second: Any, weight: Any) -> Array:
    """`first` where weight is 0, `second` where it is 1."""
    first, second = np.asarray(first, dtype=np.float32), np.asarray(second, dtype=np.float32)
    return np.asarray(first + (second - first) * np.asarray(weight, dtype=np.float32))


def smoothstep(low: float, high: float, value: Any) -> Any:
    """0 below `low`, 1 above `high`, smooth between."""
    t = np.clip((value - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


class Grain:
    """A periodic noise tile with zero mean and unit deviation; a larger slope makes it smoother."""

    def __init__(self, rng: Rng, slope: float, size: int = 128) -> None:
        frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :]) * size
        spectrum = np.fft.rfft2(rng.standard_normal((size, size))) / np.maximum(frequency, 1.0) ** slope
        spectrum[0, 0] = 0.0
        tile = np.fft.irfft2(spectrum, s=(size, size))
        self.tile = (tile / tile.std()).astype(np.float32)
        self.size = size

    def at(self, u: Array, v: Array, scale: float) -> Array:
        """The noise at surface points (u, v), `scale` tile pixels per unit."""
        rows = np.floor(v * scale).astype(np.int32) % self.size
        columns = np.floor(u * scale).astype(np.int32) % self.size
        return np.asarray(self.tile[rows, columns])


def brick_joint(u: Array, v: Array, length: float, height: float) -> Array:
    """True on the mortar between bricks laid in running bond."""
    course = np.floor(v / height)
    along = (u / length + 0.5 * (course % 2)) % 1.0
    return ((v / height) % 1.0 < 0.2) | (along < 0.1)


def tile_joint(u: Array, v: Array, length: float, width: float) -> Array:
    """True on the joints of a rectangular grid."""
    return ((u / width) % 1.0 < 0.08) | ((v / length) % 1.0 < 0.08)
