"""Two gloo processes make the update of one process with the whole batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fewmask.training.checkpoint import list_checkpoints
from fewmask.training.distributed import World
from tests.training.rank_checks import CASES, SHARES, normalized, trained
from tests.training.runs import NOISY, finish, newest_state, tensors, train_here, words

TOLERANCE = 1e-9
RUN = (*NOISY, "training.precision=fp64", "training.steps=5", "training.log_every=2", "settings.threshold=0.35")
RUN += ("training.diagnose_every=2", "data.labels=4")  # two hidden masks


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[key].double() - other[key].double()).abs().max().item() for key in one)


@pytest.mark.slow
def test_torchrun_with_two_processes_equals_one(data, tmp_path):
    """Mean teacher with BatchNorm, dropout, stochastic depth, color noise and boxes; masks ignore unlike amounts."""
    train_here(data, tmp_path / "one", *RUN)
    log = tmp_path / "log"
    assert finish(words(data, tmp_path / "two", *RUN), log, ranks=2) == 0, log.read_text()
    one, two = (tensors(newest_state(tmp_path / name)) for name in ("one", "two"))
    assert largest_difference(one, two) < TOLERANCE
    assert any("running_var" in key for key in one)
    lines = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert [line["step"] for line in lines[1]] == [2, 4, 5]
    for first, second in zip(*lines, strict=True):
        assert second == pytest.approx(first, rel=TOLERANCE, abs=TOLERANCE)
        assert 0 < first["trusted"] < 1  # the threshold parts the pixels, so the unlabeled loss is at work
    assert any("pseudo/accuracy" in line for line in lines[0])
    # Five images on two ranks: each counts exactly once
    assert (tmp_path / "one" / "evaluation.json").read_bytes() == (tmp_path / "two" / "evaluation.json").read_bytes()
    assert log.read_text().count("2 processes") == 1  # only the first rank speaks


@pytest.fixture(scope="module")
def ranks(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank of `rank_checks` found."""
    folder = tmp_path_factory.mktemp("ranks")
    code = finish([str(data), str(folder)], folder / "log", ranks=2, module="tests.training.rank_checks")
    assert code == 0, (folder / "log").read_text()
    found = [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in (0, 1)]
    found[0]["checkpoints"] = [path.name for path in list_checkpoints(folder / "stopped" / "checkpoints")]
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_labeled_loss_and_optimizer_is_the_same_on_two_ranks(data, ranks, case):
    alone = trained(data, case, World())
    first = ranks[0][case]
    assert largest_difference(alone, first) < TOLERANCE
    networks = {key: value for key, value in first.items() if key.startswith("student_1.")}
    assert all(torch.equal(value, ranks[1][case][key]) for key, value in networks.items())


def test_checkpointing_changes_no_bit_on_two_ranks(ranks):
    """Statistics are summed over ranks once more when blocks are computed again, and count once."""
    for found in ranks:
        plain, saving = found["pair"], found["pair again"]
        assert plain.keys() == saving.keys()
        assert [key for key in plain if not torch.equal(plain[key], saving[key])] == []


@pytest.mark.parametrize("kind", ["plain", "act"])
def test_batch_norm_sees_the_images_of_all_ranks(ranks, kind):
    """Output, input gradient, parameter gradients (a share each) and statistics, with two and four images."""
    whole = normalized(kind, (0, 6), synced=False)
    for rank, share in enumerate(SHARES):
        found = ranks[rank][kind]
        assert found.keys() == whole.keys()
        for name in ("output", "input"):
            torch.testing.assert_close(found[name], whole[name][slice(*share)], rtol=0, atol=TOLERANCE, msg=name)
        for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked", "eval"):
            torch.testing.assert_close(found[name], whole[name], rtol=0, atol=TOLERANCE, msg=name)
    for name in ("0.weight", "0.bias"):
        summed = ranks[0][kind][name] + ranks[1][kind][name]
        torch.testing.assert_close(summed, whole[name], rtol=0, atol=TOLERANCE, msg=name)


def test_sums_and_answers_are_shared(ranks):
    for found in ranks:
        assert found["sum"].tolist() == [2.0, 1.0]
        assert found["any"] == [True, True, False]


def test_a_batch_that_cannot_be_shared_is_refused_on_every_rank(ranks):
    for found in ranks:
        assert "training.batch = 5 cannot be shared by 2 processes" in found["odd batch"]
        assert "a multiple of 2" in found["odd batch"]
        assert "each of 2 gets 3" in found["odd share"]  # boxes pair the images of one process
        assert "a multiple of 4" in found["odd share"]


def test_all_ranks_stop_after_the_same_step_though_one_had_the_signal(ranks):
    assert [found["stopped"] for found in ranks] == [[3, 15], [3, 15]]
    assert ranks[0]["checkpoints"] == ["step_00000003.pt"]
