"""PASCAL VOC 2012, with SBD's masks as SegmentationClassAug where they were added.

JPEGImages/, SegmentationClass/ (palette PNG), ImageSets/Segmentation/{train,val}.txt, with SBD also trainaug.txt.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from fewmask.data.dataset import Classes, Color, Dataset, MaskCoding, Sample
from fewmask.data.problem import DataProblem

NAMES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
FORM = "JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/train.txt, in DATA or DATA/VOCdevkit/VOC2012"


def palette_color(index: int) -> Color:
    """VOC's palette: bits 0, 1, 2 of the index are the top bits of red, green, blue, bits 3, 4, 5 the next ones."""
    color = [0, 0, 0]
    for bit in range(8):
        color[bit % 3] |= (index >> bit & 1) << (7 - bit // 3)
    return color[0], color[1], color[2]


def find(root: Path) -> Path | None:
    """The VOC2012 folder in or below the given one."""
    for folder in (root, root / "VOC2012", root / "VOCdevkit/VOC2012"):
        masks = (folder / "SegmentationClass").is_dir() or (folder / "SegmentationClassAug").is_dir()
        if masks and (folder / "JPEGImages").is_dir() and (folder / "ImageSets/Segmentation").is_dir():
            if not (folder / "labelmap.txt").is_file():
                return folder
            if not (folder / "images").is_dir():  # else what is needed was copied beside it
                raise _of_cvat(folder)
    if _sbd_folder(root):
        what = "this is SBD in its own form: MATLAB files in cls/"
        fix = "VOC2012 with every GTcls.Segmentation (scipy.io.loadmat) saved as a PNG in SegmentationClassAug/"
        raise DataProblem("unknown-layout", what, where=_sbd_folder(root), fix=fix)
    return None


def read(root: Path) -> Dataset:
    """Labeled: trainaug where that list is there, else train. Of each image the official mask is preferred to SBD's."""
    lists = root / "ImageSets/Segmentation"
    augmented = next((lists / name for name in ("trainaug.txt", "train_aug.txt") if (lists / name).is_file()), None)
    train = [_sample(root, name) for name in _names(augmented or lists / "train.txt")]
    val = tuple(_sample(root, name) for name in _names(lists / "val.txt")) if (lists / "val.txt").is_file() else ()
    notes: tuple[str, ...] = (f"labeled images from {augmented.name}",) if augmented else ()
    unlabeled: tuple[Sample, ...] = ()
    if augmented:  # the longer list is common without SBD's masks: what has none is still good unlabeled data
        unlabeled = tuple(sample for sample in train if sample.mask is None)
        train = [sample for sample in train if sample.mask]
    if unlabeled:
        notes += (f"{len(unlabeled)} images of {augmented and augmented.name} have no mask and count as unlabeled",)
    classes = Classes(NAMES, tuple(palette_color(index) for index in range(len(NAMES))))
    coding = MaskCoding("index", {index: index for index in range(len(NAMES))})
    return Dataset(root, "voc", classes, coding, tuple(train), unlabeled, val, (), notes)


def _names(path: Path) -> list[str]:
    """Lines are names, or `/JPEGImages/name.jpg /SegmentationClassAug/name.png` as some lists have it."""
    if not path.is_file():
        raise DataProblem("unknown-layout", f"{path.name} is missing", where=path, fix=FORM)
    lines = path.read_text(encoding="utf-8").splitlines()
    return sorted({PurePosixPath(line.split()[0]).stem for line in lines if line.strip()})


def _sample(root: Path, name: str) -> Sample:
    masks = (root / folder / f"{name}.png" for folder in ("SegmentationClass", "SegmentationClassAug"))
    return Sample(name, root / "JPEGImages" / f"{name}.jpg", next((mask for mask in masks if mask.exists()), None))


def _of_cvat(folder: Path) -> DataProblem:
    what = "this is CVAT's export, which is laid out like VOC but has classes of its own, in labelmap.txt"
    fix = "JPEGImages/ as images/, SegmentationClass/ as masks/, classes.yaml with labelmap.txt's names and colors"
    return DataProblem("unknown-layout", what, where=folder, fix=fix)


def _sbd_folder(root: Path) -> Path | None:
    folders = (root / name for name in ("cls", "dataset/cls", "benchmark_RELEASE/dataset/cls"))
    return next((folder for folder in folders if folder.is_dir() and any(folder.glob("*.mat"))), None)
