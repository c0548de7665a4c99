"""Every preset says what it promises, and trains two steps with its true network and crop on a miniature data set."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from torchvision.models.segmentation import DeepLabV3_ResNet101_Weights, deeplabv3_resnet101

from fewmask.cli import run
from fewmask.config import Config
from fewmask.methods.rml import RMLSettings, RobustMutualLearning
from fewmask.networks.build import build_network
from fewmask.networks.weight_matching import match_weights
from fewmask.settings import list_presets, preset, resolve
from fewmask.training.checkpoint import list_checkpoints, load_checkpoint
from fewmask.training.learners import baseline_config
from tests.training.layouts import Size, write_camvid, write_cityscapes, write_demo, write_pets, write_voc

PAPER = ("paper-cityscapes", "paper-voc", "paper-voc-coco")
SMALL = (
    "training.batch=1",
    "training.steps=1",  # in each of the two stages, so two steps and what lies between
    "training.log_every=1",
    "training.keep=1",
    "baseline.training.steps=1",
    # A third of the time, where the processor has it
    f"training.precision={'bf16' if torch.ops.mkldnn._is_mkldnn_bf16_supported() else 'fp32'}",
)
FEW = ("training.unlabeled_batch=1", "settings.pairs=independent", "--labels", "1", "--device", "cpu")
CASES: dict[str, tuple[Callable[[Path, Size], Path], Size, tuple[str, ...]]] = {
    # Images below the crop, which pad it: all of them are swept and scored, by two and by four networks
    "paper-cityscapes": (write_cityscapes, (96, 192), ("data.resize=96x192", "evaluation.size=none")),
    "paper-voc": (write_voc, (97, 129), ()),
    "camvid": (write_camvid, (90, 120), ()),
    "pets": (write_pets, (96, 96), ()),
    "demo": (write_demo, (96, 128), ()),
    "general": (write_demo, (96, 128), ()),
}


def settings_of(name: str) -> RMLSettings:
    return RMLSettings(**resolve(preset(name)).settings)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Four networks and two optimizers, several times: gigabytes, which must not stay."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_preset_trains_two_steps(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One labeled image and one unlabeled per step, with partners drawn apart; all else is as a user gets it."""
    write, size, words = CASES[name]
    data, out = write(folder / "data", size), folder / "run"
    words = ("network.pretrained=none", *SMALL, *words, *FEW)  # nothing is downloaded
    assert run(["train", str(data), "--out", str(out), "--preset", name, *words]) == 0
    said = capsys.readouterr().err
    assert "1 labeled, 2 unlabeled, 1 validation images" in said
    decay = RMLSettings(**resolve(preset(name), {"training": {"steps": 1}}).settings).decay
    assert f"averages   teachers keep {decay:g} a step" in said
    check_settings(name, out)
    check_losses(name, out)
    assert [path.stem for path in list_checkpoints(out / "checkpoints")] == ["step_00000002"]
    check_prediction(folder, out)


def check_settings(name: str, out: Path) -> None:
    """The network, the crop and both optimizers of the run are the preset's."""
    asked = resolve(preset(name))
    read = (yaml.safe_load((place / "config.yaml").read_text()) for place in (out, out / "baseline"))
    ran, baseline = (Config(**values) for values in read)
    assert ran.network == baseline.network == asked.network.model_copy(update={"pretrained": "none"})
    crop = asked.views.crop or (96, 128)  # that of the images
    assert ran.views == baseline.views == asked.views.model_copy(update={"crop": crop})
    assert (ran.optimizer, baseline.optimizer) == (
        asked.optimizer,
        baseline_config(asked, "student_1", seed=0).optimizer,
    )


def check_losses(name: str, out: Path) -> None:
    """Finite numbers for both students in both stages; the schedule starts anew."""
    rate = resolve(preset(name)).optimizer.lr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["lr"]) for line in lines] == [(1, rate), (2, rate)]
    for line in lines:
        assert min(line["loss/labeled"], line["loss/unlabeled"]) > 0
        assert min(line["student_1/gradient_norm"], line["student_2/gradient_norm"]) > 0
        assert all(math.isfinite(value) for value in line.values()), line


def check_prediction(folder: Path, out: Path) -> None:
    """The model that ships answers at an image's own size."""
    image = folder / "photo.png"
    Image.effect_noise((75, 50), 60).convert("RGB").save(image)
    assert run(["predict", str(out), str(image), "--out", str(folder / "masks")]) == 0
    with Image.open(folder / "masks" / "photo.png") as mask:
        assert mask.size == (75, 50)


def write_coco_weights(home: Path) -> Path:
    """A file of torchvision's names and shapes in its cache, so that nothing is downloaded; the numbers are random."""
    path = home / "hub" / "checkpoints" / Path(DeepLabV3_ResNet101_Weights.COCO_WITH_VOC_LABELS_V1.url).name
    path.parent.mkdir(parents=True)
    torch.manual_seed(1)  # not the numbers that a network would draw by itself
    network = deeplabv3_resnet101(weights=None, weights_backbone=None, num_classes=21, aux_loss=True)
    torch.save(network.state_dict(), path)
    return path


@pytest.mark.slow
def test_paper_voc_coco_trains_from_torchvisions_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps as above, of the numbers in the file: the first stage starts from them."""
    monkeypatch.setenv("TORCH_HOME", str(folder / "torch"))
    weights = write_coco_weights(folder / "torch")
    data, out = write_voc(folder / "data", (48, 64)), folder / "run"
    still = "baseline.optimizer.lr=1e-30"  # the stage starts from what was loaded
    small = (still, *SMALL, *FEW, "training.keep=3")
    assert run(["train", str(data), "--out", str(out), "--preset", "paper-voc-coco", *small]) == 0
    (line,) = {line.strip() for line in capsys.readouterr().err.splitlines() if "weights: torchvision" in line}
    assert line.startswith("weights: torchvision, COCO with the VOC classes: 520 of 520 backbone tensors;")
    assert yaml.safe_load((out / "config.yaml").read_text())["network"]["pretrained"] == "coco-voc-classes"
    given = torch.load(weights, weights_only=True)["backbone.conv1.weight"]
    start = load_checkpoint(out / "checkpoints" / "step_00000000.pt")
    torch.testing.assert_close(start["network.teacher_2.backbone.body.conv1.weight"], given, rtol=0, atol=1e-12)
    check_losses("paper-voc-coco", out)


def test_every_preset_is_trained() -> None:
    assert {*CASES, "paper-voc-coco"} == set(list_presets())


def test_paper_voc_coco_is_paper_voc_with_other_weights() -> None:
    one, other = (resolve(preset(name)).model_dump(exclude={"preset"}) for name in ("paper-voc", "paper-voc-coco"))
    assert (one["network"].pop("pretrained"), other["network"].pop("pretrained")) == ("hub", "coco-voc-classes")
    assert one == other


def test_torchvisions_coco_weights_fit_the_preset() -> None:
    """By names and shapes, without a download: every tensor of the backbone is in torchvision's DeepLabv3."""
    with torch.device("meta"):
        published = deeplabv3_resnet101(weights=None, weights_backbone=None, aux_loss=True).state_dict()
    network = resolve(preset("paper-voc-coco"), words=["network.pretrained=none"]).network
    own = build_network(network, num_classes=21).backbone.body.state_dict()
    _, report = match_weights(own, published, "torchvision")
    assert (report.missing, report.wrong_shape) == ((), ())
    assert len(report.matched) == report.total > 500


@pytest.mark.parametrize("name", PAPER)
def test_paper_presets_set_what_the_paper_sets(name: str) -> None:
    settings = settings_of(name).model_dump()
    assert resolve(preset(name)).network.head == "deeplabv2"
    settings["temperature"] = settings["temperature"] or 1.0  # that head's own
    stated = {**RobustMutualLearning.paper_settings, "pairs": "batch"}  # the deviation that their comment names
    assert {key: settings[key] for key in stated} == stated
    assert (settings["decay"], settings["momentum"]) == (0.999, 0.9999)


@pytest.mark.parametrize(
    ("name", "steps", "batch", "crop", "scale"),
    [
        ("paper-cityscapes", 90_000, 4, (256, 512), (1.0, 1.0)),
        ("paper-voc", 60_000, 10, (321, 321), (0.5, 1.5)),
        ("paper-voc-coco", 60_000, 10, (321, 321), (0.5, 1.5)),
    ],
)
def test_paper_presets_train_as_the_paper_does(name: str, steps: int, batch: int, crop: Size, scale: Size) -> None:
    """The paper's numbers, and ProDA's where it has none: one rate in the stages, two in the baseline."""
    config = resolve(preset(name))
    baseline = baseline_config(config, "student_1", seed=0)
    assert config.method == "rml"
    for each in (config, baseline):
        assert (each.training.steps, each.training.batch) == (steps, batch)
        assert (each.views.crop, each.views.scale) == (crop, scale)
        optimizer = each.optimizer
        assert (optimizer.name, optimizer.schedule, optimizer.power) == ("sgd", "poly", 0.9)
        assert (optimizer.momentum, optimizer.weight_decay) == (0.9, 2e-4)
        assert each.network.backbone.startswith("resnet101")
    assert (config.optimizer.lr, config.optimizer.head_lr) == (1e-4, 1e-4)
    assert (baseline.optimizer.lr, baseline.optimizer.head_lr) == (2.5e-4, 2.5e-3)
    assert baseline.settings == {}  # weak augmentation, no noise


@pytest.mark.parametrize("name", list_presets())
def test_horizons_fit_into_a_stage(name: str) -> None:
    """Within a stage teachers forget nearly all of their start, and prototypes most of it."""
    given, steps = preset(name)["settings"], resolve(preset(name)).training.steps
    assert given.keys() >= {"decay_horizon", "momentum_horizon"}
    assert settings_of(name).decay ** steps < 0.1
    assert settings_of(name).momentum ** steps < 0.1


@pytest.mark.parametrize(("name", "horizons"), [("camvid", (200, 800)), ("pets", (250, 1000)), ("demo", (30, 30))])
def test_horizons_of_short_presets_scale_with_the_stage(name: str, horizons: tuple[int, int]) -> None:
    """A stage of half the length looks back over half as many steps; those of the paper are stated in steps."""
    for stage, expected in ((1, horizons), (2, tuple(each // 2 for each in horizons))):
        config = resolve(preset(name), {"training": {"steps": resolve(preset(name)).training.steps // stage}})
        assert (config.settings["decay_horizon"], config.settings["momentum_horizon"]) == expected
    paper = resolve(preset("paper-voc"), words=["steps=500"])
    assert (paper.settings["decay_horizon"], paper.settings["momentum_horizon"]) == (1000, 10_000)
