"""Cityscapes: leftImg8bit/{train,val}/city/*_leftImg8bit.png with gtFine/.../*_gtFine_labelTrainIds.png or labelIds.

labelIds are mapped to the 19 train ids; the test split has no usable labels; train_extra joins the unlabeled images.
"""

from __future__ import annotations

from pathlib import Path

from fewmask.data.dataset import Classes, Color, Dataset, MaskCoding, Sample

# train id order: label id, name, color
_CLASSES: tuple[tuple[int, str, Color], ...] = (
    (7, "road", (128, 64, 128)), (8, "sidewalk", (244, 35, 232)), (11, "building", (70, 70, 70)),
    (12, "wall", (102, 102, 156)), (13, "fence", (190, 153, 153)), (17, "pole", (153, 153, 153)),
    (19, "traffic light", (250, 170, 30)), (20, "traffic sign", (220, 220, 0)), (21, "vegetation", (107, 142, 35)),
    (22, "terrain", (152, 251, 152)), (23, "sky", (70, 130, 180)), (24, "person", (220, 20, 60)),
    (25, "rider", (255, 0, 0)), (26, "car", (0, 0, 142)), (27, "truck", (0, 0, 70)), (28, "bus", (0, 60, 100)),
    (31, "train", (0, 80, 100)), (32, "motorcycle", (0, 0, 230)), (33, "bicycle", (119, 11, 32)),
)  # fmt: skip
_LABEL_IDS = 34
_IMAGE_END = "_leftImg8bit.png"
FORM = "leftImg8bit/train/CITY/*_leftImg8bit.png and gtFine/train/CITY/*_gtFine_labelIds.png or *_labelTrainIds.png"


def find(root: Path) -> Path | None:
    """The folder that holds leftImg8bit and gtFine."""
    folders = (root, root / "cityscapes")
    return next(
        (folder for folder in folders if all((folder / name).is_dir() for name in ("leftImg8bit/train", "gtFine"))),
        None,
    )


def read(root: Path) -> Dataset:
    """labelTrainIds if every training image has one, else labelIds."""
    kind = "labelTrainIds"
    if not all(sample.mask for sample in _samples(root, "train", kind)):
        kind = "labelIds"
    train, val = _samples(root, "train", kind), _samples(root, "val", kind)
    extra = tuple(Sample(f"train_extra/{name}", path) for name, path in _images(root, "train_extra"))
    notes: tuple[str, ...] = ("labelIds are mapped to the 19 train ids",) if kind == "labelIds" else ()
    if extra:
        notes += (f"{len(extra)} images of train_extra count as unlabeled",)
    classes = Classes(tuple(name for _, name, _ in _CLASSES), tuple(color for _, _, color in _CLASSES))
    return Dataset(root, "cityscapes", classes, _coding(kind), train, extra, val, (), notes)


def _coding(kind: str) -> MaskCoding:
    if kind == "labelTrainIds":
        return MaskCoding("index", {index: index for index in range(len(_CLASSES))})
    lookup = {label: index for index, (label, _, _) in enumerate(_CLASSES)}
    return MaskCoding("index", lookup, ignore=frozenset(range(_LABEL_IDS)) - frozenset(lookup) | {255})


def _images(root: Path, part: str) -> list[tuple[str, Path]]:
    """Names such as aachen/aachen_000000_000019, sorted, with their images."""
    folder = root / "leftImg8bit" / part
    paths = (path for path in folder.glob(f"*/*{_IMAGE_END}") if not path.name.startswith("."))
    return sorted((path.relative_to(folder).as_posix().removesuffix(_IMAGE_END), path) for path in paths)


def _samples(root: Path, part: str, kind: str) -> tuple[Sample, ...]:
    found = [(name, path, root / "gtFine" / part / f"{name}_gtFine_{kind}.png") for name, path in _images(root, part)]
    return tuple(Sample(name, path, mask if mask.exists() else None) for name, path, mask in found)
