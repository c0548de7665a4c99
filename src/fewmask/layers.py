"""Several mappings of settings become one: later ones win, and settings of an optimizer go with its name."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Values = Mapping[str, Any]
Place = tuple[str, ...]  # keys from the outermost mapping to one inside

_RUN: Place = ("optimizer",)
_BASELINE: Place = ("baseline", "optimizer")


def merge(base: Values, top: Values) -> dict[str, Any]:
    """The upper one wins, key by key."""
    result = dict(base)
    for key, value in top.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if nested else value
    return result


def merge_all(layers: Iterable[Values]) -> dict[str, Any]:
    return functools.reduce(merge, layers, {})


def flat(values: Values, prefix: str = "") -> dict[str, Any]:
    """Full keys, such as `training.steps`, and what each is."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return result


def layered(*layers: Values) -> dict[str, Any]:
    """Later layers win, without what earlier ones set for another optimizer than is used in the end.

    Rates belong to one optimizer: where a later layer names another, all that stands beside the old name goes with it.
    A layer that names none means whichever it will be.
    """
    together = merge_all(layers)
    return merge_all(_without(layer, _places_left_out(layer, together)) for layer in layers)


def left_out(*layers: Values) -> dict[str, Any]:
    """What `layered` leaves out: full keys, and the values that were not taken."""
    together = merge_all(layers)
    found = ((place, _at(layer, place)) for layer in layers for place in _places_left_out(layer, together))
    return {".".join((*place, key)): value for place, values in found for key, value in values.items() if key != "name"}


def _places_left_out(layer: Values, together: Values) -> list[Place]:
    """Where a layer has settings of an optimizer that a later one replaces."""
    lines = ((line[0], _name(layer, line), _name(together, line)) for line in _lines(layer) if _at(layer, line[0]))
    return [place for place, own, last in lines if own not in (None, last)]


def _lines(layer: Values) -> Iterator[tuple[Place, ...]]:
    """Each place that may hold optimizer settings, followed by those whose settings it changes, the nearest first."""
    yield (_RUN,)
    yield _BASELINE, _RUN
    for learner in _at(layer, ("learners",)):
        own: Place = ("learners", learner, *_RUN)
        yield own, _RUN
        yield ("learners", learner, *_BASELINE), own, _BASELINE, _RUN
    for companion in _at(layer, ("companions",)):  # whose optimizer is the method's choice, not the run's
        yield (("companions", companion, *_RUN),)


def _name(values: Values, line: Iterable[Place]) -> Any:
    """The optimizer that these values name for the first place of a line."""
    return next((found["name"] for found in (_at(values, place) for place in line) if "name" in found), None)


def _at(values: Values, place: Place) -> Values:
    """The mapping at this place; an empty one where there is none."""
    for key in place:
        inner = values.get(key)
        values = inner if isinstance(inner, Mapping) else {}
    return values


def _without(values: Values, places: Iterable[Place]) -> dict[str, Any]:
    """A copy that lacks the mappings at these places, which are there."""
    result = dict(values)
    for first, *rest in places:
        inner = result.pop(first)
        if rest:
            result[first] = _without(inner, [tuple(rest)])
    return result
