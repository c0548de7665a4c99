"""`fewmask bench` with tiny networks on the CPU: what the JSON holds, and how its numbers belong together."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from fewmask.benchmarks.summary import summary

TINY = (
    "network.backbone=test_resnet",
    "network.width=16",
    "network.options={}",
    "data.resize=32x48",
    "views.crop=32x32",
    "training.batch=2",
)
KEYS = {
    "preset", "ms", "reference_ms", "reference_tries_ms", "reference_busy_ms", "launch_us", "ratio", "independent_ms",
    "independent_ratio",
    "tflops", "least_tflop", "matrix_tflops", "share_of_matrix_rate", "peak_memory_gib", "reserved_memory_gib",
    "data_ms", "data_share", "images_per_second", "machine", "torch", "date", "command",
}  # fmt: skip


def bench(fewmask, *words: object) -> list[dict]:
    result = fewmask("bench", *words, "--device", "cpu", "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_step_with_reference(fewmask, tmp_path: Path):
    out = tmp_path / "step.json"
    words = ("--preset", "paper-voc", "--reference", "--steps", 2, "--out", out, *TINY)
    (step,) = bench(fewmask, "step", *words)
    assert set(step) >= KEYS
    assert json.loads(out.read_text()) == [step]
    assert step["preset"] == "paper-voc"
    assert step["reference_tries_ms"] == [step["reference_ms"]]  # one process on a CPU, three on a GPU
    assert step["reference_busy_ms"] is step["launch_us"] is None  # there is no GPU that could wait for its host
    assert all(step[key] > 0 for key in ("ms", "reference_ms", "independent_ms", "data_ms", "peak_memory_gib"))
    assert step["reserved_memory_gib"] >= step["peak_memory_gib"]
    assert step["ratio"] == pytest.approx(step["reference_ms"] / step["ms"], rel=1e-4)
    assert step["independent_ratio"] == pytest.approx(step["reference_ms"] / step["independent_ms"], rel=1e-4)
    assert step["images_per_second"] == pytest.approx(4000 / step["ms"], rel=1e-4)
    assert step["tflops"] == pytest.approx(1000 * step["least_tflop"] / step["ms"], rel=1e-4)
    assert step["share_of_matrix_rate"] == pytest.approx(step["tflops"] / step["matrix_tflops"], rel=1e-4)
    assert step["data_share"] == pytest.approx(step["data_ms"] / step["ms"], rel=1e-4)
    assert step["command"].startswith(
        "fewmask bench step --preset paper-voc --reference --steps 2 --device cpu network"
    )
    assert "the host takes" not in summary(step)
    assert f"{step['peak_memory_gib']:.2f} GiB of this process\n" in summary(step)
    taken = {"peak_memory_gib": 9.0, "reserved_memory_gib": 12.34, "machine": "one GPU"}
    on_gpu = summary(
        step | taken | {"reference_busy_ms": 244.61, "launch_us": 6.34, "reference_tries_ms": [301.2, 253.04]}
    )
    assert "9.00 GiB of tensors, 12.34 GiB taken from the device" in on_gpu
    assert "the fastest process of 301.2, 253.0 ms" in on_gpu
    assert "the GPU works for 244.6 ms of it; the host takes 6.3 µs to start the smallest kernel" in on_gpu


def test_several_presets_without_reference(fewmask, tmp_path: Path):
    words = ("--preset", "camvid", "--preset", "pets", "--steps", 1, "--device", "cpu", *TINY)
    result = fewmask("bench", "step", *words, "--out", tmp_path / "step.json")
    assert result.code == 0
    camvid, pets = json.loads((tmp_path / "step.json").read_text())
    assert (camvid["preset"], pets["preset"]) == ("camvid", "pets")
    assert KEYS <= set(camvid) == set(pets)
    assert [camvid[key] for key in ("reference_ms", "ratio", "independent_ms", "independent_ratio")] == [None] * 4
    assert camvid["least_tflop"] < pets["least_tflop"]  # 11 classes and 38
    assert result.out.count("2 labeled + 2 unlabeled crops of 32x32, test_resnet, fp32") == 2
    assert f"{camvid['ms']:.1f} ms (median of 1)" in result.out
    assert "as research code" not in result.out


def test_training_beside_the_bare_step(fewmask):
    words = ("--preset", "camvid", "--steps", 13, "training.log_every=5", "training.checkpoint_every=11", *TINY)
    (found,) = bench(fewmask, "train", *words)
    assert (found["steps"], found["checkpoints"], found["planned_steps"]) == (3, 1, 4000)  # from step 10 to 13
    assert found["ms"] == pytest.approx(1000 * found["seconds"] / 3, rel=1e-4)
    assert found["overhead"] == pytest.approx(found["ms"] / found["step_ms"] - 1, rel=1e-3, abs=1e-4)
    assert found["planned_hours"] == pytest.approx(4000 * found["ms"] / 3_600_000, rel=1e-4)


def test_training_too_short_to_be_timed(fewmask):
    result = fewmask("bench", "train", "--preset", "camvid", "--steps", 50, "--device", "cpu", *TINY)
    assert (result.code, "100 or more" in result.err) == (2, True)


@pytest.mark.parametrize("command", ["step", "predict", "data"])
@pytest.mark.parametrize("bad", ["voc", "general"])
def test_unknown_presets(fewmask, command: str, bad: str):
    """Also the last one, before the first is measured."""
    result = fewmask("bench", command, "--preset", "camvid", "--preset", bad, "--device", "cpu")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        f"error: {'no image size is known for the' if bad == 'general' else 'there is no'} pres"
    )
    assert "paper-voc" in result.err


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("command", ["step", "predict", "data"])
def test_what_was_measured_is_kept_when_the_next_one_fails(fewmask, tmp_path: Path, command: str, as_json: bool):
    """The real measurements, but for pets, which the user stops."""
    out, room, name = tmp_path / "kept.json", f"fewmask.benchmarks.{command}", f"measure_{command}"
    real = getattr(importlib.import_module(room), name)

    def stopped(config, *given, **named):
        if (config if command == "data" else config.preset) == "pets":
            raise KeyboardInterrupt
        return real(config, *given, **named)

    words = ("--preset", "camvid", "--preset", "pets", "--steps", 1, "--device", "cpu", "--out", out, *TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{room}.{name}", stopped)
        result = fewmask("bench", command, *words, *(["--json"] if as_json else []))
    (camvid,) = json.loads(out.read_text())
    assert (result.code, camvid["preset"]) == (130, "camvid")
    assert json.loads(result.out) == [camvid] if as_json else result.out == f"{summary(camvid)}\n"


def test_a_step_that_no_memory_holds_is_an_error_with_a_way_out(fewmask):
    result = fewmask("bench", "step", "--preset", "camvid", "--device", "cpu", *TINY, "views.crop=400000x400000")
    assert (result.code, result.out) == (2, "")
    assert re.search(
        r"error: out of memory: .*tried to allocate \d+ bytes\n  where: camvid\n  valid: a smaller training.batch",
        result.err,
    )
    assert "Traceback" not in result.err


def test_only_the_papers_method_is_timed(fewmask):
    result = fewmask("bench", "step", "--preset", "camvid", "method=supervised")
    assert (result.code, "method=rml" in result.err) == (2, True)


@pytest.mark.parametrize("word", ["cutmix=false", "training.precision=fp64"])
def test_what_cannot_be_compared_is_said_first(fewmask, word: str):
    result = fewmask("bench", "step", "--preset", "camvid", "--reference", "--device", "cpu", word)
    assert (result.code, "--reference" in result.err) == (2, True)


def test_a_preset_without_color_noise_has_a_reference(fewmask):
    (step,) = bench(fewmask, "step", "--preset", "camvid", "--reference", "--steps", 1, *TINY, "photometric=false")
    assert step["ratio"] == pytest.approx(step["reference_ms"] / step["ms"], rel=1e-4)


def test_predict_whole_and_in_tiles(fewmask):
    for tile in ((), ("--tile", 16)):
        (measured,) = bench(fewmask, "predict", "--preset", "camvid", "--steps", 1, *tile, *TINY)
        assert measured["ms"] == min(row["ms_per_image"] for row in measured["batches"]) > 0
        assert [row["batch"] for row in measured["batches"]] == [1, 8]
        for row in measured["batches"]:
            assert row["images_per_second"] == pytest.approx(1000 / row["ms_per_image"], rel=1e-4)
        assert measured["mode"] == ("tiles of 16x16" if tile else "whole")
        assert measured["size"] == [32, 48]


def test_predict_with_the_model_of_a_run(fewmask, trained: Path):
    (measured,) = bench(fewmask, "predict", "--preset", "camvid", "--model", trained, "--steps", 1, "data.resize=32x48")
    assert (measured["model"], measured["command"].split()[3:7]) == (
        trained.name,
        ["--preset", "camvid", "--model", trained.name],
    )
    missing = fewmask("bench", "predict", "--preset", "camvid", "--model", trained / "nothing")
    assert (missing.code, "no model here" in missing.err) == (2, True)


def test_data(fewmask):
    words = ("--preset", "camvid", "--files", 3, "--steps", 1, "photometric=true", *TINY[3:])
    (measured,) = bench(fewmask, "data", *words)
    assert [row["format"] for row in measured["decoding"]] == ["png", "jpg"]
    for row in measured["decoding"]:
        pixels = row["megabytes_per_second"] / row["images_per_second"] * 1e6
        assert pixels == pytest.approx(32 * 48 * 3, rel=1e-4)
    assert measured["views_per_batch"] == 2 + 2 + 2 * 2  # labeled, weak, two strong views
    assert measured["views_per_second"] == pytest.approx(8000 / measured["batch_ms"], rel=1e-4)


def test_growth(fewmask, tmp_path: Path):
    picture = tmp_path / "growth.png"
    words = ("--growth", "--largest", 100, "--steps", 1, "--picture", picture, "--budget", 0.2)
    (measured,) = bench(fewmask, "data", *words)
    (row,) = measured["rows"]
    assert (row["unlabeled_images"], row["staged"], measured["budget_mib"]) == (100, True, 0.2)
    cells = 16 * 4 * 2  # of four classes at stride 8, two bytes each
    assert row["store_mib"] == pytest.approx(100 * (32 * 32 * 3 + cells) / 2**20, rel=1e-4)
    assert all(value > 0 for value in row.values())
    assert Image.open(picture).size[0] > 1000


@pytest.mark.parametrize(
    "words",
    [
        ("--picture", "p.png"),
        ("--growth", "--picture", "p.txt"),
        ("--growth", "training.batch=2"),
        ("--growth", "--preset", "pets"),
        ("--out", "no/f"),
        ("--out", "."),
    ],
)
def test_what_would_fail_after_minutes_fails_at_once(fewmask, words: tuple[str, ...]):
    result = fewmask("bench", "data", *words)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error:")
