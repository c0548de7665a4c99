"""What a method makes beside its networks starts from the run's seed, as they do."""

import pytest
import torch
from torch import nn

from fewmask.methods.supervised import Supervised
from fewmask.methods.table import METHODS
from tests.training.runs import tiny_session


class WithQueue(Supervised):
    """It has a buffer that starts with random vectors, as queues of features do."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.register_buffer("queue", torch.randn(3, 8))
        self.projector = nn.Linear(8, 4)


@pytest.fixture
def queued(monkeypatch) -> str:
    monkeypatch.setitem(METHODS, "queued", WithQueue)
    return "queued"


def test_they_are_drawn_from_the_seed(data, queued):
    states = []
    for seed in (0, 0, 1):
        torch.randn(5)  # whoever else has drawn before
        states.append(tiny_session(data, f"seed={seed}", method=queued).method.state_dict())
    one, same, other = states
    assert [key for key in one if not torch.equal(one[key], same[key])] == []
    assert not torch.equal(one["queue"], other["queue"])
    assert not torch.equal(one["projector.weight"], other["projector.weight"])


def test_the_networks_of_methods_are_what_they_were(data, queued):
    """The seed of a method's own parts is no network's: both methods build the same student."""
    networks = [tiny_session(data, method=name).method.student_1.state_dict() for name in (queued, "supervised")]
    assert [key for key in networks[0] if not torch.equal(networks[0][key], networks[1][key])] == []
