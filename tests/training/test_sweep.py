"""The pass over all images before a stage: how much a network sees at once, and in which mode."""

from pathlib import Path

import torch

from fewmask.training import stages
from fewmask.training.observer import Observer
from tests.training.runs import tiny_session


def test_no_pass_of_a_sweep_shows_more_pixels_than_it_may(data: Path):
    """Enlarged views, too: of 32x48 images three share a pass, and one that is 2.5 times as large is tiled."""
    limit, seen = 3 * 32 * 48, []
    words = (f"training.sweep_pixels={limit}", "settings.p0_scales=1.0,1.5,2.5", "settings.p0_flip=true")
    session = tiny_session(data, *words, method="rml")
    for teacher in (session.method.teacher_1, session.method.teacher_2):
        teacher.register_forward_hook(lambda network, images, answer: seen.append(tuple(images[0].shape)))
    stages.sweep(session, Observer())
    assert max(count * height * width for count, _, height, width in seen) <= limit
    assert {shape[0] for shape in seen if shape[2:] == (32, 48)} == {3, 1}  # six labeled, seven unlabeled images


def test_students_that_are_swept_answer_as_teachers_do(data: Path):
    """With `restart: baseline` they hold the last teachers' weights, and train in train mode otherwise."""
    found = []
    for restart in ("teacher", "baseline"):
        session = tiny_session(data, f"settings.restart={restart}", method="rml")
        session.method.start_stage(0)
        found.append(stages.sweep(session, Observer())["log_p0"].values)
        assert session.method.student_1.training
    assert torch.equal(*found)
