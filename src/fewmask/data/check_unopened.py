"""The check of a folder that cannot be opened as a data set: the reason, and whatever else its files show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fewmask.data.check_files import Examination, problem
from fewmask.data.check_pairs import pair_findings
from fewmask.data.check_report import Finding, Level, Report
from fewmask.data.check_strays import stray_findings
from fewmask.data.dataset import MaskCoding
from fewmask.data.folder import is_folder, list_folder
from fewmask.errors import DataError

# Without classes only 0 and 255 are known to be meant: enough to see masks that were smoothed or compressed.
_BINARY = MaskCoding("index", {0: 0}, ignore=frozenset({255}))
_NEEDS_CLASSES = ("label-outside-classes", "no-color-table", "empty-mask")


def check_unopened(root: Path, error: DataError, max_pixels: int) -> Report:
    """The opening error first, then what can be said without knowing the classes."""
    first = problem(error, root)
    skipped = _NEEDS_CLASSES if first.code == "no-classes" else (*_NEEDS_CLASSES, "gray-edges")
    found: list[tuple[Level, Finding]] = [("error", first)]
    for level, finding in _file_findings(root, max_pixels):
        if finding.code not in skipped and (finding.code, finding.path) != (first.code, first.path):
            found.append((level, finding))
    return Report.of(found)


def _file_findings(root: Path, max_pixels: int) -> Iterator[tuple[Level, Finding]]:
    if not is_folder(root):
        return
    try:
        listing = list_folder(root)
    except DataError:  # the opening error itself
        return
    splits = {"labeled": listing.labeled, "unlabeled": listing.unlabeled, "val": listing.val, "test": listing.test}
    facts = Examination(root, _BINARY, max_pixels)(splits)
    yield from pair_findings(root, facts, _BINARY)
    yield from stray_findings(root, listing)
