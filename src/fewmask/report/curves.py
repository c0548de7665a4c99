"""Curves over the steps as inline SVG: no script, no external font, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Point = tuple[float, float]  # step, value

PALETTE = ("#3b82d6", "#e07b1a", "#2a9d64", "#a855c7", "#d64550", "#0f9fa8", "#8a6d3b", "#6b7280")
_WIDTH, _HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 20, 30, 40
_MOST_POINTS = 200


def curve_svg(
    series: Mapping[str, Sequence[Point]],
    title: str,
    y_label: str,
    colors: Mapping[str, str] | None = None,
    levels: Mapping[str, float] | None = None,
) -> str:
    """One chart with a line per series; long series are drawn as means of equal runs of points.

    Points that are not finite are left out. A series of one point is a dot. `levels` are dashed lines in the color of
    their series.
    """
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in series.items()}
    shown = {name: _thinned(points) for name, points in finite.items() if points}
    chosen = {name: (colors or {}).get(name, PALETTE[i % len(PALETTE)]) for i, name in enumerate(shown)}
    parts = [_text(_LEFT, 16, title, "font-weight='600'")]
    if shown:
        steps = [step for points in shown.values() for step, _ in points]
        dashed = {name: level for name, level in (levels or {}).items() if name in shown and math.isfinite(level)}
        values = [value for points in shown.values() for _, value in points] + [*dashed.values()]
        across, up = _ticks(min(steps), max(steps)), _ticks(min(values), max(values))
        parts += _axes(across, up, y_label)
        parts += [_level(level, up, chosen[name], name) for name, level in dashed.items()]
        parts += [_line(points, across, up, chosen[name], name) for name, points in shown.items()]
    else:
        parts.append(_text(_WIDTH / 2, _HEIGHT / 2, "no values", "text-anchor='middle' opacity='0.6'"))
    legend, rows = _legend(chosen)
    height = _HEIGHT + 18 * rows
    head = f"<svg class='curve' xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' role='img'"
    style = "font-family='system-ui, sans-serif' font-size='12' fill='currentColor'"
    return f"{head} aria-label='{escape(title, quote=True)}' {style}>{''.join(parts)}{legend}</svg>"


def metric_series(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """The numbers of metrics.jsonl by name, each as (step, value); nested names are joined by a slash."""
    series: dict[str, list[Point]] = {}
    for record in records:
        if "step" not in record:
            continue
        for name, value in _flat(record):
            if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool):
                series.setdefault(name, []).append((float(record["step"]), float(value)))
    return series


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _thinned(points: Sequence[Point]) -> list[Point]:
    size = math.ceil(len(points) / _MOST_POINTS)
    if size <= 1:
        return list(points)
    runs = [points[first : first + size] for first in range(0, len(points), size)]
    return [(sum(step for step, _ in run) / len(run), sum(value for _, value in run) / len(run)) for run in runs]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, about five."""
    if high <= low:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    unit = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return [index * unit for index in range(first, last + 1)]


def _place(value: float, ticks: Sequence[float], start: float, end: float) -> float:
    return start + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (end - start)


def _x(step: float, across: Sequence[float]) -> float:
    return _place(step, across, _LEFT, _WIDTH - _RIGHT)


def _y(value: float, up: Sequence[float]) -> float:
    return _place(value, up, _HEIGHT - _BOTTOM, _TOP)


def _axes(across: Sequence[float], up: Sequence[float], y_label: str) -> list[str]:
    parts = []
    for value in up:
        y = _y(value, up)
        parts.append(f"<path d='M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}' stroke='currentColor' stroke-opacity='0.15'/>")
        parts.append(_text(_LEFT - 6, y + 4, _number(value), "text-anchor='end' opacity='0.75'"))
    for step in across:
        parts.append(
            _text(_x(step, across), _HEIGHT - _BOTTOM + 16, _number(step), "text-anchor='middle' opacity='0.75'")
        )
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "step", "text-anchor='middle' opacity='0.75'"))
    parts.append(_text(_WIDTH - _RIGHT, 16, y_label, "text-anchor='end' opacity='0.75'"))
    return parts


def _line(points: Sequence[Point], across: Sequence[float], up: Sequence[float], color: str, name: str) -> str:
    places = [f"{_x(step, across):.1f} {_y(value, up):.1f}" for step, value in points]
    hover = f"<title>{escape(name)}</title>"
    if len(places) == 1:
        x, y = places[0].split()
        return f"<circle cx='{x}' cy='{y}' r='3.5' fill='{color}'>{hover}</circle>"
    path = "M" + "L".join(places)
    return f"<path d='{path}' fill='none' stroke='{color}' stroke-width='2' stroke-linejoin='round'>{hover}</path>"


def _level(value: float, up: Sequence[float], color: str, name: str) -> str:
    path = f"<path d='M{_LEFT} {_y(value, up):.1f}H{_WIDTH - _RIGHT}' stroke='{color}' stroke-dasharray='2 4'>"
    return f"{path}<title>{escape(name)}</title></path>"


def _legend(colors: Mapping[str, str]) -> tuple[str, int]:
    """Colored names below the chart and how many rows they take; widths are guessed, as no font is at hand."""
    parts, x, row = [], float(_LEFT), 0
    for name, color in colors.items():
        needed = 24 + 7.0 * len(name)
        if x > _LEFT and x + needed > _WIDTH - _RIGHT:
            x, row = float(_LEFT), row + 1
        y = _HEIGHT + 8 + 18 * row
        parts.append(f"<rect x='{x:.1f}' y='{y - 5}' width='12' height='4' rx='2' fill='{color}'/>")
        parts.append(_text(x + 17, y + 1, name))
        x += needed
    return "".join(parts), row + 1 if colors else 0


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {attributes}>{escape(text)}</text>"


def _number(value: float) -> str:
    text = f"{value:.6g}"
    if abs(value) >= 10_000:
        return f"{value / 1000:.6g}k"
    return "0" if float(text) == 0 else text
