"""Deterministic mode on a GPU: every loss, head and store takes part, and two runs have the same bits."""

import pytest
import torch

from fewmask.determinism import deterministic
from fewmask.errors import ConfigError
from fewmask.evaluation.confusion import confusion_matrix
from fewmask.views.photometric import OPERATIONS, apply_operations
from fewmask.views.soft_label_codes import CODES
from tests.training.rank_checks import PAIR
from tests.training.runs import NOISY, REFINED, started_session, step_metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CUDA = torch.device("cuda")
FAST = ("training.capture=false", "training.deterministic=true", "training.precision=fp32")
RUNS = {
    "ohem": ("supervised", ("loss.kind=ohem", "settings.photometric=true", "views.class_crops=0.5")),
    "dice": ("supervised", ("loss.kind=dice", "loss.class_weights=inverse_frequency")),
    "stride_4": ("supervised", ("network.stride=4", "network.head=sum4")),  # features are enlarged
    "transformer": ("rml", (*PAIR, "views.crop=64x64")),
    "refining": ("rml", (*NOISY, *REFINED, "settings.spread=16", "settings.p0_scales=1.0,1.5")),
    "topk": ("rml", (*NOISY, "training.soft_labels=topk", "settings.buffers=weak", "settings.p0_flip=true")),
}


@pytest.mark.parametrize("name", RUNS)
def test_two_runs_have_the_same_bits(data, name):
    method, words = RUNS[name]
    lines = []
    for _ in range(2):
        with deterministic(True, CUDA):
            session = started_session(data, *words, *FAST, method=method, device="cuda")
            lines.append(step_metrics(session, 4))
    assert lines[0] == lines[1]


def test_what_cannot_be_deterministic_is_said(data):
    """Position embeddings of another size are resampled, and the gradient of that has no fixed order."""
    session = started_session(data, *PAIR, *FAST, method="rml", device="cuda")
    with pytest.raises(ConfigError, match="upsample_bicubic2d_aa_backward_out_cuda"), deterministic(True, CUDA):
        step_metrics(session, 1)


def test_sums_of_integers_are_those_of_the_host():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(len(OPERATIONS), 3, 40, 50, generator=generator)
    images[5, 0] = 0.5
    chosen, magnitude = torch.arange(len(OPERATIONS)), torch.full((len(OPERATIONS),), 6)
    label, prediction = torch.randint(0, 5, (2, 4, 300), generator=generator)
    rows = CODES["topk"].encode(torch.randn(90, 30, generator=generator).log_softmax(1))
    with deterministic(True, CUDA):
        found = apply_operations(*(each.cuda() for each in (images, chosen, magnitude))).cpu()
        counted = confusion_matrix(label.cuda(), prediction.cuda(), 5).cpu()
        decoded = CODES["topk"].decode(rows.cuda(), 30).cpu()
    torch.testing.assert_close(found, apply_operations(images, chosen, magnitude), rtol=0, atol=1e-5)
    assert torch.equal(counted, confusion_matrix(label, prediction, 5))
    torch.testing.assert_close(decoded, CODES["topk"].decode(rows, 30), rtol=1e-5, atol=1e-9)
