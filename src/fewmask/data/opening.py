"""From a folder to a Dataset: recognize the layout, read it, choose the labeled images."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from fewmask.config import DataSettings
from fewmask.data.coding import with_ignored
from fewmask.data.dataset import Dataset, Sample
from fewmask.data.folder import TREE, KnownClasses, is_folder, read_folder, with_classes
from fewmask.data.layouts import camvid, cityscapes, voc
from fewmask.data.paths import outside_root, relative
from fewmask.data.problem import DataProblem
from fewmask.data.splits import choose_labeled, hold_out
from fewmask.errors import ConfigError

__all__ = ["open_dataset", "outside_root", "read_layout", "require_inside"]

_LAYOUTS: dict[str, ModuleType] = {"cityscapes": cityscapes, "voc": voc, "camvid": camvid}


def open_dataset(
    root: Path,
    settings: DataSettings,
    seed: int = 0,
    *,
    shown: Collection[str] | None = None,
    known: KnownClasses | None = None,
) -> Dataset:
    """The data set in a folder, with the labeled images that the settings ask for; names and paths, no pixels.

    `shown` names the labeled images whose masks may say which classes there are, where not all may; `known` says
    what a folder's masks mean that has no class file, where they are not to be asked themselves.
    """
    root = _existing(Path(root))
    dataset = read_layout(root, settings)
    require_inside(root, dataset)
    dataset = _with_chosen_labels(dataset, settings, seed)
    if settings.split:
        require_inside(root, dataset)  # the list may have brought masks of its own
    if dataset.layout == "folder":  # the known layouts have classes of their own
        dataset = with_classes(dataset, settings, shown, known)
    return _with_pool(_with_holdout(dataset, settings, seed), settings)


def read_layout(root: Path, settings: DataSettings) -> Dataset:
    """Everything that is there, before any split: the layout asked for, or the one recognized; a folder has no classes
    yet."""
    name, folder = _recognized(root, settings.layout)
    if name == "folder":
        return read_folder(folder)
    if settings.foreground is not None:
        what = f"--foreground is for two-class masks, but this is {name}"
        raise ConfigError(what, where="data.foreground", fix="leave it out")
    dataset: Dataset = _LAYOUTS[name].read(folder)
    if not dataset.labeled:
        raise DataProblem("no-labeled", "there is no labeled image", where=folder, fix=_LAYOUTS[name].FORM)
    return replace(dataset, coding=with_ignored(dataset.coding, settings.ignore))


def require_inside(root: Path, dataset: Dataset) -> None:
    """Every image and mask lies inside the root."""
    for sample in dataset.labeled + dataset.unlabeled + dataset.val + dataset.test:
        for path in filter(None, (sample.image, sample.mask)):
            if outside_root(root, path):
                what = f"{relative(root, path)} leads outside the data set, to {path.resolve()}"
                raise DataProblem("outside-root", what, where=path, fix="files inside the folder; copy it there")


def _existing(root: Path) -> Path:
    if not root.is_dir():
        what = "this is a file, not a folder" if root.exists() else "there is no such folder"
        raise DataProblem("unknown-layout", what, where=root, fix=f"a folder such as\n{TREE}")
    return root.resolve()


def _recognized(root: Path, asked: str) -> tuple[str, Path]:
    if asked == "folder" and is_folder(root):
        return "folder", root
    names = list(_LAYOUTS) if asked == "auto" else [asked] if asked in _LAYOUTS else []
    for name in names:
        folder = _LAYOUTS[name].find(root)
        if folder is not None:
            return name, folder
    if asked == "auto" and is_folder(root):
        return "folder", root
    raise _unknown_layout(root, asked)


def _unknown_layout(root: Path, asked: str) -> DataProblem:
    found = sorted(f"{path.name}/" if path.is_dir() else path.name for path in root.iterdir())
    shown = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "") if found else "nothing"
    if asked in _LAYOUTS:
        return DataProblem(
            "unknown-layout", f"not laid out like {asked}: it holds {shown}", where=root, fix=_LAYOUTS[asked].FORM
        )
    forms = "" if asked == "folder" else "".join(f"\nor {name}: {module.FORM}" for name, module in _LAYOUTS.items())
    what = f"no data set is recognized: neither images/ nor a known layout, but {shown}"
    return DataProblem("unknown-layout", what, where=root, fix=f"{TREE}{forms}")


def _with_chosen_labels(dataset: Dataset, settings: DataSettings, seed: int) -> Dataset:
    """Labeled images that are not chosen become unlabeled; their masks stay known as hidden truth."""
    if settings.labels is None and settings.split is None:
        return dataset
    with_mask = tuple(sample for sample in dataset.labeled if sample.mask)
    without = tuple(sample for sample in dataset.labeled if not sample.mask)
    candidates = with_mask + without + dataset.unlabeled if settings.split else with_mask
    labeled, rest = choose_labeled(
        candidates,
        labels=settings.labels,
        split=Path(settings.split) if settings.split else None,
        seed=seed,
        root=dataset.root,
        listed_masks=dataset.layout == "folder",  # elsewhere the coding belongs to the layout's own mask files
    )
    unlabeled = rest if settings.split else rest + without + dataset.unlabeled
    notes = dataset.notes + (f"{len(labeled)} of {len(dataset.labeled)} labeled images are used with their masks",)
    return replace(dataset, labeled=_sorted(labeled), unlabeled=_sorted(unlabeled), notes=notes)


def _with_holdout(dataset: Dataset, settings: DataSettings, seed: int) -> Dataset:
    if dataset.val:
        unused = ("data.holdout is not used: there are validation images",) if settings.holdout else ()
        return replace(dataset, notes=dataset.notes + unused)
    if not settings.holdout:
        note = "there are no validation images: nothing is scored during training (val/, or data.holdout=0.2)"
        return replace(dataset, notes=dataset.notes + (note,))
    labeled, val = hold_out(dataset.labeled, settings.holdout, seed)
    note = f"held out of the labeled images as validation: {len(val)}"
    return replace(dataset, labeled=labeled, val=val, notes=dataset.notes + (note,))


def _with_pool(dataset: Dataset, settings: DataSettings) -> Dataset:
    """Labeled images among the unlabeled ones have no hidden truth: what is known of them would flatter diagnostics."""
    if settings.pool == "unlabeled":
        return dataset
    again = tuple(sample.with_mask(None) for sample in dataset.labeled)
    note = f"the {len(again)} labeled images are in the unlabeled pool, too, without their masks"
    return replace(dataset, unlabeled=dataset.unlabeled + again, notes=dataset.notes + (note,))


def _sorted(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    return tuple(sorted(samples, key=lambda sample: sample.name))
