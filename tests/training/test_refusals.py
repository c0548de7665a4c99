"""What networks would refuse in the middle of a run is one error before anything is written."""

import math
from pathlib import Path
from typing import Any

import pytest

from fewmask.config import NetworkSettings
from fewmask.errors import ConfigError
from fewmask.networks.build import build_network
from fewmask.training.live_norms import fewest_values
from fewmask.training.run import run_training
from tests.networks.small import settings
from tests.training.runs import Heard, step_metrics, tiny_config, tiny_session

ONE_SIZE = NetworkSettings(
    backbone="beit_base_patch16_224",
    head="setr_naive",
    stride=16,
    width=16,
    options={"embed_dim": 24, "depth": 3, "num_heads": 2, "img_size": 32},
)


def train(data: Path, out: Path, *words: str, method: str, **parts: Any) -> None:
    """`parts` of the settings are put in the place of the others."""
    config = tiny_config(data, "training.steps=1", *words, method=method).model_copy(update=parts)
    run_training(config, out, device="cpu", resume=False, init=None, observer=Heard())


def refused(data: Path, out: Path, *words: str, method: str = "supervised", **parts: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        train(data, out, *words, method=method, **parts)
    assert not out.exists()
    return caught.value


@pytest.mark.parametrize("kind", ["cross_entropy", "dice"])
def test_class_weights_are_refused_where_the_loss_has_no_use_for_them(data, tmp_path, kind):
    weights = ("loss.class_weights=1,2,3", "loss.kind=ohem")
    error = refused(data, tmp_path / "run", *weights)
    assert error.what == "ohem counts the pixels that it keeps alike, so class weights would do nothing"
    without, _, kinds = error.fix.partition(", or ")
    assert kind in kinds
    assert tiny_session(data, *weights, without, method="supervised").method.labeled_loss.class_weights is None
    session = tiny_session(data, *weights, f"loss.kind={kind}", method="supervised")
    assert session.method.labeled_loss.class_weights.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "where", "first"),
    [
        (("training.batch=1", "views.crop=8x8"), "training.batch, views.crop", "training.batch=2"),
        (
            ("training.accumulate=4", "views.crop=8x8"),
            "training.batch, training.accumulate, views.crop",
            "training.accumulate=2",
        ),
        (
            ("training.batch=1", "training.accumulate=3", "views.crop=4x7"),
            "training.batch, training.accumulate, views.crop",
            "training.batch=6",
        ),
    ],
)
def test_one_value_for_live_norms_is_refused(data, tmp_path, words, where, first):
    error = refused(data, tmp_path / "run", *words)
    assert "BatchNorm layer of test_resnet a single value per channel" in error.what
    assert (error.where, error.fix) == (where, f"{first}, or views.crop=9x9 or more, or network.frozen_norm=true")
    tiny_session(data, *words, first, method="supervised").stepper(0)


@pytest.mark.parametrize("way", ["views.crop=9x9", "views.crop=8x9", "network.frozen_norm=true"])
def test_one_image_is_enough_for_more_cells_and_for_norms_at_rest(data, way):
    session = tiny_session(data, "training.batch=1", "views.crop=8x8", way, method="supervised")
    assert math.isfinite(step_metrics(session, 1)[0]["student_1/gradient_norm"])


def test_a_norm_behind_a_mean_over_the_image_needs_a_second_image(data, tmp_path):
    error = refused(data, tmp_path / "run", "network.backbone=resnest14d", "network.options={}", "training.batch=1")
    assert "one crop of 32x48 alone" in error.what
    assert error.fix == "training.batch=2, or network.frozen_norm=true"  # a larger crop would not help


def test_pooled_branches_of_heads_have_no_norm_to_fear():
    """The image's mean in deeplabv3plus and the gate of deeplabv2; and a network without BatchNorm is free."""
    net = build_network(settings(head="deeplabv3plus", stride=4, deep_stride=16), num_classes=3)
    assert [fewest_values(net, size) for size in ((16, 16), (16, 17), (64, 64))] == [1, 2, 16]
    assert net.training
    free = build_network(settings(backbone="test_convnext", options={}), num_classes=3)
    assert fewest_values(free, (8, 8)) == 2


@pytest.mark.parametrize("where", ["run", "section"])
def test_a_baseline_is_looked_at_before_its_run_is_written(data, tmp_path, where):
    """Beside two unlabeled images one labeled image is fine, but its supervised baseline sees it alone."""
    words = ("views.crop=8x8", "training.unlabeled_batch=2", "settings.stages=1")
    words += ("training.batch=1",) if where == "run" else ()
    section = {} if where == "run" else {"training": {"batch": 1}}
    error = refused(data, tmp_path / "run", *words, method="rml", baseline=section)
    assert error.where == "baseline.training.batch, baseline.views.crop"
    assert error.fix.startswith("baseline.training.batch=2, or baseline.views.crop=9x9 or more")
    if where == "section":
        frozen = section | {"network": {"frozen_norm": True}}
        train(data, tmp_path / "frozen", *words, method="rml", baseline=frozen)


def test_teachers_in_train_mode_see_unlabeled_images_alone(data, tmp_path):
    words = ("views.crop=8x8", "training.batch=4", "training.unlabeled_batch=1", "settings.cutmix=false")
    error = refused(data, tmp_path / "run", *words, "settings.teacher_mode=train", method="rml")
    assert error.fix.startswith("training.unlabeled_batch=2, or views.crop=9x9 or more")


@pytest.mark.parametrize(
    ("words", "method", "where", "fix"),
    [
        (("views.crop=32x48",), "supervised", "views.crop", "views.crop=32x32"),
        ((), "supervised", "evaluation", "evaluation.mode=tiled evaluation.tile=32x32"),
        (("evaluation.mode=tiled", "evaluation.tile=32x32"), "rml", "images", "data.resize=32x32"),
        (("settings.p0_scales=1,1.5",), "rml", "settings.p0_scales", "1.0"),
    ],
)
def test_a_network_of_one_image_size_is_asked_for_all_that_it_would_see(data, tmp_path, words, method, where, fix):
    error = refused(data, tmp_path / "run", "views.crop=32x32", *words, method=method, network=ONE_SIZE)
    assert "beit_base_patch16_224 takes images of" in error.what
    assert error.where.endswith(where)
    assert error.fix.startswith(fix)


def test_a_network_of_one_image_size_trains_where_it_sees_no_other(data, tmp_path):
    tiled = ("evaluation.mode=tiled", "evaluation.tile=32x32", "training.sweep_pixels=1024")  # of 32 x 32 all the same
    train(data, tmp_path / "tiled", *tiled, "views.crop=32x32", "settings.stages=1", method="rml", network=ONE_SIZE)
    resized = ("views.crop=32x32", "data.resize=32x32")
    train(data, tmp_path / "resized", *resized, method="supervised", network=ONE_SIZE)
    assert [(tmp_path / name / "model.safetensors").is_file() for name in ("tiled", "resized")] == [True, True]
