"""Buildings of the synthetic street scenes: boxes along the street with facades, roofs, shops and lit windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fewmask.data.synthetic_canvas import BUILDING, NEAR, Array, Point
from fewmask.data.synthetic_light import TOWARD, Normal
from fewmask.data.synthetic_street import Stage
from fewmask.data.synthetic_texture import Rng, blend, brick_joint, hsv

_DEPTH = 14.0  # how far buildings reach back from the street


@dataclass(frozen=True)
class Facade:
    """What one building's walls look like."""

    wall: Array
    trim: Array  # frames, cornices
    accent: Array  # shop fronts, awnings, balconies
    roof: Array
    material: str
    bay: float  # width of a window axis
    story: float
    window: tuple[float, float]  # share of bay and story
    glass: float  # how much of the sky windows mirror
    lit: float  # share of windows with light
    shop: float  # height of the shop floor, 0 for none
    band: float  # share of a story that is a ledge
    tones: Array  # [32, 32] one random number per window


def sample_facade(rng: Rng, night: float) -> Facade:
    hue = rng.uniform(0.0, 0.14) if rng.random() < 0.7 else rng.random()
    wall = hsv(hue, rng.beta(1.1, 2.2) * 0.85, rng.uniform(0.15, 0.9))
    office = rng.random() < 0.2
    return Facade(
        wall=wall,
        trim=blend(wall, np.full(3, rng.choice([0.1, 0.9])), rng.uniform(0.2, 0.8)),
        accent=hsv(rng.random(), rng.uniform(0.1, 0.7), rng.uniform(0.15, 0.8)),
        roof=hsv(rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.65), rng.uniform(0.12, 0.6)),
        material=str(rng.choice(["brick", "plaster", "panel", "board"])),
        bay=rng.uniform(1.6, 4.0),
        story=rng.uniform(2.7, 3.8),
        window=(rng.uniform(0.75, 0.95), rng.uniform(0.6, 0.9))
        if office
        else (rng.uniform(0.3, 0.6), rng.uniform(0.4, 0.65)),
        glass=rng.uniform(0.1, 0.9),
        lit=rng.uniform(0.1, 0.6) * night,
        shop=rng.uniform(3.0, 4.2) if rng.random() < 0.45 else 0.0,
        band=rng.uniform(0.05, 0.14) if rng.random() < 0.5 else 0.0,
        tones=rng.random((32, 32)).astype(np.float32),
    )


def draw_building(stage: Stage, side: int, start: float, stop: float, inner: float, height: float) -> None:
    """A box on one side (-1 left, 1 right) from depth start to stop, its street wall at |x| = inner."""
    facade = sample_facade(stage.rng, stage.light.night)
    x = side * inner + float(stage.camera.bend((start + stop) / 2))
    back = x + side * _DEPTH
    _cast_shadow(stage, x, back, max(start, NEAR), stop, height)
    ridge = stage.rng.uniform(1.0, 4.0) if stage.rng.random() < 0.45 else 0.0
    if ridge:
        _roof(stage, facade, (x, back), (start, stop), height, ridge)
    near = max(start, NEAR)
    if start > NEAR:
        face: list[Point] = [(x, 0, start), (back, 0, start), (back, height, start), (x, height, start)]
        wall(stage, facade, face, TOWARD, height, depth=start)
    street: list[Point] = [(x, 0, near), (x, 0, stop), (x, height, stop), (x, height, near)]
    wall(stage, facade, street, (-float(side), 0.0, 0.0), height, x=x)


def wall(
    stage: Stage,
    facade: Facade,
    corners: list[Point],
    normal: Normal,
    height: float,
    *,
    depth: float = 0.0,
    x: float = 0.0,
) -> None:
    """A wall that faces the camera at one depth, or one along the street at x (where depth is 0)."""
    region = stage.canvas.polygon(stage.camera.project(corners))
    if region is None:
        return
    columns, rows = region.pixels()
    z, along = _wall_points(stage, columns, depth, x)
    up = stage.camera.height - (rows - stage.camera.horizon) * z / stage.camera.focal
    color, glow = _surface(stage, facade, along, up, height)
    light = np.broadcast_to(stage.light.on(normal), color.shape).copy()
    if stage.light.sun.max() > 0.2:  # the houses across the street keep the sun from the lower floors
        light[up < stage.rng.uniform(-8, 8)] = stage.light.ambient * 0.9
    stage.canvas.paint(region, color * light + glow, BUILDING, z)


def _wall_points(stage: Stage, columns: Array, depth: float, x: float) -> tuple[Array, Array]:
    """Depth and position along the wall of each pixel."""
    offset = columns - stage.camera.center
    if depth:
        return np.full_like(columns, depth), offset * (depth / stage.camera.focal)
    # Rounding puts some border pixels on the far side of the vanishing point.
    offset = np.where(np.sign(offset) == np.sign(x), offset, np.sign(x))
    z = np.clip(stage.camera.focal * x / np.where(np.abs(offset) < 1, np.sign(x), offset), NEAR, 300.0).astype(
        np.float32
    )
    return z, z


def _surface(stage: Stage, facade: Facade, along: Array, up: Array, height: float) -> tuple[Array, Array]:
    """Color of the wall and the light it sends out itself, each [n, 3]."""
    color = facade.wall * _material(stage, facade, along, up)[:, None]
    floor = facade.shop
    bay, story = along / facade.bay, (up - floor) / facade.story
    across, rise = np.abs(bay % 1.0 - 0.5), np.abs(story % 1.0 - 0.5)
    tone = facade.tones[np.floor(bay).astype(int) % 32, np.floor(story).astype(int) % 32]
    half, tall = facade.window[0] / 2, facade.window[1] / 2
    body = (up > floor) & (up < height - 0.5)
    frame = (across < half + 0.07) & (rise < tall + 0.06) & body
    window = (across < half) & (rise < tall) & body
    color[frame] = facade.trim
    ledge = (story % 1.0 < facade.band) | (up > height - 0.35)
    color[ledge & (up > floor)] = facade.trim
    poster = (tone > 0.93) & ~body & (up < 2.4) & (up > 0.6) & (across < 0.3)
    color[poster] = facade.accent
    if floor:
        window = window | _shop(facade, color, along, up)
    pane = blend(0.06 + 0.1 * tone[:, None], stage.light.horizon, (facade.glass * (0.4 + 0.6 * tone))[:, None])
    # Panes mirror the sky, so they are divided by the light that will fall on the wall.
    color[window] = (pane / (stage.light.ambient + 0.15))[window] * 0.8
    lit = window & (tone < facade.lit)
    glow = lit[:, None] * hsv(0.08 + 0.06 * float(facade.tones[0, 0]), 0.5, 0.9)
    return color, glow.astype(np.float32)


def _material(stage: Stage, facade: Facade, along: Array, up: Array) -> Array:
    """The tone of the bare wall, [n]."""
    tone = 1.0 + 0.1 * stage.rough.at(along, up, 7.0) + 0.07 * stage.smooth.at(along, up + 20, 5.0)
    if facade.material == "brick":
        tone = tone * (1.0 - 0.25 * brick_joint(along, up, 0.7, 0.32))
    elif facade.material == "panel":
        tone = tone * (1.0 - 0.3 * (((along / facade.bay) % 1.0 < 0.04) | ((up / facade.story) % 1.0 < 0.04)))
    elif facade.material == "board":
        tone = tone * (1.0 - 0.25 * ((up / 0.35) % 1.0 < 0.3))
    return np.asarray(tone * (0.85 + 0.15 * np.clip(up / 2.0, 0, 1)), dtype=np.float32)  # dirt near the ground


def _shop(facade: Facade, color: Array, along: Array, up: Array) -> Array:
    """Paint a shop floor and give back where its glass is."""
    low = up < facade.shop
    color[low] = facade.accent
    awning = low & (up > facade.shop - 0.9)
    color[awning & ((along / 0.5) % 1.0 < 0.5) & (facade.tones[1, 1] < 0.5)] = 0.85
    return np.asarray(low & (up > 0.5) & (up < facade.shop - 1.0) & ((along / (facade.bay * 1.3)) % 1.0 > 0.2))


def _roof(
    stage: Stage, facade: Facade, across: tuple[float, float], depths: tuple[float, float], height: float, ridge: float
) -> None:
    """A pitched roof: the slope toward the street and the gable toward the camera."""
    (x, back), (start, stop) = across, depths
    near, middle, top = max(start, NEAR), (x + back) / 2, height + ridge
    color = blend(facade.roof, np.full(3, 0.9), 0.85 * (stage.light.snow > 0.3))
    slope: list[Point] = [(x, height, near), (x, height, stop), (middle, top, stop), (middle, top, near)]
    lit = stage.light.on((-0.5 * float(np.sign(x)), 0.85, 0.0))
    region = stage.canvas.polygon(stage.camera.project(slope))
    if region is not None:
        columns, rows = region.pixels()
        rows_of_tiles = 1.0 - 0.2 * ((rows / 3.0) % 1.0 < 0.4) + 0.1 * stage.rough.at(columns, rows, 1.0)
        stage.canvas.paint(region, color * lit * rows_of_tiles[:, None], BUILDING, (start + stop) / 2)
    if start > NEAR:
        gable: list[Point] = [(x, height, start), (back, height, start), (middle, top, start)]
        stage.fill(gable, facade.wall * stage.light.on(TOWARD), BUILDING, start)


def _cast_shadow(stage: Stage, x: float, back: float, start: float, stop: float, height: float) -> None:
    light = stage.light
    if light.sun.max() < 0.15:
        return
    for low, high in (((x, start), (x, stop)), ((x, start), (back, start))):
        ends = [light.cast(low[0], height, low[1]), light.cast(high[0], height, high[1])]
        stage.shade([(low[0], 0, low[1]), (high[0], 0, high[1]), ends[1], ends[0]], light.shadow)


def draw_closing_facade(stage: Stage) -> None:
    """A building across the end of the street."""
    facade, depth = sample_facade(stage.rng, stage.light.night), stage.layout.end
    left, height = -60.0 + float(stage.camera.bend(depth)), stage.rng.uniform(5, 22)
    for _ in range(6):
        right = left + stage.rng.uniform(14, 30)
        corners: list[Point] = [(left, 0, depth), (right, 0, depth), (right, height, depth), (left, height, depth)]
        wall(stage, facade, corners, TOWARD, height, depth=depth)
        left, height, facade = right, stage.rng.uniform(5, 22), sample_facade(stage.rng, stage.light.night)


def draw_skyline(stage: Stage) -> None:
    """Distant blocks where the street opens to the horizon."""
    for _ in range(int(stage.rng.integers(3, 12))):
        depth = stage.rng.uniform(90, 160)
        left, width, height = stage.rng.uniform(-90, 90), stage.rng.uniform(8, 30), stage.rng.uniform(8, 45)
        corners: list[Point] = [
            (left, 0, depth),
            (left + width, 0, depth),
            (left + width, height, depth),
            (left, height, depth),
        ]
        wall(stage, sample_facade(stage.rng, stage.light.night), corners, TOWARD, height, depth=depth)
