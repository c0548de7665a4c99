"""Which labeled images count as labeled: a seeded draw, or a list of names.

The draw is the published Cityscapes rule of French et al.: the first `count` of numpy's
RandomState(seed).permutation(n) over the names in sorted order, with seeds 12345, 23456, 34567, 45678, 56789.
A share is rounded up, which gives their counts exactly: 1/30, 1/8 and 1/4 of 2,975 are 100, 372 and 744.
(Their VOC lists are files: 1/20 of 10,582 has 529 names there, a count of its own.)
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from fewmask.data.dataset import Dataset, Sample
from fewmask.data.paths import one_spelling
from fewmask.data.problem import DataProblem
from fewmask.errors import ConfigError

Chosen = tuple[tuple[Sample, ...], tuple[Sample, ...]]
_SHOWN = 5


def choose_labeled(
    samples: Sequence[Sample],
    *,
    labels: str | None = None,
    split: Path | None = None,
    seed: int = 0,
    rule: Literal["permutation"] = "permutation",
    root: Path | None = None,
    listed_masks: bool = True,
) -> Chosen:
    """The labeled and the other samples, each in the given order.

    `split` names images by stem, relative path or `image mask` pair below `root`; with listed_masks=False the masks of
    such pairs are left to the layout. Without `labels` and `split` everything is labeled.
    """
    if rule != "permutation":
        raise ConfigError(f"`{rule}` is not a rule for drawing labels", where="rule", fix="permutation")
    if labels is not None and split is not None:
        raise ConfigError("both --labels and --split choose the labeled images", where="data", fix="one of the two")
    if labels is None and split is None:
        return tuple(samples), ()
    if labels is not None:
        masks: dict[str, Path | None] = dict.fromkeys(_drawn(samples, labels, seed))
    else:
        assert split is not None
        masks = _listed(samples, split, root, listed_masks)
    labeled = [sample.with_mask(masks[sample.name] or sample.mask) for sample in samples if sample.name in masks]
    return tuple(labeled), tuple(sample for sample in samples if sample.name not in masks)


def label_count(labels: str, total: int) -> int:
    """How many images `46` or `1/8` are of `total`; a share is rounded up."""
    try:
        count = math.ceil(Fraction(labels) * total) if "/" in labels else int(labels)
    except (ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"`{labels}` is not a number of labels", where="data.labels", fix="46 or 1/8") from error
    if not 1 <= count <= total:
        what = f"{labels} labels cannot be drawn from {total} labeled images"
        raise ConfigError(what, where="data.labels", fix=f"1 to {total}, or a share such as 1/8")
    return count


def hold_out(labeled: Sequence[Sample], share: float, seed: int) -> Chosen:
    """The labeled images less a seeded share of them, and that share, at least one image each."""
    count = max(1, round(share * len(labeled)))
    if count >= len(labeled):
        what = f"a holdout of {share} leaves none of {len(labeled)} labeled images to train on"
        raise ConfigError(what, where="data.holdout", fix="a smaller share, or more labeled images")
    # another stream than the draw of labels, or the two choices would be nested
    order = np.random.RandomState([seed, 1]).permutation(len(labeled))
    held = {int(index) for index in order[:count]}
    rest = tuple(sample for index, sample in enumerate(labeled) if index not in held)
    return rest, tuple(sample for index, sample in enumerate(labeled) if index in held)


def names_checksum(names: Iterable[str]) -> str:
    """sha256 over the sorted names, one per line."""
    return hashlib.sha256("".join(f"{name}\n" for name in sorted(names)).encode()).hexdigest()


def split_record(dataset: Dataset) -> dict[str, Any]:
    """What was labeled, unlabeled, val and test in a run: count, sha256 and names of each, and one sha256 of it all."""
    record: dict[str, Any] = {}
    for part in ("labeled", "unlabeled", "val", "test"):
        names = sorted(sample.name for sample in getattr(dataset, part))
        record[part] = {"count": len(names), "sha256": names_checksum(names), "names": names}
    return {"sha256": names_checksum(f"{part}:{value['sha256']}" for part, value in record.items()), **record}


def _drawn(samples: Sequence[Sample], labels: str, seed: int) -> list[str]:
    names = sorted(sample.name for sample in samples)
    count = label_count(labels, len(names))
    return [names[index] for index in np.random.RandomState(seed).permutation(len(names))[:count]]


def _listed(samples: Sequence[Sample], split: Path, root: Path | None, listed_masks: bool) -> dict[str, Path | None]:
    """Sample name -> mask that the list gives (None: the sample's own)."""
    try:
        lines = split.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        what = f"the split file cannot be read ({error})"
        raise DataProblem("bad-split", what, where=split, fix="a text file, one name per line") from error
    aliases, masks, unknown = _aliases(samples, root), {}, []
    for number, line in enumerate((line.strip() for line in lines), 1):
        if not line:
            continue
        image, mask = (line, None) if one_spelling(line) in aliases else _fields(line)
        found = aliases.get(one_spelling(_inside(image, f"{split}, line {number}")), [])
        if not found:
            unknown.append(image)
            continue
        if len(found) > 1 or found[0] in masks:
            what = f"`{image}` names more than one image" if len(found) > 1 else f"`{image}` is listed twice"
            fix = f"paths below the data set, such as {_first(found)}" if len(found) > 1 else "each image once"
            raise DataProblem("bad-split", what, where=f"{split}, line {number}", fix=fix)
        masks[found[0]] = _listed_mask(mask, root, f"{split}, line {number}") if mask and listed_masks else None
    if unknown or not masks:
        what = (
            f"not in the data set, {len(unknown)} in all: {_first(unknown)}"
            if unknown
            else "the split file names no image"
        )
        raise DataProblem(
            "bad-split", what, where=split, fix=f"names such as {_first(sample.name for sample in samples)}"
        )
    return masks


def _fields(line: str) -> tuple[str, str | None]:
    fields = line.split()
    return (fields[0], fields[1]) if len(fields) == 2 else (line, None)


def _aliases(samples: Sequence[Sample], root: Path | None) -> dict[str, list[str]]:
    """Every way to name a sample: its name, its path below the root, its file name, each with and without suffix."""
    found: dict[str, set[str]] = defaultdict(set)
    for sample in samples:
        inside = root is not None and sample.image.is_relative_to(root)
        path = PurePosixPath(sample.image.relative_to(root).as_posix() if root and inside else sample.image.name)
        for alias in (path, path.with_suffix(""), path.name, path.stem, PurePosixPath(sample.name).name):
            found[one_spelling(str(alias))].add(sample.name)
    exact = {one_spelling(sample.name): {sample.name} for sample in samples}
    return {alias: sorted(names) for alias, names in {**found, **exact}.items()}


def _inside(name: str, where: str) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        what = f"`{name}` points outside the data set"
        raise DataProblem("outside-root", what, where=where, fix="names or paths below the data set's folder")
    return str(path)


def _listed_mask(mask: str, root: Path | None, where: str) -> Path:
    path = Path(root or ".") / _inside(mask, where)
    if not path.is_file():
        raise DataProblem(
            "missing-mask", f"the listed mask `{mask}` does not exist", where=where, fix=f"a file below {root}"
        )
    return path


def _first(names: Iterable[str]) -> str:
    items = list(names)
    return ", ".join(items[:_SHOWN]) + (", ..." if len(items) > _SHOWN else "")
