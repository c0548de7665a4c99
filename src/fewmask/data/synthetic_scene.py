"""Puts the things of a synthetic street scene in their places and draws them from far to near."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fewmask.data.synthetic_buildings import draw_building, draw_closing_facade, draw_skyline
from fewmask.data.synthetic_canvas import Array
from fewmask.data.synthetic_cars import draw_car, sample_car
from fewmask.data.synthetic_ground import draw_ground, draw_sky
from fewmask.data.synthetic_light import developed, fogged
from fewmask.data.synthetic_people import draw_person
from fewmask.data.synthetic_plants import draw_hedge, draw_tree, draw_tree_line
from fewmask.data.synthetic_poles import draw_pole
from fewmask.data.synthetic_street import Stage, sample_stage
from fewmask.data.synthetic_texture import Rng

Thing = tuple[float, Callable[[], None]]  # depth and how it is drawn
_SIDES = (-1, 1)


def draw_scene(rng: Rng, size: tuple[int, int]) -> tuple[Array, Array]:
    """Image [H, W, 3] uint8 and class indices [H, W] uint8."""
    stage = sample_stage(rng, size)
    draw_sky(stage)
    draw_ground(stage)
    things = [thing for place in (_backdrop, _houses, _cars, _plants, _people, _poles) for thing in place(stage)]
    for depth, draw in sorted(things, key=lambda thing: -thing[0]):
        if depth < stage.layout.end + 1:
            draw()
    image, label, depth_map = stage.canvas.reduced()
    return developed(rng, fogged(image, depth_map, stage.light)), label


def _curb(stage: Stage, side: int) -> float:
    return stage.layout.left if side < 0 else stage.layout.right


def _backdrop(stage: Stage) -> Iterator[Thing]:
    """What is seen where the street ends."""
    if stage.layout.end < 200:
        yield stage.layout.end, partial(draw_closing_facade, stage)
        return
    if stage.rng.random() < 0.6:
        yield 500.0, partial(draw_skyline, stage)
    if stage.rng.random() < 0.45:
        yield 200.0, partial(draw_tree_line, stage)


def _houses(stage: Stage) -> Iterator[Thing]:
    """Rows of buildings with gaps; a building's depth is its far end, since things stand before its wall."""
    rng, layout = stage.rng, stage.layout
    for side in _SIDES:
        index = 0 if side < 0 else 1
        z = rng.uniform(-6, 2) if layout.walled[index] else rng.uniform(30, 60)
        typical = rng.uniform(4, 16)
        while z < min(75, layout.end):
            stop = z + rng.uniform(6, 18)
            inner = abs(_curb(stage, side)) if _curb(stage, side) * side > 0 else -abs(_curb(stage, side))
            inner += layout.pavement[index] + rng.uniform(0, 0.8)
            height = max(typical * rng.uniform(0.6, 1.5), 3.2)
            if inner > 0.5 and stop > 2.0:
                yield stop, partial(draw_building, stage, side, z, stop, inner, height)
            z = stop + (rng.uniform(2, 7) if rng.random() < 0.25 else 0.0)


def _cars(stage: Stage) -> Iterator[Thing]:
    """Traffic in the lanes, parked cars at the curbs, and now and then a car that crosses."""
    rng, layout = stage.rng, stage.layout
    lane = (layout.right - layout.left) / layout.lanes
    rows = [(layout.left + (i + 0.5) * lane, rng.uniform(0.1, 0.35)) for i in range(layout.lanes)]
    if rng.random() < 0.75:
        rows += [(_curb(stage, side) - side * 1.1, rng.uniform(0.2, 0.7)) for side in _SIDES]
    for x, density in rows:
        z = rng.uniform(4.5, 11)
        while z < 26:
            if rng.random() < density:
                car = sample_car(
                    stage, x + rng.normal(0, 0.15), z, forward=bool(x > layout.left + lane * layout.lanes / 2)
                )
                yield z, partial(draw_car, stage, car)
            z += 5.2 + rng.uniform(0.5, 9)
    if rng.random() < 0.3:
        z = rng.uniform(7, 22)
        car = sample_car(stage, rng.uniform(layout.left, layout.right), z, bool(rng.random() < 0.5), crossing=True)
        yield z, partial(draw_car, stage, car)


def _walk(stage: Stage, side: int, low: float, high: float) -> float:
    """A place on a pavement, between shares of its width from the curb."""
    width = stage.layout.pavement[0 if side < 0 else 1]
    return _curb(stage, side) + side * width * float(stage.rng.uniform(low, high))


def _plants(stage: Stage) -> Iterator[Thing]:
    rng, layout = stage.rng, stage.layout
    for side in _SIDES:
        walled = layout.walled[0 if side < 0 else 1]
        z, spacing = rng.uniform(4, 16), rng.uniform(5, 14)
        row = rng.random() < (0.5 if walled else 0.9)
        while row and z < 40:
            x = _walk(stage, side, 0.25, 0.45) + (0.0 if walled else side * rng.uniform(0, 6))
            yield z, partial(draw_tree, stage, x, z)
            z += spacing * rng.uniform(0.7, 1.4)
        for _ in range(int(rng.integers(0, 3 if walled else 7))):
            z = rng.uniform(5, 25)
            yield z, partial(draw_hedge, stage, _walk(stage, side, 0.8, 1.0 if walled else 3.0), z)


def _people(stage: Stage) -> Iterator[Thing]:
    rng, layout = stage.rng, stage.layout
    for _ in range(int(rng.integers(2, 8))):
        z = float(np.exp(rng.uniform(np.log(3.6), np.log(9.0))))
        side = int(rng.choice(_SIDES))
        crossing = rng.random() < 0.25
        x = rng.uniform(layout.left, layout.right) if crossing else _walk(stage, side, 0.15, 0.9)
        yield z, partial(draw_person, stage, x, z)


def _poles(stage: Stage) -> Iterator[Thing]:
    rng = stage.rng
    for side in _SIDES:
        z, spacing = rng.uniform(4, 9), rng.uniform(5, 10)
        while z < 17 and rng.random() < 0.85:
            yield z, partial(draw_pole, stage, _walk(stage, side, 0.05, 0.3), z, -float(side))
            z += spacing * rng.uniform(0.6, 1.3)
