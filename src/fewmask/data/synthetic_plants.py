"""Trees and hedges of the synthetic street scenes, in every season."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from fewmask.data.synthetic_canvas import TREE, Array, Region
from fewmask.data.synthetic_light import UP
from fewmask.data.synthetic_street import Stage
from fewmask.data.synthetic_texture import Rng, blend, hsv


def draw_tree(stage: Stage, x: float, z: float) -> None:
    """A trunk with a round, tall, conical or bare crown."""
    rng = stage.rng
    x = x + float(stage.camera.bend(z))
    radius, clear = rng.uniform(1.1, 2.6), rng.uniform(1.4, 3.0)
    bare, conifer = rng.random() < stage.bare, rng.random() < 0.18
    tall = 2.4 if conifer else rng.uniform(0.8, 1.6)
    if conifer:
        clear, radius = rng.uniform(0.3, 0.9), radius * 0.8
    middle = clear + radius * tall
    _dappled_shadow(stage, x, z, radius, middle)
    bark = hsv(rng.uniform(0.02, 0.12), rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.45))
    girth = max(rng.uniform(0.12, 0.25), 0.006 * stage.canvas.width * z / stage.camera.focal)
    lean = rng.normal(0, 0.15)
    foot, top = girth * 1.3, girth * 0.7
    trunk = [(x - foot, 0, z), (x + foot, 0, z), (x + lean + top, middle, z), (x + lean - top, middle, z)]
    stage.fill(trunk, bark * stage.light.on((0.0, 0.3, -0.95)), TREE, z)
    if bare and not conifer:
        _branches(stage, x + lean, clear, z, radius * 1.1, bark)
    else:
        _crown(stage, (x + lean, middle, z), (radius, radius * tall), _leaf_color(rng, stage, conifer), conifer)


def draw_hedge(stage: Stage, x: float, z: float) -> None:
    """A low, wide bush."""
    width, height = stage.rng.uniform(0.8, 2.2), stage.rng.uniform(0.5, 0.9)
    center = (x + float(stage.camera.bend(z)), height * 0.9, z)
    _crown(stage, center, (width, height), _leaf_color(stage.rng, stage, False), False)


def draw_tree_line(stage: Stage) -> None:
    """Woods at the horizon."""
    for _ in range(int(stage.rng.integers(6, 16))):
        depth, radius = stage.rng.uniform(60, 110), stage.rng.uniform(4, 11)
        center = (stage.rng.uniform(-70, 70), radius * 0.8, depth)
        _crown(stage, center, (radius * 1.3, radius), _leaf_color(stage.rng, stage, False), False)


def _leaf_color(rng: Rng, stage: Stage, conifer: bool) -> Array:
    hue = rng.uniform(0.3, 0.42) if conifer else stage.leaf_hue + rng.normal(0, 0.025)
    return hsv(hue, rng.uniform(0.25, 0.8), rng.uniform(0.2, 0.62))


def _crown(
    stage: Stage, center: tuple[float, float, float], radius: tuple[float, float], leaf: Array, conical: bool
) -> None:
    """Foliage: an outline torn by noise, clumps lit from above and from the sun's side, gaps to look through."""
    x, y, z = center
    wide, tall = radius[0] * 1.35, radius[1] * 1.35
    box = stage.camera.project([(x - wide, y - tall, z), (x + wide, y + tall, z)])
    window = stage.canvas.window(box)
    if window is None:
        return
    region = Region(*window, np.ones((window[0].stop - window[0].start, window[1].stop - window[1].start), dtype=bool))
    columns, rows = region.pixels()
    (left, bottom), (right, top) = box
    across = (columns - left) / (right - left) * 2.7 - 1.35
    up = 1.35 - (rows - top) / (bottom - top) * 2.7
    shift = stage.rng.uniform(0, 100)
    clump = stage.smooth.at(across * radius[0] + shift, up * radius[1], 9.0)
    fine = stage.rough.at(across * radius[0], up * radius[1] + shift, 7.0)
    reach = np.abs(across) / np.maximum(0.55 - 0.5 * up, 0.02) if conical else np.hypot(across, up)
    inside = (
        (reach < 0.95 + 0.2 * clump + 0.06 * fine) & (np.abs(up) < 1.3) & (fine > -2.4 + 0.8 * np.minimum(reach, 1.5))
    )
    sun_side = float(stage.light.direction[0]) * across * 0.6 + 0.5 * up
    lit = (
        stage.light.ambient * (0.75 + 0.25 * up[:, None])
        + stage.light.sun * np.clip(0.45 + 0.5 * sun_side, 0.05, 1)[:, None]
    )
    tone = np.clip(0.85 + 0.22 * clump + 0.2 * fine, 0.2, 2.0)[:, None]
    frost = (0.7 * stage.light.snow * (up + 0.4 * clump > 0.2))[:, None]
    color = blend(leaf * tone, np.full(3, 0.85), frost) * lit
    stage.canvas.paint(region.where(inside), color[inside], TREE, z)


def _branches(stage: Stage, x: float, clear: float, z: float, radius: float, bark: Array) -> None:
    """A leafless crown: strokes that fork, thick enough to be seen."""
    segments: list[tuple[Array, Array, float]] = []
    _fork(stage.rng, np.array([x, clear]), np.pi / 2, radius * 0.9, 4, segments)
    ends = np.array([point for start, end, _ in segments for point in (start, end)])
    board = stage.camera.project(np.column_stack([ends, np.full(len(ends), z)]))
    window = stage.canvas.window(board)
    if window is None:
        return
    rows, columns = window
    picture = Image.new("1", (columns.stop - columns.start, rows.stop - rows.start))
    pen = ImageDraw.Draw(picture)
    for index, (_, _, thickness) in enumerate(segments):
        pair = (board[2 * index : 2 * index + 2] - (columns.start, rows.start)).round().astype(int)
        pen.line([(int(a), int(b)) for a, b in pair], fill=1, width=max(2, round(thickness * stage.camera.focal / z)))
    stage.canvas.paint(Region(rows, columns, np.array(picture)), bark * stage.light.on(UP), TREE, z)


def _fork(
    rng: Rng, start: Array, angle: float, length: float, level: int, segments: list[tuple[Array, Array, float]]
) -> None:
    """Three branches per fork, each shorter and thinner."""
    for turn in (-0.55, 0.0, 0.55):
        heading = angle + turn + rng.normal(0, 0.18)
        end = start + length * np.array([np.cos(heading), np.sin(heading)])
        segments.append((start, end, 0.045 * level))
        if level > 2:
            _fork(rng, end, heading, length * rng.uniform(0.55, 0.75), level - 1, segments)


def _dappled_shadow(stage: Stage, x: float, z: float, radius: float, height: float) -> None:
    """The shadow of a crown, with spots of sun."""
    if stage.light.sun.max() < 0.15:
        return
    cx, _, cz = stage.light.cast(x, height, z)
    turn = np.linspace(0, 2 * np.pi, 14)
    outline = [(cx + radius * np.cos(t), 0.0, cz + radius * np.sin(t)) for t in turn]
    if cz > 2.0:
        stage.shade(outline, stage.light.shadow)
