"""What a run to start from has learned, held against this one: its classes, and labels that are hidden here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fewmask.data.dataset import Dataset
from fewmask.errors import CheckpointError, ConfigError
from fewmask.training.model_file import load_card
from fewmask.training.run_folder import RunFolder

_SHOWN = 5
_HIDDEN = {"unlabeled": "unlabeled here", "val": "for validation here", "test": "for testing here"}


def start_notes(dataset: Dataset, starts: Mapping[str, Path], *, same_classes: bool) -> list[str]:
    """What must be known of the runs that learners start from; with `same_classes`, others are an error.

    A method that sweeps its start's answers would store the noise of a fresh classifier, or classes by wrong names.
    """
    notes: list[str] = []
    for run in dict.fromkeys(starts.values()):
        there, here = load_card(run).classes.names, dataset.classes.names
        if there != here and same_classes:
            raise ConfigError(
                f"the run to start from has other classes: {_difference(there, here)}",
                where=str(run / "model.json"),
                fix="a run on the same classes in the same order, or none: the baseline is then trained",
            )
        if there != here:
            notes.append(f"{run} has other classes ({_difference(there, here)}): {_classifier(there, here)}")
        notes.extend(_label_notes(dataset, run))
    return notes


def _difference(there: Sequence[str], here: Sequence[str]) -> str:
    """The first class that is another one, and how many there are."""
    place, old, new = next(
        (place, old, new) for place, (old, new) in enumerate(zip_longest(there, here, fillvalue=None)) if old != new
    )
    counts = f"{len(there)} there and {len(here)} here, " if len(there) != len(here) else ""
    order = "the same in another order, " if sorted(there) == sorted(here) else ""
    return f"{counts}{order}class {place} is {old or 'none'} there and {new or 'none'} here"


def _classifier(there: Sequence[str], here: Sequence[str]) -> str:
    if len(there) != len(here):
        return "the classifier starts fresh, at random"
    return "the classifier is taken over as it is, class by number and not by name"


def _label_notes(dataset: Dataset, run: Path) -> Iterator[str]:
    """Labels are compared by the names of their images, as split.json has nothing else."""
    split = _read_split(run)
    if split is None:
        yield f"{run} has no split.json, so nobody can say whether it learned from labels that are hidden here"
        return
    for part, where in _HIDDEN.items():
        names = _seen(dataset, split, part)
        if names:
            shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            images = "1 image that is" if len(names) == 1 else f"{len(names)} images that are"
            what = f"{run} learned from the labels of {images} {where}: {shown}"
            yield f"{what}; results here are not those of {len(dataset.labeled)} labels"


def _seen(dataset: Dataset, split: Mapping[str, Any], part: str) -> list[str]:
    """Labeled there and in `part` here; a name that is in that part in both runs is an image of its own."""
    learned = set(split["labeled"]["names"]) - {sample.name for sample in dataset.labeled}
    hidden = {sample.name for sample in getattr(dataset, part)} - set(split[part]["names"])
    return sorted(learned & hidden)


def _read_split(run: Path) -> dict[str, Any] | None:
    path = RunFolder(run).split
    if not path.is_file():
        return None
    try:
        split: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for part in ("labeled", *_HIDDEN):
            split[part]["names"]
    except (ValueError, KeyError, TypeError) as error:
        what = f"the split cannot be read ({type(error).__name__}: {error})"
        raise CheckpointError(what, where=str(path), fix="split.json as `fewmask train` writes it") from None
    return split
