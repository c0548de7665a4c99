"""CamVid in its two public forms, both as the usual 11 classes.

SegNet's form: train/ + trainannot/, val/ + valannot/, test/ + testannot/, index masks 0 to 10, 11 = void. The original:
701_StillsRaw_full/ + LabeledApproved_full/*_L.png, whose 32 colors (label_colors.txt) are grouped as SegNet did.
"""

from __future__ import annotations

from pathlib import Path

from fewmask.data.dataset import Classes, Color, Dataset, MaskCoding, Sample
from fewmask.data.problem import DataProblem
from fewmask.data.reading import IMAGE_SUFFIXES

_CLASSES: tuple[tuple[str, Color, tuple[str, ...]], ...] = (
    ("sky", (128, 128, 128), ("Sky",)),
    ("building", (128, 0, 0), ("Building", "Bridge", "Wall", "Tunnel", "Archway")),
    ("pole", (192, 192, 128), ("Column_Pole", "TrafficCone")),
    ("road", (128, 64, 128), ("Road", "LaneMkgsDriv", "LaneMkgsNonDriv")),
    ("pavement", (60, 40, 222), ("Sidewalk", "ParkingBlock", "RoadShoulder")),
    ("tree", (128, 128, 0), ("Tree", "VegetationMisc")),
    ("sign", (192, 128, 128), ("SignSymbol", "Misc_Text", "TrafficLight")),
    ("fence", (64, 64, 128), ("Fence",)),
    ("car", (64, 0, 128), ("Car", "SUVPickupTruck", "Truck_Bus", "Train", "OtherMoving")),
    ("pedestrian", (64, 64, 0), ("Pedestrian", "Child", "CartLuggagePram", "Animal")),
    ("bicyclist", (0, 128, 192), ("Bicyclist", "MotorcycleScooter")),
)
_VOID = 11
_STILLS, _LABELS = "701_StillsRaw_full", "LabeledApproved_full"
FORM = f"train/ + trainannot/ (SegNet's form), or {_STILLS}/ + {_LABELS}/ + label_colors.txt (the original)"


def find(root: Path) -> Path | None:
    """The folder that holds either form."""
    folders = (root, root / "CamVid", root / "camvid")
    return next((folder for folder in folders if _is_segnet(folder) or _is_original(folder)), None)


def read(root: Path) -> Dataset:
    """SegNet's form has train, val and test; the original has no split, so all of it is labeled."""
    classes = Classes(tuple(name for name, _, _ in _CLASSES), tuple(color for _, color, _ in _CLASSES))
    if _is_segnet(root):
        coding = MaskCoding("index", {index: index for index in range(len(_CLASSES))}, ignore=frozenset({_VOID, 255}))
        parts = [_pairs(root / part, root / f"{part}annot", "") for part in ("train", "val", "test")]
        return Dataset(root, "camvid", classes, coding, parts[0], (), parts[1], parts[2])
    note = "CamVid's 32 classes are grouped into the usual 11; void is ignored"
    samples = _pairs(root / _STILLS, root / _LABELS, "_L")
    return Dataset(root, "camvid", classes, _original_coding(root), samples, (), notes=(note,))


def _is_segnet(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "trainannot").is_dir()


def _is_original(folder: Path) -> bool:
    return (folder / _STILLS).is_dir() and (folder / _LABELS).is_dir()


def _pairs(images: Path, masks: Path, ending: str) -> tuple[Sample, ...]:
    found = images.iterdir() if images.is_dir() else ()
    paths = [path for path in found if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")]
    pairs = ((path, masks / f"{path.stem}{ending}.png") for path in sorted(paths))
    return tuple(Sample(path.stem, path, mask if mask.exists() else None) for path, mask in pairs)


def _original_coding(root: Path) -> MaskCoding:
    path = next(
        (folder / "label_colors.txt" for folder in (root, root / _LABELS) if (folder / "label_colors.txt").is_file()),
        None,
    )
    if path is None:
        what = "label_colors.txt, the table of CamVid's 32 colors, is missing"
        raise DataProblem(
            "no-color-table", what, where=root / "label_colors.txt", fix="the file that comes with CamVid"
        )
    group = {name: index for index, (_, _, names) in enumerate(_CLASSES) for name in names}
    lookup: dict[Color, int] = {}
    ignored: set[Color] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if len(fields) != 4 or not all(field.isdigit() for field in fields[:3]):
            continue
        color = (int(fields[0]), int(fields[1]), int(fields[2]))
        if fields[3] in group:
            lookup[color] = group[fields[3]]
        else:
            ignored.add(color)
    return MaskCoding("color", color_lookup=lookup, ignore_colors=frozenset(ignored))
