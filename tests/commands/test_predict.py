"""`fewmask predict`: which masks it writes, with what in them, and what it says when it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import ExifTags, Image

from fewmask.data.resizing import resize_image
from fewmask.data.synthetic import CLASSES
from fewmask.methods.mean_teacher import MeanTeacher
from fewmask.networks.segmentation import SegmentationNetwork
from fewmask.training.model_file import load_model
from fewmask.training.networks import load_networks
from fewmask.training.run_folder import RunFolder
from tests.commands.conftest import Fewmask
from tests.commands.folders import files, indices, noise, write_model


def probability(network: SegmentationNetwork, image: np.ndarray, size: tuple[int, int] | None = None) -> torch.Tensor:
    """What the network says about an 8-bit image [H, W, C], [K, H, W], without any of the command's own code."""
    tensor = torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1)[None]
    with torch.no_grad():
        logits = network.eval()(tensor).logits
    return F.interpolate(logits, size or image.shape[:2], mode="bilinear", align_corners=False).softmax(1)[0]


def test_a_folder_gives_a_mask_per_image_with_the_models_answer_and_colors(
    fewmask: Fewmask, trained: Path, scenes: Path, tmp_path: Path
) -> None:
    result = fewmask("predict", trained, scenes / "unlabeled", "--out", tmp_path / "masks")
    assert (result.code, result.out) == (0, "")
    assert result.err == f"5 of 5 masks in {tmp_path / 'masks'}\n"
    assert files(tmp_path / "masks") == [f"scene_000{index}.png" for index in range(5)]
    network, _ = load_model(trained)
    seen = set()
    for index in range(5):
        image = np.asarray(Image.open(scenes / "unlabeled" / f"scene_000{index}.png"))
        expected = probability(network, image).argmax(0).numpy()
        mask = indices(tmp_path / "masks" / f"scene_000{index}.png")
        assert np.array_equal(mask, expected)
        seen |= set(np.unique(mask))
    assert len(seen) > 1
    with Image.open(tmp_path / "masks" / "scene_0000.png") as picture:
        palette = np.reshape(picture.getpalette(), (-1, 3))
    assert [tuple(color) for color in palette[:8]] == list(CLASSES.colors)
    assert tuple(palette[255]) == (64, 64, 64)


def test_confidence_maps_hold_the_probability_of_the_label(
    fewmask: Fewmask, trained: Path, scenes: Path, tmp_path: Path
):
    source = scenes / "unlabeled" / "scene_0001.png"
    assert fewmask("predict", trained, source, "--out", tmp_path, "--confidence").code == 0
    assert files(tmp_path) == ["scene_0001.png", "scene_0001_confidence.png"]
    network, _ = load_model(trained)
    expected = probability(network, np.asarray(Image.open(source))).max(0).values
    with Image.open(tmp_path / "scene_0001_confidence.png") as picture:
        assert picture.mode == "L"
        written = np.asarray(picture).astype(float) / 255
    assert np.abs(written - expected.numpy()).max() <= 0.5 / 255 + 1e-6


def test_tiles(fewmask: Fewmask, trained: Path, scenes: Path, tmp_path: Path) -> None:
    source = scenes / "unlabeled" / "scene_0002.png"
    for name, words in (("whole", ()), ("one", ("--tile", 64)), ("many", ("--tile", 16))):
        assert fewmask("predict", trained, source, "--out", tmp_path / name, *words).code == 0
    whole, one, many = (indices(tmp_path / name / "scene_0002.png") for name in ("whole", "one", "many"))
    assert np.array_equal(whole, one)  # a tile larger than the image is the image
    assert many.shape == whole.shape
    result = fewmask("predict", trained, source, "--out", tmp_path / "few", "--tile", 15)
    assert result.code == 2
    assert result.err == "error: tiles of 15 pixels are too small\n  where: --tile\n  valid: 16 or more, e.g. 512\n"


def test_another_network_of_the_run_can_be_asked_for(
    fewmask: Fewmask, trained: Path, scenes: Path, tmp_path: Path
) -> None:
    source = scenes / "unlabeled" / "scene_0003.png"
    image = np.asarray(Image.open(source))
    networks, _, _ = load_networks(RunFolder(trained))
    for name in ("teacher_1", "student_1"):
        assert (
            fewmask("predict", trained, source, "--out", tmp_path / name, "--network", name, "--confidence").code == 0
        )
        expected = probability(networks[name], image)
        assert np.array_equal(indices(tmp_path / name / "scene_0003.png"), expected.argmax(0).numpy())
    maps = [(tmp_path / name / "scene_0003_confidence.png").read_bytes() for name in ("teacher_1", "student_1")]
    assert maps[0] != maps[1]
    result = fewmask("predict", trained, source, "--out", tmp_path / "no", "--network", "teacher_9")
    assert (result.code, result.err) == (
        2,
        f"error: the run has no network 'teacher_9'\n  where: {trained}\n  valid: teacher_1, student_1\n",
    )


def test_the_ensemble_of_a_run_predicts_the_mean_of_its_members(
    fewmask: Fewmask, trained: Path, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = scenes / "unlabeled" / "scene_0004.png"
    result = fewmask("predict", trained, source, "--out", tmp_path / "no", "--network", "ensemble")
    assert result.code == 2  # mean teacher has none
    assert "valid: teacher_1, student_1\n" in result.err
    monkeypatch.setattr(MeanTeacher, "ensemble", ("teacher_1", "student_1"))
    assert fewmask("predict", trained, source, "--out", tmp_path, "--network", "ensemble", "--confidence").code == 0
    networks, _, _ = load_networks(RunFolder(trained))
    image = np.asarray(Image.open(source))
    mean = sum(probability(networks[name], image) for name in networks) / 2
    written = np.asarray(Image.open(tmp_path / "scene_0004_confidence.png")) / 255
    assert np.abs(written - mean.max(0).values.numpy()).max() <= 0.5 / 255 + 1e-6
    result = fewmask("predict", trained, source, "--out", tmp_path / "no", "--network", "bob")
    assert "valid: teacher_1, student_1, ensemble\n" in result.err


def test_masks_have_the_size_that_viewers_show(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = 6  # stored 48 wide and 20 high, shown upright
    Image.fromarray(noise((20, 48))).save(tmp_path / "turned.jpg", exif=tags)
    Image.fromarray(noise((1, 1))).save(tmp_path / "dot.png")
    out = tmp_path / "masks"
    assert fewmask("predict", tmp_path / "model", tmp_path / "turned.jpg", tmp_path / "dot.png", "--out", out).code == 0
    assert indices(out / "turned.png").shape == (48, 20)
    assert indices(out / "dot.png").shape == (1, 1)


def test_gray_color_and_sixteen_bit_images(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "color_model", channels=3)
    write_model(tmp_path / "gray_model", channels=1)
    gray = noise((24, 40), channels=1)
    Image.fromarray(gray).save(tmp_path / "gray.png")
    Image.fromarray(np.stack([gray] * 3, axis=2)).save(tmp_path / "gray_as_color.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(noise((24, 40))).save(tmp_path / "color.png")
    for model in ("color_model", "gray_model"):
        out = tmp_path / f"{model}_masks"
        names = ("gray", "gray_as_color", "deep")
        assert (
            fewmask("predict", tmp_path / model, *(tmp_path / f"{name}.png" for name in names), "--out", out).code == 0
        )
        first, *others = (indices(out / f"{name}.png") for name in names)
        assert len(np.unique(first)) > 1
        assert all(np.array_equal(first, other) for other in others)
    result = fewmask("predict", tmp_path / "gray_model", tmp_path / "color.png", "--out", tmp_path / "no")
    assert result.code == 1
    assert result.err.splitlines() == [
        f"0 of 1 masks in {tmp_path / 'no'}",
        f"warning: not predicted: {tmp_path / 'color.png'}: a color image, but the model was trained on gray ones "
        "(a gray image)",
    ]


def test_a_model_is_two_files(fewmask: Fewmask, trained: Path, scenes: Path, tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    for name in ("model.safetensors", "model.json"):
        shutil.copy(trained / name, shipped)
    for run, out in ((trained, "run"), (shipped, "shipped_masks")):
        assert fewmask("predict", run, scenes / "unlabeled", "--out", tmp_path / out, "--confidence").code == 0
    assert files(tmp_path / "run") == files(tmp_path / "shipped_masks")
    for name in files(tmp_path / "run"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "shipped_masks" / name).read_bytes()
    chosen = json.loads((shipped / "model.json").read_text())["predictor"]
    result = fewmask("predict", shipped, scenes / "unlabeled", "--out", tmp_path / "no", "--network", "other")
    assert (result.code, f"valid: {chosen}\n" in result.err) == (2, True)


def test_a_model_trained_on_resized_images_sees_resized_images(fewmask: Fewmask, tmp_path: Path) -> None:
    write_model(tmp_path / "model", resize=(16, 24))
    image = noise((40, 56))
    Image.fromarray(image).save(tmp_path / "a.png")
    assert fewmask("predict", tmp_path / "model", tmp_path / "a.png", "--out", tmp_path / "masks").code == 0
    network, _ = load_model(tmp_path / "model")
    expected = probability(network, resize_image(image, (16, 24)), size=(40, 56)).argmax(0).numpy()
    assert np.array_equal(indices(tmp_path / "masks" / "a.png"), expected)
    assert not np.array_equal(expected, probability(network, image).argmax(0).numpy())


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("model.json", "{", "the model card cannot be read (JSONDecodeError"),
        ("model.json", "[]", "the model card cannot be read (AttributeError"),
        ("model.json", '{"format_version": 1}', "the model card cannot be read (KeyError: 'classes')"),
        ("model.json", '{"format_version": 99}', "a model card of another version"),
        ("model.json", None, "no model here"),
        ("model.safetensors", "abc", "the model's weights cannot be read"),
        ("model.safetensors", None, "the model's weights cannot be read (No such file or directory"),
    ],
)
def test_a_damaged_model_is_one_error(fewmask: Fewmask, tmp_path: Path, name: str, content: str | None, what: str):
    write_model(tmp_path / "model")
    Image.fromarray(noise((20, 30))).save(tmp_path / "a.png")
    if content is None:
        (tmp_path / "model" / name).unlink()
    else:
        (tmp_path / "model" / name).write_text(content)
    result = fewmask("predict", tmp_path / "model", tmp_path / "a.png", "--out", tmp_path / "masks")
    assert result.code == 2
    assert result.err.startswith(f"error: {what}")
    assert f"  where: {tmp_path / 'model'}" in result.err
    assert "\n  valid: " in result.err
    assert not (tmp_path / "masks").exists()
