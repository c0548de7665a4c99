from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.metrics import confusion_matrix
from sklearn.neighbors import NearestCentroid

from fewmask.data.synthetic import CLASSES, render_scene, write_scenes
from fewmask.data.synthetic_canvas import BUILDING, FAR, PAVEMENT, POLE, ROAD, SKY, Camera, Canvas
from fewmask.errors import ConfigError, DataError

SCENES = 50


@cache
def scenes() -> tuple[np.ndarray, np.ndarray]:
    pairs = [render_scene(3, index) for index in range(SCENES)]
    return np.stack([image for image, _ in pairs]), np.stack([label for _, label in pairs])


def test_a_scene_depends_on_nothing_but_its_seed_and_index() -> None:
    images, labels = scenes()
    for index in (17, 4, 30):  # in another order than before
        image, label = render_scene(3, index)
        assert image.tobytes() == images[index].tobytes()
        assert label.tobytes() == labels[index].tobytes()
    assert not np.array_equal(render_scene(4, 17)[0], images[17])


def test_different_indices_give_different_scenes() -> None:
    images, labels = scenes()
    assert len({image.tobytes() for image in images}) == SCENES
    assert len({label.tobytes() for label in labels}) == SCENES


def test_every_class_has_its_share_and_nothing_else_occurs() -> None:
    _, labels = scenes()
    share = np.bincount(labels.ravel(), minlength=8) / labels.size
    assert len(share) == len(CLASSES) == 8
    minimum = {"sky": 0.05, "building": 0.15, "road": 0.12, "pavement": 0.06, "tree": 0.04, "car": 0.03}
    for name, part in zip(CLASSES.names, share, strict=True):
        assert part > minimum.get(name, 0.015), name
    present = np.mean([[np.any(label == k) for k in range(8)] for label in labels], axis=0)
    assert present.min() > 0.5  # each class is seen in most scenes


def test_images_use_the_range_and_are_neither_black_nor_burnt_out() -> None:
    images, _ = scenes()
    for image in images:
        assert 25 < image.mean() < 230
        assert image.std() > 12


def test_appearance_varies_more_between_scenes_than_by_chance() -> None:
    images, labels = scenes()
    for k in range(len(CLASSES)):
        pixels = [image[label == k] for image, label in zip(images, labels, strict=True) if (label == k).sum() > 60]
        between = np.std([p.mean(axis=0) for p in pixels], axis=0).mean()
        by_chance = np.mean([p.std(axis=0).mean() / np.sqrt(len(p)) for p in pixels])
        assert between > 15, CLASSES.names[k]
        assert between > 5 * by_chance, CLASSES.names[k]


def test_color_alone_does_not_tell_the_classes_apart() -> None:
    images, labels = scenes()
    known, rest = slice(0, 12), slice(12, None)
    centroids = NearestCentroid().fit(images[known].reshape(-1, 3)[::7].astype(float), labels[known].ravel()[::7])
    predicted = centroids.predict(images[rest].reshape(-1, 3)[::7].astype(float))
    counts = confusion_matrix(labels[rest].ravel()[::7], predicted, labels=range(8))
    hit = np.diag(counts)
    iou = hit / (counts.sum(axis=0) + counts.sum(axis=1) - hit)
    assert iou.mean() < 0.2


def test_the_street_is_laid_out_as_streets_are() -> None:
    _, labels = scenes()
    rows = np.arange(labels.shape[1])[None, :, None]
    middle = [np.mean(np.broadcast_to(rows, labels.shape)[labels == k]) for k in (SKY, BUILDING, PAVEMENT, ROAD)]
    assert middle[0] < middle[1] < middle[2]
    assert middle[1] < middle[3]
    assert all(np.mean(label[-6:] == SKY) == 0 for label in labels)


@pytest.mark.parametrize("size", [(64, 64), (50, 131)])
def test_other_sizes_are_full_scenes_too(size: tuple[int, int]) -> None:
    image, label = render_scene(0, 5, size)
    assert image.shape == (*size, 3)
    assert label.shape == size
    assert {SKY, ROAD, BUILDING} <= set(np.unique(label).tolist())


def test_numbers_that_cannot_be_rendered_are_named() -> None:
    with pytest.raises(ConfigError, match="seed=-1"):
        render_scene(-1, 0)
    with pytest.raises(ConfigError, match=r"size=\(8, 128\)"):
        render_scene(0, 0, (8, 128))


def test_camera_projects_by_the_pinhole_rule() -> None:
    camera = Camera(focal=100, height=1.5, horizon=40, center=64, curve=0.0)
    assert camera.project([(2.0, 0.0, 10.0), (-1.0, 1.5, 5.0)]) == pytest.approx(np.array([[84.0, 55.0], [44.0, 40.0]]))


def test_reduction_averages_colors_and_lets_the_majority_and_then_the_thin_class_win() -> None:
    canvas = Canvas(2, 4)
    canvas.label[:] = [[ROAD, POLE, ROAD, ROAD], [ROAD, POLE, ROAD, POLE]]
    canvas.image[0, 0] = 1.0
    canvas.depth[0, 0] = 7.0
    image, label, depth = canvas.reduced()
    assert label.tolist() == [[POLE, ROAD]]
    assert image[0, :, 0].tolist() == [0.25, 0.0]
    assert depth.tolist() == [[7.0, FAR]]


def test_shadows_do_not_add_up() -> None:
    canvas = Canvas(6, 6)
    canvas.image[:] = 1.0
    square = canvas.polygon(np.array([[1.0, 1.0], [4.0, 1.0], [4.0, 4.0], [1.0, 4.0]]))
    canvas.shade(square, 0.5)
    canvas.shade(square, 0.5)
    assert set(np.unique(canvas.image).tolist()) == {0.5, 1.0}


def test_the_written_folder_holds_what_was_rendered(tmp_path: Path) -> None:
    root, seen = tmp_path / "streets", []
    write_scenes(root, seed=2, labeled=2, unlabeled=3, val=2, size=(48, 64), progress=lambda *step: seen.append(step))
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    pairs = [f"{folder}/scene_000{i}.png" for folder in ("images", "masks") for i in (0, 1)]
    expected = pairs + [f"val/{name}" for name in pairs] + [f"unlabeled/scene_000{i}.png" for i in range(3)]
    assert files == sorted([*expected, "classes.yaml"])
    assert seen == [(i, 7) for i in range(1, 8)]
    image, label = render_scene(2, 1, (48, 64))
    assert np.array_equal(np.array(Image.open(root / "images/scene_0001.png")), image)
    mask = Image.open(root / "masks/scene_0001.png")
    assert mask.mode == "P"
    assert np.array_equal(np.array(mask), label)
    colors = np.array(CLASSES.colors, dtype=np.uint8)
    assert np.array_equal(np.array(mask.convert("RGB")), colors[label])
    listing = yaml.safe_load((root / "classes.yaml").read_text())["classes"]
    assert [(c["name"], tuple(c["color"])) for c in listing] == list(zip(CLASSES.names, CLASSES.colors, strict=True))


def test_parts_share_no_scene_and_do_not_depend_on_each_other(tmp_path: Path) -> None:
    write_scenes(tmp_path / "small", labeled=1, unlabeled=1, val=1, size=(32, 32))
    write_scenes(tmp_path / "large", labeled=2, unlabeled=2, val=1, size=(32, 32))
    names = ("images/scene_0000.png", "unlabeled/scene_0000.png", "val/images/scene_0000.png")
    contents = [(tmp_path / "small" / name).read_bytes() for name in names]
    assert contents == [(tmp_path / "large" / name).read_bytes() for name in names]
    assert len(set(contents)) == 3


def test_nothing_is_left_behind_when_writing_breaks_off(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_scenes(tmp_path / "streets", labeled=3, unlabeled=0, val=0, size=(32, 32), progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_contents_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="not empty"):
        write_scenes(tmp_path, labeled=1, unlabeled=0, val=0)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
