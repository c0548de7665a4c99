"""What is advised when a step does not fit: the line by hand, and smaller steps until they fit."""

import re
from pathlib import Path

import pytest
import torch

from fewmask.config import TrainingSettings
from fewmask.errors import TrainingError
from fewmask.training import fitting, foresight
from fewmask.training.fitting import (
    MemoryLine,
    Misfit,
    accumulations,
    advice,
    smaller_batch,
    smaller_config,
    smaller_crops,
)
from fewmask.training.observer import Observer
from fewmask.training.stepper import Stepper
from fewmask.types import Batch, Progress, Step
from tests.training.runs import NOISY, tiny_config, tiny_session, train_here

LINE = MemoryLine.through((4, 10), (2, 6))  # 2 + 2 * batch
MISFIT = Misfit(batch=16, failed=16, unit=2, fitted=4, line=LINE, room=21)


def test_the_line_through_two_steps():
    assert (LINE.fixed, LINE.per_image) == (2, 2)
    assert LINE.at(16) == 34
    assert LINE.share(16, room=21) == pytest.approx(19 / 32)
    assert MemoryLine.through((4, 5), (2, 6)).per_image == 0  # more images never take less


def test_the_largest_batch_is_a_multiple_between_what_fitted_and_what_failed():
    assert MISFIT.largest_batch() == 8  # 9.5 by the line
    assert Misfit(16, 16, 1, 4, LINE, 21).largest_batch() == 9
    assert Misfit(16, 16, 2, 8, LINE, 5).largest_batch() == 8  # seen to fit, whatever the line says
    assert Misfit(16, 16, 2, 4, LINE, 1000).largest_batch() == 14  # seen to fail
    assert Misfit(16, 16, 2, 4, None, 21).largest_batch() == 4
    assert Misfit(16, 8, 2, 4, LINE, 21).largest_batch() == 6
    assert Misfit(16, 16, 2, None, None, 21).largest_batch() is None


def test_the_batch_in_equal_parts():
    assert list(accumulations(TrainingSettings(batch=16), 8, 2)) == [2]
    assert list(accumulations(TrainingSettings(batch=16), 7, 2)) == [4]
    assert list(accumulations(TrainingSettings(batch=12, unlabeled_batch=6), 5, 2)) == [3]
    assert list(accumulations(TrainingSettings(batch=7), 5, 1)) == [7]
    assert list(accumulations(TrainingSettings(batch=6), 1, 2)) == []


def test_labeled_and_unlabeled_images_shrink_together():
    assert smaller_batch(TrainingSettings(batch=16), 8, 2) == ["training.batch=8"]
    both = TrainingSettings(batch=16, unlabeled_batch=12)
    assert smaller_batch(both, 6, 2) == ["training.batch=6", "training.unlabeled_batch=4"]  # 4.5


def test_a_smaller_crop_by_the_root_of_the_share():
    """sqrt(19 / 32) = 0.77: 197 and 394 pixels, rounded down to multiples of 32."""
    assert list(smaller_crops(MISFIT, (256, 512))) == [(192, 384)]
    assert list(smaller_crops(MISFIT, (32, 32))) == []


def test_every_advice_stands_for_itself():
    found = advice(MISFIT, TrainingSettings(batch=16), (256, 512))
    assert found == ["training.accumulate=2", "training.batch=8", "views.crop=192x384"]
    assert advice(Misfit(16, 16, 2, None, None, 1), TrainingSettings(batch=16), (64, 64)) == []


def test_a_smaller_step_is_eager(data: Path):
    config = smaller_config(tiny_config(data, "training.batch=16", "training.unlabeled_batch=8"), 4, 2)
    assert (config.training.batch, config.training.unlabeled_batch, config.training.capture) == (4, 2, False)


@pytest.mark.parametrize(("most", "told"), [(4, "training.batch="), (0, "a smaller views.crop")])
def test_smaller_batches_are_tried_until_two_fit(data: Path, most: int, told: str):
    session = tiny_session(data, *NOISY, "training.batch=16", "training.steps=100")
    step, seen = session.method.step, []

    def small_machine(batch: Batch, progress: Progress) -> Step:
        """The real step, where there is memory for so many images."""
        seen.append(len(batch.image))
        if len(batch.image) > most:
            raise torch.OutOfMemoryError("out of memory")
        yield from step(batch, progress)

    session.method.step = small_machine  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="does not fit into the memory of cpu") as caught:
        foresight.foresee(session, 0, Observer())
    assert seen == [16, 8, 4, 2]
    assert told in caught.value.fix
    known, separator, untried = caught.value.fix.rpartition("may be enough: ")
    assert separator
    assert "training.checkpointing=true" in untried  # nobody has tried it
    assert ("by steps that were tried" in known) == ("training.batch=" in known) == (most > 0)
    assert "training.batch=16, views.crop=32x48" in caught.value.where
    advised = [int(word) for word in re.findall(r"training.batch=(\d+)", caught.value.fix)]
    assert all(most <= batch < 8 for batch in advised)


@pytest.mark.parametrize(("room", "fits"), [(2**20, False), (2**40, True)])
def test_on_a_cpu_large_steps_are_judged_by_small_ones_first(data: Path, monkeypatch, room: int, fits: bool):
    """There a process that takes too much would be killed, so the whole batch must not be tried."""
    session = tiny_session(data, *NOISY, "training.batch=16", "training.steps=100")
    before = {name: value.clone() for name, value in session.method.state_dict().items()}
    step, seen = session.method.step, []

    def watched(batch: Batch, progress: Progress) -> Step:
        seen.append(len(batch.image))
        yield from step(batch, progress)

    session.method.step = watched  # type: ignore[method-assign]
    monkeypatch.setattr(fitting, "_LARGE", 0)
    monkeypatch.setattr(fitting, "available", lambda device: room)
    monkeypatch.setattr(fitting, "held", lambda device: 0)
    error = fitting.foreseen_misfit(session)
    assert seen == [2, 4]
    assert (error is None) == fits
    if error is not None:
        assert "a step does not fit into the memory of cpu: 0.0 GiB can be used, about " in str(error)
    for name, value in session.method.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_small_steps_are_simply_tried(data: Path):
    session = tiny_session(data, *NOISY, "training.batch=16", "training.steps=100")
    session.method.step = None  # type: ignore[method-assign,assignment]
    assert fitting.foreseen_misfit(session) is None


def test_a_run_that_does_not_fit_leaves_its_folder_to_another(data: Path, tmp_path: Path, monkeypatch):
    """Nothing was trained, so the same --out may be used with the settings that the error names."""
    real, room = Stepper.__call__, [0]

    def small_machine(stepper: Stepper, step: int) -> None:
        if len(stepper.maker(torch.tensor(step)).image) > room[0]:
            raise torch.OutOfMemoryError("out of memory")
        real(stepper, step)

    monkeypatch.setattr(Stepper, "__call__", small_machine)
    words = (*NOISY, "training.steps=100", "training.batch=4")
    with pytest.raises(TrainingError, match="does not fit into the memory of cpu"):
        train_here(data, tmp_path / "run", *words)
    assert not (tmp_path / "run/config.yaml").exists()
    room[0] = 2
    train_here(data, tmp_path / "run", *NOISY, "training.steps=2", "training.batch=2")
    assert (tmp_path / "run/model.safetensors").exists()
