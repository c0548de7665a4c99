"""`fewmask demo` from end to end, in miniature."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from fewmask.commands.demo import CONTESTANTS, Scale, run_demo
from fewmask.data import synthetic
from fewmask.errors import ConfigError
from fewmask.settings import preset
from fewmask.training.forecast import duration
from tests.commands.conftest import Fewmask
from tests.commands.folders import files

SETTINGS = {
    "network": {"backbone": "test_resnet", "width": 16, "options": {}},
    "views": {"crop": [32, 48]},
    "training": {"batch": 2},
    "baseline": {"training": {"steps": 1}},
}


def tiny(steps: int = 2, val: int = 2) -> Scale:
    in_all = {"rml": 1 + 2 * steps}  # its baseline and two stages
    contestants = tuple(replace(each, steps=in_all.get(each.name, steps)) for each in CONTESTANTS)
    settings = SETTINGS | {"training": {"batch": 2, "steps": steps}}  # rml's steps are the preset's
    return Scale(labeled=3, unlabeled=4, val=val, size=(32, 48), contestants=contestants, settings=settings)


def test_the_strong_twin_gets_as_many_steps_as_rml_in_all() -> None:
    rml = preset("demo")
    in_all = rml["baseline"]["training"]["steps"] + rml["settings"]["stages"] * rml["training"]["steps"]
    assert [each.steps for each in CONTESTANTS[1:]] == [in_all, in_all]


def test_the_demo_compares_three_runs_and_starts_over_when_finished(
    fewmask: Fewmask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my demo"
    assert run_demo(out, seed=0, device="cpu", scale=tiny()) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"3 labeled and 4 unlabeled street scenes, 3 runs, about five minutes, all in {out}/\n")
    assert f"  fewmask predict '{out / 'rml'}' '{out / 'data/unlabeled'}' --out " in said.err
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary) == ["supervised", "supervised_strong", "rml", "seconds"]
    for name in ("supervised", "supervised_strong", "rml"):
        evaluation = json.loads((out / name / "evaluation.json").read_text())
        assert summary[name] == {"miou": evaluation["networks"][evaluation["selected"]]["miou"]}
        seconds = json.loads((out / name / "timing.json").read_text())["actual"]["seconds"]  # its baseline's, too
        assert f"{name:<18} mIoU {100 * summary[name]['miou']:.1f} % after {seconds:.0f} s\n" in said.err
        assert f'<td class="number">{duration(seconds)}</td>' in (out / "report.html").read_text()
    assert summary["seconds"] > 0
    page = (out / "report.html").read_text()
    assert all(name in page for name in ("supervised_strong", "rml", "street scenes, 3 masks"))
    with Image.open(out / "pictures.png") as picture:
        assert picture.width > 5 * 300  # image, truth and three answers side by side
    assert fewmask("check", out / "data").code == 0
    assert fewmask("evaluate", out / "rml").code == 0

    written = (out / "rml/model.safetensors").stat().st_mtime_ns
    assert run_demo(out, seed=1, device="cpu", scale=tiny()) == 0  # other scenes: nothing old may be left
    assert (out / "rml/model.safetensors").stat().st_mtime_ns > written
    assert json.loads((out / "summary.json").read_text()) != summary


def test_a_finished_demo_starts_over_even_if_nothing_changed(tmp_path: Path) -> None:
    scale = replace(tiny(steps=1, val=1), contestants=tuple(replace(each, steps=1) for each in CONTESTANTS[:1]))
    assert run_demo(tmp_path, seed=0, device="cpu", scale=scale) == 0
    first = (tmp_path / "summary.json").read_text()
    (tmp_path / "data/images/scene_0000.png").write_bytes(b"spoiled")
    assert run_demo(tmp_path, seed=0, device="cpu", scale=scale) == 0
    assert json.loads((tmp_path / "summary.json").read_text())["supervised"] == json.loads(first)["supervised"]


def test_nobody_knows_how_long_a_run_took_that_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_often = {**SETTINGS, "training": {"batch": 2, "checkpoint_every": 1}}
    scale = replace(tiny(), contestants=(replace(CONTESTANTS[0], steps=2),), settings=save_often)
    for _ in range(2):
        capsys.readouterr()
        assert run_demo(tmp_path, seed=0, device="cpu", scale=scale) == 0
        (tmp_path / "summary.json").unlink()
        (tmp_path / "supervised/checkpoints/step_00000002.pt").unlink()  # as if it had been killed there
    miou = json.loads((tmp_path / "supervised/evaluation.json").read_text())["networks"]["student_1"]["miou"]
    assert f"supervised         mIoU {100 * miou:.1f} %\n" in capsys.readouterr().err
    assert '<td class="number">\u2013</td>' in (tmp_path / "report.html").read_text(encoding="utf-8")


@contextmanager
def interrupt_when(reached: Callable[[], bool]) -> Iterator[None]:
    """Sends this process a real SIGINT as soon as the condition holds inside the block."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            if reached():
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def test_a_stopped_demo_says_how_to_go_on_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    metrics = out / "supervised/metrics.jsonl"
    log_often = {**SETTINGS, "training": {"batch": 2, "log_every": 1}}
    endless = replace(tiny(), contestants=(replace(CONTESTANTS[0], steps=100_000),), settings=log_often)
    with interrupt_when(metrics.exists):
        assert run_demo(out, seed=0, device="cpu", scale=endless) == 130
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == f"stopped; go on with: fewmask demo --out {out}"
    assert "Traceback" not in said
    assert not (out / "summary.json").exists()
    rendered, done = (out / "data/images/scene_0000.png").stat().st_mtime_ns, metrics.read_text()
    with interrupt_when(lambda: len(metrics.read_text()) > len(done)):
        assert run_demo(out, seed=0, device="cpu", scale=endless) == 130
    assert metrics.read_text().startswith(done)  # the same run, further on
    assert (out / "data/images/scene_0000.png").stat().st_mtime_ns == rendered


def test_an_interrupt_while_rendering_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def interrupted(seed: int, index: int, size: tuple[int, int]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(synthetic, "render_scene", interrupted)
    out = tmp_path / "demo"
    for seed, device, words in ((0, "cpu", ""), (3, "cpu", " --seed 3"), (3, "auto", " --seed 3 --device auto")):
        assert run_demo(out, seed=seed, device=device, scale=tiny()) == 130
        assert sorted(path.name for path in out.iterdir()) == ["demo.json"]
        assert capsys.readouterr().err.splitlines()[-1] == f"stopped; go on with: fewmask demo --out {out}{words}"


def test_wrong_words_are_refused_before_an_earlier_demo_is_deleted(fewmask: Fewmask, tmp_path: Path) -> None:
    kept = {"demo.json": '{"seed": 7}', "summary.json": "{}", "data/images/a.png": "", "rml/config.yaml": ""}
    for name, text in kept.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words, what in ((("--seed", -1), "seed cannot be -1"), (("--device", "gpu"), "'gpu' is not a device")):
        result = fewmask("demo", "--out", tmp_path, *words)
        assert (result.code, result.err.splitlines()[0]) == (2, f"error: {what}")
        assert files(tmp_path) == sorted(kept)
    assert {name: (tmp_path / name).read_text() for name in kept} == kept


def test_foreign_folders_are_refused(fewmask: Fewmask, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/a.txt").write_text("dear")
    (tmp_path / "letters/demo.json").write_text("[]")  # not ours
    result = fewmask("demo", "--out", tmp_path / "letters")
    assert (result.code, result.err) == (
        2,
        f"error: the folder is not empty and holds no demo\n  where: {tmp_path / 'letters'}\n"
        "  valid: an empty or new folder for --out\n",
    )
    assert sorted(path.name for path in (tmp_path / "letters").iterdir()) == ["a.txt", "demo.json"]
    with pytest.raises(ConfigError, match="this is a file, not a folder"):
        run_demo(tmp_path / "letters/a.txt", seed=0, device="cpu")
    with pytest.raises(ConfigError, match="the folder cannot be made: Not a directory"):
        run_demo(tmp_path / "letters/a.txt/x", seed=0, device="cpu")
