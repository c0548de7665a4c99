"""What the data check has to say: findings with stable codes, a summary of the data set, and both as text or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Literal

LISTED_PER_CODE = 20

Level = Literal["error", "warning"]

CODES: dict[str, str] = {
    "missing-mask": "a labeled, val or test image has no mask",
    "extra-mask": "a mask has no image of the same name, so it is not used",
    "size-mismatch": "image and mask differ in size after each has been turned by its own EXIF orientation",
    "label-outside-classes": "a mask holds values or colors that are neither a class nor ignore",
    "gray-edges": "a mask holds values or colors in between, as along edges: it was resampled, smoothed or compressed",
    "no-color-table": "a mask is color-coded, but no table says which color is which class",
    "palette-order": "palettes of the masks and classes.yaml give the same colors to the classes in different orders",
    "jpeg-mask": "a mask is stored as a JPEG, which changes label values",
    "empty-mask": "a mask holds nothing but ignore",
    "binary-ambiguous": "all masks hold only 0 and 255 although more than two classes are declared",
    "foreground-absent": "the value that --foreground names occurs in no labeled, val or test mask",
    "class-absent": "a declared class has no pixel in the labeled masks",
    "single-class": "only one class is declared, or only one occurs in the labeled masks",
    "unreadable": "a file cannot be decoded",
    "truncated": "a file ends before its pixels do",
    "zero-size": "a file holds no bytes, or an image no pixels",
    "too-large": "an image has more pixels than the limit allows",
    "wrong-format": "a file is not PNG, JPEG, TIFF, BMP or WebP",
    "wrong-channels": "an image or mask has channels that cannot be used, or another number of them than most images",
    "read-in-part": "a TIFF holds channels beside gray or RGB and alpha, or several pages: the first ones are read",
    "mixed-depth": "an image has another bit depth than most",
    "narrow-range": "the 16-bit images fill less than an eighth of their range, as 12-bit data do",
    "duplicate-image": "two images have the same pixels, within or across the splits",
    "name-clash": "two images of one split share a name",
    "bad-name": "an image's name is not text in UTF-8",
    "outside-root": "a path leaves the data folder by a link or by `..`",
    "no-labeled": "there is no labeled image",
    "no-unlabeled": "there is no unlabeled image",
    "no-val": "there is no validation image",
    "bad-classes": "the classes file cannot be used",
    "no-classes": "no classes are declared, and the masks do not show which there are",
    "bad-split": "the file or count that chooses the labeled images cannot be used",
    "unknown-layout": "the folder is empty, missing, or laid out in no known way",
    "unusable": "the data set cannot be opened for another reason",
}


@dataclass(frozen=True)
class Finding:
    """One problem: its code, the file relative to the data folder, what is wrong and how to put it right."""

    code: str
    path: str
    message: str
    fix: str

    def __post_init__(self) -> None:
        assert self.code in CODES, f"undocumented code {self.code}"


@dataclass(frozen=True)
class Report:
    """All that was found. `errors` and `warnings` are complete; text and JSON list at most 20 of each code."""

    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    dataset: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Sequence[tuple[Level, Finding]], dataset: dict[str, Any] | None = None) -> Report:
        """The report of findings with their levels, in their order."""
        errors, warnings = (tuple(item for level, item in found if level == one) for one in ("error", "warning"))
        return cls(errors, warnings, dataset or {})

    @property
    def trainable(self) -> bool:
        return not self.errors

    def to_json(self) -> dict[str, Any]:
        """`{"errors": [{"code", "path", "message", "fix"}], "warnings": [...], "dataset": {...}}`."""
        return {
            "errors": [asdict(finding) for finding in shortened(self.errors)],
            "warnings": [asdict(finding) for finding in shortened(self.warnings)],
            "dataset": self.dataset,
        }


def shortened(findings: Iterable[Finding], most: int = LISTED_PER_CODE) -> list[Finding]:
    """At most so many findings of each code, grouped by code, then one that counts the rest."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.code, []).append(finding)
    listed = []
    for code, group in groups.items():
        listed += group[:most]
        if (rest := len(group) - most) > 0:
            listed.append(Finding(code, "", f"… and {rest} more", group[-1].fix))
    return listed


def render(report: Report) -> str:
    """The report as plain text: the data set, then errors and warnings by code, then the verdict."""
    lines = _dataset_lines(report.dataset) if report.dataset else []
    for title, findings in (("error", report.errors), ("warning", report.warnings)):
        lines += _finding_lines(title, findings)
    return "\n".join([*lines, _verdict(report)])


def _verdict(report: Report) -> str:
    return "trainable" if report.trainable else f"not trainable: {counted(len(report.errors), 'error')}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _finding_lines(title: str, findings: tuple[Finding, ...]) -> list[str]:
    """A line for each finding; neighbors with one fix have it once, below the last of them."""
    lines, total = [], Counter(finding.code for finding in findings)
    for (code, fix), group in groupby(shortened(findings), key=lambda finding: (finding.code, finding.fix)):
        if code in total:
            lines.append(f"{title} {code} ({total.pop(code)}): {CODES[code]}")
        alike = list(group)
        lines += [
            f"  {finding.path}: {finding.message}" if finding.path else f"  {finding.message}" for finding in alike
        ]
        # The count of the rest needs no fix of its own: those above it show what to do.
        if not alike[0].message.startswith("… and "):
            lines.append("    fix: " + fix.replace("\n", "\n         "))
    return [*lines, ""] if lines else []


def _dataset_lines(dataset: dict[str, Any]) -> list[str]:
    images = ", ".join(f"{count} {split}" for split, count in dataset["images"].items())
    lines = [f"{dataset['layout']} layout: {images}"]
    if size := dataset["size"]:
        height, width = size["height"], size["width"]
        low, middle, high = (f"{width[key]}x{height[key]}" for key in ("min", "median", "max"))
        lines.append(f"width x height: smallest {low}, median {middle}, largest {high}")
        lines.append(
            f"the network takes {counted(dataset['channels'], 'channel')}; most images are {dataset['depth']}-bit"
        )
    for entry in dataset["classes"]:
        share, count = entry["pixel_share"], counted(entry["images"], "labeled image")
        lines.append(f"  {entry['name']}: {100 * share:.2f} % of the labeled pixels, in {count}")
    return [*lines, *(f"note: {note}" for note in dataset["notes"]), ""]
