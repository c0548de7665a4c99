"""What RML says of itself: the coupling of its teachers, and the pseudo labels that diagnostics look at."""

import numpy as np
import pytest
import torch
from torch import nn

from fewmask.labels import IGNORE
from fewmask.learning.prototypes import joining_images
from fewmask.methods.rml import P0
from fewmask.types import Measure
from tests.methods.pixel_rml import SIZE, batch_of, denoise_by_loop, method_of
from tests.miniature import make_progress, requests


@pytest.mark.parametrize("coupling", ["indirect_self", "direct"])
def test_coupling_is_measured(coupling: str):
    """Between the two teachers, also where students teach each other, and not on padding."""
    method, batch = method_of(coupling=coupling), batch_of()
    for student in method.students:
        nn.init.normal_(student.classify, generator=torch.Generator().manual_seed(9))
    one, other = (teacher(batch.weak).logits.softmax(1) for teacher in method.teachers)
    measures = {each.name: each for each in requests(method, batch, make_progress()) if isinstance(each, Measure)}
    apart = measures["coupling/total_variation"]
    assert (apart.total / apart.count).item() == pytest.approx(
        0.5 * (one - other).abs().sum(1)[batch.valid].mean().item()
    )


def test_diagnostics_see_what_is_taught():
    """The labels of Algorithm 1, the labels of p0 alone, and the largest weight, each by a loop over pixels."""
    method, batch = method_of(), batch_of()
    for learner, found in enumerate(method.pseudo_labels(batch)):
        teacher, center = method.teachers[learner], method.prototypes[learner].center
        assert found.source == f"teacher_{learner + 1}"
        assert np.array_equal(found.label.numpy(), denoise_by_loop(teacher, center, batch)[0])
        for n, y, x in np.ndindex(2, SIZE, SIZE):
            soft = batch.stored[P0][n, :, y, x].numpy()
            assert found.before[n, y, x] == (soft.argmax() if batch.valid[n, y, x] else IGNORE)
            feature = teacher.embed.detach().numpy() @ batch.weak[n, :, y, x].numpy()
            weight = np.exp([-np.linalg.norm(feature - each) for each in center.numpy()])
            assert found.weight[n, y, x].item() == pytest.approx(weight.max() / weight.sum(), abs=1e-6)


@pytest.mark.parametrize(("confidence", "weighs"), [("softmax", True), ("static", False), ("none", False)])
def test_diagnostics_of_other_confidences(confidence: str, weighs: bool):
    method, batch = method_of(confidence=confidence, coupling="direct"), batch_of()
    found = method.pseudo_labels(batch)[1]
    assert found.source == "student_2"
    assert torch.equal(found.label, method._denoise(1, batch, joining_images(batch, torch.tensor(0), 8)).label)
    assert torch.equal(found.label, found.before) == (confidence == "static")
    if weighs:
        own = method.student_2(batch.weak).logits.softmax(1).amax(1)
        torch.testing.assert_close(found.weight, own.to(found.weight.dtype))
    else:
        assert found.weight is None
