"""Curves land where their numbers say, and texts stay texts."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from fewmask.report.curves import curve_svg, metric_series

SVG = "{http://www.w3.org/2000/svg}"


def lines(svg: str) -> list[list[tuple[float, float]]]:
    """The drawn lines (not the grid) as points."""
    found = [path for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("fill") == "none"]
    return [[tuple(map(float, place.split())) for place in path.attrib["d"][1:].split("L")] for path in found]


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_points_lie_between_the_axis_labels() -> None:
    svg = curve_svg({"a": [(0, 0.0), (50, 0.5), (100, 1.0)]}, "loss", "nats")
    ((left, bottom), (middle_x, middle_y), (right, top)) = lines(svg)[0]
    assert (middle_x, middle_y) == ((left + right) / 2, pytest.approx((top + bottom) / 2))
    assert left < right
    assert top < bottom  # SVG counts downward
    drawn = {text.text: text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert float(drawn["100"].get("x")) == right
    assert {"0", "0.5", "1", "loss", "nats", "a", "step"} <= set(drawn)


def test_two_series_share_axes_and_keep_their_colors() -> None:
    svg = curve_svg({"a": [(0, 1), (10, 1)], "b": [(0, 2), (20, 2)]}, "t", "", {"b": "#123456"})
    first, second = lines(svg)
    assert first[0][0] == second[0][0]
    assert first[1][0] == pytest.approx((second[0][0] + second[1][0]) / 2)
    assert svg.count("#123456") == 2  # the line and its legend


@pytest.mark.parametrize("values", [[], [(5, math.nan)], [(5, 3.0)], [(0, 2.0), (9, 2.0)], [(0, 0.0), (1, 0.0)]])
def test_degenerate_series_still_draw(values: list[tuple[float, float]]) -> None:
    svg = curve_svg({"a": values}, "t", "y")
    assert "nan" not in svg
    root = ElementTree.fromstring(svg)
    if [value for _, value in values if math.isfinite(value)]:
        assert len(lines(svg)) + len(list(root.iter(f"{SVG}circle"))) == 1
    else:
        assert "no values" in texts(svg)


def test_points_that_are_not_finite_are_left_out() -> None:
    assert len(lines(curve_svg({"a": [(0, 1), (1, math.inf), (2, math.nan), (3, 2)]}, "t", ""))[0]) == 2


def test_long_series_are_averaged_not_cut() -> None:
    (line,) = lines(curve_svg({"a": [(step, step % 2) for step in range(10_000)]}, "t", ""))
    assert len(line) == 200
    assert {y for _, y in line} == {line[0][1]}  # the mean of each run is one half
    assert line[-1][0] > 490
    (line,) = lines(curve_svg({"a": [(step, 0.0) for step in range(10_050)]}, "t", ""))
    assert len(line) <= 200


def test_thousands_of_steps_have_short_names() -> None:
    assert {"5000", "10k", "20k"} <= set(texts(curve_svg({"a": [(0, 1), (20_000, 2)]}, "t", "")))


def test_texts_cannot_become_markup() -> None:
    svg = curve_svg({"<script>alert(1)</script>": [(0, 1), (1, 2)]}, "'><script>", "</svg><b>")
    assert "<script" not in svg
    assert "<b>" not in svg
    assert "<script>alert(1)</script>" in texts(svg)
    assert "'><script>" in texts(svg)


def test_series_of_metric_records() -> None:
    records = [
        {"step": 10, "loss": {"labeled": 2.0, "unlabeled": 1}, "stage": "first", "capture": True},
        {"event": "resumed"},
        {"step": 20, "loss": {"labeled": 1.5}, "val/miou": 0.25},
    ]
    assert metric_series(records) == {
        "loss/labeled": [(10.0, 2.0), (20.0, 1.5)],
        "loss/unlabeled": [(10.0, 1.0)],
        "val/miou": [(20.0, 0.25)],
    }


def test_levels_are_dashed_in_the_color_of_their_series_and_on_the_axis() -> None:
    svg = curve_svg({"a": [(0, 1), (10, 2)]}, "t", "", {"a": "#123456"}, {"a": 5.0, "missing": 9.0})
    (level,) = (path for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("stroke-dasharray"))
    assert level.get("stroke") == "#123456"
    height = float(level.attrib["d"].split("H")[0].split()[1])
    assert height < min(y for _, y in lines(svg)[0])  # above both points, and the axis reaches that far
    assert "5" in texts(svg)
