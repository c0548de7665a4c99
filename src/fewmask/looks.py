"""A look at pseudo labels in words: what the console says of the numbers that metrics.jsonl holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

_MOST_CLASSES = 12  # of which all are named; of more only the worst
_MOST_SHARES = 3

Numbers = Mapping[str, float]


def is_look(values: Numbers) -> bool:
    return "pseudo/taught" in values


def look_words(values: Numbers) -> Iterator[str]:
    """One line for each question that there are numbers for: labels, classes, rectification, learners."""
    yield _labels(values)
    parts = (_classes(values), _shares(values), _rectification(values), _learners(values))
    yield from (f"  {part}" for part in parts if part)


def _labels(values: Numbers) -> str:
    taught = f"pseudo labels of one batch: {_percent(values['pseudo/taught'])} of the pixels have one"
    if "pseudo/accuracy" not in values:
        return taught
    return f"{taught}, {_percent(values['pseudo/accuracy'])} of these are right, mIoU {_percent(values['pseudo/miou'])}"


def _classes(values: Numbers) -> str:
    """IoU of each class, the lowest first."""
    found = sorted((value, name) for name, value in _named(values, "pseudo_iou/"))
    if not found:
        return ""
    more = f" and {len(found) - _MOST_CLASSES} more" if len(found) > _MOST_CLASSES else ""
    named = ", ".join(f"{name} {100 * value:.0f}" for value, name in found[:_MOST_CLASSES])
    return f"IoU in %: {named}{more}"


def _shares(values: Numbers) -> str:
    """How far the classes taught are from those labeled, and which of them differ most."""
    if "pseudo/from_prior" not in values:
        return ""
    labeled = dict(_named(values, "prior_share/"))
    pairs = [(taught, labeled[name], name) for name, taught in _named(values, "pseudo_share/")]
    pairs.sort(key=lambda pair: -abs(pair[0] - pair[1]))
    most = ", ".join(f"{name} {100 * taught:.1f} for {100 * share:.1f}" for taught, share, name in pairs[:_MOST_SHARES])
    return f"classes {_percent(values['pseudo/from_prior'])} off the labeled shares: {most} %"


def _rectification(values: Numbers) -> str:
    parts = []
    if "rectification/flipped" in values:
        parts.append(f"rectification flips {_percent(values['rectification/flipped'])} of the labels")
    if "rectification/flips_right" in values:
        right, before = values["rectification/flips_right"], values["rectification/flips_from_right"]
        parts.append(f"{_percent(right)} of the flips are right, {_percent(before)} were right before")
    return ", ".join(parts)


def _learners(values: Numbers) -> str:
    parts = []
    if "coupling/total_variation" in values:
        parts.append(f"the two teachers are {_percent(values['coupling/total_variation'])} apart")
    if "coupling/same_label" in values:
        parts.append(f"both learners teach the same on {_percent(values['coupling/same_label'])}")
    if "prototypes/drift" in values:
        parts.append(f"prototypes have moved by {_percent(values['prototypes/drift'])}")
    return ", ".join(parts)


def _named(values: Numbers, start: str) -> Iterable[tuple[str, float]]:
    return ((key.removeprefix(start), value) for key, value in values.items() if key.startswith(start))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
