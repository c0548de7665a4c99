"""Public layouts, on miniatures written as they lie on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import Cityscapes
from torchvision.models.segmentation import DeepLabV3_ResNet50_Weights

from fewmask.data.dataset import Dataset
from fewmask.data.layouts.voc import NAMES, palette_color
from fewmask.data.masks import decode_mask, read_mask
from fewmask.errors import ConfigError
from tests.data.small_folders import image, names, opened, pairs, refused

# VOC


def palette_mask(path: Path, *values: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(np.resize(np.array(values, np.uint8), (2, len(values))), "P")
    picture.putpalette([part for index in range(256) for part in palette_color(index)])
    picture.save(path)


def voc(root: Path, lists: dict[str, list[str]]) -> Path:
    """VOC2012 with an image for every listed name and palette masks for those of train and val."""
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    for part, listed in lists.items():
        (root / f"ImageSets/Segmentation/{part}.txt").write_text("\n".join(listed) + "\n")
        for name in listed:
            image(root / f"JPEGImages/{Path(name.split()[0]).stem}.jpg")
    for name in lists["train"] + lists["val"]:
        palette_mask(root / f"SegmentationClass/{name}.png", 0, 15, 20, 255)
    return root


def labels(dataset: Dataset, index: int = 0) -> list[int]:
    path = dataset.labeled[index].mask
    assert path is not None
    return read_mask(path, dataset.coding)[0].tolist()


def test_voc_palette_is_the_published_one() -> None:
    published = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 4: (0, 0, 128), 7: (128, 128, 128), 8: (64, 0, 0)}
    published |= {15: (192, 128, 128), 20: (0, 64, 128), 255: (224, 224, 192)}
    assert {index: palette_color(index) for index in published} == published


def test_voc_classes_are_in_the_order_of_torchvision() -> None:
    categories = DeepLabV3_ResNet50_Weights.COCO_WITH_VOC_LABELS_V1.meta["categories"]
    assert ("__background__", *NAMES[1:]) == tuple(categories)


@pytest.mark.parametrize("below", ["", "VOC2012", "VOCdevkit/VOC2012"])
def test_voc(tmp_path: Path, below: str) -> None:
    root = voc(tmp_path / below, {"train": ["2007_000032", "2007_000039"], "val": ["2007_000033"]})
    dataset = opened(tmp_path)
    assert (dataset.layout, dataset.root) == ("voc", root.resolve())
    assert names(dataset.labeled) == ["2007_000032", "2007_000039"]
    assert names(dataset.val) == ["2007_000033"]
    assert (len(dataset.classes), dataset.classes.names[15], dataset.classes.colors[15]) == (
        21,
        "person",
        (192, 128, 128),
    )
    assert labels(dataset) == [0, 15, 20, 255]


@pytest.mark.parametrize("listed", ["2008_000008", "/JPEGImages/2008_000008.jpg /SegmentationClassAug/2008_000008.png"])
@pytest.mark.parametrize("name", ["trainaug", "train_aug"])
def test_voc_with_sbd(tmp_path: Path, name: str, listed: str) -> None:
    lists = {"train": ["2007_000032"], "val": ["2007_000033"], name: ["2007_000032", listed, "2008_000015"]}
    root = voc(tmp_path, lists)
    aug = root / "SegmentationClassAug"
    aug.mkdir()
    for stem, value in (("2007_000032", 3), ("2008_000008", 4), ("2007_000033", 5)):
        Image.fromarray(np.full((2, 4), value, np.uint8)).save(aug / f"{stem}.png")
    dataset = opened(tmp_path)
    assert names(dataset.labeled) == ["2007_000032", "2008_000008"]
    assert labels(dataset, 0) == [0, 15, 20, 255]  # the official mask, not SBD's
    assert labels(dataset, 1) == [4, 4, 4, 4]
    assert names(dataset.unlabeled) == ["2008_000015"]
    assert any("1 images of" in note for note in dataset.notes)


def test_sbd_alone_says_how_to_convert(tmp_path: Path) -> None:
    (tmp_path / "benchmark_RELEASE/dataset/cls").mkdir(parents=True)
    (tmp_path / "benchmark_RELEASE/dataset/cls/2008_000008.mat").write_bytes(b"MATLAB 5.0")
    assert "SegmentationClassAug" in refused(tmp_path, "unknown-layout").fix


def test_voc_without_its_list(tmp_path: Path) -> None:
    voc(tmp_path, {"train": ["a"], "val": ["b"]})
    (tmp_path / "ImageSets/Segmentation/train.txt").unlink()
    assert "train.txt is missing" in refused(tmp_path, "unknown-layout").what


def test_cvats_export_is_not_taken_for_voc(tmp_path: Path) -> None:
    """It asked for VOC's train.txt, and with one it had VOC's 21 classes."""
    voc(tmp_path, {"train": ["a"], "val": ["b"]})
    (tmp_path / "labelmap.txt").write_text("# label:color_rgb:parts:actions\nscratch:250,50,83::\n")
    error = refused(tmp_path, "unknown-layout")
    assert "CVAT" in error.what
    assert "masks/" in error.fix
    pairs(tmp_path, "a", 0, 1)  # as it says, beside what is there
    (tmp_path / "classes.txt").write_text("background\nscratch\n")
    assert opened(tmp_path).layout == "folder"


def test_foreground_does_not_apply_to_voc(tmp_path: Path) -> None:
    voc(tmp_path, {"train": ["a"], "val": ["b"]})
    with pytest.raises(ConfigError, match="this is voc"):
        opened(tmp_path, foreground=255)
    assert 20 not in opened(tmp_path, ignore=(20,)).coding.lookup


# Cityscapes

CITIES = (
    ("train", "aachen"),
    ("train", "bochum"),
    ("val", "frankfurt"),
    ("test", "berlin"),
    ("train_extra", "troisdorf"),
)


def cityscapes(root: Path, *kinds: str) -> Path:
    """One frame per city; labelIds run over 0 to 33, and train ids are the official ones of these."""
    label_ids = np.arange(34, dtype=np.uint8)[None]
    train_ids = np.full((1, 34), 255, np.uint8)
    official = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    train_ids[0, official] = np.arange(19)
    values = {"labelIds": label_ids, "labelTrainIds": train_ids, "instanceIds": label_ids}
    for part, city in CITIES:
        name = f"{city}/{city}_000000_000019"
        image(root / f"leftImg8bit/{part}/{name}_leftImg8bit.png")
        for kind in kinds if part != "train_extra" else ():
            path = root / f"gtFine/{part}/{name}_gtFine_{kind}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values[kind]).save(path)
    return root


@pytest.mark.parametrize("kinds", [("labelIds", "instanceIds"), ("labelTrainIds",), ("labelIds", "labelTrainIds")])
def test_cityscapes(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    dataset = opened(cityscapes(tmp_path, *kinds))
    assert dataset.layout == "cityscapes"
    assert names(dataset.labeled) == ["aachen/aachen_000000_000019", "bochum/bochum_000000_000019"]
    assert names(dataset.val) == ["frankfurt/frankfurt_000000_000019"]
    assert names(dataset.unlabeled) == ["train_extra/troisdorf/troisdorf_000000_000019"]
    assert dataset.test == ()
    expected = [255] * 34
    for index, value in enumerate([7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]):
        expected[value] = index
    assert labels(dataset) == expected
    assert str(dataset.labeled[0].mask).endswith("labelTrainIds.png" if "labelTrainIds" in kinds else "labelIds.png")
    assert (dataset.classes.names[13], dataset.classes.colors[13]) == ("car", (0, 0, 142))


def test_cityscapes_with_some_train_ids_reads_label_ids(tmp_path: Path) -> None:
    cityscapes(tmp_path, "labelIds", "labelTrainIds")
    next(tmp_path.glob("gtFine/train/bochum/*labelTrainIds.png")).unlink()
    dataset = opened(tmp_path)
    assert all(str(sample.mask).endswith("labelIds.png") for sample in dataset.labeled + dataset.val)


def test_cityscapes_classes_are_those_of_torchvision(tmp_path: Path) -> None:
    dataset = opened(cityscapes(tmp_path, "labelIds"))
    official = sorted((each for each in Cityscapes.classes if 0 <= each.train_id < 19), key=lambda each: each.train_id)
    assert dataset.classes.names == tuple(each.name for each in official)
    assert dataset.classes.colors == tuple(each.color for each in official)
    assert dict(dataset.coding.lookup) == {each.id: each.train_id for each in official}
    assert decode_mask(np.array([[7, 255, 33]]), dataset.coding).tolist() == [[0, 255, 18]]


def test_a_cityscapes_list_may_name_frames_without_their_city(tmp_path: Path) -> None:
    cityscapes(tmp_path / "data", "labelIds")
    (tmp_path / "labeled.txt").write_text("bochum_000000_000019\n")
    dataset = opened(tmp_path / "data", split=str(tmp_path / "labeled.txt"))
    assert names(dataset.labeled) == ["bochum/bochum_000000_000019"]


def test_published_cityscapes_list_on_label_ids(tmp_path: Path) -> None:
    """Public lists name labelTrainIds; where only labelIds lie on disk, these are read, with their own coding."""
    cityscapes(tmp_path / "data", "labelIds")
    name = "bochum/bochum_000000_000019"
    line = f"leftImg8bit/train/{name}_leftImg8bit.png gtFine/train/{name}_gtFine_labelTrainIds.png\n"
    (tmp_path / "labeled.txt").write_text(line)
    dataset = opened(tmp_path / "data", split=str(tmp_path / "labeled.txt"))
    assert names(dataset.labeled) == [name]
    assert str(dataset.labeled[0].mask).endswith("labelIds.png")
    assert "aachen/aachen_000000_000019" in names(dataset.unlabeled)


# CamVid


def test_camvid_in_segnets_form(tmp_path: Path) -> None:
    for part, name in (("train", "0001TP_006690"), ("val", "0016E5_07959"), ("test", "Seq05VD_f00000")):
        image(tmp_path / f"{part}/{name}.png")
        (tmp_path / f"{part}annot").mkdir()
        Image.fromarray(np.arange(12, dtype=np.uint8)[None]).save(tmp_path / f"{part}annot/{name}.png")
    dataset = opened(tmp_path)
    assert dataset.layout == "camvid"
    parts = (dataset.labeled, dataset.val, dataset.test)
    assert [names(part) for part in parts] == [["0001TP_006690"], ["0016E5_07959"], ["Seq05VD_f00000"]]
    assert labels(dataset) == [*range(11), 255]
    assert dataset.classes.names[8] == "car"


LABEL_COLORS = """64 128 64	Animal
192 0 128	Archway
0 128 192	Bicyclist
64 0 128		Car
192 128 192	Truck_Bus
128 128 128	Sky
0 0 192	Sidewalk
0 0 0		Void
"""


def test_camvid_in_its_original_form(tmp_path: Path) -> None:
    image(tmp_path / "701_StillsRaw_full/0001TP_006690.png")
    (tmp_path / "LabeledApproved_full").mkdir()
    colors = [[64, 128, 64], [192, 0, 128], [0, 128, 192], [64, 0, 128], [192, 128, 192], [128, 128, 128], [0, 0, 192]]
    picture = Image.fromarray(np.array([[*colors, [0, 0, 0]]], np.uint8))
    picture.save(tmp_path / "LabeledApproved_full/0001TP_006690_L.png")
    assert "label_colors.txt" in refused(tmp_path, "no-color-table").what
    (tmp_path / "label_colors.txt").write_text(LABEL_COLORS)
    dataset = opened(tmp_path)
    names_found = [dataset.classes.names[label] for label in labels(dataset)[:-1]]
    assert names_found == ["pedestrian", "building", "bicyclist", "car", "car", "sky", "pavement"]
    assert labels(dataset)[-1] == 255
    with pytest.raises(ConfigError, match="color-coded"):
        opened(tmp_path, ignore=(3,))


GROUPS = {  # as SegNet's tutorial has CamVid's 32 names
    "sky": "Sky",
    "building": "Building Bridge Wall Tunnel Archway",
    "pole": "Column_Pole TrafficCone",
    "road": "Road LaneMkgsDriv LaneMkgsNonDriv",
    "pavement": "Sidewalk ParkingBlock RoadShoulder",
    "tree": "Tree VegetationMisc",
    "sign": "SignSymbol Misc_Text TrafficLight",
    "fence": "Fence",
    "car": "Car SUVPickupTruck Truck_Bus Train OtherMoving",
    "pedestrian": "Pedestrian Child CartLuggagePram Animal",
    "bicyclist": "Bicyclist MotorcycleScooter",
}


def test_all_of_camvids_names_have_their_group(tmp_path: Path) -> None:
    image(tmp_path / "701_StillsRaw_full/a.png")
    (tmp_path / "LabeledApproved_full").mkdir()
    listed = [name for group in GROUPS.values() for name in group.split()] + ["Void"]
    assert len(listed) == 32
    colors = {name: (number, 2 * number, 3) for number, name in enumerate(listed)}
    lines = (f"{red} {green} {blue}\t{name}" for name, (red, green, blue) in colors.items())
    (tmp_path / "LabeledApproved_full/label_colors.txt").write_text("\n".join(lines))
    dataset = opened(tmp_path)
    assert dataset.classes.names == tuple(GROUPS)
    wanted = {colors[name]: index for index, group in enumerate(GROUPS.values()) for name in group.split()}
    assert dataset.coding.color_lookup == wanted
    assert dataset.coding.ignore_colors == {colors["Void"]}


def test_layout_can_be_asked_for(tmp_path: Path) -> None:
    voc(tmp_path, {"train": ["a"], "val": ["b"]})
    image(tmp_path / "images/x.png")
    palette_mask(tmp_path / "masks/x.png", 0, 1)
    assert opened(tmp_path).layout == "voc"
    assert names(opened(tmp_path, layout="folder").labeled) == ["x"]
    refused(tmp_path, "unknown-layout", layout="camvid")
