"""Sky, road and pavement of the synthetic street scenes, with what lies flat on them."""

from __future__ import annotations

import numpy as np

from fewmask.data.synthetic_canvas import FAR, PAVEMENT, ROAD, SKY, Array
from fewmask.data.synthetic_light import UP
from fewmask.data.synthetic_street import Stage
from fewmask.data.synthetic_texture import Rng, blend, brick_joint, hsv, smoothstep, tile_joint


def draw_sky(stage: Stage) -> None:
    """A gradient with clouds, a glow where the sun stands, and stars at night."""
    canvas, light, rng = stage.canvas, stage.light, stage.rng
    rows, columns = np.mgrid[0 : canvas.height, 0 : canvas.width].astype(np.float32)
    rise = np.clip((stage.camera.horizon - rows) / stage.camera.horizon, 0, 1)[..., None]
    color = blend(light.horizon, light.zenith, rise ** rng.uniform(0.5, 1.2))
    scale = rng.uniform(0.2, 0.5)
    drift = stage.smooth.at(columns * scale, rows * scale * rng.uniform(1.2, 2.5), 1.0)
    cover = smoothstep(1.2 - 2.4 * light.cloud, 2.0 - 2.0 * light.cloud, drift)[..., None] * rng.uniform(0.3, 0.9)
    bright = blend(light.horizon, light.ambient + light.sun, 0.5) * (1 + 0.12 * drift[..., None])
    color = blend(color, bright, cover)
    if light.direction[2] > 0:  # the sun stands before the camera
        x = stage.camera.center + stage.camera.focal * light.direction[0] / light.direction[2]
        y = stage.camera.horizon - stage.camera.focal * light.direction[1] / light.direction[2]
        distance = np.hypot(columns - x, rows - y)[..., None] / canvas.width
        color = color + light.sun * 0.7 * np.exp(-distance * rng.uniform(3, 9))
    stars = (rng.random(rows.shape) < 0.002) & (light.cloud < 0.5)
    canvas.image[:] = color + (stars * light.night * 0.6)[..., None]
    canvas.label[:], canvas.depth[:] = SKY, FAR


def draw_ground(stage: Stage) -> None:
    """Road and pavement up to the horizon."""
    canvas, camera, light, layout = stage.canvas, stage.camera, stage.light, stage.layout
    top = int(np.ceil(camera.horizon))
    rows = np.arange(top, canvas.height, dtype=np.float32)[:, None] + 0.5
    columns = np.arange(canvas.width, dtype=np.float32)[None, :] + 0.5
    along = np.broadcast_to(camera.focal * camera.height / (rows - camera.horizon), (len(rows), canvas.width))
    along = np.minimum(along, 400.0)
    across = (columns - camera.center) * along / camera.focal - camera.bend(along)
    road = (across > layout.left) & (across < layout.right)
    fade = np.exp(-along / 25.0)  # fine texture drowns in the distance
    color = np.where(road[..., None], _road(stage, across, along, fade), _pavement(stage, across, along, fade))
    color = _weathered(stage, color, across, along, road) * light.on(UP)
    canvas.image[top:] = _puddles(stage, color, across, along)
    canvas.label[top:] = np.where(road, ROAD, PAVEMENT)
    canvas.depth[top:] = along


def _stone(rng: Rng, low: float, high: float) -> Array:
    """The color of anything that streets are paved with."""
    hue = rng.uniform(0.02, 0.14) if rng.random() < 0.7 else rng.uniform(0.5, 0.7)
    return hsv(hue, rng.beta(1.2, 4.0) * 0.75, rng.uniform(low, high))


def _road(stage: Stage, across: Array, along: Array, fade: Array) -> Array:
    rng, layout = stage.rng, stage.layout
    tone = 1.0 + rng.uniform(0.03, 0.16) * stage.rough.at(across, along, rng.uniform(8, 20)) * fade
    tone += rng.uniform(0.02, 0.12) * stage.smooth.at(across + 31, along * 0.4, 4.0)
    tone *= 1.0 - 0.35 * rng.random() * (np.abs(stage.smooth.at(across, along, 5.0)) < 0.025)  # cracks
    lane = (layout.right - layout.left) / layout.lanes
    wheel = np.abs((((across - layout.left) / lane) % 1.0) - 0.5)
    tone *= 1.0 - rng.uniform(0.0, 0.22) * np.exp(-(((wheel - 0.25) / 0.09) ** 2))  # tire tracks
    patch = (np.floor(across / 1.7) * 7 + np.floor(along / 4.3) * 13 + rng.integers(0, 23)) % 23 < 2
    tone *= 1.0 + rng.uniform(-0.25, 0.2) * patch
    if rng.random() < 0.2:  # cobbles
        tone *= 1.0 - 0.3 * brick_joint(across, along, 0.35, 0.25) * fade
    color = _stone(rng, 0.12, 0.5) * tone[..., None]
    return _marked(stage, color, across, along, lane)


def _marked(stage: Stage, color: Array, across: Array, along: Array, lane: float) -> Array:
    """Lane lines, edge lines and a zebra crossing, each of which a street may lack, worn to some degree."""
    rng, layout = stage.rng, stage.layout
    offset, width = across - layout.left, rng.uniform(0.12, 0.22)
    near_line = np.abs((offset + lane / 2) % lane - lane / 2) < width
    inner = (offset > lane / 2) & (offset < layout.right - layout.left - lane / 2)
    period = rng.uniform(4, 9)
    lines = near_line & inner & ((along % period < period * rng.uniform(0.4, 0.7)) | (rng.random() < 0.25))
    if rng.random() < 0.5:
        lines |= (np.abs(offset - 0.35) < width) | (np.abs(layout.right - across - 0.35) < width)
    if rng.random() < 0.4:
        start, stripe = rng.uniform(4, 16), rng.uniform(0.8, 1.2)
        lines |= (along > start) & (along < start + rng.uniform(2.5, 4)) & (offset % stripe < stripe / 2)
    if rng.random() < 0.15:
        lines &= False
    paint = hsv(rng.uniform(0.11, 0.15), 0.75 * (rng.random() < 0.2), rng.uniform(0.6, 0.95))
    worn = rng.uniform(0.35, 0.95) * (stage.rough.at(across + 9, along, 9.0) > -1.0)
    color = blend(color, paint, (lines * worn)[..., None])
    cover = np.hypot((across - rng.uniform(layout.left, layout.right)) / 0.4, (along - rng.uniform(4, 12)) / 0.4) < 1
    return np.asarray(color * (1.0 - 0.45 * cover[..., None]))


def _pavement(stage: Stage, across: Array, along: Array, fade: Array) -> Array:
    rng, layout = stage.rng, stage.layout
    tone = 1.0 + rng.uniform(0.03, 0.14) * stage.rough.at(across + 50, along, rng.uniform(6, 16)) * fade
    tone += rng.uniform(0.02, 0.1) * stage.smooth.at(across + 70, along * 0.6, 3.0)
    length, width, style = rng.uniform(0.4, 1.6), rng.uniform(0.4, 1.2), rng.random()
    if style < 0.45:
        joint = tile_joint(across, along, length, width)
    elif style < 0.75:
        joint = brick_joint(across, along, 0.5, 0.3)
    else:
        joint = np.zeros(across.shape, dtype=bool)
    tone *= 1.0 + rng.uniform(-0.4, 0.15) * joint * fade
    color = _stone(rng, 0.25, 0.8) * tone[..., None]
    edge = np.minimum(np.abs(across - layout.left), np.abs(across - layout.right))
    curb = (edge < rng.uniform(0.15, 0.4))[..., None]
    return blend(color, _stone(rng, 0.2, 0.9), curb * rng.uniform(0.5, 1.0))


def _weathered(stage: Stage, color: Array, across: Array, along: Array, road: Array) -> Array:
    """Snow that traffic has partly cleared, and fallen leaves."""
    light, rng = stage.light, stage.rng
    drift = stage.smooth.at(across + 12, along, 3.0) - 0.8 * road
    white = smoothstep(1.4 - 3.2 * light.snow, 2.2 - 3.2 * light.snow, drift) * (light.snow > 0)
    color = blend(color, np.array([0.88, 0.9, 0.94]), white[..., None])
    leaves = (stage.rough.at(across, along + 77, 11.0) > rng.uniform(1.6, 4.0)) & (stage.leaf_hue < 0.2)
    return blend(color, hsv(stage.leaf_hue, 0.7, 0.5), leaves[..., None] * 0.8)


def _puddles(stage: Stage, color: Array, across: Array, along: Array) -> Array:
    """Water mirrors the sky and darkens what it soaks."""
    light = stage.light
    if light.wet == 0:
        return color
    pool = smoothstep(0.9 - light.wet, 1.3 - light.wet, stage.smooth.at(across - 40, along * 0.7, 4.0))
    return blend(color * (1 - 0.35 * light.wet), light.horizon * 0.75, (0.55 * light.wet * pool)[..., None])
