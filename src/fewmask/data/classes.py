"""Class names and colors: read from classes.txt or classes.yaml, or made up where nothing is declared."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fewmask.data.dataset import Classes, Color
from fewmask.data.problem import DataProblem

MAX_CLASSES = 255  # 255 itself means ignore
CLASS_FILES = ("classes.txt", "classes.yaml", "classes.yml")

_FIRST_COLORS: tuple[Color, ...] = (
    (70, 70, 78), (128, 64, 128), (70, 130, 180), (107, 142, 35), (220, 20, 60), (250, 170, 30),
    (0, 60, 150), (244, 35, 232), (152, 251, 152), (220, 220, 0), (190, 120, 100), (0, 150, 160),
    (255, 130, 120), (120, 90, 210), (153, 153, 153), (120, 30, 20), (0, 210, 230), (200, 170, 230),
)  # fmt: skip
_YAML_FORM = "a list of names, a list of {name, color}, or a mapping name: [red, green, blue]"


@dataclass(frozen=True)
class DeclaredClasses:
    """What a class file says; colors only if it gives them."""

    path: Path
    names: tuple[str, ...]
    colors: tuple[Color, ...] | None = None
    ignore: frozenset[int] = frozenset()
    ignore_colors: frozenset[Color] = frozenset()

    def classes(self) -> Classes:
        return Classes(self.names, self.colors or default_colors(len(self.names)))


def default_colors(count: int) -> tuple[Color, ...]:
    """`count` different colors, always the same: muted street-scene colors, then turns of the color wheel."""
    colors = list(_FIRST_COLORS[:count])
    turn = 0
    while len(colors) < count:
        hue, ring = (0.13 + turn * 0.618034) % 1.0, turn % 5
        red, green, blue = colorsys.hsv_to_rgb(hue, 0.9 - 0.15 * (ring % 3), 0.95 - 0.13 * ring)
        color = (round(red * 255), round(green * 255), round(blue * 255))
        if color not in colors:
            colors.append(color)
        turn += 1
    return tuple(colors)


def read_classes(root: Path) -> DeclaredClasses | None:
    """The class file of a data set, or None where there is none."""
    found = [root / name for name in CLASS_FILES if (root / name).is_file()]
    if not found:
        return None
    if len(found) > 1:
        fix = "one class file"
        raise DataProblem("bad-classes", f"both {found[0].name} and {found[1].name} are there", where=root, fix=fix)
    try:
        text = found[0].read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataProblem(
            "bad-classes", f"the class file cannot be read ({error})", where=found[0], fix="UTF-8"
        ) from error
    declared = _from_lines(text, found[0]) if found[0].suffix == ".txt" else _from_yaml(text, found[0])
    _check_names(declared.names, found[0])
    _check_colors(declared, found[0])
    return declared


def require_classes(names: tuple[str, ...], where: object) -> None:
    """At least two classes, and few enough for 8-bit masks."""
    if len(names) < 2:
        what = f"there is only one class, `{names[0]}`" if names else "there is no class"
        raise DataProblem("single-class", what, where=where, fix="at least two classes; name the background, too")
    if len(names) > MAX_CLASSES:
        what = f"{len(names)} classes are too many"
        raise DataProblem("bad-classes", what, where=where, fix=f"up to {MAX_CLASSES}; 255 means ignore")


def _from_lines(text: str, path: Path) -> DeclaredClasses:
    return DeclaredClasses(path, tuple(line.strip() for line in text.rstrip().split("\n")) if text.strip() else ())


def _from_yaml(text: str, path: Path) -> DeclaredClasses:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise DataProblem("bad-classes", f"not valid YAML ({error})", where=path, fix=_YAML_FORM) from error
    ignore: list[Any] = []
    if isinstance(content, dict) and "classes" in content:
        unknown = sorted(map(str, set(content) - {"classes", "ignore"}))
        if unknown:
            raise DataProblem("bad-classes", f"unknown key `{unknown[0]}`", where=path, fix="`classes` and `ignore`")
        given = content.get("ignore") or []
        content, ignore = content["classes"], given if isinstance(given, list) else [given]
    names, colors = _entries(content, path)
    values = frozenset(item for item in ignore if isinstance(item, int))
    ignore_colors = frozenset(_color(item, path) for item in ignore if not isinstance(item, int))
    return DeclaredClasses(path, names, colors, values, ignore_colors)


def _entries(content: object, path: Path) -> tuple[tuple[str, ...], tuple[Color, ...] | None]:
    if isinstance(content, dict):
        content = [{"name": name, "color": color} for name, color in content.items()]
    if not isinstance(content, list):
        raise DataProblem("bad-classes", "no class is declared", where=path, fix=_YAML_FORM)
    names, colors = [], []
    for item in content:
        entry = item if isinstance(item, dict) else {"name": item}
        if "name" not in entry or set(entry) - {"name", "color"}:
            raise DataProblem("bad-classes", f"`{entry}` is not a class", where=path, fix=_YAML_FORM)
        names.append("" if entry["name"] is None else str(entry["name"]).strip())
        if entry.get("color") is not None:
            colors.append(_color(entry["color"], path))
    if colors and len(colors) < len(names):
        what = f"only {len(colors)} of {len(names)} classes have a color"
        raise DataProblem("bad-classes", what, where=path, fix="a color for every class, or for none")
    return tuple(names), tuple(colors) or None


def _color(value: object, path: Path) -> Color:
    if isinstance(value, str) and value.startswith("#") and len(value) == 7:
        try:
            value = list(bytes.fromhex(value[1:]))
        except ValueError:
            value = None
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(part, int) and 0 <= part <= 255 for part in value)
    ):
        return value[0], value[1], value[2]
    fix = "[red, green, blue], each 0 to 255, or '#rrggbb'"
    raise DataProblem("bad-classes", f"`{value}` is not a color", where=path, fix=fix)


def _check_names(names: tuple[str, ...], path: Path) -> None:
    fix = "one name per line" if path.suffix == ".txt" else _YAML_FORM
    if not names:
        raise DataProblem("bad-classes", "no class is declared", where=path, fix=fix)
    if "" in names:
        raise DataProblem("bad-classes", f"class {names.index('')} has an empty name", where=path, fix=fix)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataProblem("bad-classes", f"class `{twice}` is named twice", where=path, fix="each name once")


def _check_colors(declared: DeclaredClasses, path: Path) -> None:
    colors = [*(declared.colors or ()), *declared.ignore_colors]
    twice = next((color for color in colors if colors.count(color) > 1), None)
    if twice is not None:
        raise DataProblem("bad-classes", f"color {twice} is used twice", where=path, fix="each color once")
