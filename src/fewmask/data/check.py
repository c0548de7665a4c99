"""Finds what would go wrong before training does: `fewmask check`, which every training run starts with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewmask.config import DataSettings
from fewmask.data.check_files import Examination, SampleFacts, SplitBuffers
from fewmask.data.check_pairs import pair_findings
from fewmask.data.check_report import CODES, Finding, Level, Report, render
from fewmask.data.check_sets import (
    channel_findings,
    class_findings,
    duplicate_findings,
    foreground_findings,
    most_common,
    network_channels,
    palette_findings,
    range_findings,
    split_findings,
)
from fewmask.data.check_strays import stray_findings
from fewmask.data.check_unopened import check_unopened
from fewmask.data.dataset import Dataset
from fewmask.data.folder import list_folder
from fewmask.data.imagefile import MAX_PIXELS
from fewmask.data.opening import open_dataset
from fewmask.errors import DataError
from fewmask.labels import IGNORE

__all__ = ["CODES", "Finding", "Report", "check_dataset", "check_folder", "render"]

SPLITS = ("labeled", "unlabeled", "val", "test")  # a duplicate is blamed on the later one


def check_folder(
    root: Path, settings: DataSettings, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Opens and checks a data folder; a folder that cannot be opened is an error in the report."""
    root = Path(root).resolve()
    try:
        dataset = open_dataset(root, settings, seed)
    except DataError as error:
        return check_unopened(root, error, settings.max_pixels)
    return check_opened(dataset, root, settings, progress=progress)


def check_opened(
    dataset: Dataset,
    root: Path,
    settings: DataSettings,
    *,
    buffers: Mapping[str, SplitBuffers] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """The check of a data set that these settings have opened in the folder `root`, as in `check_dataset`."""
    return check_dataset(
        dataset,
        root=root,
        max_pixels=settings.max_pixels,
        ignore_chosen=IGNORE in settings.ignore,
        foreground=settings.foreground,
        buffers=buffers,
        progress=progress,
    )


def check_dataset(
    dataset: Dataset,
    *,
    root: Path | None = None,
    max_pixels: int = MAX_PIXELS,
    ignore_chosen: bool = False,
    foreground: int | None = None,
    buffers: Mapping[str, SplitBuffers] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Decodes every file once and reports what is wrong; of splits with `buffers` the pixels are kept there.

    `root`, in which files must lie and to which paths are relative, is the folder the user named, where that is not the
    data set's own; `ignore_chosen` says that the user wants mask value 255 to be ignored, `foreground` which mask value
    the user named as class 1.
    """
    root = root or dataset.root
    examine = Examination(root, dataset.coding, max_pixels, buffers or {})
    facts = examine({split: getattr(dataset, split) for split in SPLITS}, progress)
    found = list(_findings(root, dataset, facts, ignore_chosen, foreground))
    return Report.of(found, summary(dataset, facts))


def _findings(
    root: Path, dataset: Dataset, facts: Sequence[SampleFacts], ignore_chosen: bool, foreground: int | None
) -> Iterator[tuple[Level, Finding]]:
    yield from split_findings(dataset)
    mistyped = list(foreground_findings(root, dataset, facts, foreground))
    yield from mistyped  # first, as training shows the first error, and others may follow from this one
    yield from pair_findings(root, facts, dataset.coding)
    yield from channel_findings(root, facts)
    yield from range_findings(facts)
    yield from duplicate_findings(root, facts)
    yield from palette_findings(root, dataset, facts)
    if not mistyped:
        yield from class_findings(root, dataset, facts, ignore_chosen)
    if dataset.layout == "folder":  # elsewhere lists, not folders, say what belongs to the data set
        yield from stray_findings(root, list_folder(dataset.root))


def summary(dataset: Dataset, facts: Sequence[SampleFacts]) -> dict[str, Any]:
    """The data set in numbers; unreadable files are left out of the sizes, ignored pixels out of the shares."""
    images = [item.image for item in facts if item.image is not None]
    return {
        "layout": dataset.layout,
        "images": {split: len(getattr(dataset, split)) for split in SPLITS},
        "size": {
            "height": _spread([image.header.size[0] for image in images]),
            "width": _spread([image.header.size[1] for image in images]),
        }
        if images
        else {},
        "channels": network_channels(facts),
        "depth": most_common([image.depth for image in images]),
        "classes": _class_shares(dataset, facts),
        "notes": list(dataset.notes),
    }


def _class_shares(dataset: Dataset, facts: Sequence[SampleFacts]) -> list[dict[str, Any]]:
    counts = [item.mask.class_pixels for item in facts if item.split == "labeled" and item.mask is not None]
    total = sum(pixels for count in counts for label, pixels in count.items() if label != IGNORE)
    return [
        {
            "name": name,
            "pixel_share": sum(count.get(label, 0) for count in counts) / max(total, 1),
            "images": sum(label in count for count in counts),
        }
        for label, name in enumerate(dataset.classes.names)
    ]


def _spread(values: Sequence[int]) -> dict[str, int]:
    return {"min": min(values), "median": statistics.median_low(values), "max": max(values)}
